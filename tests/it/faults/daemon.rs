//! Daemons that are killed, paused, restarted, or many: F2, F5, F7, F11.

use std::time::Duration;

use paylatch_tests::stage::{LEASE_MS, PATIENCE};
use paylatch_tests::{Gate, Stage, eventually};
use paylatchd::simulate::{Fault, Op, Rule};

/// Daemons look for overdue work at least this often.
const TICK_MS: i64 = 20_000;

/// The wallet has charged and its answer is on its way into the database; then the daemon is gone.
#[tokio::test]
async fn f02_killed_after_the_wallets_success_and_before_its_report_commits() {
    let stage = Stage::set().await;
    let mut gate = Gate::shut(&stage.db, "old.status = 'PAYING' and new.status = 'PAYED'").await;
    let mut first = stage.setup().name("first").start().await;
    let flow_id = stage.create("shop", "day").await;
    let reporting = gate.reached().await;
    first.kill();
    gate.turn_away(reporting).await;
    gate.open().await;
    let flow = stage.db.flow(flow_id).await;
    assert_eq!(flow.status, "PAYING", "the report did not commit");
    assert_eq!(stage.sim.effects().await.charge_count(&flow.trade_order_no), 1, "the money has moved");

    let _second = stage.setup().name("second").start().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charge_count(&flow.trade_order_no), 1);
    assert_eq!(effects.calls(&flow.trade_order_no, Op::Charge), 1);
    let found = "select (extract(epoch from max(at) filter (where to_status = 'PAYED' and from_status = 'PAYING')
                                 - max(at) filter (where to_status = 'PAYING' and from_status = 'WAIT_PAY')) * 1000)::bigint
                 from paylatch.transition_log";
    let found_after_ms: i64 = stage.db.value(found).await;
    assert!((LEASE_MS..LEASE_MS + TICK_MS).contains(&found_after_ms), "found again after {found_after_ms} ms");
}

/// API calls, wake-ups from everywhere, the scanner and three daemons, all at once on the same flows.
#[tokio::test]
async fn f05_everybody_at_the_same_moment() {
    const TARGETS: i32 = 40;
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::DropAfter).times(10)).await;
    stage.script(Rule::new("*", "execute", Fault::ErrorAfter).times(10)).await;
    let mut daemons = Vec::new();
    for name in ["one", "two", "three"] {
        daemons.push(stage.setup().name(name).start().await);
    }
    let all_ended = async |pool: &sqlx::PgPool| {
        let query = "select count(*) = $1 from paylatch.pay_order where status = 'PAID'";
        sqlx::query_scalar::<_, bool>(query).bind(i64::from(TARGETS)).fetch_one(pool).await.unwrap()
    };
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let pool = stage.db.pool().clone();
        callers.spawn(async move {
            let mut created = 0;
            while !all_ended(&pool).await {
                for target in 1..=TARGETS {
                    let scene = ["shop", "topup", "streak"][usize::try_from(target).unwrap() % 3];
                    let create = "select outcome, flow_id
                                  from paylatch.create_pay_flow($1, 'alice', 'target-' || $2::int, 900, 'USD')";
                    let (outcome, flow_id): (String, i64) =
                        sqlx::query_as(create).bind(scene).bind(target).fetch_one(&pool).await.unwrap();
                    created += i32::from(outcome == "created");
                    let wake = match caller % 3 {
                        0 => "select paylatch.advance($1, 'API')",
                        1 => "select paylatch.advance($1, 'WEBHOOK')",
                        _ => "select paylatch.scan('scanner') is not null and $1 > 0",
                    };
                    sqlx::query(wake).bind(flow_id).execute(&pool).await.unwrap();
                }
            }
            created
        });
    }
    let created = tokio::time::timeout(PATIENCE, callers.join_all())
        .await
        .expect("all targets are paid")
        .into_iter()
        .sum::<i32>();
    assert_eq!(created, TARGETS, "one attempt for each target, whoever asked");
    stage.converged(PATIENCE).await;
    // Contiguous versions and legal edges are rule 4 of verify().
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charges.len(), usize::try_from(TARGETS).unwrap());
    assert!(effects.charges.values().all(|charge| charge.count == 1));
    assert!(effects.refunds.is_empty());
}

