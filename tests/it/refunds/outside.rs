//! Money that moves without us: disputes, and refunds made in the provider's own dashboard.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};

async fn settled() -> (Database, i64) {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    (db, flow_id)
}

async fn dispute(db: &Database, flow_id: i64, no: &str, amount: i64, state: &str) -> String {
    db.value(&format!("select paylatch.report_dispute({flow_id}, '{no}', {amount}, '{state}')")).await
}

/// Held back by refunds, and by disputes.
async fn held(db: &Database, flow_id: i64) -> (i64, i64) {
    let disputed = format!("select disputed_amount from paylatch.pay_flow where flow_id = {flow_id}");
    (db.flow(flow_id).await.refunded_amount, db.value(&disputed).await)
}

async fn incidents(db: &Database, kind: &str) -> i64 {
    db.value(&format!("select count(*) from paylatch.incident where kind = '{kind}'")).await
}

#[tokio::test]
async fn a_dispute_lowers_what_can_be_refunded() {
    let (db, flow_id) = settled().await;
    assert_eq!(dispute(&db, flow_id, "dp_1", 1000, "OPEN").await, "opened");
    assert_eq!(held(&db, flow_id).await, (0, 1000));
    let asked = db.ask_refund(flow_id, 501).await;
    assert_eq!((asked.outcome.as_str(), asked.refundable), ("over_limit", 500));
    assert_eq!(db.ask_refund(flow_id, 500).await.outcome, "reserved");
    assert_eq!(dispute(&db, flow_id, "dp_1", 1000, "WON").await, "won");
    assert_eq!(held(&db, flow_id).await, (500, 0));
    assert_eq!(dispute(&db, flow_id, "dp_2", 400, "OPEN").await, "opened");
    assert_eq!(dispute(&db, flow_id, "dp_2", 400, "LOST").await, "lost");
    assert_eq!(held(&db, flow_id).await, (500, 400), "lost: that money is gone");
    assert_eq!(db.ask_refund(flow_id, 601).await.outcome, "over_limit");
    assert_eq!(db.ask_refund(flow_id, 600).await.outcome, "reserved");
    assert_eq!(incidents(&db, "DISPUTED").await, 0, "all of it fits");
    assert_verified(&db).await;
}

/// A dispute after refunds takes what is left; the rest is what a person must see. A refund that fails makes room for it.
#[tokio::test]
async fn a_dispute_beside_refunds_is_capped_and_seen() {
    let (db, flow_id) = settled().await;
    db.ask_refund(flow_id, 900).await;
    assert_eq!(dispute(&db, flow_id, "dp_1", 1500, "OPEN").await, "opened");
    assert_eq!(held(&db, flow_id).await, (900, 600));
    assert_eq!(dispute(&db, flow_id, "dp_1", 1500, "OPEN").await, "unchanged");
    assert_eq!(incidents(&db, "DISPUTED").await, 1);
    assert_verified(&db).await;
    let mut session = db.session().await;
    let handout = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Failed)]).await;
    assert_eq!(held(&db, flow_id).await, (0, 1500), "what the refund held is the dispute's now");
    assert_eq!(db.ask_refund(flow_id, 1).await.outcome, "over_limit");
    assert_verified(&db).await;
}

