//! Merchants' webhooks: events become deliveries in the database, and a daemon sends them.

mod receiver;
mod retries;
mod sending;

use paylatch_tests::Database;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

/// A delivery as a sender gets it.
#[derive(Debug, Clone, FromRow)]
struct Handed {
    endpoint_id: i64,
    lease_token: i64,
    delivery_id: i64,
    url: String,
    secrets: Vec<String>,
    event_id: String,
    body: String,
}

/// An endpoint of the merchant `default`: its id and its secret.
async fn add_endpoint(db: &Database, url: &str, events: &str) -> (i64, String) {
    let add = format!("select * from paylatch.create_webhook_endpoint('default', '{url}', {events})");
    sqlx::query_as(AssertSqlSafe(add)).fetch_one(&mut db.session_as("operator").await).await.unwrap()
}

/// Claims as the driver `name`.
async fn claim(session: &mut PgConnection, name: &str) -> Vec<Handed> {
    let claim = sqlx::query_as("select * from paylatch.claim_deliveries($1)").bind(name.to_owned());
    claim.fetch_all(session).await.unwrap()
}

/// Settles as the driver `name`: the HTTP status of each delivery that was tried.
async fn settle(session: &mut PgConnection, name: &str, handed: &Handed, tried: &[(i64, u16)]) -> String {
    let tried: Vec<_> = tried
        .iter()
        .map(|(id, status)| serde_json::json!({"delivery_id": id, "status": status, "took_ms": 1}))
        .collect();
    let settle = sqlx::query_scalar("select paylatch.settle_deliveries($1, $2, $3, $4)").bind(name.to_owned());
    let settle = settle.bind(handed.endpoint_id).bind(handed.lease_token).bind(serde_json::json!(tried));
    settle.fetch_one(session).await.unwrap()
}
