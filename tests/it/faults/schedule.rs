//! F28 with real daemons, and scenes whose business lies in the database. The ledger and pg_cron itself: cron.rs.

use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Database, Stage};
use paylatchd::simulate::{Fault, Rule};

/// The business of scene `streak` can be reached or not.
async fn business_is(stage: &Stage, away: bool) {
    let (from, to) = if away { ("app", "away") } else { ("away", "app") };
    stage.db.execute(&format!("alter schema {from} rename to {to}")).await;
}

/// A daemon charges the customers and is then gone for good. The rest is the scanner's doing, minute by minute.
#[tokio::test]
async fn f28_sql_scenes_finish_with_the_daemon_stopped_for_good() {
    let stage = Stage::set().await;
    let flows = stage.create_many("streak", 40).await;
    business_is(&stage, true).await;
    let mut daemon = stage.daemon().await;
    stage.all_reach(&flows, "PAYED").await;
    daemon.kill();
    // What it had sent before, the server still finishes.
    stage.becomes_true("select not exists (select from pg_stat_activity where usename = 'test_driver' and datname = current_database())").await;
    business_is(&stage, false).await;
    let charges = stage.sim.effects().await.requests;

    // Whoever is due in one minute is not in the next: so scan until all are through, as pg_cron would.
    paylatch_tests::eventually("the scanner finishes the flows", PATIENCE, async || {
        stage.db.execute("select paylatch.scan('pg_cron')").await;
        (stage.db.value::<i64>("select count(*) from paylatch.job").await == 0).then_some(())
    })
    .await;
    stage.all_reach(&flows, "BIZ_SUCCESS").await;
    let by = "select array_agg(distinct source || ' ' || actor) from paylatch.transition_log
              where to_status = 'BIZ_SUCCESS'";
    assert_eq!(stage.db.value::<Vec<String>>(by).await, ["SCANNER pg_cron"]);
    let effects = stage.assert_rules().await;
    assert_eq!(effects.requests, charges, "nobody called the wallet any more");
    assert_eq!((effects.charges.len(), effects.refunds.len()), (40, 0));
}

/// pg_cron has been silent for minutes: a daemon's tick finds that, scans, and the ledger counts what was missed.
#[tokio::test]
async fn f28_a_daemon_ticks_instead_of_a_silent_pg_cron() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "*", Fault::None)).await;
    stage.db.execute("select paylatch.scan('pg_cron')").await;
    // Nobody but a scan mends a lost job.
    let flow_id = stage.create("topup", "lost").await;
    stage
        .db
        .execute(
            "alter table paylatch.job disable trigger t10_guard; delete from paylatch.job;
             alter table paylatch.job enable always trigger t10_guard",
        )
        .await;
    let later = format!("alter role test_driver in database {} set paylatch.clock_offset_ms = 240000", stage.db.name());
    stage.db.execute(&later).await;
    let mut daemon = stage.setup().name("stand-in").driver("tick_ms = 500").start().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    stage
        .becomes_true("select count(*) = 2 from paylatch.task_run where task = 'scan' and finished_at is not null")
        .await;
    let ledger: (String, i32) = sqlx::query_as(
        "select caller, missed_periods from paylatch.task_run where task = 'scan' order by period_at desc limit 1",
    )
    .fetch_one(stage.db.pool())
    .await
    .unwrap();
    assert_eq!(ledger.0, "stand-in");
    assert!((2..=4).contains(&ledger.1), "{} of about three silent minutes were missed", ledger.1);
    assert!(daemon.terminate().await.success());
    assert_eq!(stage.assert_rules().await.charges.len(), 1);
}

/// Nobody made the log's months ahead: its rows fall into the net, payments and the scanner go on, and later months are
/// made again.
#[tokio::test]
async fn f28_months_that_nobody_made_stop_nothing() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute("drop table paylatch.transition_log_other").await;
    let months =
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'paylatch.transition_log'::regclass";
    let months: Vec<String> = sqlx::query_scalar(months).fetch_all(db.pool()).await.unwrap();
    for month in &months {
        db.execute(&format!("drop table {month}")).await;
    }
    db.execute("create table paylatch.transition_log_other partition of paylatch.transition_log default").await;
    db.create_flow("topup", "alice", "k").await;
    db.execute("delete from paylatch.task_run; select paylatch.scan('test')").await;
    let made: Vec<String> = sqlx::query_scalar(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'paylatch.transition_log'::regclass",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert_eq!(made.len(), months.len(), "the net, and all months but the one it holds: {made:?}");
    db.create_flow("topup", "bob", "k").await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.transition_log_other").await, 2);
}
