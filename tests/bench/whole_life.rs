//! The whole life of a payment: created in sets by an application, carried to BIZ_SUCCESS by a real daemon with an
//! in-process null wallet and business mode `none`; guards, log and order on, everything durable.

use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use paylatch_tests::daemon::Setup;
use paylatch_tests::{Database, eventually};
use serde_json::{Value, json};

use crate::floor::wal_since;
use crate::{Load, Measured, Subject};

/// paylatch as it is run.
pub struct WholeLife;

/// One channel that answers at once, one scene whose business is being charged.
pub async fn prepare(db: &Database) {
    db.execute(
        "insert into paylatch.channel (channel) values ('null');
         insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('bench', 'null', 'bn', 'none');",
    )
    .await;
}

impl Subject for WholeLife {
    fn name(&self) -> &'static str {
        "paylatch, whole life"
    }

    fn round<'a>(&'a self, db: &'a Database, load: Load) -> LocalBoxFuture<'a, Measured> {
        Box::pin(async move {
            let batch = format!("claim_batch = {}", load.batch);
            let mut daemon = Setup::of(db).null_wallet("null").driver("lease_ms = 30000").driver(&batch).start().await;
            let done: i64 = db.value("select count(*) from paylatch.pay_order where status = 'PAID'").await;
            let wal: String = db.value("select pg_current_wal_lsn()::text").await;
            let began = Instant::now();
            create(db, done, load).await;
            eventually("every payment is done", Duration::from_secs(600), async || {
                let left: i64 = db.value("select count(*) from paylatch.job").await;
                (left == 0).then_some(())
            })
            .await;
            let seconds = began.elapsed().as_secs_f64();
            let written = wal_since(db, &wal).await;
            daemon.terminate().await;
            let now_done: i64 = db.value("select count(*) from paylatch.pay_order where status = 'PAID'").await;
            assert_eq!(now_done - done, load.flows, "every payment of the round reached BIZ_SUCCESS");
            Measured { flows_per_second: load.flows as f64 / seconds, wal_bytes_per_flow: written / load.flows as f64 }
        })
    }
}

/// Creates the round's payments in sets, one after the other, while the daemon is already at work.
async fn create(db: &Database, base: i64, load: Load) {
    let mut session = db.session_as("app").await;
    for set in 0..load.flows / load.batch {
        let requests: Vec<Value> = (0..load.batch)
            .map(|n| {
                let user = (base + set * load.batch + n).to_string();
                json!({"scene": "bench", "user_id": user, "biz_key": "bench", "amount": 1250, "currency": "USD"})
            })
            .collect();
        let created = sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session);
        assert_eq!(created.await.unwrap().rows_affected(), load.batch as u64);
    }
}
