//! `paylatchd doctor`: is everything in place for money to move?
//!
//! The database looks at itself (`paylatch.doctor()`); from outside come the way to it, the versions, the clocks, and
//! whether the configuration serves what the database expects of it.

use comfy_table::Cell;

use crate::cli::doctor_outside as outside;
use crate::cli::table::table;
use crate::compat;
use crate::config::Config;
use crate::db::{Check, Db};
use crate::error::Error;

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but look at it.
    Warn,
    /// Does not work.
    Error,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How good or bad.
    pub level: Level,
    /// What was looked at.
    pub what: String,
    /// In words, with what to do.
    pub says: String,
}

impl Finding {
    /// A finding in words.
    pub fn new(level: Level, what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { level, what: what.into(), says: says.into() }
    }

    /// What a failed check says, with the advice that belongs to it.
    pub fn failed(what: impl Into<String>, error: &Error) -> Self {
        let advice = error.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
        Self::new(Level::Error, what, format!("{error}{advice}"))
    }
}

impl From<Check> for Finding {
    fn from(check: Check) -> Self {
        let level = match (check.ok, check.level.as_str()) {
            (true, _) | (false, "info") => Level::Ok,
            (false, "warn") => Level::Warn,
            (false, _) => Level::Error,
        };
        Self::new(level, check.check_name, check.says)
    }
}

/// Prints what was found; an error if something does not work.
pub async fn run(config: &Config) -> Result<(), Error> {
    let findings = examine(config).await;
    let mut shown = table(&["", "what", "found"]);
    for finding in &findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Error => "ERROR",
        };
        shown.add_row(vec![Cell::new(level), Cell::new(&finding.what), Cell::new(&finding.says)]);
    }
    println!("{}", shown.trim_fmt());
    match findings.iter().filter(|finding| finding.level == Level::Error).count() {
        0 => Ok(()),
        errors => Err(Error::Broken(format!("{errors} of {} findings are errors", findings.len()))),
    }
}

async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let connected = async {
        let db = Db::connect(&config.database, "doctor").await?;
        let server = db.server().await?;
        Ok::<_, Error>((db, server))
    };
    let (db, server) = match connected.await {
        Ok(connected) => connected,
        Err(error) => {
            // Without a connection there is nothing more to see, except the way to the counterparties.
            findings.push(Finding::failed("connection", &error));
            findings.extend(outside::counterparties(config).await);
            return findings;
        }
    };
    let says = format!("PostgreSQL {}, database {}, user {}", server.version, server.database, server.user);
    findings.push(if server.in_recovery {
        Finding::new(Level::Error, "connection", format!("{says}: a standby, which takes no writes"))
    } else {
        Finding::new(Level::Ok, "connection", says)
    });
    findings.push(outside::pooler(&config.database).await);
    findings.push(outside::clocks(&db).await);
    match compat::check(&db).await {
        Ok(()) => {
            findings.push(Finding::new(Level::Ok, "binary", format!("it and the database are at {}", compat::BINARY)));
            match db.doctor().await {
                Ok(checks) => findings.extend(checks.into_iter().map(Finding::from)),
                Err(error) => findings.push(Finding::failed("the database's own view", &error)),
            }
            match db.policy_endpoints().await {
                Ok(expected) => findings.extend(outside::coverage(config, &expected)),
                Err(error) => findings.push(Finding::failed("what the configuration must serve", &error)),
            }
        }
        Err(error) => findings.push(Finding::failed("binary", &error)),
    }
    findings.extend(outside::counterparties(config).await);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_holds_is_fine_whatever_its_level() {
        let level = |ok, level: &str| {
            Finding::from(Check { check_name: "c".into(), ok, level: level.into(), says: "s".into() }).level
        };
        assert_eq!(level(true, "error"), Level::Ok);
        assert_eq!(level(false, "info"), Level::Ok);
        assert_eq!(level(false, "warn"), Level::Warn);
        assert_eq!(level(false, "error"), Level::Error);
        assert_eq!(level(false, "a level of a newer database"), Level::Error);
    }
}
