//! Refunds between a real daemon and a real simulator, with faults on the way. Effects are counted at the wallet.

use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Gate, Stage, eventually};
use paylatchd::simulate::{Fault, Op, Rule};

async fn refund_becomes(stage: &Stage, refund_id: i64, status: &str) {
    eventually(&format!("refund {refund_id} is {status}"), PATIENCE, async || {
        let stands: String = stage.db.value(&format!("select status from paylatch.get_refund({refund_id})")).await;
        let ended = ["SUCCEEDED", "FAILED", "REJECTED"].contains(&stands.as_str());
        assert!(!ended || stands == status, "awaiting {status}, but it is {stands}");
        (stands == status).then_some(())
    })
    .await;
}

async fn ask(stage: &Stage, flow_id: i64, amount: i64) -> i64 {
    let asked = stage.db.ask_refund(flow_id, amount).await;
    asked.refund_id.unwrap_or_else(|| panic!("{asked:?}"))
}

/// Several refunds of one payment, out together, each under its own number; and every way an answer can get lost.
#[tokio::test]
async fn refunds_go_back_whatever_happens_to_an_answer() {
    let stage = Stage::set().await;
    let flows = stage.create_many("topup", 8).await; // 101 to 108 cents
    let daemon = stage.daemon().await;
    stage.all_reach(&flows, "BIZ_SUCCESS").await;
    for fault in [
        Fault::DropAfter,
        Fault::DropBefore,
        Fault::ErrorAfter,
        Fault::Truncate,
        Fault::Garbage,
        Fault::Processing,
        Fault::TooMany,
    ] {
        stage.script(Rule::new("r*", "refund", fault).times(4)).await;
    }
    let mut refunds = Vec::new();
    for flow_id in &flows {
        for amount in [20, 30, 50] {
            refunds.push(ask(&stage, *flow_id, amount).await);
        }
    }
    for refund_id in &refunds {
        refund_becomes(&stage, *refund_id, "SUCCEEDED").await;
    }
    let effects = stage.assert_rules().await;
    assert_eq!(effects.refunds.len(), refunds.len());
    assert!(effects.refunds.values().all(|refund| refund.count == 1), "{:?}", effects.refunds);
    let order = "select bool_and(status = 'REFUNDED' and refunded_amount = 100) from paylatch.pay_order";
    assert!(stage.db.value::<bool>(order).await);
    drop(daemon);
}

/// F19 end to end: the wallet refuses, the reservation is released, the next number goes through.
#[tokio::test]
async fn f19_the_wallet_refuses_and_the_next_number_goes_through() {
    let stage = Stage::set().await;
    let flow_id = stage.create("topup", "one").await;
    let _daemon = stage.daemon().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    stage.script(Rule::new("r1_*", "refund", Fault::Refuse)).await;
    let first = ask(&stage, flow_id, 1500).await;
    refund_becomes(&stage, first, "FAILED").await;
    assert_eq!(stage.db.flow(flow_id).await.refunded_amount, 0);
    let second = ask(&stage, flow_id, 1500).await;
    refund_becomes(&stage, second, "SUCCEEDED").await;
    let effects = stage.assert_rules().await;
    let numbers: Vec<_> = stage.db.refunds(flow_id).await.into_iter().map(|refund| refund.refund_order_no).collect();
    assert_eq!((effects.refund_count(&numbers[0]), effects.refund_count(&numbers[1])), (0, 1));
    assert_eq!(effects.calls(&numbers[0], Op::Refund), 1, "a refusal is not repeated");
}

/// kill -9 between the wallet's success and the report's commit: found again within the lease, given back once.
#[tokio::test]
async fn a_daemon_killed_before_its_report_refunds_once() {
    let stage = Stage::set().await;
    let flow_id = stage.create("topup", "one").await;
    let mut first = stage.setup().name("first").start().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let mut gate = Gate::shut_on(&stage.db, "refund", "new.status = 'SUCCEEDED'").await;
    let refund_id = ask(&stage, flow_id, 700).await;
    let reporting = gate.reached().await;
    first.kill();
    gate.turn_away(reporting).await;
    gate.open().await;
    let number = stage.db.refunds(flow_id).await[0].refund_order_no.clone();
    assert_eq!(stage.db.refunds(flow_id).await[0].status, "PENDING", "the report did not commit");
    assert_eq!(stage.sim.effects().await.refund_count(&number), 1, "the money has moved");
    let _second = stage.setup().name("second").start().await;
    refund_becomes(&stage, refund_id, "SUCCEEDED").await;
    let effects = stage.assert_rules().await;
    assert_eq!(
        (effects.refund_count(&number), effects.calls(&number, Op::Refund)),
        (1, 1),
        "asked about, not sent again"
    );
}

/// F16 end to end: the wallet denies a charge that it has taken; asked once more, it says so, and the money goes back.
#[tokio::test]
async fn f16_a_charge_that_shows_up_goes_back() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set not_found_final_after_ms = 1").await;
    stage.script(Rule::new("*", "charge", Fault::DropAfter)).await;
    stage.script(Rule::new("*", "query_charge", Fault::NotFound)).await;
    let flow_id = stage.create_until("topup", "one", 2500).await;
    let _daemon = stage.daemon().await;
    stage.reaches(flow_id, "PAY_FAIL").await;
    stage.clear_script().await;
    assert!(stage.db.value::<bool>(&format!("select paylatch.inquire({flow_id})")).await);
    stage.becomes_true(&format!("select count(*) = 1 from paylatch.get_refunds({flow_id})")).await;
    let refund = stage.db.refunds(flow_id).await.remove(0);
    refund_becomes(&stage, refund.refund_id, "SUCCEEDED").await;
    let effects = stage.assert_rules().await;
    assert_eq!((refund.kind.as_str(), effects.refund_count(&refund.refund_order_no)), ("RECON", 1));
    assert_eq!(stage.db.flow(flow_id).await.status, "PAY_FAIL");
}
