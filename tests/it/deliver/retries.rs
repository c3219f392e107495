//! What becomes of deliveries, decided in the database: fan-out, leases, a day of retries, dead ones, 410, isolation.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::{refused, run};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments;
use sqlx::PgConnection;

use super::{Handed, add_endpoint, claim, settle};

async fn later(session: &mut PgConnection, seconds: i64) {
    run(session, &format!("set paylatch.clock_offset_ms = {}", seconds * 1000)).await;
}

async fn statuses(db: &Database) -> Vec<(String, i32)> {
    let all = "select status, tries from paylatch.delivery order by delivery_id";
    sqlx::query_as(all).fetch_all(db.pool()).await.unwrap()
}

fn events(handed: &[Handed]) -> Vec<&str> {
    handed.iter().map(|handed| handed.event_id.as_str()).collect()
}

/// Each event goes to each endpoint of its merchant that wants it, once, in order; what was before is not told.
#[tokio::test]
async fn events_become_deliveries_of_those_who_want_them() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.create_flow("topup", "before", "k").await;
    let (all, _) = add_endpoint(&db, "https://a.example/hook", "null").await;
    let (orders, _) = add_endpoint(&db, "https://b.example/hook", "'{order.*,flow.pay_fail}'").await;
    db.execute("select paylatch.create_webhook_endpoint('other', 'https://c.example/hook')").await;
    let flow = db.create_flow("topup", "alice", "k").await;
    db.execute("select paylatch.create_pay_flow('topup', 'bob', 'k', 5, 'USD', merchant_id => 'nobody')").await;

    let mut driver = db.session_as("driver").await;
    let handed = claim(&mut driver, "d").await;
    let (created, taken) = (format!("evt_{flow}_f{flow}_0"), format!("evt_{flow}_o2_1"));
    let of = |endpoint: i64| handed.iter().filter(|h| h.endpoint_id == endpoint).cloned().collect::<Vec<_>>();
    assert_eq!(events(&of(all)), [created.as_str(), taken.as_str()]);
    assert_eq!(events(&of(orders)), [taken.as_str()]);
    assert_eq!(handed.len(), 3, "another merchant's endpoint gets nothing");
    assert!(handed.iter().all(|h| h.secrets.len() == 1 && h.url.starts_with("https://")));
    let body: serde_json::Value = serde_json::from_str(&handed[0].body).unwrap();
    assert_eq!((body["event_id"].as_str(), body["type"].as_str()), (Some(created.as_str()), Some("flow.wait_pay")));
    assert!(claim(&mut driver, "d").await.is_empty(), "endpoints are leased");

    for endpoint in [all, orders] {
        let mine = of(endpoint);
        let tried: Vec<_> = mine.iter().map(|h| (h.delivery_id, 204)).collect();
        assert_eq!(settle(&mut driver, "other", &mine[0], &tried).await, "lease_lost");
        assert_eq!(settle(&mut driver, "d", &mine[0], &tried).await, "settled");
        assert_eq!(settle(&mut driver, "d", &mine[0], &tried).await, "lease_lost");
    }
    assert!(claim(&mut driver, "d").await.is_empty());
    assert!(statuses(&db).await.iter().all(|s| *s == ("delivered".to_owned(), 1)));

    // The outbox redelivering to the sink makes no second delivery; an operator asking does, of the same message.
    db.execute(&format!("select paylatch.redeliver('webhook', '{created}')")).await;
    assert!(claim(&mut driver, "d").await.is_empty());
    assert_eq!(db.value::<i64>(&format!("select paylatch.redeliver_webhook(event_id => '{taken}')")).await, 2);
    let again = claim(&mut driver, "d").await;
    assert_eq!(events(&again), [taken.as_str(), taken.as_str()]);
    assert_verified(&db).await;
}

/// F25 for this sink: an event that commits late, with a lower id, is delivered all the same.
#[tokio::test]
async fn f25_a_late_commit_is_delivered() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    add_endpoint(&db, "https://a.example/hook", "'{flow.wait_pay}'").await;
    let mut late = db.session().await;
    run(&mut late, "begin; select paylatch.create_pay_flow('topup', 'late', 'k', 5, 'USD')").await;
    let early = db.create_flow("topup", "early", "k").await;
    let mut driver = db.session_as("driver").await;
    let first = claim(&mut driver, "d").await;
    assert_eq!(events(&first), [format!("evt_{early}_f{early}_0")]);
    settle(&mut driver, "d", &first[0], &[(first[0].delivery_id, 200)]).await;
    run(&mut late, "commit").await;
    let second = claim(&mut driver, "d").await;
    assert_eq!(second.len(), 1);
    assert!(second[0].event_id < first[0].event_id, "{} and {}", second[0].event_id, first[0].event_id);
}

