//! The baseline: bare SQL writing the same rows in sets, over two connections.

use std::time::Instant;

use futures::future::{LocalBoxFuture, join_all};
use paylatch_tests::Database;

use crate::{Load, Measured, Subject};

/// Connections at work; as many as the machine that the targets are set for has cores.
const CONNECTIONS: i64 = 2;

/// Bare SQL in sets.
pub struct Floor;

/// Makes the bare tables and functions.
pub async fn prepare(db: &Database) {
    db.execute(include_str!("bare.sql")).await;
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        "bare SQL in sets"
    }

    fn round<'a>(&'a self, db: &'a Database, load: Load) -> LocalBoxFuture<'a, Measured> {
        Box::pin(async move {
            let first_user: i64 = db.value("select last_value from bare.order_id_seq").await;
            let wal: String = db.value("select pg_current_wal_lsn()::text").await;
            let began = Instant::now();
            let share = load.flows / CONNECTIONS;
            join_all((0..CONNECTIONS).map(|n| work(db, first_user + 10 + n * share, share, load.batch))).await;
            let seconds = began.elapsed().as_secs_f64();
            let written = wal_since(db, &wal).await;
            Measured { flows_per_second: load.flows as f64 / seconds, wal_bytes_per_flow: written / load.flows as f64 }
        })
    }
}

async fn work(db: &Database, first_user: i64, flows: i64, batch: i64) {
    let mut session = db.session().await;
    for set in 0..flows / batch {
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
