//! One relay a sink at a time, and a late word of an earlier one changes nothing.

use paylatch_tests::Database;
use paylatch_tests::database::{refused, run};
use paylatch_tests::events::{claim_events, drain, settle_events};

async fn database() -> Database {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", false).await;
    db.create_flow("topup", "a", "k").await;
    db
}

#[tokio::test]
async fn a_paused_relays_late_settlement_is_refused() {
    let db = database().await;
    let (mut paused, mut other) = (db.session_as("driver").await, db.session().await);
    let first = claim_events(&mut paused, "s", "paused", 10).await;
    assert_eq!(first.len(), 2);
    assert!(claim_events(&mut other, "s", "other", 10).await.is_empty(), "the lease is another's");
    // A minute later, for the other one.
    run(&mut other, "set paylatch.clock_offset_ms = 60000").await;
    let second = claim_events(&mut other, "s", "other", 10).await;
    assert_eq!(
        second.iter().map(|e| &e.event_id).collect::<Vec<_>>(),
        first.iter().map(|e| &e.event_id).collect::<Vec<_>>()
    );
    assert_eq!(second[0].envelope, first[0].envelope, "an event says the same whenever it is read");
    assert_eq!(settle_events(&mut paused, "s", "paused", &first, &[]).await, "lease_lost");
    assert_eq!(db.lag("s").await.behind, 2);
    assert_eq!(settle_events(&mut other, "s", "other", &second, &[]).await, "settled");
    assert_eq!(db.lag("s").await.behind, 0);
}

#[tokio::test]
async fn a_relay_that_ends_leaves_its_lease() {
    let db = database().await;
    let mut session = db.session().await;
    let events = claim_events(&mut session, "s", "one", 10).await;
    let leave =
        format!("select paylatch.settle_events('s', 'one', {}, '{{}}', release => true)", events[0].lease_token);
    assert_eq!(db.value::<String>(&leave).await, "settled");
    assert_eq!(claim_events(&mut session, "s", "two", 10).await.len(), 2);
}

/// The same relay may claim again, if an answer was lost on its way; only the newest token counts.
#[tokio::test]
async fn the_newest_claim_counts() {
    let db = database().await;
    let mut session = db.session().await;
    let lost = claim_events(&mut session, "s", "one", 10).await;
    let again = claim_events(&mut session, "s", "one", 10).await;
    assert_eq!(lost.len(), again.len());
    assert_eq!(settle_events(&mut session, "s", "one", &lost, &[]).await, "lease_lost");
    assert_eq!(settle_events(&mut session, "s", "one", &again, &[]).await, "settled");
}

#[tokio::test]
async fn nonsense_is_refused_and_a_copy_publishes_nothing() {
    let db = database().await;
    let mut driver = db.session_as("driver").await;
    for nonsense in [
        "select from paylatch.claim_events('nowhere', 'r')",
        "select from paylatch.claim_events(null, 'r')",
        "select from paylatch.claim_events('s', null)",
        "select from paylatch.claim_events('s', 'r', 0)",
        "select from paylatch.claim_events('s', 'r', 10, 5)",
        "select paylatch.settle_events('nowhere', 'r', 1, '{}')",
    ] {
        assert_eq!(refused(&mut driver, nonsense).await.0, "PL004", "{nonsense}");
    }
    let token = claim_events(&mut driver, "s", "r", 10).await[0].lease_token;
    for nonsense in ["'{99}'", "'{0}'", "'{null}'", "'{1}', '{}'"] {
        let settle = format!("select paylatch.settle_events('s', 'r', {token}, {nonsense})");
        assert_eq!(refused(&mut driver, &settle).await.0, "PL004", "{settle}");
    }
    db.execute("delete from paylatch.armed").await;
    assert!(claim_events(&mut driver, "s", "r", 10).await.is_empty());
    db.execute("select paylatch.arm('mine')").await;
    assert_eq!(drain(&mut db.session().await, "s").await.len(), 0, "r still has the lease");
    assert_eq!(claim_events(&mut driver, "s", "r", 10).await.len(), 2);
}

/// A backlog costs nothing: a claim reads what it hands out.
#[tokio::test]
async fn a_claim_does_not_read_the_backlog() {
    let db = database().await;
    drain(&mut db.session().await, "s").await;
    db.execute(
        "alter table paylatch.outbox disable trigger t05_by_triggers_only;
         insert into paylatch.outbox (at, flow_id, ref_id, version, type)
         select paylatch.clock() + n % 3 * interval '1 day', 1, 1, 0, 'flow.wait_pay' from generate_series(1, 300000) n;
         analyze paylatch.outbox",
    )
    .await;
    let mut session = db.session().await;
    for round in 0..8 {
        run(&mut session, "begin").await;
        let events = claim_events(&mut session, "s", "by-hand", 100).await;
        assert_eq!(events.len(), 100);
        // Thousands are done behind it, from the second round on with gaps between them.
        let kept: Vec<_> = events.into_iter().filter(|e| round == 0 || e.outbox_id % 7 != 0).collect();
        settle_events(&mut session, "s", "by-hand", &kept, &[]).await;
        let read: i64 = sqlx::query_scalar(
            "select sum(pg_stat_get_xact_tuples_fetched(i.indexrelid) + pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint
             from pg_inherits p join pg_index i on i.indrelid = p.inhrelid where p.inhparent = 'paylatch.outbox'::regclass",
        )
        .fetch_one(&mut session)
        .await
        .unwrap();
        let scanned: i64 = sqlx::query_scalar(
            "select sum(pg_stat_get_xact_tuples_returned(inhrelid))::bigint from pg_inherits
             where inhparent = 'paylatch.outbox'::regclass",
        )
        .fetch_one(&mut session)
        .await
        .unwrap();
        run(&mut session, "commit").await;
        assert!(read < 6000, "claim {round} of 100 events read {read} index entries");
        assert_eq!(scanned, 0, "claim {round} scanned a partition");
    }
    assert!(db.lag("s").await.behind > 299_000);
}
