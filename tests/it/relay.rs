//! Events on their way out, through real daemons to real brokers: all of them, in order per flow, whatever breaks.

mod kafka;
mod nats;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use paylatch_tests::daemon::Setup;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::{Daemon, Database, eventually};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(90);

/// A database with a sink `bus`, and a scene that needs nobody outside.
async fn database() -> Database {
    let db = Database::fresh().await;
    db.execute(
        "insert into paylatch.channel (channel) values ('null');
         insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('bench', 'null', 'bn', 'none')",
    )
    .await;
    db.add_sink("bus", false).await;
    db
}

/// A daemon that pays at once and publishes; its lease is short, so that another one need not wait long.
fn setup(db: &Database, relay: &str) -> Setup {
    let lines = format!("batch = 40\nlease_ms = 3000\npublish_timeout_ms = 1000\n{relay}");
    Setup::of(db).null_wallet("null").relay("bus", &lines)
}

/// `count` new payments, for users `base` and so on.
async fn create(db: &Database, base: i32, count: i32) {
    let requests: Vec<Value> = (base..base + count)
        .map(|n| json!({"scene": "bench", "user_id": n.to_string(), "biz_key": "k", "amount": 100, "currency": "USD"}))
        .collect();
    let create = sqlx::query("select from paylatch.create_pay_flows($1)").bind(json!(requests));
    create.execute(db.pool()).await.unwrap();
}

/// Waits until every payment is done and every event is published.
async fn published(db: &Database) {
    eventually("every event is published", PATIENCE, async || {
        let left: i64 = db.value("select count(*) from paylatch.job").await;
        (left == 0 && db.lag("bus").await.behind == 0).then_some(())
    })
    .await;
}

async fn connected(daemon: &Daemon, is: bool) {
    let line = format!("paylatch_relay_connected{{sink=\"bus\"}} {}", u8::from(is));
    eventually(&line, PATIENCE, async || daemon.metrics().await.contains(&line).then_some(())).await;
}

/// What a subscriber has to do, and what it may then rely on: without repetitions, the events are those of the outbox,
/// one to one with the log, and each flow's are in the order in which they happened.
async fn assert_told(db: &Database, envelopes: &[Value]) {
    let mut seen = HashSet::new();
    let first: Vec<&Value> = envelopes.iter().filter(|e| seen.insert(e["event_id"].as_str().unwrap())).collect();
    let kept = db.event_ids().await;
    let place: HashMap<&str, usize> = kept.iter().enumerate().map(|(n, id)| (id.as_str(), n)).collect();
    let told: HashSet<&str> = seen;
    let lost: Vec<_> = kept.iter().filter(|id| !told.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} events never came: {:?}", lost.len(), kept.len(), &lost[..lost.len().min(5)]);
    assert_eq!(told.len(), kept.len(), "events came that nobody wrote");
    let mut last: HashMap<&str, usize> = HashMap::new();
    for event in first {
        let (flow, at) = (event["key"].as_str().unwrap(), place[event["event_id"].as_str().unwrap()]);
        if let Some(before) = last.insert(flow, at) {
            assert!(before < at, "flow {flow}: {} came after {}", kept[at], kept[before]);
        }
    }
    assert_verified(db).await;
}
