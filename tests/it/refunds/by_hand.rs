//! What a superuser tries with refunds and disputes in psql: a legal, complete step, or a refusal. Under replica role too.

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::{Database, database};

/// With `FLOW` for a settled flow, `NUMBER` for its number; refund 1 is PENDING, refund 2 REQUESTED, refund 3 SUCCEEDED.
const REFUSED: &[&str] = &[
    "update paylatch.refund set amount = amount + 1, version = version + 1 where refund_id = 1",
    "update paylatch.refund set reason = 'another', version = version + 1 where refund_id = 1",
    "update paylatch.refund set requested_by = 'mallory', version = version + 1 where refund_id = 2",
    "update paylatch.refund set requested_login = 'mallory', version = version + 1 where refund_id = 2",
    "update paylatch.refund set refund_order_no = 'r7_' || 'NUMBER', version = version + 1 where refund_id = 1",
    "update paylatch.refund set kind = 'RECON', version = version + 1 where refund_id = 1",
    "update paylatch.refund set retry_count = 5 where refund_id = 1",
    "update paylatch.refund set version = version + 1 where refund_id = 2",
    "update paylatch.refund set status = 'SUCCEEDED', version = version + 1 where refund_id = 2",
    "update paylatch.refund set status = 'FAILED', version = version + 1 where refund_id = 2",
    "update paylatch.refund set status = 'REQUESTED', version = version + 1 where refund_id = 1",
    "update paylatch.refund set status = 'REJECTED', version = version + 1 where refund_id = 1",
    "update paylatch.refund set status = 'FAILED', version = version + 1 where refund_id = 3",
    "update paylatch.refund set version = version + 1 where refund_id = 3",
    "update paylatch.refund set frozen_reason = 'OPERATOR', version = version + 1 where refund_id = 3",
    "delete from paylatch.refund where refund_id = 3",
    "delete from paylatch.job where kind = 'refund'",
    "truncate paylatch.dispute",
    // No reservation, a number of another kind or flow, an end as a beginning.
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no) values (FLOW, 'AFTER_SALE', 1, 'USD', 'r9_NUMBER')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no) values (FLOW, 'AFTER_SALE', 1, 'USD', 'r_NUMBER')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no) values (FLOW, 'COMPENSATION', 1, 'USD', 'r_NUMBER')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no) values (FLOW, 'RECON', 1, 'USD', 'r9_NUMBER')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, status) values (FLOW, 'AFTER_SALE', 1, 'USD', 'r9_NUMBER', 'SUCCEEDED')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, status, external_no) values (FLOW, 'EXTERNAL', 1, 'USD', 'x9_NUMBER', 'PENDING', 'e')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, status) values (FLOW, 'EXTERNAL', 1, 'USD', 'x9_NUMBER', 'SUCCEEDED')",
    "insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no) values (FLOW + 1, 'AFTER_SALE', 1, 'USD', 'r9_NUMBER')",
    // Money bent on the flow itself.
    "update paylatch.pay_flow set refunded_amount = amount + 1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set refunded_amount = -1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set charged_amount = null, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set channel_request_id = 'x', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_order set refunded_amount = 0, status = 'PAID', version = version + 1",
    "delete from paylatch.dispute",
    "update paylatch.dispute set dispute_no = 'another'",
    "update paylatch.dispute set state = 'OPEN' where state = 'LOST'",
];

async fn stage() -> (Database, i64) {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let mut session = db.session().await;
    db.execute("update paylatch.scene set refund_approval_above = 300").await;
    db.ask_refund(flow_id, 100).await;
    db.execute("select paylatch.advance_refunds('{1}', null, paylatch.clock(), null, null, '{}', '{}')").await;
    db.ask_refund(flow_id, 500).await;
    db.execute("update paylatch.scene set refund_approval_above = null").await;
    let third = db.ask_refund(flow_id, 200).await;
    let handouts = claim(&mut session, 10).await;
    let third = handouts.iter().find(|h| h.refund_id == third.refund_id).unwrap();
    report(&mut session, &[third.evidence(Outcome::Succeeded)]).await;
    db.execute(&format!("select paylatch.report_dispute({flow_id}, 'dp_1', 50, 'LOST')")).await;
    let stands: Vec<_> = db.refunds(flow_id).await.into_iter().map(|refund| refund.status).collect();
    assert_eq!(stands, ["PENDING", "REQUESTED", "SUCCEEDED"]);
    (db, flow_id)
}

#[tokio::test]
async fn f22_refunds_are_not_bent_by_hand() {
    let (db, flow_id) = stage().await;
    let number = db.flow(flow_id).await.trade_order_no;
    let before = (db.flow(flow_id).await, db.refunds(flow_id).await);
    for attempt in REFUSED {
        let attempt = attempt.replace("FLOW", &flow_id.to_string()).replace("NUMBER", &number);
        for mode in ["origin", "replica"] {
            let mut session = db.session().await;
            database::run(&mut session, &format!("set session_replication_role = {mode}")).await;
            let (code, message) = database::refused(&mut session, &attempt).await;
            assert!(code.starts_with("23"), "{code} {message}: {attempt}");
        }
    }
    assert_eq!((db.flow(flow_id).await, db.refunds(flow_id).await), before);
    assert_verified(&db).await;
}

/// Each edge by hand is complete: reservation, order, queue and log follow.
#[tokio::test]
async fn f22_a_legal_hand_written_step_of_a_refund_is_complete() {
    let (db, flow_id) = stage().await;
    let become_ = |refund_id: i32, status: &str| {
        format!(
            "update paylatch.refund set status = '{status}', frozen_reason = null, version = version + 1 where refund_id = {refund_id}"
        )
    };
    db.execute("update paylatch.refund set frozen_reason = 'OPERATOR', version = version + 1 where refund_id = 1")
        .await;
    assert_verified(&db).await;
    assert_eq!(db.flow(flow_id).await.refunded_amount, 800);
    db.execute(&become_(1, "FAILED")).await;
    assert_eq!(db.flow(flow_id).await.refunded_amount, 700, "what it held is free again");
    assert_verified(&db).await;
    db.execute(&become_(2, "PENDING")).await;
    assert_verified(&db).await;
    db.execute(&become_(2, "SUCCEEDED")).await;
    assert_eq!(
        db.value::<String>("select status::text || refunded_amount from paylatch.pay_order").await,
        "REFUNDED700"
    );
    assert_eq!(db.value::<i64>("select count(*) from paylatch.job").await, 0);
    assert_verified(&db).await;
}

/// A job that vanished behind the guards is found again, and the reverse is named.
#[tokio::test]
async fn scan_mends_the_queue_of_refunds() {
    let (db, _) = stage().await;
    db.execute(
        "alter table paylatch.job disable trigger t10_guard; delete from paylatch.job where kind = 'refund';
         alter table paylatch.job enable always trigger t10_guard",
    )
    .await;
    let broken = "select array_agg(rule) from paylatch.verify() where not ok";
    assert_eq!(db.value::<Vec<i32>>(broken).await, [6]);
    db.execute("select paylatch.scan('test')").await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.job where kind = 'refund'").await, 2);
    assert_verified(&db).await;
}