/// Eight tries, spread over about a day; then it is dead, and an operator may have it sent again.
#[tokio::test]
async fn a_delivery_is_tried_for_about_a_day() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    add_endpoint(&db, "https://a.example/hook", "'{flow.wait_pay}'").await;
    db.create_flow("topup", "alice", "k").await;
    let mut driver = db.session().await;
    let (mut clock, mut tries) = (0, Vec::new());
    while let Some(handed) = {
        later(&mut driver, clock).await;
        claim(&mut driver, "d").await.pop()
    } {
        tries.push(clock);
        assert_eq!(settle(&mut driver, "d", &handed, &[(handed.delivery_id, 503)]).await, "settled");
        let (status, count) = statuses(&db).await.remove(0);
        assert_eq!(count as usize, tries.len());
        if status == "dead" {
            break;
        }
        // Not a moment too early.
        let due = "select extract(epoch from greatest(d.due_at, w.paused_until) - now())::bigint
                   from paylatch.delivery d join paylatch.webhook_endpoint w using (endpoint_id)";
        let due: i64 = db.value(due).await;
        later(&mut driver, due - 2).await;
        assert!(claim(&mut driver, "d").await.is_empty());
        clock = due + 2;
    }
    assert_eq!((tries.len(), statuses(&db).await), (8, vec![("dead".to_owned(), 8)]));
    assert!((20 * 3600..30 * 3600).contains(tries.last().unwrap()), "{tries:?}");
    let attempts: i64 = db.value("select count(*) from paylatch.delivery_attempt where status = 503").await;
    assert_eq!(attempts, 8);

    later(&mut driver, clock + 1000).await;
    assert!(claim(&mut driver, "d").await.is_empty());
    let listed: i64 = db.value("select count(*) from paylatch.deliveries(with_status => 'dead')").await;
    assert_eq!(listed, 1);
    db.execute("select paylatch.redeliver_webhook(delivery_id) from paylatch.delivery").await;
    let handed = claim(&mut driver, "d").await.remove(0);
    settle(&mut driver, "d", &handed, &[(handed.delivery_id, 200)]).await;
    assert_eq!(statuses(&db).await, [("delivered".to_owned(), 1)]);

    // After 30 days it is forgotten, with what was tried.
    run(
        &mut driver,
        "set paylatch.clock_offset_ms = 0; select paylatch.forget_deliveries(paylatch.clock() + interval '31 days')",
    )
    .await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.delivery_attempt").await, 0);
}

/// A failing endpoint rests, at most five minutes at a time, and nothing of it keeps another one waiting.
#[tokio::test]
async fn an_endpoint_that_fails_rests_and_holds_up_nobody_else() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let (down, _) = add_endpoint(&db, "https://down.example/hook", "'{flow.wait_pay}'").await;
    let (up, _) = add_endpoint(&db, "https://up.example/hook", "'{flow.wait_pay}'").await;
    let mut driver = db.session().await;
    for n in 0..15 {
        db.create_flow("topup", &format!("u{n}"), "k").await;
        later(&mut driver, n).await;
        let handed = claim(&mut driver, "d").await;
        let first = handed.iter().find(|h| h.endpoint_id == up).expect("the one that is up is served each time");
        settle(&mut driver, "d", first, &[(first.delivery_id, 200)]).await;
        if let Some(first) = handed.iter().find(|h| h.endpoint_id == down) {
            settle(&mut driver, "d", first, &[(first.delivery_id, 500)]).await;
        }
    }
    let tried: i64 = db.value(&format!("select sum(tries) from paylatch.delivery where endpoint_id = {down}")).await;
    assert!((3..=6).contains(&tried), "{tried} tries in 15 seconds");
    db.execute("update paylatch.webhook_endpoint set failures = 200").await;
    later(&mut driver, 3600).await;
    let handed = claim(&mut driver, "d").await.into_iter().find(|h| h.endpoint_id == down).unwrap();
    settle(&mut driver, "d", &handed, &[(handed.delivery_id, 500)]).await;
    let rest = format!(
        "select extract(epoch from paused_until - now())::int - 3600 from paylatch.webhook_endpoint where endpoint_id = {down}"
    );
    assert!((295..=300).contains(&db.value::<i32>(&rest).await));
    // One that is taken ends the rest: everything that waits goes out.
    later(&mut driver, 7200).await;
    let handed = claim(&mut driver, "d").await;
    let mine: Vec<_> = handed.iter().filter(|h| h.endpoint_id == down).collect();
    assert!(mine.len() > 8, "{}", mine.len());
    settle(&mut driver, "d", mine[0], &[(mine[0].delivery_id, 200)]).await;
    assert!(claim(&mut driver, "d").await.iter().any(|h| h.endpoint_id == down));
}

