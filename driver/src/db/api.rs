//! What the HTTP API asks of the database.

use std::time::Duration;

use sqlx::FromRow;
use sqlx::postgres::PgPoolOptions;

use super::{Db, connect_options};
use crate::config;
use crate::error::Error;

/// What the database knows of an API token.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct KnownToken {
    /// Its identity.
    pub token_id: i64,
    /// Whom it acts for.
    pub merchant_id: String,
    /// What it was called when it was made.
    pub name: String,
    /// Requests a second, if it has a rate of its own.
    pub rate_per_second: Option<i32>,
}

impl Db {
    /// The API's own pool, beside the worker's: a statement gives up on a lock and on its own length sooner than a
    /// client gives up on its answer.
    ///
    /// # Errors
    /// `database.url` is not a URL.
    pub fn serving(settings: &config::Database, api: &config::Api, driver: &str) -> Result<Self, Error> {
        let mut options = connect_options(settings, driver)?;
        let timeout = Duration::from_millis(api.request_timeout_ms);
        let limits = [("lock_timeout", api.lock_timeout_ms), ("statement_timeout", api.request_timeout_ms)];
        // A pooler may refuse these with the start-up; it gets them with each transaction.
        if !settings.transaction_pooling {
            options = options.options(limits.map(|(name, ms)| (name, ms.to_string())));
        }
        let pool = PgPoolOptions::new()
            .max_connections(api.database_connections)
            .acquire_timeout(timeout)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let transaction_limits =
            format!("set local lock_timeout = {}; set local statement_timeout = {}", limits[0].1, limits[1].1);
        Ok(Self {
            pool,
            driver: driver.to_owned(),
            timeout,
            transaction_pooling: settings.transaction_pooling,
            transaction_limits: Some(transaction_limits.into()),
        })
    }

    /// Whose token has this digest.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn authenticate(&self, digest: &[u8; 32]) -> Result<Option<KnownToken>, Error> {
        let query = "select token_id, merchant_id, name, rate_per_second from paylatch.authenticate($1)";
        let rows = self.rows("authenticate", sqlx::query_as(query).bind(&digest[..])).await?;
        Ok(rows.into_iter().next())
    }

    /// Whether no token was ever made.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn api_is_open(&self) -> Result<bool, Error> {
        let (open,) = self.one("api_is_open", sqlx::query_as("select paylatch.api_is_open()")).await?;
        Ok(open)
    }
}
