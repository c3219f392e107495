//! F28: the scanner's schedule. pg_cron runs it, a ledger shows that it ran, and the daemon ticks where pg_cron is silent.

use std::time::Duration;

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::{Cluster, Database, database, eventually};
use serde_json::Value;
use sqlx::PgConnection;

/// A business inside the database that is shut until `app.door` says otherwise.
const BUSINESS: &str = "
create schema app;
create table app.door (open boolean not null);
insert into app.door values (false);
create table app.done (biz_key text primary key, owner text not null);
create function app.gate_execute(order_no text, biz_key text, valid_until timestamptz, payload jsonb) returns void
language sql as $$ insert into app.done select biz_key, order_no from app.door where open on conflict do nothing $$;
create function app.gate_fact(biz_key text, order_no text, out fact text, out owner text)
language sql stable as $$
    select case when d.owner is null then 'NOT_DONE' else 'DONE' end, d.owner
    from (select) x left join app.done d on d.biz_key = gate_fact.biz_key $$;
grant usage on schema app to paylatch_owner;
grant select, insert on all tables in schema app to paylatch_owner;
insert into paylatch.channel (channel) values ('sim');
insert into paylatch.scene (scene, channel, order_prefix, business_mode, business_target)
values ('gate', 'sim', 'ga', 'sql', 'app.gate');";

#[tokio::test]
async fn f28_sql_scenes_finish_through_pg_cron_alone() {
    let cluster = Cluster::private(&[]);
    let db = Database::with_cron(&cluster).await;
    db.execute(BUSINESS).await;
    let flow_id = db.create_flow("gate", "alice", "one").await;
    let mut session = db.session().await;
    let charge = claim(&mut session, 1).await.remove(0);
    report(&mut session, &[charge.evidence(Outcome::Succeeded)]).await;
    assert_eq!(db.flow(flow_id).await.status, "PAYED");

    // From here on no driver does anything.
    db.execute("update app.door set open = true").await;
    let done = async || (db.flow(flow_id).await.status == "BIZ_SUCCESS").then_some(());
    eventually("pg_cron finishes the flow", Duration::from_secs(150), done).await;

    let by_cron =
        "select count(*) from paylatch.task_run where task = 'scan' and caller = 'pg_cron' and finished_at is not null";
    eventually("the ledger has pg_cron's run", Duration::from_secs(10), async || {
        (db.value::<i64>(by_cron).await > 0).then_some(())
    })
    .await;
    let failed = "select count(*) from cron.job_run_details where status = 'failed'";
    assert_eq!(db.value::<i64>(failed).await, 0);
    assert_verified(&db).await;
}

#[tokio::test]
async fn f28_a_silent_pg_cron_is_noticed_and_made_up_for() {
    let db = Database::fresh().await;
    let mut session = db.session().await;
    let start = minute_start(&mut session).await;
    at(&mut session, start, 0).await;
    assert!(tick(&mut session).await.get("scan").is_some(), "nobody has scanned yet");
    at(&mut session, start, 30).await;
    assert!(tick(&mut session).await.get("scan").is_none(), "the last scan is fresh");
    at(&mut session, start, 10 * 60).await;
    assert!(tick(&mut session).await.get("scan").is_some(), "nobody has scanned for ten minutes");
    let missed: i32 = sqlx::query_scalar(
        "select missed_periods from paylatch.task_run where task = 'scan' order by period_at desc limit 1",
    )
    .fetch_one(&mut session)
    .await
    .unwrap();
    assert_eq!(missed, 9, "the ledger counts the minutes that nobody scanned");
}

/// Deadlines do not wait for a driver.
#[tokio::test]
async fn a_scan_ends_what_was_never_sent() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.create_flow("topup", "alice", "one").await;
    let mut session = db.session().await;
    let start = minute_start(&mut session).await;
    at(&mut session, start, 3600).await;
    database::run(&mut session, "select paylatch.scan()").await;
    let flow = db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.version), ("PAY_FAIL", 2));
}

/// The clock offset, in ms, that puts a session half a second past the start of a minute. Taken once a test: where the
/// real minute ends meanwhile, the session's clock runs on undisturbed.
async fn minute_start(session: &mut PgConnection) -> i32 {
    let offset = "select ceil(extract(epoch from date_trunc('minute', now()) - now()) * 1000)::int + 500";
    sqlx::query_scalar(offset).fetch_one(session).await.unwrap()
}

/// Sets the session's clock to `seconds` past that start.
async fn at(session: &mut PgConnection, start: i32, seconds: i32) {
    let set = format!("select set_config('paylatch.clock_offset_ms', '{}', false)", start + seconds * 1000);
    database::run(session, &set).await;
}

async fn tick(session: &mut PgConnection) -> Value {
    sqlx::query_scalar("select paylatch.tick('test')").fetch_one(session).await.unwrap()
}
