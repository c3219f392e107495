//! `paylatchd token`: who may use the HTTP API, and for whom.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::table::{number, table};
use crate::api::token;
use crate::config::Config;
use crate::db::Db;
use crate::error::Error;

/// Makes a token and prints it, this once; what it is goes to standard error, so that the token alone can be piped on.
pub async fn create(config: &Config, merchant: &str, name: &str, rate: Option<i32>) -> Result<(), Error> {
    let db = Db::connect(&config.database, "token create").await?;
    let token = token::generate();
    let id = db.create_api_token(merchant, name, &token::digest(&token), rate).await?;
    println!("{token}");
    eprintln!("token {id}, {name:?} of merchant {merchant}: keep it now, nobody can show it again");
    Ok(())
}

/// Prints every token ever made.
pub async fn list(config: &Config) -> Result<(), Error> {
    let db = Db::connect(&config.database, "token list").await?;
    let mut shown = table(&["id", "merchant", "name", "requests/s", "made", "by", "revoked"]);
    for token in db.api_tokens().await? {
        shown.add_row([
            number(token.token_id),
            token.merchant_id.into(),
            token.name.into(),
            token.rate_per_second.map_or_else(|| number("default"), number),
            time(token.created_at).into(),
            token.created_by.into(),
            token.revoked_at.map(time).unwrap_or_default().into(),
        ]);
    }
    println!("{shown}");
    Ok(())
}

/// Ends a token.
pub async fn revoke(config: &Config, token_id: i64) -> Result<(), Error> {
    let db = Db::connect(&config.database, "token revoke").await?;
    if !db.revoke_api_token(token_id).await? {
        return Err(Error::NotFound(format!("there is no live token {token_id}; `paylatchd token list` shows them")));
    }
    println!("token {token_id} is revoked; every server has noticed within a second");
    Ok(())
}

fn time(at: OffsetDateTime) -> String {
    at.replace_nanosecond(0).ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}
