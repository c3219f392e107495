//! What the demo shows: a line while it runs, tables at the end.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use paylatch_core::flow::Status;
use paylatch_core::money;

use super::after_sale::{AfterSale, Raced};
use super::compare::{Comparison, Money, Refund};
use super::judge::Count;
use crate::cli::table::{number, table};
use crate::db::{LostAnswers, Standing};
use crate::simulate::{Effects, Op};

/// Without a terminal, a line every so often.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// One line that shows where the payments stand, refreshed in place on a terminal.
pub struct Progress {
    begun: Instant,
    in_place: bool,
    last_line: Option<Instant>,
}

impl Progress {
    /// Counts time from `begun`.
    pub fn new(begun: Instant) -> Self {
        Self { begun, in_place: std::io::stdout().is_terminal(), last_line: None }
    }

    /// Shows how many payments stand where, and what else is on its way.
    pub fn show(&mut self, created: usize, standing: &[Standing], rest: &str) {
        let counts = Status::ALL.iter().map(|status| format!("{status} {}", count(standing, *status)));
        let frozen: i64 = standing.iter().filter(|s| s.frozen).map(|s| s.flows).sum();
        let mut line = format!("{:>5.1} s  {created} created: ", self.begun.elapsed().as_secs_f64());
        line.push_str(&counts.collect::<Vec<_>>().join("  "));
        if frozen > 0 {
            line.push_str(&format!("  ({frozen} wait for a person)"));
        }
        if !rest.is_empty() {
            line.push_str(&format!("  and {rest}"));
        }
        if self.in_place {
            print!("\r\x1b[K{line}");
            let _ = std::io::stdout().flush();
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            println!("{line}");
            self.last_line = Some(crate::clock::instant());
        }
    }

    /// Says what is done to the system meanwhile.
    pub fn event(&mut self, what: &str) {
        let clear = if self.in_place { "\r\x1b[K" } else { "" };
        println!("{clear}{:>5.1} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Leaves the last line standing.
    pub fn done(&mut self, created: usize, standing: &[Standing]) {
        self.last_line = None;
        self.show(created, standing, "");
        if self.in_place {
            println!();
        }
    }
}

/// How many payments stand at `status`.
pub fn count(standing: &[Standing], status: Status) -> i64 {
    standing.iter().filter(|s| s.status == status.as_str()).map(|s| s.flows).sum()
}

/// How many payments have not ended.
pub fn unfinished(standing: &[Standing]) -> i64 {
    standing.iter().filter(|s| !s.status.parse().is_ok_and(Status::is_terminal)).map(|s| s.flows).sum()
}

/// Where every payment ended, by scene, currency and state.
pub fn standing_table(standing: &[Standing]) {
    let mut rows: Vec<_> = standing.iter().collect();
    let place = |s: &Standing| Status::ALL.iter().position(|status| status.as_str() == s.status);
    rows.sort_by(|a, b| (&a.scene, &a.currency, place(a)).cmp(&(&b.scene, &b.currency, place(b))));
    let mut shown = table(&["scene", "state", "payments", "money"]);
    for row in rows {
        let state = if row.frozen { format!("{} (waits for a person)", row.status) } else { row.status.clone() };
        shown.add_row(vec![row.scene.as_str().into(), state.into(), number(row.flows), number(&row.shown)]);
    }
    println!("\nWhere the payments ended\n{}", shown.trim_fmt());
}

/// The money that moved, by currency.
pub fn money_table(found: &Comparison) {
    let mut shown = table(&["", "by the wallet's count", "by the database"]);
    for (what, wallet, database) in [
        ("charged", &found.wallet_charged, &found.database_charged),
        ("refunded", &found.wallet_refunded, &found.database_refunded),
    ] {
        let currencies: std::collections::BTreeSet<_> = wallet.keys().chain(database.keys()).collect();
        for currency in currencies {
            shown.add_row(vec![what.into(), number(amount(wallet, currency)), number(amount(database, currency))]);
        }
    }
    println!("\nThe customers' money\n{}", shown.trim_fmt());
}

/// Everything that was counted in two places, and where the two do not agree.
pub fn counts_table(counts: &[Count]) {
    let mut shown = table(&["counted twice", "outside", "in the database", "differ"]);
    for Count { what, there, here, differences } in counts {
        shown.add_row(vec![(*what).into(), there.into(), here.into(), number(differences.len())]);
    }
    println!("\n{}", shown.trim_fmt());
    for difference in counts.iter().flat_map(|count| count.differences.iter().take(10)) {
        println!("  {difference}");
    }
}

/// What customers asked for after they had paid.
pub fn after_sale(customers: &AfterSale, raced: &Raced, refunds: &[Refund]) {
    let failed = refunds.iter().filter(|refund| refund.status == "FAILED").count();
    println!(
        "Of those who had paid, {} asked for money back, {} asked twice under one key, and for {} payments {} requests raced\n\
         each other. {} refunds came of all that; the wallet refused {failed} of them.",
        customers.once,
        customers.twice,
        raced.races,
        raced.requests,
        refunds.len()
    );
}

fn amount(money: &Money, currency: &str) -> String {
    let minor_units = money.get(currency).copied().unwrap_or(0);
    money::format(minor_units, money::minor_unit_digits(currency).unwrap_or(0), currency)
}

/// What had to be lived through.
pub fn hardship(effects: &Effects, lost: &[LostAnswers]) {
    let asked = |op| effects.requests.get(&op).copied().unwrap_or(0);
    let moved = effects.charges.values().map(|effect| u64::from(effect.count)).sum::<u64>();
    let total: i64 = lost.iter().map(|l| l.answers).sum();
    let lost: Vec<_> = lost.iter().map(|l| format!("{} to {}", l.answers, l.action)).collect();
    println!(
        "\nThe wallet was asked {} times to charge and took money {moved} times. {total} answers were lost on the way: {}.",
        asked(Op::Charge),
        if lost.is_empty() { "none".to_owned() } else { lost.join(", ") }
    );
}
