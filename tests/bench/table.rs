//! The figures, for people and for programs.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use crate::machine::Machine;
use crate::{Load, Measured};

/// Least, median and greatest of a set.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// Of at least one figure.
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Self { min: sorted[0], median, max: sorted[sorted.len() - 1] }
    }
}

/// One line a subject; the last is the baseline of the others.
pub fn render(machine: &Machine, load: Load, names: &[&str], rounds: &[Vec<Measured>]) -> String {
    let mut text = format!(
        "\n{} cores, {}, PostgreSQL {}, {}\n{} flows a round in sets of {}, {} rounds; median (least to greatest)\n\n",
        machine.cores,
        machine.processor,
        machine.postgres,
        machine.durability,
        load.flows,
        load.batch,
        rounds[0].len()
    );
    let _ = writeln!(text, "{:<28}{:>26}{:>26}{:>22}", "", "flows/s", "WAL bytes/flow", "flows/s to baseline");
    for (at, name) in names.iter().enumerate() {
        let [speed, wal, ratio] = spreads(rounds, at);
        let _ = writeln!(text, "{name:<28}{:>26}{:>26}{:>22}", cell(speed, 0), cell(wal, 0), cell(ratio, 2));
    }
    text
}

/// The same figures, every round of them.
pub fn write_json(path: &Path, machine: &Machine, load: Load, names: &[&str], rounds: &[Vec<Measured>]) {
    let subjects: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let [speed, wal, ratio] = spreads(rounds, at);
            json!({"name": name, "flows_per_second": speed, "wal_bytes_per_flow": wal, "to_baseline": ratio,
                   "rounds": rounds[at]})
        })
        .collect();
    let all = json!({"machine": machine, "flows": load.flows, "batch": load.batch, "subjects": subjects});
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(path, format!("{all:#}\n")).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Speed, log volume, and speed against the baseline of the same round.
fn spreads(rounds: &[Vec<Measured>], at: usize) -> [Spread; 3] {
    let baseline = &rounds[rounds.len() - 1];
    [
        Spread::of(rounds[at].iter().map(|m| m.flows_per_second)),
        Spread::of(rounds[at].iter().map(|m| m.wal_bytes_per_flow)),
        Spread::of(rounds[at].iter().zip(baseline).map(|(m, b)| m.flows_per_second / b.flows_per_second)),
    ]
}

fn cell(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$} to {:.digits$})", spread.median, spread.min, spread.max)
}
