//! Rule 12: an event is in the outbox if and only if its transition committed, whoever made it.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::run;
use paylatch_tests::events::drain;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};

async fn types(db: &Database) -> Vec<String> {
    let types = "select type from paylatch.outbox order by outbox_id";
    sqlx::query_scalar(types).fetch_all(db.pool()).await.unwrap()
}

#[tokio::test]
async fn a_life_is_told_in_its_order() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.settled_flow("alice", "one").await;
    assert_eq!(
        types(&db).await,
        ["flow.wait_pay", "order.processing", "flow.paying", "flow.payed", "flow.biz_success", "order.paid"]
    );
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_compensation_a_freeze_and_a_second_attempt_are_told_too() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow = db.create_flow("shop", "alice", "one").await;
    let mut session = db.session().await;
    let charge = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[charge.evidence(Outcome::Succeeded)]).await;
    db.execute(&format!("select paylatch.freeze_pay_flow({flow}, 'why')")).await;
    db.execute(&format!("select paylatch.resume_pay_flow({flow}, 'why')")).await;
    // By hand: the business will never be done, and the money went back by bank transfer.
    for status in ["'REFUNDING', refunded_amount = amount", "'REFUNDED'"] {
        db.execute(&format!("update paylatch.pay_flow set status = {status}, version = version + 1")).await;
    }
    db.create_flow("shop", "alice", "one").await;
    let told = types(&db).await;
    assert_eq!(
        told[4..],
        [
            "flow.frozen",
            "flow.resumed",
            "flow.refunding",
            "refund.pending",
            "flow.refunded",
            "refund.succeeded",
            "order.pending",
            "flow.wait_pay",
            "order.processing"
        ],
        "{told:?}"
    );
    let previous: Vec<(String, Option<String>, String)> = sqlx::query_as(
        "select e.type, e.envelope #>> '{payload,previous_status}', e.envelope #>> '{payload,status}'
         from paylatch.events(array(select outbox_id from paylatch.outbox)) e order by outbox_id",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    let step = |n: usize| (previous[n].0.as_str(), previous[n].1.as_deref(), previous[n].2.as_str());
    assert_eq!(step(0), ("flow.wait_pay", None, "WAIT_PAY"));
    assert_eq!(step(4), ("flow.frozen", Some("PAYED"), "PAYED"));
    assert_eq!(step(7), ("refund.pending", None, "PENDING"));
    assert_eq!(step(10), ("order.pending", Some("PROCESSING"), "PENDING"));
    assert_verified(&db).await;
}

#[tokio::test]
async fn what_is_rolled_back_or_no_news_makes_no_event() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow = db.create_flow("shop", "alice", "one").await;
    let before = db.event_ids().await;
    let mut session = db.session().await;
    run(&mut session, "begin").await;
    claim(&mut session, 10).await;
    run(&mut session, "rollback").await;
    assert_eq!(db.event_ids().await, before);
    // Asked, without an answer: a version and a log row, and nothing that a subscriber would want to know.
    let charge = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[charge.evidence(Outcome::Unknown)]).await;
    assert_eq!(types(&db).await.last().unwrap(), "flow.paying");
    assert!(db.flow(flow).await.version > 1);
    assert_verified(&db).await;
}

#[tokio::test]
async fn the_flows_payload_stays_inside() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", true).await;
    db.execute("select paylatch.create_pay_flow('topup', 'a', 'k', 100, 'USD', payload => '{\"ref\": \"hunter2\"}')")
        .await;
    let told = drain(&mut db.session().await, "s").await;
    assert_eq!(told.len(), 2);
    assert!(!format!("{told:?}").contains("hunter2"));
}

#[tokio::test]
async fn nobody_writes_the_outbox_by_hand() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.settled_flow("alice", "one").await;
    let day: String = db.value("select tableoid::regclass::text from paylatch.outbox limit 1").await;
    for mode in ["origin", "replica"] {
        for table in ["paylatch.outbox", &day] {
            for attempt in [
                format!(
                    "insert into {table} (at, flow_id, ref_id, version, type) values (paylatch.clock(), 1, 1, 9, 'flow.paying')"
                ),
                format!("update {table} set type = 'order.paid'"),
                format!("delete from {table}"),
                format!("truncate {table}"),
            ] {
                let mut session = db.session().await;
                run(&mut session, &format!("set session_replication_role = {mode}")).await;
                let (code, message) = paylatch_tests::database::refused(&mut session, &attempt).await;
                assert_eq!(code, "23514", "{message}: {attempt}");
            }
        }
    }
    assert_verified(&db).await;
}

/// What was bent behind the guards is named.
#[tokio::test]
async fn verify_finds_events_that_are_missing_doubled_or_invented() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.settled_flow("alice", "one").await;
    let copy = |columns: &str| {
        format!(
            "insert into paylatch.outbox (at, flow_id, ref_id, version, type, order_from) select {columns} from paylatch.outbox"
        )
    };
    for bend in [
        "delete from paylatch.outbox where type = 'flow.payed'".to_owned(),
        "delete from paylatch.outbox where type = 'order.paid'".to_owned(),
        "delete from paylatch.outbox where type = 'order.processing'".to_owned(),
        "update paylatch.outbox set version = 7 where type = 'flow.payed'".to_owned(),
        "update paylatch.outbox set type = 'flow.pay_fail' where type = 'flow.payed'".to_owned(),
        "update paylatch.outbox set order_refunded = 5 where type = 'order.paid'".to_owned(),
        "update paylatch.outbox set outbox_id = 1".to_owned(),
        copy("at, flow_id, ref_id, version, type, order_from") + " where type = 'flow.payed'",
        copy("at, flow_id, ref_id, version, type, order_from") + " where type = 'order.paid'",
        copy("at, flow_id, ref_id, 9, 'flow.pay_fail', order_from") + " where type = 'flow.payed'",
        copy("at, flow_id, ref_id + 1, version, type, order_from") + " where type = 'order.paid'",
    ] {
        let mut session = db.session().await;
        run(&mut session, &format!("begin; alter table paylatch.outbox disable trigger all; {bend};
             alter table paylatch.outbox enable always trigger t05_by_triggers_only, enable always trigger t10_guard, enable always trigger t11_no_truncate")).await;
        let broken: Vec<i32> = sqlx::query_scalar("select rule from paylatch.verify() where not ok")
            .fetch_all(&mut session)
            .await
            .unwrap();
        assert!(broken.contains(&12), "verify() names {broken:?}, not rule 12, after: {bend}");
        run(&mut session, "rollback").await;
    }
    assert_verified(&db).await;
}
