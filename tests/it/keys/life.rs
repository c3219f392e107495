//! How long keys live: over midnight, as long as their flow is unfinished, then for a while, and by whole days.

use paylatch_tests::invariants::assert_verified;
use paylatch_tests::{Database, database};
use serde_json::json;
use sqlx::PgConnection;

use super::{ask, flows, keys, refused, request};

const HOUR_MS: i64 = 3_600_000;

/// A session whose clock stands so many milliseconds after the coming midnight (UTC).
async fn around_midnight(db: &Database, ms: i64) -> PgConnection {
    let mut session = db.session().await;
    let offset = format!(
        "select set_config('paylatch.clock_offset_ms', (extract(epoch from
             date_trunc('day', now() at time zone 'UTC') + interval '1 day' - now() at time zone 'UTC') * 1000 + {ms})::bigint::text, false)"
    );
    database::run(&mut session, &offset).await;
    session
}

async fn days(db: &Database) -> Vec<String> {
    let names =
        "select coalesce(array_agg(inhrelid::regclass::text order by inhrelid::regclass::text), '{}') from pg_inherits
                 where inhparent = 'paylatch.idempotency_key'::regclass";
    db.value(names).await
}

#[tokio::test]
async fn f20_one_key_on_either_side_of_midnight_makes_one_flow() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut before = around_midnight(&db, -60_000).await;
    let mut after = around_midnight(&db, 60_000).await;
    let first = ask(&mut before, &request("k", json!({}))).await.unwrap();
    let second = ask(&mut after, &request("k", json!({}))).await.unwrap();
    assert_eq!((second.outcome.as_str(), second.flow_id), ("replayed", first.flow_id));
    let other = request("k", json!({"biz_key": "two"}));
    assert_eq!(ask(&mut after, &other).await, Err(refused("PL001", &["biz_key"])));

    // At the same moment, in each direction: the second waits for the first, though their days differ.
    for (key, early) in [("m1", true), ("m2", false)] {
        let asked = request(key, json!({"biz_key": key}));
        let (holder, waiter) = if early { (&mut before, &mut after) } else { (&mut after, &mut before) };
        database::run(&mut *holder, "begin").await;
        let made = ask(holder, &asked).await.unwrap();
        let (taken, ()) = tokio::join!(ask(waiter, &asked), async {
            paylatch_tests::eventually("the twin waits", paylatch_tests::wait::SOON, async || {
                let blocked = "select exists (select from pg_locks where locktype = 'advisory' and not granted)";
                db.value::<bool>(blocked).await.then_some(())
            })
            .await;
            database::run(&mut *holder, "commit").await;
        });
        let taken = taken.unwrap();
        assert_eq!((taken.outcome.as_str(), taken.flow_id), ("replayed", made.flow_id));
    }
    let spread: i64 = db.value("select count(distinct tableoid) from paylatch.idempotency_key").await;
    assert_eq!(spread, 2, "the keys lie in two days");
    assert_eq!((flows(&db).await, keys(&db).await), (3, 3));
    assert_verified(&db).await;
}

/// Days go whole, and only once nothing in them is unfinished and the last end is `key_ttl_hours` ago.
#[tokio::test]
async fn days_go_when_everything_in_them_has_ended_long_enough_ago() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut today = db.session().await;
    ask(&mut today, &request("k", json!({}))).await.unwrap();
    let made = days(&db).await;
    assert_eq!(made.len(), 4, "today, two ahead, and the net: {made:?}");
    let key_day = made[0].clone();

    let tend = async |ms: i64| {
        let mut later = around_midnight(&db, ms).await;
        database::run(&mut later, "select paylatch.tend_keys('test', paylatch.clock())").await;
        days(&db).await.contains(&key_day)
    };
    assert!(tend(HOUR_MS).await, "the day has just ended");
    assert!(tend(3 * 24 * HOUR_MS).await, "its flow is unfinished");
    // It ends on the fourth day.
    let mut fourth = around_midnight(&db, 3 * 24 * HOUR_MS + HOUR_MS).await;
    database::run(&mut fourth, "select paylatch.cancel_pay_flow(flow_id) from paylatch.pay_flow").await;
    assert!(tend(4 * 24 * HOUR_MS).await, "it ended less than 24 hours ago");
    assert_eq!(ask(&mut today, &request("k", json!({}))).await.unwrap().outcome, "replayed");
    database::run(&mut fourth, "set paylatch.key_ttl_hours = 72").await;
    assert!(!tend(4 * 24 * HOUR_MS + 2 * HOUR_MS).await, "it is due");
    assert_eq!(keys(&db).await, 0);
    assert_verified(&db).await;
}

