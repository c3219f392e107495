//! F16: a success for a payment that is PAY_FAIL. Its status stays, an incident opens, and the money goes back.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::run;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{Handout, claim, report};
use serde_json::json;
use sqlx::PgConnection;

/// A flow that ended as not charged, and the charge that was handed out for it.
async fn failed(db: &Database, session: &mut PgConnection, key: &str) -> (i64, Handout) {
    let flow_id = db.create_flow("topup", "alice", key).await;
    let handout = claim(session, 10).await.remove(0);
    report(session, &[handout.evidence(Outcome::Failed)]).await;
    assert_eq!(db.flow(flow_id).await.status, "PAY_FAIL");
    (flow_id, handout)
}

async fn goes_back(db: &Database, session: &mut PgConnection, flow_id: i64) {
    let flow = db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.charged_amount, flow.refunded_amount), ("PAY_FAIL", Some(1500), 1500));
    let open = format!("select count(*) from paylatch.incident where flow_id = {flow_id} and kind = 'LATE_CHARGE'");
    assert_eq!(db.value::<i64>(&open).await, 1, "one incident, however often it is told");
    let refunds = db.refunds(flow_id).await;
    assert_eq!(refunds.len(), 1, "{refunds:?}");
    assert_eq!((refunds[0].kind.as_str(), refunds[0].amount), ("RECON", 1500));
    assert!(refunds[0].refund_order_no.starts_with("r1_"));
    assert_verified(db).await;
    let handout = claim(session, 10).await.remove(0);
    assert_eq!((handout.action.as_str(), handout.refund_id), ("REFUND", Some(refunds[0].refund_id)));
    report(session, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(db.refunds(flow_id).await[0].status, "SUCCEEDED");
    assert_eq!(db.flow(flow_id).await.status, "PAY_FAIL");
    let order = format!(
        "select o.status::text || o.refunded_amount from paylatch.pay_order o join paylatch.pay_flow f using (order_id) where f.flow_id = {flow_id}"
    );
    assert_eq!(db.value::<String>(&order).await, "PENDING0", "the order never had that money");
    assert_verified(db).await;
}

#[tokio::test]
async fn f16_a_late_report_of_success_goes_back() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    let (flow_id, handout) = failed(&db, &mut session, "one").await;
    let late = handout.evidence(Outcome::Succeeded);
    for _ in 0..3 {
        let verdict = report(&mut session, std::slice::from_ref(&late)).await.remove(0);
        assert_eq!((verdict.disposition.as_str(), verdict.status.as_deref()), ("conflict", Some("PAY_FAIL")));
    }
    goes_back(&db, &mut session, flow_id).await;
    let says: String = db.value(&format!("select says from paylatch.explain({flow_id}) where topic = 'charge'")).await;
    assert!(says.starts_with("yes, though this payment had failed: 15.00 USD showed up"), "{says}");
}

/// A success that names another amount says nothing of ours: an incident, and no money moves.
#[tokio::test]
async fn f16_a_late_success_of_something_else_moves_nothing() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    let (flow_id, handout) = failed(&db, &mut session, "one").await;
    let mut late = handout.evidence(Outcome::Succeeded);
    late["amount"] = json!(1501);
    report(&mut session, &[late]).await;
    assert_eq!(db.flow(flow_id).await.charged_amount, None);
    assert!(db.refunds(flow_id).await.is_empty());
    assert_eq!(db.value::<i64>("select count(*) from paylatch.incident where kind = 'LATE_CHARGE'").await, 1);
    assert_verified(&db).await;
}

/// Whoever hears that it was charged has the wallet asked, until one definite answer.
#[tokio::test]
async fn f16_an_inquiry_asks_until_it_knows() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    for (n, end) in [Outcome::Succeeded, Outcome::NotFound, Outcome::Failed].into_iter().enumerate() {
        let mut session = db.session().await;
        let mut offset = 0;
        let (flow_id, _) = failed(&db, &mut session, &format!("key-{n}")).await;
        let inquire = format!("select paylatch.inquire({flow_id})");
        assert!(db.value::<bool>(&inquire).await);
        assert!(db.value::<bool>(&inquire).await, "once more is the same inquiry");
        for outcome in [Outcome::Unknown, Outcome::Processing, Outcome::Unavailable, end] {
            offset += 600_000;
            run(&mut session, &format!("set paylatch.clock_offset_ms = {offset}")).await;
            let handouts = claim(&mut session, 10).await;
            assert_eq!(handouts.len(), 1);
            assert_eq!(
                (handouts[0].flow_id, handouts[0].action.as_str(), handouts[0].refund_id),
                (flow_id, "QUERY_CHARGE", None)
            );
            let verdict = report(&mut session, &[handouts[0].evidence(outcome)]).await.remove(0);
            assert_eq!((verdict.disposition.as_str(), verdict.status.as_deref()), ("applied", Some("PAY_FAIL")));
            assert_verified(&db).await;
        }
        let asked = "select count(*) from paylatch.job where kind = 'inquiry'";
        assert_eq!(db.value::<i64>(asked).await, 0, "{end} is definite");
        if end == Outcome::Succeeded {
            goes_back(&db, &mut session, flow_id).await;
            assert!(!db.value::<bool>(&inquire).await, "there is nothing left to ask");
        } else {
            assert_eq!(db.flow(flow_id).await.charged_amount, None);
        }
    }
    let flow_id = db.settled_flow("alice", "fine").await;
    assert!(!db.value::<bool>(&format!("select paylatch.inquire({flow_id})")).await);
    assert_eq!(db.value::<String>(&format!("select paylatch.late_charge({flow_id}, null)")).await, "not_failed");
}

/// Money that nobody asked for has to go back: a refusal is tried again, and then a person must look.
#[tokio::test]
async fn f16_a_refused_recon_refund_is_tried_again_and_then_freezes() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    let (flow_id, handout) = failed(&db, &mut session, "one").await;
    report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
    for time in 1..=3 {
        run(&mut session, &format!("set paylatch.clock_offset_ms = {}", time * 600_000)).await;
        let handout = claim(&mut session, 10).await.remove(0);
        assert_eq!(handout.action, "REFUND");
        report(&mut session, &[handout.evidence(Outcome::Failed)]).await;
        let refund = &db.refunds(flow_id).await[0];
        assert_eq!(refund.status, "PENDING", "it holds its money all the while");
        assert_eq!(refund.frozen_reason.as_deref(), (time == 3).then_some("REFUND_FAILED"));
        assert_eq!(db.flow(flow_id).await.refunded_amount, 1500);
    }
    assert_verified(&db).await;
    run(&mut session, "select paylatch.resume_refund(1, 'the wallet has money again')").await;
    let handout = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(db.refunds(flow_id).await[0].status, "SUCCEEDED");
    assert_verified(&db).await;
}