/// The same reports in every order, some of them twice, end in the same state.
#[tokio::test]
async fn disputes_end_alike_in_every_order() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let reports = [
        ("dp_1", 300, "OPEN"),
        ("dp_1", 400, "OPEN"),
        ("dp_1", 350, "LOST"),
        ("dp_2", 200, "OPEN"),
        ("dp_2", 200, "WON"),
    ];
    let mut orders = vec![vec![]];
    for _ in reports {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..reports.len())
                    .filter(|n| !order.contains(n))
                    .map(|n| [&order[..], &[n]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    for (n, order) in orders.iter().enumerate().step_by(3) {
        let flow_id = db.settled_flow("alice", &format!("order-{n}")).await;
        for at in order.iter().chain(&order[..2]) {
            let (no, amount, state) = reports[*at];
            dispute(&db, flow_id, no, amount, state).await;
        }
        let stands: String = db
            .value(&format!(
                "select string_agg(dispute_no || ' ' || amount || ' ' || state, ', ' order by dispute_no)
                 from paylatch.dispute where flow_id = {flow_id}"
            ))
            .await;
        assert_eq!((stands.as_str(), held(&db, flow_id).await), ("dp_1 350 LOST, dp_2 200 WON", (0, 350)), "{order:?}");
    }
    assert_eq!(incidents(&db, "DISPUTED").await, 0);
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_decided_dispute_stays_so_and_a_bad_report_is_refused() {
    let (db, flow_id) = settled().await;
    dispute(&db, flow_id, "dp_1", 100, "LOST").await;
    assert_eq!(dispute(&db, flow_id, "dp_1", 100, "WON").await, "contradicted");
    assert_eq!((held(&db, flow_id).await, incidents(&db, "DISPUTED").await), ((0, 100), 1));
    for (bad, code) in [
        (format!("{flow_id}, '', 1, 'OPEN'"), "PL004"),
        (format!("{flow_id}, 'd', 0, 'OPEN'"), "PL004"),
        (format!("{flow_id}, 'd', 1, 'MAYBE'"), "PL004"),
        (format!("{flow_id}, 'd', 1, null"), "PL004"),
        ("999, 'd', 1, 'OPEN'".to_owned(), "PL008"),
    ] {
        assert_eq!(db.refused(&format!("select paylatch.report_dispute({bad})")).await.0, code, "{bad}");
    }
    assert_verified(&db).await;
}

/// A dispute of a payment that is still under way: whatever the payment becomes, nothing breaks.
#[tokio::test]
async fn a_payment_under_way_can_be_disputed() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    for (n, end) in [Outcome::Done, Outcome::Rejected].into_iter().enumerate() {
        let flow_id = db.create_flow("shop", "alice", &format!("key-{n}")).await;
        let charge = claim(&mut session, 10).await.remove(0);
        assert_eq!(dispute(&db, flow_id, "dp_1", 1500, "OPEN").await, "opened");
        report(&mut session, &[charge.evidence(Outcome::Succeeded)]).await;
        let next: paylatch_tests::payments::Handout = sqlx::query_as(
            "select f.flow_id, j.lease_token, f.version, j.action, f.channel, f.scene, null as business_target, f.trade_order_no as order_no,
                    '' as refund_no, '' as biz_key, f.amount::bigint, f.currency::text, 0 as send_within_ms, null::bigint as refund_id,
                    null as channel_ref, null as charge_ref
             from paylatch.job j join paylatch.pay_flow f on f.flow_id = j.ref_id where j.kind = 'flow' and f.flow_id = $1",
        )
        .bind(flow_id)
        .fetch_one(db.pool())
        .await
        .unwrap();
        assert_eq!(next.action, "EXECUTE_BUSINESS");
        report(&mut session, &[next.evidence(Outcome::Unknown)]).await;
        let token: i64 = db.value(&format!("select lease_token from paylatch.job where ref_id = {flow_id}")).await;
        let fact =
            paylatch_tests::payments::Handout { lease_token: token, action: "QUERY_BUSINESS".to_owned(), ..next };
        report(&mut session, &[fact.evidence(end)]).await;
        let expected = if end == Outcome::Done { ("BIZ_SUCCESS", (0, 1500)) } else { ("REFUNDING", (1500, 0)) };
        assert_eq!((db.flow(flow_id).await.status.as_str(), held(&db, flow_id).await), expected);
        assert_verified(&db).await;
    }
    assert_eq!(incidents(&db, "DISPUTED").await, 1, "the whole charge goes back, and is disputed as well");
}

async fn external(db: &Database, flow_id: i64, no: &str, amount: i64, currency: &str) -> String {
    db.value(&format!("select paylatch.record_external_refund({flow_id}, '{no}', {amount}, '{currency}')")).await
}

#[tokio::test]
async fn a_refund_made_elsewhere_counts_once() {
    let (db, flow_id) = settled().await;
    assert_eq!(external(&db, flow_id, "re_1", 1000, "USD").await, "recorded");
    for _ in 0..3 {
        assert_eq!(external(&db, flow_id, "re_1", 1000, "USD").await, "known");
    }
    let refund = &db.refunds(flow_id).await[0];
    assert_eq!((refund.kind.as_str(), refund.status.as_str(), refund.version), ("EXTERNAL", "SUCCEEDED", 0));
    assert!(refund.refund_order_no.starts_with("x1_"));
    assert_eq!(held(&db, flow_id).await, (1000, 0));
    assert_eq!(
        db.value::<String>("select status::text || refunded_amount from paylatch.pay_order").await,
        "REFUNDED1000"
    );
    assert_eq!(db.ask_refund(flow_id, 501).await.outcome, "over_limit");
    assert_eq!(db.ask_refund(flow_id, 500).await.refund_order_no.map(|n| n[..3].to_owned()).as_deref(), Some("r1_"));
    assert_verified(&db).await;
}

/// What does not fit is an incident, once, and never a failure.
#[tokio::test]
async fn a_refund_made_elsewhere_that_does_not_fit_is_seen() {
    let (db, flow_id) = settled().await;
    let unpaid = db.create_flow("topup", "bob", "two").await;
    for (at, no, amount, currency) in [
        (flow_id, "re_1", 1501, "USD"),
        (flow_id, "re_2", 100, "EUR"),
        (flow_id, "re_3", 0, "USD"),
        (unpaid, "re_4", 1, "USD"),
    ] {
        for _ in 0..2 {
            assert_eq!(external(&db, at, no, amount, currency).await, "incident", "{no}");
        }
    }
    assert_eq!(incidents(&db, "EXTERNAL_REFUND").await, 4);
    assert_eq!(held(&db, flow_id).await, (0, 0));
    assert_verified(&db).await;
}

/// The wallet reports a success for a refund that had failed: the money is gone, so it counts as made elsewhere.
#[tokio::test]
async fn a_success_after_a_refusal_is_not_given_out_again() {
    let (db, flow_id) = settled().await;
    db.ask_refund(flow_id, 1000).await;
    let mut session = db.session().await;
    let handout = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Failed)]).await;
    assert_eq!(held(&db, flow_id).await, (0, 0));
    for _ in 0..2 {
        let verdict = report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await.remove(0);
        assert_eq!((verdict.disposition.as_str(), verdict.status.as_deref()), ("conflict", Some("FAILED")));
    }
    assert_eq!((held(&db, flow_id).await, incidents(&db, "LATE_REFUND").await), ((1000, 0), 1));
    assert_eq!(db.ask_refund(flow_id, 501).await.outcome, "over_limit");
    assert_verified(&db).await;
}
