//! A key asked again: the same body gives the same flow as it is now, another body is refused by name.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use serde_json::{Value, json};

use super::{ask, ask_all, ask_spelt, flows, keys, refused, request};

#[tokio::test]
async fn f20_the_same_body_gives_the_same_flow_as_it_is_now() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let asked = request("k", json!({}));
    let first = ask(&mut session, &asked).await.unwrap();
    assert_eq!((first.outcome.as_str(), first.client_status.as_deref()), ("created", Some("PROCESSING")));
    let again = ask(&mut session, &asked).await.unwrap();
    assert_eq!((again.outcome.as_str(), again.flow_id), ("replayed", first.flow_id));

    let mut driver = db.session().await;
    let handout = claim(&mut driver, 1).await.remove(0);
    report(&mut driver, &[handout.evidence(Outcome::Succeeded)]).await;
    let later = ask(&mut session, &asked).await.unwrap();
    assert_eq!((later.outcome.as_str(), later.flow_id), ("replayed", first.flow_id));
    assert_eq!(later.client_status.as_deref(), Some("BIZ_SUCCESS"));
    assert_eq!((flows(&db).await, keys(&db).await), (1, 1));
    assert_verified(&db).await;
}

#[tokio::test]
async fn f20_another_body_is_refused_by_the_names_that_differ() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let payload = json!({"a": 1});
    ask(&mut session, &request("k", json!({"payload": payload}))).await.unwrap();
    for (change, names) in [
        (json!({"amount": 1501}), vec!["amount"]),
        (json!({"currency": "EUR"}), vec!["currency"]),
        (json!({"scene": "shop"}), vec!["scene"]),
        (json!({"user_id": "bob"}), vec!["user_id"]),
        (json!({"biz_key": "two"}), vec!["biz_key"]),
        (json!({"payload": {"a": 2}}), vec!["payload"]),
        (json!({"payload": {"a": "1"}}), vec!["payload"]),
        (json!({"payload": null}), vec!["payload"]),
        (json!({"amount": 1, "biz_key": "two", "payload": {}}), vec!["biz_key", "amount", "payload"]),
    ] {
        let mut other = request("k", json!({"payload": payload}));
        change.as_object().unwrap().iter().for_each(|(name, value)| other[name] = value.clone());
        if other["payload"].is_null() {
            other.as_object_mut().unwrap().remove("payload");
        }
        assert_eq!(ask(&mut session, &other).await, Err(refused("PL001", &names)), "{change}");
        assert_eq!(ask_all(&mut session, &[other]).await, Err(refused("PL001", &names)), "{change}, in a set");
    }
    // The deadline is no business field.
    let later = request("k", json!({"payload": payload, "biz_deadline": "2999-01-01T00:00:00Z"}));
    assert_eq!(ask(&mut session, &later).await.unwrap().outcome, "replayed");
    assert_eq!((flows(&db).await, keys(&db).await), (1, 1));
    assert_verified(&db).await;
}

#[tokio::test]
async fn f20_a_key_of_another_operation_is_refused() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let mut session = db.session().await;
    // As request_refund does.
    db.execute(&format!(
        "select paylatch.open_key('default', 'request_refund', 'r', paylatch.fingerprint(array['a'], array['1']));
         select paylatch.bind_key('default', 'request_refund', 'r', paylatch.fingerprint(array['a'], array['1']), {flow_id}, 1)"
    ))
    .await;
    assert_eq!(ask(&mut session, &request("r", json!({}))).await, Err(refused("PL001", &["operation"])));

    let bob = request("c", json!({"user_id": "bob"}));
    ask(&mut session, &bob).await.unwrap();
    let open = |operation: &str| {
        format!("select found, same, flow_id from paylatch.open_key('default', '{operation}', 'c', paylatch.flow_fingerprint(
                 'topup', 'bob', 'one', 1500, 'USD', null, '{{}}'))")
    };
    let (code, _) = db.refused(&open("request_refund")).await;
    assert_eq!(code, "PL001");
    let found: (bool, bool, i64) =
        sqlx::query_as(sqlx::AssertSqlSafe(open("create_pay_flow"))).fetch_one(db.pool()).await.unwrap();
    assert_eq!((found.0, found.1), (true, true));
}

