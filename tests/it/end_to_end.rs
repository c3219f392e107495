//! The shortest way through all real processes, and the harness itself: cluster, daemon, simulator, effects counted.

use paylatch_tests::daemon::Setup;
use paylatch_tests::invariants::assert_never_rules;
use paylatch_tests::wait::SOON;
use paylatch_tests::{Database, Simulator, eventually};

#[tokio::test]
async fn payments_reach_their_end_through_real_processes() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let simulator = Simulator::start().await;
    let url = simulator.base_url();
    let mut daemon = Setup::of(&db).wallet("sim", &url, "").business("shop", &url, "").start().await;
    for n in 0..20 {
        db.create_flow(if n % 2 == 0 { "shop" } else { "topup" }, "alice", &format!("order-{n}")).await;
    }
    let unfinished = "select count(*) from paylatch.job";
    let ended = async || (db.value::<i64>(unfinished).await == 0).then_some(());
    eventually("every payment has ended", SOON, ended).await;

    let succeeded = "select count(*) from paylatch.pay_flow where status = 'BIZ_SUCCESS'";
    assert_eq!(db.value::<i64>(succeeded).await, 20);
    let effects = simulator.effects().await;
    assert_eq!((effects.charges.len(), effects.business.len()), (20, 10));
    assert_never_rules(&db, &effects).await;
    assert!(daemon.metrics().await.contains("paylatch_"));
    assert!(daemon.terminate().await.success(), "a daemon ends well on SIGTERM");
}
