//! Events of the outbox: the next ones of a sink, and what became of them.

use std::time::Duration;

use serde_json::json;
use sqlx::FromRow;
use sqlx::types::Json;

use super::{Db, whole_i32};
use crate::error::Error;
use crate::relay::{Batch, Event};

#[derive(FromRow)]
struct EventRow {
    lease_token: i64,
    outbox_id: i64,
    event_id: String,
    kind: String,
    flow_id: i64,
    envelope: String,
}

impl Db {
    /// The next events of `sink`, leased to `relay`; none where there is nothing to publish or another relay has the
    /// lease.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn claim_events(
        &self,
        sink: &str,
        relay: &str,
        max: usize,
        lease: Duration,
    ) -> Result<Option<Batch>, Error> {
        let query = "select lease_token, outbox_id, event_id, type as kind, flow_id, envelope::text as envelope
                     from paylatch.claim_events($1, $2, $3, $4)";
        let query = sqlx::query_as(query).bind(sink).bind(relay);
        let query = query.bind(whole_i32(max as u128)).bind(whole_i32(lease.as_millis()));
        let rows: Vec<EventRow> = self.rows("claim_events", query).await?;
        let Some(lease_token) = rows.first().map(|row| row.lease_token) else { return Ok(None) };
        let event = |EventRow { outbox_id, event_id, kind, flow_id, envelope, .. }| Event {
            outbox_id,
            event_id,
            kind,
            flow_id,
            envelope,
        };
        Ok(Some(Batch { lease_token, events: rows.into_iter().map(event).collect() }))
    }

    /// Says what became of claimed events. False: another claim came in between, and nothing changed.
    ///
    /// # Errors
    /// See [`Error::class`]. Saying the same again is harmless.
    pub async fn settle_events(
        &self,
        sink: &str,
        relay: &str,
        lease_token: i64,
        published: &[i64],
        refused: &[(i64, String)],
        release: bool,
    ) -> Result<bool, Error> {
        let refused: Vec<_> =
            refused.iter().map(|(outbox_id, error)| json!({"outbox_id": outbox_id, "error": error})).collect();
        let query = sqlx::query_as("select paylatch.settle_events($1, $2, $3, $4, $5, $6)");
        let query = query.bind(sink).bind(relay).bind(lease_token).bind(published).bind(Json(refused)).bind(release);
        let (outcome,): (String,) = self.one("settle_events", query).await?;
        Ok(outcome == "settled")
    }
}