/// 1,000 requests, each asked again with its JSON spelt another way: no new flow.
#[tokio::test]
async fn f20_a_thousand_replays_in_other_spellings_make_no_flow() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let number = |n: i64| format!("{{\"n\":{n},\"list\":[1,2.50,\"x\"],\"deep\":{{\"b\":null,\"a\":\"é/\"}}}}");
    let other = |n: i64| {
        format!(" {{ \"deep\" : {{\"a\":\"\\u00e9\\/\",\t\"b\":null}},\n\"list\":[1.0, 25e-1,\"x\"],\"n\":{n}.00}}")
    };
    let asked = |n: i64| request(&format!("k{n}"), json!({"user_id": format!("u{n}")}));
    let with = |n: i64, payload: String| {
        let mut request = asked(n);
        request["payload"] = serde_json::from_str(&payload).unwrap();
        request
    };
    let made = ask_all(&mut session, &(0..1000).map(|n| with(n, number(n))).collect::<Vec<_>>()).await.unwrap();
    assert!(made.iter().all(|created| created.outcome == "created"));
    for (n, made) in (0..).zip(&made).step_by(5) {
        let again = ask_spelt(&mut session, &asked(n), Some(&other(n))).await.unwrap();
        assert_eq!((again.outcome.as_str(), again.flow_id), ("replayed", made.flow_id), "{n}");
    }
    // And all of them as one set, backwards.
    let again = ask_all(&mut session, &(0..1000).rev().map(|n| with(n, other(n))).collect::<Vec<_>>()).await.unwrap();
    for (again, made) in again.iter().zip(made.iter().rev()) {
        assert_eq!((again.outcome.as_str(), again.flow_id), ("replayed", made.flow_id));
    }
    assert_eq!((flows(&db).await, keys(&db).await), (1000, 1000));
    assert_verified(&db).await;
}

#[tokio::test]
async fn volatile_fields_of_the_payload_do_not_count() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute("update paylatch.scene set volatile_fields = '{at,trace}' where scene = 'topup'").await;
    let mut session = db.session_as("app").await;
    let with = |payload: Value| request("k", json!({"payload": payload}));
    let first = ask(&mut session, &with(json!({"sku": 5, "at": "10:00", "trace": "a"}))).await.unwrap();
    let again = ask(&mut session, &with(json!({"at": "10:01", "sku": 5.0}))).await.unwrap();
    assert_eq!((again.outcome.as_str(), again.flow_id), ("replayed", first.flow_id));
    // Only at the top: elsewhere a field of that name counts.
    for other in [json!({"sku": 6}), json!({"sku": 5, "deep": {"at": 1}}), json!(["at"])] {
        assert_eq!(ask(&mut session, &with(other)).await, Err(refused("PL001", &["payload"])));
    }
    // The list may change later; keys and their proofs stay what they are.
    db.execute("update paylatch.scene set volatile_fields = '{at,trace,sku}' where scene = 'topup'").await;
    assert_eq!(ask(&mut session, &with(json!({"sku": 7}))).await.unwrap().outcome, "replayed");
    assert_verified(&db).await;
}