/// Nobody ran for a week: keys go into the net, which is remade once all in it is due.
#[tokio::test]
async fn keys_without_a_day_lie_in_the_net() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let week = 7 * 24 * HOUR_MS;
    let mut late = around_midnight(&db, week).await;
    let asked = request("k", json!({}));
    ask(&mut late, &asked).await.unwrap();
    assert_eq!(ask(&mut late, &asked).await.unwrap().outcome, "replayed");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.idempotency_key_other").await, 1);
    database::run(&mut late, "select paylatch.tend_keys('test', paylatch.clock())").await;
    let kept = days(&db).await;
    assert!(kept.contains(&"paylatch.idempotency_key_other".to_owned()), "{kept:?}");
    assert_eq!(keys(&db).await, 1, "a day that the net holds rows of is not made");
    database::run(&mut late, "select paylatch.cancel_pay_flow(flow_id) from paylatch.pay_flow").await;
    let mut later = around_midnight(&db, week + 48 * HOUR_MS).await;
    database::run(&mut later, "select paylatch.tend_keys('test', paylatch.clock())").await;
    assert_eq!(keys(&db).await, 0);
    assert_eq!(ask(&mut later, &request("k2", json!({}))).await.unwrap().outcome, "created");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.idempotency_key_other").await, 0);
    assert_verified(&db).await;
}

/// A dump that holds every table stops neither creation nor the scanner; it is tried again in the next hour.
#[tokio::test]
async fn a_day_that_cannot_be_locked_is_made_later() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut dump = db.session().await;
    database::run(&mut dump, "begin; lock table paylatch.idempotency_key in access share mode").await;
    let mut later = around_midnight(&db, 24 * HOUR_MS).await;
    let said: serde_json::Value =
        sqlx::query_scalar("select paylatch.scan('test')").fetch_one(&mut later).await.unwrap();
    assert!(said["keys"]["days_made"].is_null(), "{said}");
    assert_eq!(ask(&mut later, &request("k", json!({}))).await.unwrap().outcome, "created");
    database::run(&mut dump, "commit").await;
    let mut next_hour = around_midnight(&db, 25 * HOUR_MS).await;
    let said: serde_json::Value =
        sqlx::query_scalar("select paylatch.scan('test')").fetch_one(&mut next_hour).await.unwrap();
    assert_eq!(said["keys"]["days_made"], 2, "{said}");
    assert_verified(&db).await;
}

#[tokio::test]
async fn keys_are_append_only_and_verify_sees_what_is_bent() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    ask(&mut session, &request("k", json!({}))).await.unwrap();
    let day = days(&db).await[0].clone();
    for mode in ["origin", "replica"] {
        database::run(&mut session, &format!("set session_replication_role = {mode}")).await;
        for attempt in [
            "update paylatch.idempotency_key set flow_id = 2".to_owned(),
            "delete from paylatch.idempotency_key".to_owned(),
            "truncate paylatch.idempotency_key".to_owned(),
            format!("delete from {day}"),
            format!("truncate {day}"),
            "truncate paylatch.merchant_login".to_owned(),
        ] {
            assert_eq!(database::refused(&mut session, &attempt).await.0, "23514", "{mode}: {attempt}");
        }
    }
    database::run(&mut session, "set session_replication_role = origin").await;
    let insert = |key: &str, merchant: &str, flow: &str, operation: &str, at: &str| {
        format!("insert into paylatch.idempotency_key (merchant_id, key, operation, fingerprint, flow_id, refund_id, created_at)
                 select '{merchant}', '{key}', '{operation}', fingerprint, {flow}, 99, created_at + interval '{at}'
                 from paylatch.idempotency_key where key = 'k' limit 1")
    };
    let twice = database::refused(&mut session, &insert("k", "default", "flow_id", "create_pay_flow", "0")).await;
    assert_eq!(twice.0, "23505");
    db.settled_flow("bob", "two").await;
    let refund = "select paylatch.request_refund(2, 5, 'why', 'r')";
    for sabotage in [
        format!("{refund}; alter table {day} disable trigger t10_guard;
                 update paylatch.idempotency_key set fingerprint = '\\x01010101010101010101010101010101' where key = 'r'"),
        insert("k", "default", "flow_id", "create_pay_flow", "1 day"),
        insert("x", "default", "flow_id + 1", "create_pay_flow", "0"),
        insert("x", "other", "flow_id", "create_pay_flow", "0"),
        insert("x", "default", "flow_id", "request_refund", "0"),
        format!(
            "alter table {day} disable trigger t10_guard; update paylatch.idempotency_key set fingerprint = '\\x00000000000000000000000000000000'"
        ),
    ] {
        database::run(&mut session, "begin").await;
        database::run(&mut session, &sabotage).await;
        let broken: bool = sqlx::query_scalar("select not ok from paylatch.verify() where rule = 8")
            .fetch_one(&mut session)
            .await
            .unwrap();
        assert!(broken, "verify() is silent about: {sabotage}");
        database::run(&mut session, "rollback").await;
    }
    for sabotage in [
        format!("alter table {day} drop constraint {}_once", day.trim_start_matches("paylatch.")),
        format!("alter table {day} disable trigger t10_guard"),
        format!("drop trigger t11_no_truncate on {day}"),
    ] {
        database::run(&mut session, "begin").await;
        database::run(&mut session, &sabotage).await;
        let weak: bool = sqlx::query_scalar("select bool_or(not ok) from paylatch.verify_guards()")
            .fetch_one(&mut session)
            .await
            .unwrap();
        assert!(weak, "verify() is silent about: {sabotage}");
        database::run(&mut session, "rollback").await;
    }
    assert_verified(&db).await;
}
