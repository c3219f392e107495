//! Twins: many sessions, one set, a holder that dies, one that gives up. Never two flows, never an error.

use std::time::{Duration, Instant};

use futures::future::join_all;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::wait::SOON;
use paylatch_tests::{Database, database, eventually};
use serde_json::json;

use super::{ask, ask_all, flows, keys, refused, request};

#[tokio::test]
async fn f20_concurrent_twins_make_one_flow() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    for round in 0..5 {
        let asked = request(&format!("k{round}"), json!({"biz_key": format!("b{round}")}));
        let twins = join_all((0..24).map(|_| async {
            let mut session = db.session_as("app").await;
            ask(&mut session, &asked).await
        }))
        .await;
        let twins: Vec<_> = twins.into_iter().map(|twin| twin.expect("no twin fails")).collect();
        assert_eq!(twins.iter().filter(|twin| twin.outcome == "created").count(), 1);
        assert!(twins.iter().all(|twin| ["created", "replayed"].contains(&twin.outcome.as_str())), "{twins:?}");
        assert!(twins.iter().all(|twin| twin.flow_id == twins[0].flow_id), "{twins:?}");
    }
    assert_eq!((flows(&db).await, keys(&db).await), (5, 5));
    assert_verified(&db).await;
}

/// Same key, other targets: one is first, all others are refused.
#[tokio::test]
async fn f20_concurrent_requests_that_differ_are_refused_but_one() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let answers = join_all((0..16).map(|n| {
        let db = &db;
        async move {
            let mut session = db.session_as("app").await;
            ask(&mut session, &request("k", json!({"biz_key": format!("b{n}")}))).await
        }
    }))
    .await;
    let made = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(made, 1, "{answers:?}");
    for answer in answers.into_iter().filter(Result::is_err) {
        assert_eq!(answer, Err(refused("PL001", &["biz_key"])));
    }
    assert_eq!((flows(&db).await, keys(&db).await), (1, 1));
}

/// Who holds a key and is killed leaves nothing behind: the next one creates, at once.
#[tokio::test]
async fn f20_a_killed_holder_blocks_nobody() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut holder = db.session_as("app").await;
    database::run(&mut holder, "begin").await;
    let asked = request("k", json!({}));
    ask(&mut holder, &asked).await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut holder).await.unwrap();

    let mut waiter = db.session_as("app").await;
    let waiting = tokio::spawn({
        let asked = asked.clone();
        async move { (ask(&mut waiter, &asked).await, Instant::now()) }
    });
    eventually("the twin waits for the key", SOON, async || {
        let blocked = "select exists (select from pg_locks where locktype = 'advisory' and not granted)";
        db.value::<bool>(blocked).await.then_some(())
    })
    .await;
    let killed_at = Instant::now();
    db.execute(&format!("select pg_terminate_backend({pid})")).await;
    let (taken, at) = waiting.await.unwrap();
    assert_eq!(taken.unwrap().outcome, "created");
    assert!(at - killed_at < Duration::from_secs(5), "{:?}", at - killed_at);
    assert_eq!((flows(&db).await, keys(&db).await), (1, 1));
    assert_verified(&db).await;
}

#[tokio::test]
async fn f20_a_transaction_that_rolls_back_frees_its_key() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    database::run(&mut session, "begin").await;
    ask(&mut session, &request("k", json!({}))).await.unwrap();
    database::run(&mut session, "rollback").await;
    assert_eq!((flows(&db).await, keys(&db).await), (0, 0));
    let other = ask(&mut session, &request("k", json!({"amount": 7}))).await.unwrap();
    assert_eq!(other.outcome, "created");
}

#[tokio::test]
async fn twins_in_one_set_make_one_flow() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session_as("app").await;
    let old = ask(&mut session, &request("old", json!({"user_id": "carol"}))).await.unwrap();
    let mut unkeyed = request("", json!({"user_id": "dan"}));
    unkeyed.as_object_mut().unwrap().remove("idempotency_key");
    let set = [
        request("a", json!({})),
        request("old", json!({"user_id": "carol"})),
        request("a", json!({})),
        unkeyed.clone(),
        request("b", json!({"user_id": "bob"})),
        request("c", json!({})),
        unkeyed,
        request("a", json!({})),
    ];
    let made = ask_all(&mut session, &set).await.unwrap();
    let outcomes: Vec<_> = made.iter().map(|created| created.outcome.as_str()).collect();
    assert_eq!(
        outcomes,
        ["created", "replayed", "replayed", "created", "created", "in_flight", "in_flight", "replayed"]
    );
    assert_eq!(made[1].flow_id, old.flow_id);
    for (twin, of) in [(2, 0), (5, 0), (7, 0), (6, 3)] {
        assert_eq!(made[twin].flow_id, made[of].flow_id, "{twin} and {of}");
    }
    assert_eq!((flows(&db).await, keys(&db).await), (4, 4));

    let differing = [request("x", json!({"user_id": "eve"})), request("x", json!({"user_id": "eve", "amount": 2}))];
    assert_eq!(ask_all(&mut session, &differing).await, Err(refused("PL001", &["amount"])));
    assert_eq!(flows(&db).await, 4);
    assert_verified(&db).await;
}
