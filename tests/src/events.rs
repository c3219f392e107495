//! Events by hand: a test that acts as a relay, one claim and one settlement at a time.

use serde_json::{Value, json};
use sqlx::{FromRow, PgConnection};

use crate::Database;

/// One event that the database handed out.
#[derive(Debug, Clone, PartialEq, FromRow)]
#[allow(missing_docs)]
pub struct Event {
    pub lease_token: i64,
    pub outbox_id: i64,
    pub event_id: String,
    #[sqlx(rename = "type")]
    pub kind: String,
    pub flow_id: i64,
    pub envelope: Value,
}

/// How far a sink is.
#[derive(Debug, Clone, PartialEq, FromRow)]
#[allow(missing_docs)]
pub struct Lag {
    pub behind: i64,
    pub gaps: i64,
    pub retrying: i64,
    pub dead: i64,
    pub oldest_age_s: f64,
}

/// Claims up to `max` events of `sink` for `relay`, for 30 s.
pub async fn claim_events(session: &mut PgConnection, sink: &str, relay: &str, max: i32) -> Vec<Event> {
    let claim = sqlx::query_as("select * from paylatch.claim_events($1, $2, $3)").bind(sink).bind(relay).bind(max);
    claim.fetch_all(session).await.unwrap_or_else(|e| panic!("claim events of {sink}: {e}"))
}

/// Says that `published` are done and that `failed` were refused. Returns what the database made of it.
pub async fn settle_events(
    session: &mut PgConnection,
    sink: &str,
    relay: &str,
    published: &[Event],
    failed: &[Event],
) -> String {
    let token = published.iter().chain(failed).map(|e| e.lease_token).next();
    let ids: Vec<i64> = published.iter().map(|e| e.outbox_id).collect();
    let failed: Vec<Value> = failed.iter().map(|e| json!({"outbox_id": e.outbox_id, "error": "refused"})).collect();
    let settle = sqlx::query_scalar("select paylatch.settle_events($1, $2, $3, $4, $5)");
    let settle = settle.bind(sink).bind(relay).bind(token).bind(ids).bind(json!(failed));
    settle.fetch_one(session).await.unwrap_or_else(|e| panic!("settle events of {sink}: {e}"))
}

/// Publishes everything there is, as one relay; returns it in order.
pub async fn drain(session: &mut PgConnection, sink: &str) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let events = claim_events(session, sink, "by-hand", 500).await;
        if events.is_empty() {
            return all;
        }
        assert_eq!(settle_events(session, sink, "by-hand", &events, &[]).await, "settled");
        all.extend(events);
    }
}

impl Database {
    /// A new sink; with `from_start` it begins with all that is kept.
    pub async fn add_sink(&self, sink: &str, from_start: bool) {
        assert!(self.value::<bool>(&format!("select paylatch.add_sink('{sink}', {from_start})")).await);
    }

    /// How far a sink is.
    pub async fn lag(&self, sink: &str) -> Lag {
        let lag = sqlx::query_as("select * from paylatch.stat_outbox where sink = $1").bind(sink);
        lag.fetch_one(self.pool()).await.unwrap_or_else(|e| panic!("lag of {sink}: {e}"))
    }

    /// The ids of all events that are kept, in the order of their numbers.
    pub async fn event_ids(&self) -> Vec<String> {
        let ids = "select paylatch.event_id(flow_id, type, ref_id, version) from paylatch.outbox order by outbox_id";
        sqlx::query_scalar(ids).fetch_all(self.pool()).await.unwrap_or_else(|e| panic!("list events: {e}"))
    }
}
