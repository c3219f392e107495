//! The baseline: bare SQL writing the same rows in sets, over two connections.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use futures::future::{LocalBoxFuture, join_all};
use paylatch_tests::Database;

use crate::{Load, Measured, Subject};

/// Connections at work; as many as the machine that the targets are set for has cores.
const CONNECTIONS: i64 = 2;

/// Bare SQL in sets.
#[derive(Default)]
pub struct Floor {
    /// Users of earlier rounds; each set makes orders for users of its own.
    users: AtomicI64,
}

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
            let first_user = self.users.fetch_add(load.flows, Ordering::Relaxed);
            let wal: String = db.value("select pg_current_wal_lsn()::text").await;
            let began = Instant::now();
            join_all((0..CONNECTIONS).map(|n| work(db, first_user, n, load))).await;
            let seconds = began.elapsed().as_secs_f64();
            let written = wal_since(db, &wal).await;
            Measured { flows_per_second: load.flows as f64 / seconds, wal_bytes_per_flow: written / load.flows as f64 }
        })
    }
}

/// Every `CONNECTIONS`th set, from the `first` on.
async fn work(db: &Database, first_user: i64, first: i64, Load { flows, batch }: Load) {
    let mut session = db.session().await;
    for set in (first..flows / batch).step_by(CONNECTIONS as usize) {
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
