//! What can go wrong in the daemon, and what to do about it.
//!
//! Invariant: what an error of the database means is read from its SQLSTATE, never from its message. Nothing here
//! holds a password, a token or a payload.

use std::time::Duration;

use paylatch_core::words::UnknownWord;
use serde::Deserialize;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use crate::config::ConfigError;
use crate::endpoint::EndpointError;
use crate::simulate::{SimAdminError, SimulateError};

/// Every way in which a command of `paylatchd` can fail.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A wallet or business of the configuration cannot be opened.
    #[error("[{section}]: {source}")]
    Endpoint {
        /// Its section, such as `wallet.sim`.
        section: String,
        /// Why not.
        source: EndpointError,
    },
    /// The database refused a command, or could not be reached.
    #[error("{command}: {}", said(source))]
    Database {
        /// The command, as a person would name it.
        command: &'static str,
        /// What the driver of the protocol said.
        source: sqlx::Error,
    },
    /// The database did not answer in time; whether the command took effect is not known.
    #[error("{command}: the database did not answer within {} ms", within.as_millis())]
    Silent {
        /// The command, as a person would name it.
        command: &'static str,
        /// How long it was given.
        within: Duration,
    },
    /// The database used a word that this binary does not know.
    #[error("{command}: {source}")]
    Word {
        /// The command, as a person would name it.
        command: &'static str,
        /// The word.
        source: UnknownWord,
    },
    /// A migration failed; the ones before it are applied.
    #[error("migration {migration}: {}", migrate_said(source))]
    Migration {
        /// Its number and subject.
        migration: String,
        /// What the database said.
        source: MigrateError,
    },
    /// Binary, extension and migrations do not belong together.
    #[error("{0}")]
    Version(String),
    /// A file, a socket or a process of this machine.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The simulator cannot run.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// A running simulator cannot be commanded.
    #[error(transparent)]
    SimulatorAdmin(#[from] SimAdminError),
    /// What the command looked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// The command cannot do its work this way.
    #[error("{0}")]
    Refused(String),
    /// The command ran, and what it found is not as it must be.
    #[error("{0}")]
    Broken(String),
    /// A task of our own ended in a panic.
    #[error("a task of the daemon panicked: {0}")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Why a command of ours refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// In words.
    pub message: String,
    /// The argument that it is about.
    pub field: Option<String>,
    /// The arguments that differ from an earlier request under the same key.
    pub fields: Vec<String>,
}

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Do the same again, a little later.
    Retry,
    /// Somebody else was first: look again before deciding anything.
    Conflict,
    /// It will be refused until an argument or the set-up changes.
    Reject,
    /// It should be impossible.
    Bug,
}

impl Error {
    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Database { source, .. } => class_of(source),
            Self::Migration { source: MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _), .. } => {
                class_of(e)
            }
            Self::Silent { .. } => Class::Retry,
            Self::Word { .. } | Self::Panicked(_) => Class::Bug,
            _ => Class::Reject,
        }
    }

    /// The five characters that the database gave, where it was the database that refused.
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Database { source, .. }
            | Self::Migration {
                source: MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
                ..
            } => Some(source.as_database_error()?.code()?.into_owned()),
            _ => None,
        }
    }

    /// What a person should do, where that is known. Such an error lies in how things are set up, not in what was
    /// asked: it goes away without the daemon changing anything.
    pub fn advice(&self) -> Option<&'static str> {
        advice(&self.sqlstate()?)
    }

    /// What a command of ours said when it refused, with what its DETAIL names; of no other error.
    pub fn refusal(&self) -> Option<Refusal> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Detail {
            field: Option<String>,
            fields: Vec<String>,
        }
        let Self::Database { source: sqlx::Error::Database(e), .. } = self else { return None };
        let detail = e.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::detail);
        e.code().filter(|code| code.starts_with("PL"))?;
        let Detail { field, fields } = detail.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        Some(Refusal { message: e.message().to_owned(), field, fields })
    }

    /// Wraps a failure of the operating system.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// What the database said, with its hint, but without the place in our own SQL where it said so.
