//! `paylatchd migrate`.

use crate::config::Config;
use crate::db::Db;
use crate::error::Error;
use crate::{compat, migrate};

/// Brings the database to this version, and says each step.
pub async fn run(config: &Config) -> Result<(), Error> {
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
