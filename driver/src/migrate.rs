//! Migrations: the data half of paylatch, embedded in this binary, applied in order and once.
//!
//! The bookkeeping lies in a schema of its own, so that a dump of schema `paylatch` holds nothing of it. Invariants:
//! one migrator at a time (an advisory lock); nothing is applied to a database that a newer binary has migrated, nor
//! over a migration whose text has changed since.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::migrate::{Migrate, MigrateError, Migration, Migrator};

use crate::error::Error;

/// Where the bookkeeping lies.
const SCHEMA: &str = "paylatch_migration";
const TABLE: &str = "paylatch_migration.applied";

static EMBEDDED: Migrator = sqlx::migrate!("../migrations");

/// One migration that was applied just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number and subject.
    pub name: String,
    /// How long it took.
    pub took: Duration,
}

/// Applies what is missing, telling each step to `tell` as it is done. Returns how many were applied already.
///
/// # Errors
/// [`Error::Version`] where the database does not belong to this binary, [`Error::Migration`] where a step failed; the
/// steps before it stay.
pub async fn run(session: &mut PgConnection, mut tell: impl FnMut(&Applied)) -> Result<usize, Error> {
    let prepare = |source| Error::Migration { migration: "bookkeeping".to_owned(), source };
    // Held until the session ends, so no path out of here can forget it.
    session.lock().await.map_err(prepare)?;
    session.create_schema_if_not_exists(SCHEMA).await.map_err(prepare)?;
    session.ensure_migrations_table(TABLE).await.map_err(prepare)?;
    let applied = session.list_applied_migrations(TABLE).await.map_err(prepare)?;
    let applied: BTreeMap<i64, Vec<u8>> = applied.into_iter().map(|m| (m.version, m.checksum.to_vec())).collect();
    let known: Vec<(i64, &[u8])> = EMBEDDED.iter().map(|m| (m.version, &*m.checksum)).collect();
    let next = first_missing(&known, &applied).map_err(Error::Version)?;
    for migration in EMBEDDED.iter().skip(next) {
        let took = session.apply(TABLE, migration).await.map_err(|source| failed(migration, source))?;
        tell(&Applied { name: name(migration), took });
    }
    Ok(next)
}

/// How many migrations this binary holds.
pub fn count() -> usize {
    EMBEDDED.iter().count()
}

fn name(migration: &Migration) -> String {
    format!("{:04}_{}", migration.version, migration.description.replace(' ', "_"))
}

fn failed(migration: &Migration, source: MigrateError) -> Error {
    Error::Migration { migration: name(migration), source }
}

/// How many of the `known` migrations are applied; the first that is not comes at that place. Refuses a database whose
/// history is not a beginning of ours.
fn first_missing(known: &[(i64, &[u8])], applied: &BTreeMap<i64, Vec<u8>>) -> Result<usize, String> {
    let newest = known.last().map_or(0, |(version, _)| *version);
    if let Some(beyond) = applied.keys().find(|version| **version > newest) {
        return Err(format!(
            "the database has migration {beyond:04}, this paylatchd knows none beyond {newest:04}: run a newer paylatchd"
        ));
    }
    for (place, (version, checksum)) in known.iter().enumerate() {
        match applied.get(version) {
            Some(stored) if stored == checksum => {}
            Some(_) => {
                return Err(format!(
                    "migration {version:04} was applied with another text: run the paylatchd that applied it, or a newer one"
                ));
            }
            None if applied.keys().any(|later| later > version) => {
                return Err(format!(
                    "migration {version:04} was never applied, but later ones were: restore a consistent backup"
                ));
            }
            None => return Ok(place),
        }
    }
    Ok(known.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[(i64, &[u8])] = &[(1, b"a"), (2, b"b"), (3, b"c")];

    fn place(applied: &[(i64, &str)]) -> Result<usize, String> {
        let applied = applied.iter().map(|(version, sum)| (*version, sum.as_bytes().to_vec())).collect();
        first_missing(KNOWN, &applied)
    }

    #[test]
    fn goes_on_where_the_last_run_ended() {
        assert_eq!(place(&[]), Ok(0));
        assert_eq!(place(&[(1, "a")]), Ok(1));
        assert_eq!(place(&[(1, "a"), (2, "b"), (3, "c")]), Ok(3));
    }

    #[test]
    fn refuses_another_history() {
        assert!(place(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]).is_err_and(|e| e.contains("run a newer paylatchd")));
        assert!(place(&[(1, "x")]).is_err_and(|e| e.contains("another text")));
        assert!(place(&[(1, "a"), (3, "c")]).is_err_and(|e| e.contains("0002 was never applied")));
    }

    #[test]
    fn numbers_have_no_gap() {
        let versions: Vec<_> = EMBEDDED.iter().map(|m| m.version).collect();
        assert_eq!(versions, (1..=i64::try_from(count()).unwrap_or_default()).collect::<Vec<_>>());
    }
}
