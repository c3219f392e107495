//! `paylatchd verify`: every rule of "Never", against the data.

use crate::cli::table::{number, table};
use crate::config::Config;
use crate::db::{Db, Rule};
use crate::error::Error;

/// Prints the rules one by one; an error if one is broken.
pub async fn run(config: &Config) -> Result<(), Error> {
    let db = Db::connect(&config.database, "verify").await?;
    let rules = db.verify().await?;
    print_rules(&rules);
    judge(&rules)
}

/// The rules as a table.
pub fn print_rules(rules: &[Rule]) {
    let mut shown = table(&["rule", "holds", "broken by", "what must hold"]);
    for rule in rules {
        let mut says = rule.name.clone();
        if let Some(detail) = rule.detail.as_ref().filter(|detail| !rule.ok && !detail.is_empty()) {
            says.push_str(": ");
            says.push_str(detail);
        }
        let broken = if rule.broken == 0 { String::new() } else { rule.broken.to_string() };
        shown.add_row(vec![
            number(rule.rule),
            (if rule.ok { "yes" } else { "NO" }).into(),
            number(broken),
            says.as_str().into(),
        ]);
    }
    println!("{}", shown.trim_fmt());
}

/// An error that counts the broken rules, if there are any.
pub fn judge(rules: &[Rule]) -> Result<(), Error> {
    match rules.iter().filter(|rule| !rule.ok).count() {
        0 => Ok(()),
        broken => Err(Error::Broken(format!("{broken} of {} rules broken", rules.len()))),
    }
}
