//! Level 4: processes die at random moments, drawn from a seed, while payments run through a bad network. Nothing of it
//! may show in the end result. `PAYLATCH_SEED=n` plays a run's dice again; the machine's own timing stays its own.

use std::time::Duration;

use paylatch_tests::{Daemon, Database, Simulator, Stage, eventually};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const FLOWS: i64 = 2000;
const KILLS: i64 = 10;
/// Several times what it takes on two free cores.
const PATIENCE: Duration = Duration::from_secs(240);

#[tokio::test]
async fn the_daemon_is_killed_ten_times_and_nothing_shows() {
    let seed = seed();
    println!("seed {seed}; PAYLATCH_SEED={seed} draws the same again");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut stage = Stage::with(Database::fresh().await, Simulator::with_faults(seed, 0.15).await).await;
    // What cannot be settled by asking would wait for a person: the wallet can close numbers, patience is long.
    stage
        .db
        .execute(
            "update paylatch.channel set can_close_charge = true, call_timeout_ms = 800, breaker_threshold = 40,
                 breaker_open_ms = 300, ramp_ms = 1000;
             update paylatch.scene set business_timeout_ms = 800, retry_base_ms = 100, retry_max_ms = 1000,
                 refund_max_failures = 50",
        )
        .await;
    create(&stage).await;
    let setup = stage.setup_calling_for(800).driver("lease_ms = 2000").driver("tick_ms = 1000");
    let mut daemon = setup.driver("max_in_flight = 60").start().await;

    for kill in 1..=KILLS {
        // At ten points spread over the run, each somewhere in its tenth.
        let left = FLOWS - FLOWS * kill / (KILLS + 1) + dice.random_range(-60..=60);
        terminate_sessions(&stage, &mut dice, left + 60).await;
        unfinished_at_most(&stage, left).await;
        ask_refunds(&stage).await;
        daemon.kill();
        if kill == KILLS / 2 {
            stage.sim.kill();
            stage.sim.restart().await;
        }
        daemon.restart().await;
    }
    unfinished_at_most(&stage, 0).await;
    judge(&stage, &mut daemon).await;
}

/// Drawn anew for each run, unless it is given.
fn seed() -> u64 {
    let given = std::env::var("PAYLATCH_SEED").ok();
    given.map_or_else(|| rand::rng().random_range(0..1_000_000), |seed| seed.parse().expect("a number"))
}

/// Of all three scenes; one in ten has a deadline a few seconds away.
async fn create(stage: &Stage) {
    let create = format!(
        "select outcome from paylatch.create_pay_flows((
             select jsonb_agg(jsonb_build_object('scene', (array['shop', 'topup', 'streak'])[1 + n % 3], 'user_id', n,
                        'biz_key', 'target-' || n, 'amount', n, 'currency', 'USD',
                        'biz_deadline', paylatch.clock() + case when n % 10 = 0 then interval '4 seconds'
                                                                else interval '10 minutes' end) order by n)
             from generate_series(1, {FLOWS}) n))"
    );
    let outcomes: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(create)).fetch_all(stage.db.pool()).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome == "created"));
}

/// Two refunds each of some payments that have just succeeded: they are on their way when the daemon dies.
async fn ask_refunds(stage: &Stage) {
    let ask = "select count(*) from (
                   select f.flow_id, f.amount from paylatch.pay_flow f
                   where f.status = 'BIZ_SUCCESS' and f.refunded_amount = 0 and f.amount > 10 order by f.flow_id desc limit 25) f
               cross join generate_series(1, 2) n
               cross join lateral paylatch.request_refund(f.flow_id, f.amount / 3, 'chaos') r where r.outcome = 'reserved'";
    let reserved: i64 = stage.db.value(ask).await;
    assert!(reserved > 0, "nothing to refund yet");
}

async fn unfinished_at_most(stage: &Stage, count: i64) {
    let what = format!("at most {count} flows are unfinished");
    eventually(&what, PATIENCE, async || (unfinished(stage).await <= count).then_some(())).await;
}

async fn unfinished(stage: &Stage) -> i64 {
    stage.db.value("select count(*) from paylatch.job").await
}

/// On the way down to `until` unfinished flows, sessions of the daemon are terminated now and then.
async fn terminate_sessions(stage: &Stage, dice: &mut StdRng, until: i64) {
    for _ in 0..dice.random_range(0..=2) {
        let now = unfinished(stage).await;
        if now <= until {
            return;
        }
        unfinished_at_most(stage, dice.random_range(until..now)).await;
        stage
            .db
            .execute(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where usename = 'test_driver' and datname = current_database() order by pid limit 1",
            )
            .await;
    }
}

async fn judge(stage: &Stage, daemon: &mut Daemon) {
    let frozen = "select count(*) from paylatch.pay_flow where frozen_reason is not null";
    assert_eq!(stage.db.value::<i64>(frozen).await, 0, "a flow waits for a person");
    let refunds: Vec<(String, i64)> = sqlx::query_as(
        "select status::text, count(*) from paylatch.refund where kind = 'AFTER_SALE' group by status order by status",
    )
    .fetch_all(stage.db.pool())
    .await
    .unwrap();
    println!("after-sale refunds: {refunds:?}");
    let of_refunds =
        |wanted: &str| refunds.iter().filter(|(status, _)| status == wanted).map(|(_, count)| count).sum::<i64>();
    assert!(of_refunds("SUCCEEDED") > 100, "most of them succeed");
    assert_eq!(of_refunds("SUCCEEDED") + of_refunds("FAILED"), refunds.iter().map(|(_, count)| count).sum::<i64>());
    let effects = stage.assert_rules().await;
    let ends: Vec<(String, String, i64)> = sqlx::query_as(
        "select scene, status::text, count(*) from paylatch.pay_flow group by scene, status order by scene, status",
    )
    .fetch_all(stage.db.pool())
    .await
    .unwrap();
    println!("{ends:?}; {} charges, {} refunds", effects.charges.len(), effects.refunds.len());
    let counted: i64 = ends.iter().map(|(.., count)| count).sum();
    assert_eq!(counted, FLOWS);
    let of = |wanted: &str| ends.iter().filter(|(_, status, _)| status == wanted).map(|(.., count)| count).sum::<i64>();
    assert!(of("BIZ_SUCCESS") > FLOWS * 8 / 10, "most of them succeed");
    assert_eq!(of("BIZ_SUCCESS") + of("REFUNDED") + of("PAY_FAIL"), FLOWS, "all of them end");
    assert!(daemon.terminate().await.success());
}
