//! Merchants' webhooks: what the sender and its operator ask of the database.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sqlx::FromRow;
use sqlx::types::Json;
use time::OffsetDateTime;

use super::{Db, whole_i32};
use crate::error::Error;

/// One event on its way to one endpoint.
#[derive(Clone, PartialEq, Eq, FromRow)]
pub struct Delivery {
    /// Whose it is.
    pub endpoint_id: i64,
    /// The lease of the endpoint.
    pub lease_token: i64,
    /// Its identity.
    pub delivery_id: i64,
    /// Where it goes.
    pub url: String,
    /// What it is signed with: one, or two while one replaces the other.
    pub secrets: Vec<String>,
    /// What subscribers drop repetitions by.
    pub event_id: String,
    /// What is sent, byte for byte.
    pub body: String,
}

/// Leaves out secrets and body.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("endpoint_id", &self.endpoint_id)
            .field("delivery_id", &self.delivery_id)
            .field("event_id", &self.event_id)
            .finish_non_exhaustive()
    }
}

/// What came of one try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// Which delivery.
    pub delivery_id: i64,
    /// The HTTP status, where one came.
    pub status: Option<u16>,
    /// Why it was not taken, in a word.
    pub error: Option<String>,
    /// How long it took.
    pub took_ms: u64,
}

/// An endpoint as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
#[allow(missing_docs, reason = "columns of webhook_endpoints()")]
pub struct WebhookEndpoint {
    pub endpoint_id: i64,
    pub merchant_id: String,
    pub url: String,
    pub events: Option<Vec<String>>,
    pub disabled_why: Option<String>,
    pub failures: i32,
    pub paused_until: Option<OffsetDateTime>,
    pub pending: i64,
    pub dead: i64,
}

/// A delivery as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
#[allow(missing_docs, reason = "columns of deliveries()")]
pub struct DeliveryState {
    pub delivery_id: i64,
    pub endpoint_id: i64,
    pub event_id: String,
    pub r#type: String,
    pub status: String,
    pub tries: i32,
    pub due_at: Option<OffsetDateTime>,
    pub last_status: Option<i32>,
    pub last_error: Option<String>,
}

impl Db {
    /// Makes deliveries of new events, and takes those that are due at up to `endpoints` endpoints.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn claim_deliveries(&self, endpoints: usize, lease: Duration) -> Result<Vec<Delivery>, Error> {
        let query = sqlx::query_as("select * from paylatch.claim_deliveries($1, $2, lease_ms => $3)");
        let query = query.bind(&self.driver).bind(whole_i32(endpoints as u128)).bind(whole_i32(lease.as_millis()));
        self.rows("claim_deliveries", query).await
    }

    /// Says what came of an endpoint's deliveries, in the order in which they were sent, and ends its lease.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn settle_deliveries(&self, endpoint: i64, lease_token: i64, tried: &[Tried]) -> Result<String, Error> {
        let query = sqlx::query_as("select paylatch.settle_deliveries($1, $2, $3, $4)");
        let query = query.bind(&self.driver).bind(endpoint).bind(lease_token).bind(Json(tried));
        let (said,) = self.one("settle_deliveries", query).await?;
        Ok(said)
    }

    /// A new endpoint: its id and its secret.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn create_webhook_endpoint(
        &self,
        merchant_id: &str,
        url: &str,
        events: &[String],
    ) -> Result<(i64, String), Error> {
        let query = sqlx::query_as("select endpoint_id, secret from paylatch.create_webhook_endpoint($1, $2, $3)");
        self.one("create_webhook_endpoint", query.bind(merchant_id).bind(url).bind(events)).await
    }

    /// A new secret for an endpoint; the one before signs as well for so many hours.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn rotate_webhook_secret(&self, endpoint: i64, overlap_hours: i32) -> Result<String, Error> {
        let query = sqlx::query_as("select paylatch.rotate_webhook_secret($1, $2)").bind(endpoint).bind(overlap_hours);
        let (secret,) = self.one("rotate_webhook_secret", query).await?;
        Ok(secret)
    }

    /// Stops an endpoint. Whether it was going.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn disable_webhook_endpoint(&self, endpoint: i64, why: &str) -> Result<bool, Error> {
        let query = sqlx::query_as("select paylatch.disable_webhook_endpoint($1, $2)").bind(endpoint).bind(why);
        let (done,) = self.one("disable_webhook_endpoint", query).await?;
        Ok(done)
    }

    /// Has an endpoint go on. Whether it was stopped.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn enable_webhook_endpoint(&self, endpoint: i64) -> Result<bool, Error> {
        let query = sqlx::query_as("select paylatch.enable_webhook_endpoint($1)").bind(endpoint);
        let (done,) = self.one("enable_webhook_endpoint", query).await?;
        Ok(done)
    }

    /// Every endpoint.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn webhook_endpoints(&self) -> Result<Vec<WebhookEndpoint>, Error> {
        self.rows("webhook_endpoints", sqlx::query_as("select * from paylatch.webhook_endpoints()")).await
    }

    /// The newest deliveries: all, or of one endpoint or status.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn deliveries(&self, endpoint: Option<i64>, status: Option<&str>) -> Result<Vec<DeliveryState>, Error> {
        let query = sqlx::query_as("select * from paylatch.deliveries($1, $2)").bind(endpoint).bind(status);
        self.rows("deliveries", query).await
    }

    /// Sends again: one delivery, or all of an event. How many.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn redeliver_webhook(&self, delivery: Option<i64>, event_id: Option<&str>) -> Result<i64, Error> {
        let query = sqlx::query_as("select paylatch.redeliver_webhook($1, $2)").bind(delivery).bind(event_id);
        let (count,) = self.one("redeliver_webhook", query).await?;
        Ok(count)
    }
}