/// No hint reaches anybody, daemons come and go, and half of the queue is lost: the rows alone bring everything back.
#[tokio::test]
async fn f07_all_wake_ups_are_lost() {
    let stage = Stage::set().await;
    let flows = [
        stage.create_many("shop", 60).await,
        stage.create_many("topup", 60).await,
        stage.create_many("streak", 60).await,
    ]
    .concat();
    let mut daemon = stage.setup().driver("max_in_flight = 5").start().await;
    stage.becomes_true("select count(*) between 20 and 160 from paylatch.job").await;
    daemon.kill();
    stage
        .db
        .execute(
            "alter table paylatch.job disable trigger all;
             delete from paylatch.job where ref_id % 2 = 0;
             do $$ declare t record; begin
                 for t in select tgname from pg_trigger where tgrelid = 'paylatch.job'::regclass and not tgisinternal loop
                     execute format('alter table paylatch.job enable always trigger %I', t.tgname);
                 end loop; end $$",
        )
        .await;
    let lost = "select count(*) > 0 from paylatch.pay_flow f where not paylatch.is_terminal(f.status)
                and not exists (select from paylatch.job j where j.ref_id = f.flow_id)";
    assert!(stage.db.value::<bool>(lost).await, "the test lost nothing");

    // The scanner's minute, as pg_cron or a daemon's tick runs it.
    let scanned: serde_json::Value = stage.db.value("select paylatch.scan('minute')").await;
    assert!(scanned["mended"].as_i64() > Some(0), "{scanned}");
    daemon.restart().await;
    stage.all_reach(&flows, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    // Flows of scene streak and topup are charged as well; only a shop's business is the simulator's.
    assert_eq!((effects.charges.len(), effects.business.len()), (180, 60));
    assert!(effects.charges.values().all(|charge| charge.count == 1));
}

/// The daemon stands still with the wallet's answer in its hands, past its lease. What it reports then changes nothing.
#[tokio::test]
async fn f11_paused_past_its_lease_with_an_answer_in_hand() {
    let stage = Stage::set().await;
    let mut gate = Gate::shut(&stage.db, "old.status = 'PAYING' and new.status = 'PAYED'").await;
    let mut slow = stage.setup().name("slow").start().await;
    let flow_id = stage.create("shop", "day").await;
    // Its report is turned away, so it still holds the answer and would report it again.
    let reporting = gate.reached().await;
    slow.process().pause();
    gate.turn_away(reporting).await;
    gate.open().await;

    let _other = stage.setup().name("other").start().await;
    let flow = stage.reaches(flow_id, "BIZ_SUCCESS").await;
    slow.process().resume();
    let late = "select count(*) = 1 from paylatch.late_report where driver = 'slow' and action = 'CHARGE'
                and outcome = 'SUCCEEDED' and disposition = 'replayed'";
    stage.becomes_true(late).await;
    assert_eq!(stage.db.flow(flow_id).await, flow, "a fenced report moves nothing");
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charge_count(&flow.trade_order_no), 1);
    assert_eq!(effects.business["day"].count, 1);
    assert_eq!(stage.db.value::<i64>("select count(*) from paylatch.incident").await, 0);
}

/// The daemon stands still between the claim and the call. When it goes on, its lease is over: the call never leaves.
#[tokio::test]
async fn f11_paused_past_its_lease_before_the_call() {
    let stage = Stage::set().await;
    let mut gate = Gate::shut(&stage.db, "old.status = 'WAIT_PAY' and new.status = 'PAYING'").await;
    let mut slow = stage.setup().name("slow").start().await;
    let flow_id = stage.create("shop", "day").await;
    gate.reached().await;
    slow.process().pause();
    gate.open().await;
    stage.reaches(flow_id, "PAYING").await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;
    assert_eq!(stage.sim.effects().await.calls(&order_no, Op::Charge), 0, "announced, not sent");

    let _other = stage.setup().name("other").start().await;
    let flow = stage.reaches(flow_id, "BIZ_SUCCESS").await;
    slow.process().resume();
    stage
        .becomes_true("select count(*) = 1 from paylatch.late_report where driver = 'slow' and code = 'not_sent'")
        .await;
    assert_eq!(stage.db.flow(flow_id).await, flow);
    let effects = stage.assert_rules().await;
    assert_eq!(effects.calls(&order_no, Op::Charge), 1, "the late daemon did not call");
    assert_eq!(effects.charge_count(&order_no), 1);
}

/// Killed again and again, at whatever moment: what was under way is found again by whoever comes next.
#[tokio::test]
async fn f02_killed_in_the_middle_of_everything() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set call_timeout_ms = 300").await;
    let flows = [stage.create_many("shop", 100).await, stage.create_many("topup", 100).await].concat();
    let mut daemon = stage.setup().driver("lease_ms = 1000").driver("max_in_flight = 10").start().await;
    for left in [170, 120, 70, 20] {
        let some_more = format!("select count(*) <= {left} from paylatch.job");
        eventually(&some_more, PATIENCE, async || stage.db.value::<bool>(&some_more).await.then_some(())).await;
        daemon.kill();
        daemon.restart().await;
    }
    stage.converged(PATIENCE + Duration::from_secs(10)).await;
    stage.all_reach(&flows, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert!(effects.charges.values().all(|charge| charge.count == 1));
    assert_eq!((effects.charges.len(), effects.business.len(), effects.refunds.len()), (200, 100, 0));
}
