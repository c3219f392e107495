//! `paylatchd migrate`.

use crate::config::Config;
use crate::db::Db;
use crate::error::Error;
use crate::{compat, migrate};

/// Brings the database to this version, and says each step.
pub async fn run(config: &Config) -> Result<(), Error> {
    if config.database.transaction_pooling {
        let problem = "migrate holds a lock of its session: go past the pooler, by --database-url of the server itself, \
                       with database.transaction_pooling = false";
        return Err(Error::Refused(problem.to_owned()));
    }
    let mut session = Db::session(&config.database, "migrate").await?;
    let before = migrate::run(&mut session, |applied| {
        println!("applied {} in {} ms", applied.name, applied.took.as_millis());
    })
    .await?;
    if before == migrate::count() {
        println!("nothing to do: the database is at {}, {before} migrations", compat::BINARY);
    } else {
        println!("the database is at {}, {} migrations", compat::BINARY, migrate::count());
    }
    Ok(())
}
