//! F21: every order in which five events can come ends in the same state, whether or not the channel trusts them.
//!
//! One flow for each of the 120 orders, all in sets: five calls bring the events, and a driver by hand asks whoever is
//! due until nobody is.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use serde_json::{Value, json};

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

/// One flow for each order of `history`, from a lost answer to its end; returns the states in which they end.
async fn ends(history: History, trust: &str) -> Vec<(String, i64)> {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute(&format!("update paylatch.channel set webhook_trust = '{trust}', breaker_threshold = 1000")).await;
    db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    let orders = permutations(&[0, 1, 2, 3, 4]);
    let flows: Vec<(i64, String)> = sqlx::query_as(
        "select flow_id, trade_order_no from paylatch.create_pay_flows((
             select jsonb_agg(jsonb_build_object('scene', 'topup', 'user_id', n, 'biz_key', n, 'amount', 1500, 'currency', 'USD'))
             from generate_series(1, $1) n)) order by 1",
    )
    .bind(i32::try_from(orders.len()).unwrap())
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
    }
    // All of them again, as a set: nothing new.
    let again: Vec<_> = flows.iter().flat_map(|(_, number)| history(number)).collect();
    assert!(receive(&db, &again).await.iter().all(|t| t.disposition == "duplicate"));

    loop {
        let due = claim(&mut session, 1000).await;
        if due.is_empty() {
            break;
        }
        report(&mut session, &due.iter().map(|h| h.evidence(Outcome::Succeeded)).collect::<Vec<_>>()).await;
    }
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
        assert_eq!(ends(a_charge, trust).await, [("BIZ_SUCCESS v4 1500 0 0".to_owned(), 120)], "{trust}");
    }
}

#[test]
fn there_are_120_orders() {
    let all = permutations(&[0, 1, 2, 3, 4]);
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 120);
    assert_eq!(json!(all[0]), json!([0, 1, 2, 3, 4]));
}
