//! SIGTERM under load: the daemon finishes or gives back what it holds, and leaves with exit code 0.

use paylatch_tests::Stage;
use paylatch_tests::stage::PATIENCE;
use paylatchd::simulate::{Fault, Rule};

#[tokio::test]
async fn a_daemon_that_is_asked_to_stop_leaves_no_lease_behind() {
    let stage = Stage::set().await;
    // Calls take a while, so that some are under way whenever the signal comes.
    stage.script(Rule::new("*", "charge", Fault::Slow).arg(150)).await;
    stage.script(Rule::new("*", "execute", Fault::Slow).arg(150)).await;
    stage.create_many("shop", 150).await;
    stage.create_many("topup", 150).await;
    let mut daemon = stage.setup().name("leaving").driver("max_in_flight = 40").start().await;
    let leased = "select count(*) from paylatch.job where lease_holder = 'leaving' and lease_token is not null";
    stage.becomes_true("select count(*) < 250 from paylatch.job").await;
    stage.becomes_true(&format!("select ({leased}) > 0")).await;

    let status = daemon.terminate().await;
    assert_eq!(status.code(), Some(0), "{}", daemon.process().log());
    assert_eq!(stage.db.value::<i64>(leased).await, 0, "jobs that the daemon left leased");
    assert!(stage.db.value::<i64>("select count(*) from paylatch.job").await > 0, "it was stopped under load");
    assert!(stage.db.value::<i64>("select count(*) from paylatch.late_report").await == 0, "nothing was reported late");
    stage.assert_rules().await;

    // Whoever comes next goes on at once.
    daemon.restart().await;
    stage.converged(PATIENCE).await;
    let effects = stage.assert_rules().await;
    assert!(effects.charges.values().all(|charge| charge.count == 1));
    assert_eq!((effects.charges.len(), effects.business.len(), effects.refunds.len()), (300, 150, 0));
}

/// A call that outlives the grace is given up as UNKNOWN, not as a failure; its flow asks.
#[tokio::test]
async fn a_call_that_outlives_the_grace_is_reported_as_unknown() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set call_timeout_ms = 20000").await;
    stage.script(Rule::new("*", "charge", Fault::Trickle).arg(1000)).await;
    let setup = stage.setup_calling_for(20_000).name("leaving").driver("lease_ms = 30000");
    let mut daemon = setup.driver("shutdown_grace_ms = 200").start().await;
    let flow_id = stage.create("topup", "slow").await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;
    paylatch_tests::eventually("the wallet has charged", PATIENCE, async || {
        (stage.sim.effects().await.charge_count(&order_no) == 1).then_some(())
    })
    .await;
    assert_eq!(daemon.terminate().await.code(), Some(0), "{}", daemon.process().log());
    let said = "select last_outcome from paylatch.pay_flow where status = 'PAYING'";
    assert_eq!(stage.db.value::<String>(said).await, "UNKNOWN");
    daemon.restart().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    assert_eq!(stage.assert_rules().await.charge_count(&order_no), 1);
}
