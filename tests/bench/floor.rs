//! The baselines in bare SQL: the same rows in the same tables, without a guard.

use std::time::Instant;

use futures::future::join_all;
use paylatch_tests::Database;

use crate::life::{Life, Meter};

/// Makes the bare tables and functions.
pub async fn prepare(db: &Database) {
    db.execute(include_str!("bare.sql")).await;
}

/// Takes payments through their whole life in sets of `batch`, over so many connections.
pub async fn run(db: &Database, flows: i64, batch: i64, connections: i64) -> Life {
    // Each round makes orders for users of its own.
    let first_user: i64 = db.value("select coalesce(max(order_id), 0) from bare.pay_order").await;
    let meter = Meter::start(db, &[]).await;
    let began = Instant::now();
    join_all((0..connections).map(|n| work(db, first_user, n, connections, flows, batch))).await;
    meter.stop(db, flows, began.elapsed()).await
}

/// Every `connections`th set, from the `first` on.
async fn work(db: &Database, first_user: i64, first: i64, connections: i64, flows: i64, batch: i64) {
    let mut session = db.session().await;
    for set in (first..flows / batch).step_by(connections as usize) {
        sqlx::query("select bare.create_set('bench', $1, $2)")
            .bind(first_user + set * batch)
            .bind(batch as i32)
            .execute(&mut session)
            .await
            .unwrap();
        let ids: Vec<i64> =
            sqlx::query_scalar("select bare.claim_set($1)").bind(batch as i32).fetch_one(&mut session).await.unwrap();
        sqlx::query("select bare.finish_set($1)").bind(ids).execute(&mut session).await.unwrap();
    }
}

/// Bytes of write-ahead log since a position.
pub async fn wal_since(db: &Database, position: &str) -> f64 {
    db.value(&format!("select pg_wal_lsn_diff(pg_current_wal_lsn(), '{position}')::float8")).await
}

/// Both sides must have left the same rows behind for every payment: a baseline that writes less says nothing.
pub async fn assert_same_rows(db: &Database) {
    let (ours, bare) = (rows_per_payment(db, "paylatch").await, rows_per_payment(db, "bare").await);
    assert_eq!(ours, bare, "rows for each payment: flows, jobs, log, events, keys");
}

async fn rows_per_payment(db: &Database, schema: &str) -> Vec<f64> {
    let counts: Vec<String> = ["pay_flow", "job", "transition_log", "outbox", "idempotency_key"]
        .iter()
        .map(|table| format!("(select count(*) from {schema}.{table})::float8 / orders"))
        .collect();
    db.value(&format!("select array[{}] from (select count(*) as orders from {schema}.pay_order) o", counts.join(", ")))
        .await
}
