//! The benchmark: every figure beside its baseline, in the same run, over several rounds.
//!
//! Machines are shared and noisy, so a figure alone says little; rounds alternate between a subject and its baseline
//! and the table gives medians, spreads and the ratio of each pair. Missing a target fails nothing: timings are no test.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to say")]

mod cpu;
mod create;
mod external;
mod floor;
mod guard;
mod history;
mod http;
mod latency;
mod life;
mod machine;
mod measure;
mod memory;
mod plot;
mod snapshot;
mod table;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use futures::FutureExt;
use paylatch_tests::Database;

use crate::measure::Figure;

/// What can be asked for with --only.
const SUBJECTS: [&str; 12] = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "plots"];

/// Measures paylatch against bare SQL, the article's service and others.
#[derive(Debug, Clone, Parser, serde::Serialize)]
pub struct Args {
    /// The figures to take, as s1,s3; s1 and s4 come from the same rounds. Without it: all but the peers.
    #[arg(long, value_delimiter = ',', value_parser = SUBJECTS, ignore_case = true)]
    only: Vec<String>,
    /// Payments per round of whole lives.
    #[arg(long, default_value_t = 20_000)]
    flows: i64,
    /// Payments created or claimed with one statement.
    #[arg(long, default_value_t = 200)]
    batch: i64,
    /// Rounds; each measures a subject and its baseline once, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Full sizes: 5,000,000 finished flows, a snapshot held for ten minutes.
    #[arg(long)]
    long: bool,
    /// Only s2, against dbos, graphile-worker and pg-boss.
    #[arg(long)]
    peers: bool,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Where pictures go.
    #[arg(long, default_value = "target/bench")]
    plots: PathBuf,
}

impl Args {
    /// So many payments, in whole sets.
    fn whole_sets(&self, flows: i64) -> i64 {
        (flows / self.batch).max(1) * self.batch
    }

    fn wants(&self, figure: &str) -> bool {
        if self.peers || figure == "peers" {
            return self.peers && figure == "peers";
        }
        let only = self.only.iter().map(|only| if only == "s4" { "s1" } else { only.as_str() });
        self.only.is_empty() || only.into_iter().any(|only| only.eq_ignore_ascii_case(figure))
    }
}

/// Progress, on standard error.
pub fn say(what: &str) {
    eprintln!("bench: {what}");
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    paylatchd::endpoint::install_crypto();
    let machine = {
        let db = Database::empty().await;
        machine::describe(&db).await
    };
    let mut run = Run { machine, options: args.clone(), figures: Vec::new(), failed: Vec::new() };
    run.take("s1", async || life::figures(&args).await).await;
    run.take("s2", async || http::others(&args, &[external::ARTICLE]).await).await;
    run.take("peers", async || http::others(&args, &external::PEERS).await).await;
    run.take("s3", async || create::figures(&args).await).await;
    run.take("s5", async || guard::figures(&args).await).await;
    run.take("s6", async || latency::figures(&args).await).await;
    run.take("s7", async || history::figures(&args).await).await;
    run.take("s8", async || snapshot::figures(&args).await).await;
    run.take("s9", async || http::figures(&args).await).await;
    run.take("s10", async || memory::figures(&args).await).await;
    run.take("s11", async || life::two_daemons(&args).await).await;
    run.take("plots", async || plots(&args).await).await;
    print!("{}", table::render(&run));
    assert!(run.failed.is_empty(), "these could not be taken: {}", run.failed.join(", "));
}

/// Draws both sweeps; they are no figures of the table.
async fn plots(args: &Args) -> Vec<Figure> {
    std::fs::create_dir_all(&args.plots).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    plot::throughput(&args.plots.join("throughput.svg"), cores, &life::sweep(args).await);
    plot::latency(&args.plots.join("latency.svg"), cores, &latency::sweep().await);
    say(&format!("pictures are in {}", args.plots.display()));
    Vec::new()
}

/// What one run has taken so far.
#[derive(Debug, serde::Serialize)]
pub struct Run {
    machine: machine::Machine,
    options: Args,
    figures: Vec<Figure>,
    failed: Vec<&'static str>,
}

impl Run {
    /// Takes one subject's figures, if they are wanted. One that breaks costs the others nothing, and what is there so far
    /// is on disk: a run is long.
    async fn take(&mut self, name: &'static str, figures: impl AsyncFnOnce() -> Vec<Figure>) {
        if !self.options.wants(name) {
            return;
        }
        let began = Instant::now();
        match AssertUnwindSafe(figures()).catch_unwind().await {
            Ok(figures) => self.figures.extend(figures),
            Err(_) => self.failed.push(name),
        }
        table::write_json(self);
        say(&format!("{name} took {:.0} s", began.elapsed().as_secs_f64()));
    }
}
