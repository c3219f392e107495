//! The figures, for people and for programs.

use serde_json::json;
use std::fmt::Write;

use crate::Run;
use crate::measure::{Series, Spread, Target};

/// One line a figure.
pub fn render(run: &Run) -> String {
    let Run { machine, options, figures, .. } = run;
    let mut text = format!(
        "\n{} cores, {}, PostgreSQL {}, {}\n{} payments a round in sets of {}, {} rounds{}; median (least to greatest), ratios taken round by round\n\n",
        machine.cores,
        machine.processor,
        machine.postgres,
        machine.durability,
        options.flows,
        options.batch,
        options.rounds,
        if options.long { ", full sizes" } else { "" }
    );
    for figure in figures {
        let _ = writeln!(text, "{:<4}{} [{}]", figure.id, figure.what, figure.unit);
        let _ = writeln!(text, "      {:<50}{}", figure.subject.name, cell(&figure.subject));
        if let Some(baseline) = &figure.baseline {
            let _ = writeln!(text, "      {:<50}{}", baseline.name, cell(baseline));
        }
        let ratio = figure.ratios().map(|ratios| format!("ratio {}", show(Spread::of(&ratios), 2)));
        let target = match figure.target {
            Target::RatioAtLeast(least) => Some(format!("target: ratio at least {least}")),
            Target::RatioAtMost(most) => Some(format!("target: ratio at most {most}")),
            Target::AtMost(most) => Some(format!("target: at most {most}")),
            Target::None => None,
        };
        let verdict = figure.is_met().map(|met| if met { "met" } else { "MISSED" }.to_owned());
        let last: Vec<_> = [ratio, target, verdict].into_iter().flatten().collect();
        if !last.is_empty() {
            let _ = writeln!(text, "      {}", last.join("; "));
        }
    }
    text
}

/// The same figures, every round of them.
pub fn write_json(run: &Run) {
    let path = &run.options.json;
    let lines: Vec<_> = run
        .figures
        .iter()
        .map(|figure| {
            let spread =
                |series: &Series| json!({"name": series.name, "rounds": series.rounds, "spread": series.spread()});
            json!({"id": figure.id, "what": figure.what, "unit": figure.unit, "subject": spread(&figure.subject),
                   "baseline": figure.baseline.as_ref().map(spread), "target": figure.target,
                   "ratio": figure.ratios().map(|ratios| Spread::of(&ratios)), "met": figure.is_met()})
        })
        .collect();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).unwrap();
    }
    let all = json!({"machine": run.machine, "options": run.options, "figures": lines, "failed": run.failed});
    std::fs::write(path, format!("{all:#}\n")).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn cell(series: &Series) -> String {
    let spread = series.spread();
    show(spread, if spread.median < 10.0 { 2 } else { 0 })
}

fn show(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$} to {:.digits$})", spread.median, spread.min, spread.max)
}
