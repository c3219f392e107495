//! F25: ids are drawn in one order and commit in another, or never. No event is skipped, and no gap stays for good.

use paylatch_tests::database::run;
use paylatch_tests::events::{Event, claim_events, drain, settle_events};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::wait::{SOON, eventually};
use paylatch_tests::{Cluster, Database};
use sqlx::PgConnection;

async fn database() -> Database {
    let db = Database::fresh().await;
    prepare(&db).await;
    db
}

async fn prepare(db: &Database) {
    db.add_scenes().await;
    db.add_sink("s", false).await;
}

/// Creates a flow in a session's own transaction: two events, of the flow and of its order.
async fn create(session: &mut PgConnection, user: &str) {
    run(session, &format!("select from paylatch.create_pay_flow('topup', '{user}', 'k', 100, 'USD')")).await;
}

/// Transactions of other tests, in other databases of the cluster, delay it as any would.
async fn closes_its_gaps(db: &Database, relay: &mut PgConnection) {
    eventually("the gaps are closed", SOON, async || {
        assert!(drain(relay, "s").await.is_empty());
        let lag = db.lag("s").await;
        ((lag.behind, lag.gaps) == (0, 0)).then_some(())
    })
    .await;
}

fn numbers(events: &[Event]) -> Vec<i64> {
    events.iter().map(|e| e.outbox_id).collect()
}

#[tokio::test]
async fn f25_a_lower_id_that_commits_last_is_still_published() {
    let db = database().await;
    let (mut late, mut relay) = (db.session().await, db.session().await);
    run(&mut late, "begin").await;
    create(&mut late, "late").await;
    db.create_flow("topup", "early", "k").await;
    assert_eq!(numbers(&drain(&mut relay, "s").await), [3, 4], "what has committed does not wait");
    // However often it looks: the gap belongs to a transaction that still runs.
    for _ in 0..5 {
        assert!(drain(&mut relay, "s").await.is_empty());
    }
    run(&mut late, "commit").await;
    assert_eq!(numbers(&drain(&mut relay, "s").await), [1, 2]);
    assert!(drain(&mut relay, "s").await.is_empty());
    assert_eq!((db.lag("s").await.behind, db.lag("s").await.gaps), (0, 0));
    assert_verified(&db).await;
}

#[tokio::test]
async fn f25_ids_that_were_rolled_back_are_closed() {
    let db = database().await;
    let (mut undone, mut relay) = (db.session().await, db.session().await);
    run(&mut undone, "begin").await;
    create(&mut undone, "undone").await;
    db.create_flow("topup", "a", "k").await;
    drain(&mut relay, "s").await;
    assert_eq!(db.lag("s").await.gaps, 1);
    run(&mut undone, "rollback").await;
    // In a part of a transaction, too.
    run(&mut undone, "begin; savepoint s").await;
    create(&mut undone, "undone").await;
    run(&mut undone, "rollback to s").await;
    create(&mut undone, "kept").await;
    run(&mut undone, "commit").await;
    assert_eq!(numbers(&drain(&mut relay, "s").await), [7, 8]);
    closes_its_gaps(&db, &mut relay).await;
    // Ids at the very end of what was drawn, with nothing behind them.
    run(&mut undone, "begin").await;
    create(&mut undone, "last").await;
    run(&mut undone, "rollback").await;
    closes_its_gaps(&db, &mut relay).await;
    assert_verified(&db).await;
}