fn said(error: &sqlx::Error) -> String {
    let sqlx::Error::Database(e) = error else { return error.to_string() };
    let hint = e.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint);
    let code = e.code().unwrap_or_default();
    match hint {
        Some(hint) => format!("{} ({hint}) [{code}]", e.message()),
        None => format!("{} [{code}]", e.message()),
    }
}

fn migrate_said(error: &MigrateError) -> String {
    match error {
        MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _) => said(e),
        other => other.to_string(),
    }
}

fn class_of(error: &sqlx::Error) -> Class {
    match error {
        sqlx::Error::Database(e) => e.code().map_or(Class::Bug, |code| class_of_sqlstate(&code)),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
            Class::Retry
        }
        // A server that dies in the middle of an answer leaves half a message.
        sqlx::Error::Protocol(_) => Class::Retry,
        sqlx::Error::Configuration(_) | sqlx::Error::PoolClosed => Class::Reject,
        _ => Class::Bug,
    }
}

/// The class of a SQLSTATE.
pub fn class_of_sqlstate(code: &str) -> Class {
    match code {
        "PL001" | "PL002" | "PL003" | "PL006" => Class::Conflict,
        // Statement time-out, lock time-out, and a primary that has become a standby.
        "57014" | "55P03" | "25006" => Class::Retry,
        _ if code.starts_with("57P0") => Class::Retry,
        _ if matches!(code.get(..2), Some("08" | "40" | "53")) => Class::Retry,
        _ if code.starts_with("PL") || advice(code).is_some() => Class::Reject,
        _ => Class::Bug,
    }
}

/// What to run for a SQLSTATE that says that something was not set up.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "PL007" => "run `paylatchd migrate`; in a copy of another database, `select paylatch.arm()` once you own it",
        "42883" | "42P01" | "42703" | "3F000" => "run `paylatchd migrate`: the database lacks what this binary calls",
        "42501" => "grant the login role of database.url what it needs: `grant paylatch_driver to ROLE`",
        "28000" | "28P01" => "check user and password in database.url, and the server's pg_hba.conf",
        "3D000" => "create the database that database.url names: `createdb NAME`",
        "0A000" | "58P01" => "install the extension on the database server first: `make extension`",
        "22023" => "install the version of the extension that belongs to this binary: `make extension`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlstate_alone_decides() {
        for code in ["40001", "40P01", "08006", "57P01", "57P02", "57P03", "53300", "53100", "57014", "25006"] {
            assert_eq!(class_of_sqlstate(code), Class::Retry, "{code}");
        }
        for code in ["PL001", "PL002", "PL003", "PL006"] {
            assert_eq!(class_of_sqlstate(code), Class::Conflict, "{code}");
        }
        for code in ["PL004", "PL005", "PL007", "PL008", "42883", "42501", "28P01", "3D000"] {
            assert_eq!(class_of_sqlstate(code), Class::Reject, "{code}");
        }
        for code in ["XX000", "23505", "23514", "22P02", "", "?"] {
            assert_eq!(class_of_sqlstate(code), Class::Bug, "{code}");
        }
    }

    #[test]
    fn every_code_of_ours_has_a_class_of_its_own() {
        for state in paylatch_core::sqlstate::ALL.iter().filter(|s| s.code.starts_with("PL")) {
            assert_ne!(class_of_sqlstate(state.code), Class::Bug, "{}: {}", state.code, state.meaning);
        }
    }

    #[test]
    fn a_lost_connection_is_worth_another_try() {
        let lost = |source| Error::Database { command: "claim_actions", source };
        assert_eq!(lost(sqlx::Error::PoolTimedOut).class(), Class::Retry);
        assert_eq!(lost(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())).class(), Class::Retry);
        assert_eq!(lost(sqlx::Error::RowNotFound).class(), Class::Bug);
        assert_eq!(Error::Silent { command: "claim_actions", within: Duration::from_secs(1) }.class(), Class::Retry);
    }

    #[test]
    fn what_is_not_set_up_says_what_to_run() {
        for code in ["PL007", "42883", "42501"] {
            assert!(advice(code).is_some(), "{code}");
        }
        assert_eq!(advice("XX000"), None);
    }
}