/// A key stands for whichever flow its request got; a new try after a definite failure is a new key.
#[tokio::test]
async fn a_key_stands_for_the_flow_that_was_found() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let first = ask(&mut session, &request("k1", json!({}))).await.unwrap();
    // Under way: another key finds it, and keeps it, with the payload that it asked with.
    let found = ask(&mut session, &request("k2", json!({"payload": {"a": 1}}))).await.unwrap();
    assert_eq!((found.outcome.as_str(), found.flow_id), ("in_flight", first.flow_id));
    assert_eq!(ask(&mut session, &request("k2", json!({"payload": {"a": 1}}))).await.unwrap().outcome, "replayed");
    assert_eq!(ask(&mut session, &request("k2", json!({}))).await, Err(refused("PL001", &["payload"])));

    // Failed: the old keys give the failed flow, a new one a new attempt.
    let mut driver = db.session().await;
    let handout = claim(&mut driver, 1).await.remove(0);
    report(&mut driver, &[handout.evidence(Outcome::Failed)]).await;
    let failed = ask(&mut session, &request("k1", json!({}))).await.unwrap();
    assert_eq!((failed.outcome.as_str(), failed.client_status.as_deref()), ("replayed", Some("PAY_FAIL")));
    let second = ask(&mut session, &request("k3", json!({"amount": 900}))).await.unwrap();
    assert_eq!(second.outcome, "created");
    assert_ne!(second.flow_id, first.flow_id);

    // Paid: a new key is told so, whatever it asks for, and is told the same again.
    let handout = claim(&mut driver, 1).await.remove(0);
    report(&mut driver, &[handout.evidence(Outcome::Succeeded)]).await;
    let paid = ask(&mut session, &request("k4", json!({"amount": 700}))).await.unwrap();
    assert_eq!((paid.outcome.as_str(), paid.flow_id), ("already_paid", second.flow_id));
    assert_eq!(ask(&mut session, &request("k4", json!({"amount": 700}))).await.unwrap().outcome, "replayed");
    assert_eq!(ask(&mut session, &request("k4", json!({}))).await, Err(refused("PL001", &["amount"])));
    assert_eq!(ask(&mut session, &request("k1", json!({}))).await.unwrap().flow_id, first.flow_id);

    // Closed: no flow, so the key stays free.
    db.execute("update paylatch.scene set entry_open = false where scene = 'topup'").await;
    let other = request("k5", json!({"biz_key": "two"}));
    assert_eq!(ask(&mut session, &other).await.unwrap().outcome, "closed");
    assert_eq!(ask(&mut session, &request("k3", json!({"amount": 900}))).await.unwrap().outcome, "replayed");
    db.execute("update paylatch.scene set entry_open = true where scene = 'topup'").await;
    assert_eq!(ask(&mut session, &other).await.unwrap().outcome, "created");
    assert_verified(&db).await;
}

/// Without a key, the order with its status and attempt count is one.
#[tokio::test]
async fn a_double_click_is_one_attempt_and_for_the_same_money() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let mut click = request("", json!({}));
    click.as_object_mut().unwrap().remove("idempotency_key");
    let first = ask(&mut session, &click).await.unwrap();
    let second = ask(&mut session, &click).await.unwrap();
    assert_eq!((second.outcome.as_str(), second.flow_id), ("in_flight", first.flow_id));
    let mut dearer = click.clone();
    dearer["amount"] = json!(1600);
    dearer["currency"] = json!("EUR");
    assert_eq!(ask(&mut session, &dearer).await, Err(refused("PL001", &["amount", "currency"])));
    dearer["idempotency_key"] = json!("k");
    assert_eq!(ask(&mut session, &dearer).await, Err(refused("PL001", &["amount", "currency"])));
    assert_eq!((flows(&db).await, keys(&db).await), (1, 0));

    let mut bob = click.clone();
    bob["user_id"] = json!("bob");
    let mut bob_dearer = bob.clone();
    bob_dearer["amount"] = json!(1);
    assert_eq!(ask_all(&mut session, &[bob.clone(), bob_dearer]).await, Err(refused("PL001", &["amount"])));
    assert_eq!(flows(&db).await, 1, "a set is all or none");

    let mut driver = db.session().await;
    let handout = claim(&mut driver, 1).await.remove(0);
    report(&mut driver, &[handout.evidence(Outcome::Failed)]).await;
    let third = ask(&mut session, &click).await.unwrap();
    assert_eq!(third.outcome, "created");
    assert_ne!(third.flow_id, first.flow_id);
    assert_verified(&db).await;
}

#[tokio::test]
async fn keys_have_a_shape_a_number_and_an_isolation_level() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    for key in [String::new(), "k".repeat(256)] {
        assert_eq!(ask(&mut session, &request(&key, json!({}))).await.unwrap_err().code, "PL004");
    }
    assert_eq!(ask(&mut session, &request(&"ü".repeat(255), json!({}))).await.unwrap().outcome, "created");
    let many: Vec<_> = (0..1001).map(|n| request(&format!("m{n}"), json!({"user_id": n.to_string()}))).collect();
    assert_eq!(ask_all(&mut session, &many).await.unwrap_err().code, "PL004");
    assert_eq!(flows(&db).await, 1);
    sqlx::raw_sql("begin isolation level repeatable read").execute(&mut session).await.unwrap();
    assert_eq!(ask(&mut session, &request("rr", json!({"user_id": "bob"}))).await.unwrap_err().code, "PL004");
}
