//! F21: every order in which five events can come ends in the same state, whether or not the channel trusts them.
//!
//! One flow for each of the 120 orders, all in sets: five calls bring the events, and a driver by hand asks whoever is
//! due until nobody is.

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::Database;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{Handout, claim, report};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{event, receive, with_money};

fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (n, first) in of.iter().enumerate() {
        let rest: Vec<_> = of.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, x)| *x).collect();
        all.extend(permutations(&rest).into_iter().map(|tail| [vec![*first], tail].concat()));
    }
    all
}

type History = fn(&str) -> [Value; 5];

/// As a provider tells of a charge that needed two tries, and of something new.
fn a_charge(number: &str) -> [Value; 5] {
    [
        event(&format!("{number}-1"), "charge.processing", number),
        event(&format!("{number}-2"), "charge.failed", number),
        with_money(event(&format!("{number}-3"), "charge.succeeded", number)),
        event(&format!("{number}-4"), "charge.succeeded", number),
        event(&format!("{number}-5"), "loyalty.points", number),
    ]
}

fn with(mut event: Value, more: Value) -> Value {
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

/// Money that moves without us, beside its charge.
fn money_elsewhere(number: &str) -> [Value; 5] {
    let dispute = |n, kind: &str, state| {
        let more = json!({"external_no": "dp_1", "dispute": state, "amount": 400, "currency": "USD"});
        with(event(&format!("{number}-{n}"), kind, number), more)
    };
    let by_hand = json!({"external_no": "rf_1", "amount": 300, "currency": "USD"});
    [
        with_money(event(&format!("{number}-1"), "charge.succeeded", number)),
        dispute(2, "dispute.opened", "OPEN"),
        dispute(3, "dispute.lost", "LOST"),
        with(event(&format!("{number}-4"), "refund.external", number), by_hand.clone()),
        with(event(&format!("{number}-5"), "refund.external", number), by_hand),
    ]
}

/// A charge whose business is refused, and its compensation.
fn a_compensation(number: &str) -> [Value; 5] {
    let refund_no = format!("r_{number}");
    [
        event(&format!("{number}-1"), "charge.processing", number),
        with_money(event(&format!("{number}-2"), "charge.succeeded", number)),
        event(&format!("{number}-3"), "refund.processing", &refund_no),
        with_money(event(&format!("{number}-4"), "refund.succeeded", &refund_no)),
        event(&format!("{number}-5"), "refund.succeeded", &refund_no),
    ]
}

/// Asks whoever is due until nobody is; the wallet always says yes, the business no.
async fn drive(session: &mut PgConnection) {
    loop {
        let due = claim(session, 1000).await;
        if due.is_empty() {
            return;
        }
        let answer = |handout: &Handout| match handout.action() {
            Action::ExecuteBusiness | Action::QueryBusiness | Action::CloseBusiness => Outcome::Rejected,
            _ => Outcome::Succeeded,
        };
        let evidence: Vec<_> = due.iter().map(|h| h.evidence(answer(h))).collect();
        // What follows is claimed in the next round.
        let report = sqlx::query("select from paylatch.report_evidence('by-hand', $1)").bind(json!(evidence));
        report.execute(&mut *session).await.unwrap();
    }
}

/// One flow for each order of `history`, from a lost answer to its end; returns the states in which they end.
async fn ends(scene: &str, history: History, trust: &str) -> Vec<(String, i64)> {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute(&format!("update paylatch.channel set webhook_trust = '{trust}', breaker_threshold = 1000")).await;
    db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    let orders = permutations(&[0, 1, 2, 3, 4]);
    let flows: Vec<(i64, String)> = sqlx::query_as(
        "select flow_id, trade_order_no from paylatch.create_pay_flows((
             select jsonb_agg(jsonb_build_object('scene', $2, 'user_id', n, 'biz_key', n, 'amount', 1500, 'currency', 'USD'))
             from generate_series(1, $1) n)) order by 1",
    )
    .bind(i32::try_from(orders.len()).unwrap())
    .bind(scene)
    .fetch_all(db.pool())
    .await
    .unwrap();
    let mut session = db.session().await;
    let lost: Vec<_> = claim(&mut session, 1000).await.iter().map(|h| h.evidence(Outcome::Unknown)).collect();
    assert_eq!(lost.len(), 120);
    report(&mut session, &lost).await;

    for step in 0..5 {
        let events: Vec<_> =
            flows.iter().zip(&orders).map(|((_, no), order)| history(no)[order[step]].clone()).collect();
        let told = receive(&db, &events).await;
        assert!(told.iter().all(|t| t.disposition == "received"), "{told:?}");
        drive(&mut session).await;
    }
    // All of them again, as a set: nothing new.
    let again: Vec<_> = flows.iter().flat_map(|(_, number)| history(number)).collect();
    assert!(receive(&db, &again).await.iter().all(|t| t.disposition == "duplicate"));

    drive(&mut session).await;
    db.execute("select paylatch.scan()").await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.webhook_event where applied_at is null").await, 0);
    assert_verified(&db).await;
    sqlx::query_as(
        "select concat_ws(' ', f.status, 'v' || f.version, f.charged_amount, f.refunded_amount, f.disputed_amount,
                          (select string_agg(concat_ws(' ', r.kind, r.status, r.amount), ', ' order by r.kind)
                           from paylatch.refund r where r.flow_id = f.flow_id),
                          (select string_agg(i.kind, ', ' order by i.kind) from paylatch.incident i where i.flow_id = f.flow_id)),
                count(*)
         from paylatch.pay_flow f group by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap()
}

#[tokio::test]
async fn f21_every_order_of_a_charges_events_ends_alike() {
    for trust in ["hint", "evidence"] {
        assert_eq!(ends("topup", a_charge, trust).await, [("BIZ_SUCCESS v4 1500 0 0".to_owned(), 120)], "{trust}");
    }
}

#[tokio::test]
async fn f21_every_order_of_refunds_and_disputes_ends_alike() {
    for trust in ["hint", "evidence"] {
        let end = "BIZ_SUCCESS v6 1500 300 400 EXTERNAL SUCCEEDED 300";
        assert_eq!(ends("topup", money_elsewhere, trust).await, [(end.to_owned(), 120)], "{trust}");
    }
}

#[tokio::test]
async fn f21_every_order_of_a_compensations_events_ends_alike() {
    for trust in ["hint", "evidence"] {
        let states = ends("shop", a_compensation, trust).await;
        assert_eq!(states.iter().map(|(_, flows)| flows).sum::<i64>(), 120);
        let end = "REFUNDED 1500 1500 0 COMPENSATION SUCCEEDED 1500";
        // How many versions it takes depends on how often the business was asked, not on where it ends.
        for (state, _) in states {
            let words: Vec<_> = state.split(' ').filter(|word| !word.starts_with('v')).collect();
            assert_eq!(words.join(" "), end, "{trust}");
        }
    }
}

#[test]
fn there_are_120_orders() {
    let all = permutations(&[0, 1, 2, 3, 4]);
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 120);
    assert_eq!(json!(all[0]), json!([0, 1, 2, 3, 4]));
}