/// The mark that closes gaps is not fooled by a transaction that had its own id long before it drew one of these.
#[tokio::test]
async fn f25_a_transaction_held_elsewhere_delays_only_the_closing() {
    let db = database().await;
    let (mut held, mut undone, mut relay) = (db.session().await, db.session().await, db.session().await);
    run(&mut held, "begin; select pg_current_xact_id()").await;
    run(&mut undone, "begin").await;
    create(&mut undone, "undone").await;
    run(&mut undone, "rollback").await;
    for n in 0..20 {
        db.create_flow("topup", &n.to_string(), "k").await;
        assert_eq!(drain(&mut relay, "s").await.len(), 2, "published at once");
    }
    assert_eq!(db.lag("s").await.gaps, 1, "the held transaction might own it, for all we know");
    create(&mut held, "held").await;
    db.create_flow("topup", "after", "k").await;
    assert_eq!(drain(&mut relay, "s").await.len(), 2);
    run(&mut held, "commit").await;
    assert_eq!(drain(&mut relay, "s").await.len(), 2, "the held one's own events");
    closes_its_gaps(&db, &mut relay).await;
}

/// A prepared transaction has ended for its session, not for us.
#[tokio::test]
async fn f25_a_prepared_transaction_is_waited_for() {
    let cluster = Cluster::private(&["max_prepared_transactions=4"]);
    let db = Database::clone_in(&cluster).await;
    prepare(&db).await;
    let (mut late, mut relay) = (db.session().await, db.session().await);
    run(&mut late, "begin").await;
    create(&mut late, "late").await;
    run(&mut late, "prepare transaction 'late'").await;
    db.create_flow("topup", "early", "k").await;
    for expected in [2, 0, 0, 0] {
        assert_eq!(drain(&mut relay, "s").await.len(), expected);
    }
    run(&mut late, "commit prepared 'late'").await;
    assert_eq!(numbers(&drain(&mut relay, "s").await), [1, 2]);
}

/// A claim that is a later part of somebody's transaction sets no mark: its own transaction id is too old to prove
/// anything. One under a frozen snapshot closes nothing that it cannot see.
#[tokio::test]
async fn f25_a_claim_inside_a_longer_transaction_skips_nothing() {
    let db = database().await;
    let (mut late, mut relay) = (db.session().await, db.session().await);
    run(&mut relay, "begin; select pg_current_xact_id()").await;
    run(&mut late, "begin").await;
    create(&mut late, "late").await;
    db.create_flow("topup", "early", "k").await;
    let events = claim_events(&mut relay, "s", "by-hand", 10).await;
    settle_events(&mut relay, "s", "by-hand", &events, &[]).await;
    run(&mut relay, "commit").await;
    run(&mut relay, "begin isolation level repeatable read; select count(*) from paylatch.outbox").await;
    run(&mut late, "commit").await;
    assert!(claim_events(&mut relay, "s", "by-hand", 10).await.is_empty(), "an old snapshot does not show it");
    run(&mut relay, "commit").await;
    assert_eq!(numbers(&drain(&mut relay, "s").await), [1, 2]);
}

/// A new sink begins with what commits after it, and that includes transactions which were open when it was added.
#[tokio::test]
async fn f25_a_new_sink_misses_no_open_transaction() {
    let db = database().await;
    let (mut late, mut relay) = (db.session().await, db.session().await);
    run(&mut late, "begin").await;
    create(&mut late, "late").await;
    db.create_flow("topup", "early", "k").await;
    db.add_sink("now", false).await;
    db.add_sink("all", true).await;
    run(&mut late, "commit").await;
    assert_eq!(numbers(&drain(&mut relay, "now").await), [1, 2]);
    assert_eq!(numbers(&drain(&mut relay, "all").await), [1, 2, 3, 4]);
}

/// In a restored dump the transaction ids begin anew, and those of the marks lie in the future.
#[tokio::test]
async fn a_mark_of_another_cluster_counts_as_passed() {
    let db = database().await;
    let (mut undone, mut relay) = (db.session().await, db.session().await);
    run(&mut undone, "begin").await;
    create(&mut undone, "undone").await;
    run(&mut undone, "rollback").await;
    db.create_flow("topup", "a", "k").await;
    db.execute("update paylatch.outbox_sink set seen_id = 2, seen_xid = '9000000000000000000'").await;
    assert_eq!(drain(&mut relay, "s").await.len(), 2);
    assert_eq!((db.lag("s").await.behind, db.lag("s").await.gaps), (0, 0));
}
