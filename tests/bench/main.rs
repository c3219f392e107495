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

use std::path::PathBuf;

use clap::Parser;
use paylatch_tests::Database;

/// Measures paylatch against bare SQL, the article's service and others.
#[derive(Debug, Parser)]
pub struct Args {
    /// The figures to take, as s1,s3: s1 (with s4), s2, s3, s5 to s11, plots. Without it: all but the peers.
    #[arg(long, value_delimiter = ',')]
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
        if self.peers {
            figure == "peers"
        } else {
            figure != "peers" && (self.only.is_empty() || self.only.iter().any(|only| only == figure))
        }
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
    let mut figures = Vec::new();
    if args.wants("s1") || args.wants("s4") {
        figures.extend(life::figures(&args).await);
    }
    if args.wants("s2") {
        figures.extend(http::others(&args, &[external::ARTICLE]).await);
    }
    if args.wants("peers") {
        figures.extend(http::others(&args, &external::PEERS).await);
    }
    if args.wants("s3") {
        figures.extend(create::figures(&args).await);
    }
    if args.wants("s5") {
        figures.extend(guard::figures(&args).await);
    }
    if args.wants("s6") {
        figures.extend(latency::figures(&args).await);
    }
    if args.wants("s7") {
        figures.extend(history::figures(&args).await);
    }
    if args.wants("s8") {
        figures.extend(snapshot::figures(&args).await);
    }
    if args.wants("s9") {
        figures.extend(http::figures(&args).await);
    }
    if args.wants("s10") {
        figures.extend(memory::figures(&args).await);
    }
    if args.wants("s11") {
        figures.extend(life::two_daemons(&args).await);
    }
    if args.wants("plots") {
        std::fs::create_dir_all(&args.plots).unwrap();
        plot::throughput(&args.plots.join("throughput.svg"), &life::sweep(&args).await);
        plot::latency(&args.plots.join("latency.svg"), &latency::sweep().await);
        say(&format!("pictures are in {}", args.plots.display()));
    }
    print!("{}", table::render(&machine, &figures));
    table::write_json(&args.json, &machine, &figures);
}
