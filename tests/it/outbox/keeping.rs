//! Days of the outbox: made ahead, dropped once every sink is past them, and never in the way of payments.

use paylatch_tests::Database;
use paylatch_tests::database::run;
use paylatch_tests::events::drain;
use serde_json::Value;
use sqlx::PgConnection;

const DAY_MS: i32 = 86_400_000;

async fn scan_after(session: &mut PgConnection, days: i32) -> Value {
    run(&mut *session, &format!("set paylatch.clock_offset_ms = {}", days * DAY_MS)).await;
    sqlx::query_scalar("select paylatch.scan('test')").fetch_one(session).await.unwrap()
}

async fn days(db: &Database) -> i64 {
    db.value("select count(*) from pg_inherits where inhparent = 'paylatch.outbox'::regclass").await
}

async fn broken(session: &mut PgConnection) -> Vec<i32> {
    sqlx::query_scalar("select rule from paylatch.verify() where not ok").fetch_all(session).await.unwrap()
}

#[tokio::test]
async fn a_day_goes_when_every_sink_is_past_it_and_it_is_old() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("quick", false).await;
    db.add_sink("slow", false).await;
    let mut session = db.session().await;
    db.settled_flow("alice", "one").await;
    drain(&mut session, "quick").await;
    assert_eq!(days(&db).await, 5, "today, three ahead, and the net");

    assert_eq!(scan_after(&mut session, 3).await["outbox_days_made"], 3);
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 0, "slow has published nothing");
    assert_eq!(drain(&mut session, "slow").await.len(), 6);
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 7);
    assert_eq!(db.event_ids().await.len(), 0);
    assert_eq!(broken(&mut session).await, Vec::<i32>::new(), "rule 12 goes back as far as events do");
    // Life goes on.
    run(&mut session, "select paylatch.create_pay_flow('topup', 'bob', 'k', 100, 'USD')").await;
    assert_eq!(drain(&mut session, "slow").await.len(), 2);
    assert_eq!(broken(&mut session).await, Vec::<i32>::new());
}

#[tokio::test]
async fn a_sink_that_nobody_serves_holds_days_back_until_it_is_dropped() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("dead", false).await;
    let mut session = db.session().await;
    db.create_flow("topup", "alice", "one").await;
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 0);
    assert!(db.value::<bool>("select paylatch.drop_sink('dead')").await);
    assert!(!db.value::<bool>("select paylatch.drop_sink('dead')").await);
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 4);
}

/// An event of a dropped day can still be read where it died.
#[tokio::test]
async fn a_dead_letter_outlives_its_day() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", false).await;
    db.execute("update paylatch.outbox_sink set max_tries = 1").await;
    db.create_flow("topup", "alice", "one").await;
    let mut session = db.session().await;
    let events = paylatch_tests::events::claim_events(&mut session, "s", "by-hand", 1).await;
    paylatch_tests::events::settle_events(&mut session, "s", "by-hand", &[], &events).await;
    drain(&mut session, "s").await;
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 4);
    let kept: Value =
        sqlx::query_scalar("select envelope from paylatch.undelivered").fetch_one(db.pool()).await.unwrap();
    assert_eq!(kept, events[0].envelope);
    assert_eq!(db.value::<i64>("select paylatch.redeliver('s')").await, 0, "there is no row left to publish from");
}

/// Upkeep waits for no payment, and payments do not wait behind it.
#[tokio::test]
async fn upkeep_gives_way_to_open_transactions() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let (mut open, mut session) = (db.session().await, db.session().await);
    run(&mut open, "begin; select paylatch.create_pay_flow('topup', 'open', 'k', 100, 'USD')").await;
    let said = scan_after(&mut session, 20).await;
    assert!(said["outbox_days"].is_string(), "{said}");
    db.create_flow("topup", "other", "k").await;
    run(&mut open, "commit").await;
    assert_eq!(scan_after(&mut session, 20).await["outbox_days_dropped"], 4);
}

/// Should nobody scan for days, payments go on, and the net is emptied later.
#[tokio::test]
async fn the_net_catches_what_falls_outside_the_days() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", false).await;
    let mut session = db.session().await;
    run(&mut session, &format!("set paylatch.clock_offset_ms = {}", 10 * DAY_MS)).await;
    let ended = "select paylatch.cancel_pay_flow(flow_id) from paylatch.create_pay_flow('topup', 'a', 'k', 100, 'USD')";
    run(&mut session, ended).await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.outbox_other").await, 5);
    assert_eq!(drain(&mut session, "s").await.len(), 5);
    let said = scan_after(&mut session, 10).await;
    assert_eq!(said["outbox_days_made"], 3, "the day that has begun in the net stays there");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.outbox_other").await, 5);
    scan_after(&mut session, 20).await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.outbox_other").await, 0);
    assert_eq!(broken(&mut session).await, Vec::<i32>::new());
}
