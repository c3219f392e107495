//! An event that is refused is tried again, then given up; its flow waits meanwhile, and nobody else does.

use paylatch_tests::Database;
use paylatch_tests::database::{refused, run};
use paylatch_tests::events::{Event, claim_events, drain, settle_events};
use sqlx::PgConnection;

async fn database() -> Database {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", false).await;
    db.execute("update paylatch.outbox_sink set max_tries = 3, retry_base_ms = 1000, retry_max_ms = 3000").await;
    db
}

async fn at(session: &mut PgConnection, offset_ms: i32) {
    run(&mut *session, &format!("set paylatch.clock_offset_ms = {offset_ms}")).await;
}

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(|e| e.event_id.as_str()).collect()
}

/// Refuses the first of what is claimed, publishes the rest of other flows; returns all that was handed out.
async fn refuse_first(session: &mut PgConnection) -> Vec<Event> {
    let events = claim_events(session, "s", "by-hand", 10).await;
    let (bad, rest) = events.split_first().expect("something is handed out");
    let rest: Vec<_> = rest.iter().filter(|e| e.flow_id != bad.flow_id).cloned().collect();
    assert_eq!(settle_events(session, "s", "by-hand", &rest, std::slice::from_ref(bad)).await, "settled");
    events
}

#[tokio::test]
async fn a_dead_letter_holds_up_its_own_flow_only_and_not_for_good() {
    let db = database().await;
    let bad = db.create_flow("topup", "bad", "k").await;
    let good = db.create_flow("topup", "good", "k").await;
    let (first, second) = (format!("evt_{bad}_f{bad}_0"), format!("evt_{bad}_o1_1"));
    let mut session = db.session().await;
    let offered = refuse_first(&mut session).await;
    assert_eq!(offered.len(), 4);
    assert!(drain(&mut session, "s").await.is_empty(), "the refused one and its flow wait");
    // What comes after it in its flow waits too; other flows do not.
    db.execute(&format!("select paylatch.cancel_pay_flow({bad}), paylatch.cancel_pay_flow({good})")).await;
    let published = drain(&mut session, "s").await;
    assert!(!published.is_empty() && published.iter().all(|e| e.flow_id == good), "{published:?}");
    let retried: Vec<(String, i32)> =
        sqlx::query_as("select event_id, tries from paylatch.undelivered").fetch_all(db.pool()).await.unwrap();
    assert_eq!(retried, [(first.clone(), 1)]);

    for (offset, tries_before) in [(1100, 1), (3200, 2)] {
        at(&mut session, offset).await;
        assert_eq!(db.lag("s").await.retrying, 1, "after {tries_before}");
        assert_eq!(ids(&refuse_first(&mut session).await)[..2], [first.as_str(), second.as_str()]);
    }
    let lag = db.lag("s").await;
    assert_eq!((lag.retrying, lag.dead), (0, 1), "the third refusal was the last");
    let rest = drain(&mut session, "s").await;
    assert_eq!(rest.len(), 4, "the flow goes on without it: {rest:?}");
    assert!(rest.iter().all(|e| e.flow_id == bad && e.event_id != first));
    let check = "select says from paylatch.doctor() where check_name = 'events to s'";
    assert!(db.value::<String>(check).await.contains("1 dead"));

    // A person has it published after all, from any of its names.
    let mut operator = db.session_as("operator").await;
    let dead: String =
        sqlx::query_scalar("select event_id from paylatch.undelivered").fetch_one(&mut operator).await.unwrap();
    assert_eq!(dead, first);
    run(&mut operator, "select paylatch.redeliver('s')").await;
    assert_eq!(ids(&drain(&mut session, "s").await), [first.as_str()]);
    assert_eq!(db.lag("s").await.dead, 0);
    for event in [&first, &second] {
        run(&mut operator, &format!("select paylatch.redeliver('s', '{event}')")).await;
        assert_eq!(ids(&drain(&mut session, "s").await), [event.as_str()]);
    }
    for (sink, event) in [("s", "evt_1_f1_99"), ("s", "nonsense"), ("nowhere", first.as_str())] {
        let again = format!("select paylatch.redeliver('{sink}', '{event}')");
        assert_eq!(refused(&mut operator, &again).await.0, "PL004", "{again}");
    }
    assert_eq!(db.lag("s").await.behind, 0);
}

#[tokio::test]
async fn an_event_that_is_taken_in_the_end_leaves_no_trace() {
    let db = database().await;
    let flow = db.create_flow("topup", "a", "k").await;
    let mut session = db.session().await;
    refuse_first(&mut session).await;
    at(&mut session, 1100).await;
    let published = drain(&mut session, "s").await;
    assert_eq!(ids(&published), [format!("evt_{flow}_f{flow}_0"), format!("evt_{flow}_o1_1")]);
    let lag = db.lag("s").await;
    assert_eq!((lag.behind, lag.retrying, lag.dead), (0, 0, 0));
}

/// A refused event is as old as it is: monitoring sees it.
#[tokio::test]
async fn lag_counts_what_waits() {
    let db = database().await;
    db.create_flow("topup", "a", "k").await;
    let mut session = db.session().await;
    refuse_first(&mut session).await;
    let metric =
        |name: &str| format!("select value from paylatch.metrics() where name = '{name}' and labels ->> 'sink' = 's'");
    assert_eq!(db.value::<f64>(&metric("events_behind")).await, 2.0);
    assert_eq!(db.value::<f64>(&metric("events_retrying")).await, 1.0);
    assert!(db.value::<f64>(&metric("events_oldest_age_seconds")).await > 0.0);
    run(&mut session, "set paylatch.clock_offset_ms = 600000").await;
    let late: bool = sqlx::query_scalar("select not ok from paylatch.doctor() where check_name = 'events to s'")
        .fetch_one(&mut session)
        .await
        .unwrap();
    assert!(late);
}
