//! Whether binary, extension and migrations belong together. One clear line says what to run if not.

use crate::db::{Db, Versions};
use crate::error::Error;

/// The version of this binary; extension and migrations carry the same.
pub const BINARY: &str = env!("CARGO_PKG_VERSION");

/// Compares the three, and the library that the server has loaded.
///
/// # Errors
/// [`Error::Version`] with what to run; or whatever kept the question from being answered.
pub async fn check(db: &Db) -> Result<(), Error> {
    let versions = db.versions().await?;
    catalog(BINARY, &versions).map_err(Error::Version)?;
    library(BINARY, &db.library_version().await?).map_err(Error::Version)?;
    // Refuses (PL007) where the extension is there but its tables are not.
    db.schema_version().await.map(|_| ())
}

fn catalog(binary: &str, versions: &Versions) -> Result<(), String> {
    let Some(extension) = &versions.extension else {
        return Err(match versions.available {
            Some(_) => "the database has no paylatch in it: run `paylatchd migrate`".to_owned(),
            None => "the database server lacks the extension paylatch: run `make extension` there".to_owned(),
        });
    };
    match order(extension, binary) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => {
            Err(format!("the database is at paylatch {extension}, this is paylatchd {binary}: run `paylatchd migrate`"))
        }
        std::cmp::Ordering::Greater => Err(format!(
            "the database is at paylatch {extension}, this is paylatchd {binary}: run paylatchd {extension}"
        )),
    }
}

fn library(binary: &str, loaded: &str) -> Result<(), String> {
    if loaded == binary {
        return Ok(());
    }
    Err(format!(
        "the database server has loaded the library of paylatch {loaded}, the database is at {binary}: \
         run `make extension` there with {binary}, then open new sessions"
    ))
}

/// Compares versions number by number, so that 0.10.0 comes after 0.9.0.
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    let numbers = |version: &str| version.split('.').map(|n| n.parse::<u64>().unwrap_or(0)).collect::<Vec<_>>();
    numbers(a).cmp(&numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(extension: Option<&str>, available: Option<&str>) -> Versions {
        Versions { extension: extension.map(str::to_owned), available: available.map(str::to_owned) }
    }

    #[test]
    fn says_what_to_run() {
        let said = |extension, available| catalog("0.9.0", &versions(extension, available)).err().unwrap_or_default();
        assert_eq!(said(Some("0.9.0"), Some("0.9.0")), "");
        assert!(said(None, None).contains("`make extension`"));
        assert!(said(None, Some("0.9.0")).contains("`paylatchd migrate`"));
        assert!(said(Some("0.8.7"), Some("0.9.0")).contains("`paylatchd migrate`"));
        assert!(said(Some("0.10.0"), Some("0.10.0")).contains("run paylatchd 0.10.0"));
        assert!(library("0.9.0", "0.8.0").is_err_and(|e| e.contains("new sessions")));
        assert_eq!(library("0.9.0", "0.9.0"), Ok(()));
    }
}