#[tokio::test]
async fn gone_disables_an_endpoint_until_an_operator_enables_it() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let (endpoint, _) = add_endpoint(&db, "https://a.example/hook", "'{flow.wait_pay}'").await;
    db.create_flow("topup", "alice", "k").await;
    let mut driver = db.session().await;
    let handed = claim(&mut driver, "d").await.remove(0);
    settle(&mut driver, "d", &handed, &[(handed.delivery_id, 410)]).await;
    let why: String = db.value("select disabled_why from paylatch.webhook_endpoints()").await;
    assert_eq!(why, "answered 410 Gone");
    db.create_flow("topup", "bob", "k").await;
    later(&mut driver, 3600).await;
    assert!(claim(&mut driver, "d").await.is_empty());
    assert_eq!(statuses(&db).await.len(), 1, "a disabled endpoint gets nothing new");
    let mut operator = db.session_as("operator").await;
    for enabled in [true, false] {
        let enable = sqlx::query_scalar("select paylatch.enable_webhook_endpoint($1)").bind(endpoint);
        assert_eq!(enable.fetch_one(&mut operator).await.ok(), Some(enabled));
    }
    assert_eq!(claim(&mut driver, "d").await.len(), 1, "what waited goes out");
}

#[tokio::test]
async fn a_holder_that_dies_is_followed_and_a_copy_tells_nothing() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    add_endpoint(&db, "https://a.example/hook", "'{flow.wait_pay}'").await;
    db.create_flow("topup", "alice", "k").await;
    let mut driver = db.session().await;
    let first = claim(&mut driver, "one").await.remove(0);
    later(&mut driver, 59).await;
    assert!(claim(&mut driver, "two").await.is_empty());
    later(&mut driver, 61).await;
    let second = claim(&mut driver, "two").await.remove(0);
    assert_eq!(second.event_id, first.event_id);
    assert_eq!(settle(&mut driver, "one", &first, &[(first.delivery_id, 200)]).await, "lease_lost");
    assert_eq!(settle(&mut driver, "two", &second, &[]).await, "settled", "nothing sent, nothing lost");
    db.execute("update paylatch.armed set database_name = 'elsewhere'").await;
    assert!(claim(&mut driver, "two").await.is_empty());
    db.execute("select paylatch.arm('again')").await;
    assert_eq!(claim(&mut driver, "two").await.len(), 1);
}

/// Secrets are for who signs; attempts are never changed; bad arguments are named.
#[tokio::test]
async fn secrets_stay_inside_and_arguments_are_checked() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut operator = db.session_as("operator").await;
    for (arguments, field) in [
        ("'', 'https://a.example/'", "merchant_id"),
        ("'m', 'ftp://a.example/'", "url"),
        ("'m', 'https://user@a.example/'", "url"),
        ("'m', 'https://'", "url"),
        ("'m', null", "url"),
        ("'m', 'https://a.example/', '{all}'", "events"),
        ("'m', 'https://a.example/', array[null]::text[]", "events"),
    ] {
        let (code, message) =
            refused(&mut operator, &format!("select paylatch.create_webhook_endpoint({arguments})")).await;
        assert!(code == "PL004" && message.starts_with(field), "{arguments}: {code} {message}");
    }
    let (endpoint, secret) = add_endpoint(&db, "https://a.example:8443/hook?x=1", "null").await;
    assert!(paylatch_core::signature::Key::parse(&secret).is_some());
    assert_eq!(refused(&mut operator, "select paylatch.rotate_webhook_secret(99)").await.0, "PL004");
    assert_eq!(refused(&mut operator, "select paylatch.redeliver_webhook()").await.0, "PL004");

    let mut auditor = db.session_as("auditor").await;
    run(&mut auditor, "select endpoint_id, url, failures from paylatch.webhook_endpoint").await;
    for column in ["secret", "previous_secret", "*"] {
        let attempt = format!("select {column} from paylatch.webhook_endpoint");
        assert_eq!(refused(&mut auditor, &attempt).await.0, "42501", "{column}");
    }
    let shown: String = db.value("select string_agg(w::text, '') from paylatch.webhook_endpoints() w").await;
    assert!(!shown.contains(&secret));

    db.create_flow("topup", "alice", "k").await;
    let mut driver = db.session().await;
    let handed = claim(&mut driver, "d").await.remove(0);
    settle(&mut driver, "d", &handed, &[(handed.delivery_id, 200)]).await;
    for attempt in [
        "update paylatch.delivery_attempt set status = 500",
        "delete from paylatch.delivery_attempt",
        "truncate paylatch.delivery_attempt",
        "truncate paylatch.delivery cascade",
        "truncate paylatch.webhook_endpoint cascade",
    ] {
        assert_eq!(refused(&mut driver, attempt).await.0, "23514", "{attempt}");
    }
    let _ = endpoint;
    assert_verified(&db).await;
}

/// A payment's whole life, as its merchant hears it.
#[tokio::test]
async fn a_life_is_told_in_order() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    add_endpoint(&db, "https://a.example/hook", "null").await;
    db.create_flow("topup", "alice", "k").await;
    let mut session = db.session().await;
    let handout = payments::claim(&mut session, 1).await.remove(0);
    payments::report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
    let handed = claim(&mut session, "d").await;
    let told =
        |h: &Handed| serde_json::from_str::<serde_json::Value>(&h.body).unwrap()["type"].as_str().unwrap().to_owned();
    let types: Vec<_> = handed.iter().map(told).filter(|told| told.starts_with("flow.")).collect();
    assert_eq!(types, ["flow.wait_pay", "flow.paying", "flow.payed", "flow.biz_success"]);
}
