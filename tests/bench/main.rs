//! The benchmark: every figure beside its baseline, in the same run, over several rounds.
//!
//! Machines are shared and noisy, so a figure alone says little; rounds alternate between a subject and its baseline
//! and the table gives medians, spreads and the ratio of each pair. More figures fit in as more [`Subject`]s.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to say")]

mod floor;
mod machine;
mod table;
mod whole_life;

use clap::Parser;
use futures::future::LocalBoxFuture;
use paylatch_tests::Database;

/// Measures paylatch against bare SQL that writes the same rows.
#[derive(Debug, Parser)]
struct Args {
    /// Payments per round.
    #[arg(long, default_value_t = 20_000)]
    flows: i64,
    /// Payments written or claimed with one statement.
    #[arg(long, default_value_t = 200)]
    batch: i64,
    /// Rounds; each measures every subject once, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: std::path::PathBuf,
}

/// What one round of one subject gave.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct Measured {
    /// Payments a second, from the first creation to the last BIZ_SUCCESS.
    flows_per_second: f64,
    /// Bytes of write-ahead log for each payment.
    wal_bytes_per_flow: f64,
}

/// How much to do in one round.
#[derive(Debug, Clone, Copy)]
struct Load {
    flows: i64,
    batch: i64,
}

/// Something that takes payments through their whole life.
trait Subject {
    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// Takes `load` through its whole life; runs against a database that earlier rounds have filled.
    fn round<'a>(&'a self, db: &'a Database, load: Load) -> LocalBoxFuture<'a, Measured>;
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    paylatchd::endpoint::install_crypto();
    let db = Database::fresh().await;
    floor::prepare(&db).await;
    whole_life::prepare(&db).await;
    let floor = floor::Floor::default();
    let subjects: [&dyn Subject; 2] = [&whole_life::WholeLife, &floor];

    // Whole sets only.
    let in_sets = |flows: i64| (flows / args.batch).max(1) * args.batch;
    let load = Load { flows: in_sets(args.flows), batch: args.batch };
    let warm = Load { flows: in_sets(args.flows / 10), ..load };
    let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); subjects.len()];
    for round in 0..=args.rounds {
        for (subject, figures) in subjects.iter().zip(&mut rounds) {
            let measured = subject.round(&db, if round == 0 { warm } else { load }).await;
            if round == 0 {
                continue; // plans, caches and files are warm now
            }
            eprintln!(
                "round {round}/{}: {:<24} {:>8.0} flows/s",
                args.rounds,
                subject.name(),
                measured.flows_per_second
            );
            figures.push(measured);
        }
    }
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name()).collect();
    let machine = machine::describe(&db).await;
    print!("{}", table::render(&machine, load, &names, &rounds));
    table::write_json(&args.json, &machine, load, &names, &rounds);
}
