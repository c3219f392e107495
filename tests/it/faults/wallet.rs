//! A wallet whose answers are lost, late, missing or wrong: F1, F4, F13, F14, F15, F17.

use paylatch_tests::invariants::assert_never_rules;
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Gate, Stage, eventually};
use paylatchd::simulate::{Fault, Op, Rule};

/// More than any test takes: what comes this late comes when the test moves the simulator's clock.
const LATER_MS: u64 = 600_000;

#[tokio::test]
async fn f01_the_wallet_charges_and_its_answer_is_dropped() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::DropAfter)).await;
    let flows = [stage.create_many("shop", 10).await, stage.create_many("topup", 10).await].concat();
    let _daemon = stage.daemon().await;
    stage.all_reach(&flows, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    for flow_id in flows {
        let order_no = stage.db.flow(flow_id).await.trade_order_no;
        assert_eq!(effects.charge_count(&order_no), 1, "{order_no}");
        assert_eq!(effects.calls(&order_no, Op::Charge), 1, "{order_no} is asked about, not charged again");
        assert!(effects.calls(&order_no, Op::QueryCharge) >= 1, "{order_no} is asked about under the same number");
    }
    let proof = "select bool_and(action = 'QUERY_CHARGE') from paylatch.transition_log where to_status = 'PAYED'
                 and from_status = 'PAYING'";
    assert!(stage.db.value::<bool>(proof).await, "what proves the charge is the question, not the lost answer");
}

#[tokio::test]
async fn f04_the_refund_succeeds_and_the_connection_is_cut() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "execute", Fault::Reject)).await;
    stage.script(Rule::new("*", "refund", Fault::DropAfter)).await;
    let flows = stage.create_many("shop", 10).await;
    let _daemon = stage.daemon().await;
    stage.all_reach(&flows, "REFUNDED").await;
    let effects = stage.assert_rules().await;
    for flow_id in flows {
        let refund_no = stage.db.flow(flow_id).await.refund_order_no;
        assert_eq!(effects.refund_count(&refund_no), 1, "{refund_no}");
        assert_eq!(effects.calls(&refund_no, Op::Refund), 1, "{refund_no} is asked about, not sent again");
        assert!(effects.calls(&refund_no, Op::QueryRefund) >= 1, "{refund_no} is asked about");
    }
    assert_eq!(effects.refunds.len(), 10, "no refund under another number");
}

#[tokio::test]
async fn f13_retries_are_exhausted_and_nothing_was_heard() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.scene set max_auto_retries = 3, slow_interval_ms = 150").await;
    stage.script(Rule::new("*", "charge", Fault::DropBefore)).await;
    stage.script(Rule::new("*", "query_charge", Fault::ErrorBefore)).await;
    let flow_id = stage.create("topup", "unheard").await;
    let daemon = stage.daemon().await;
    stage.becomes_true(&format!("select retry_count >= 8 from paylatch.pay_flow where flow_id = {flow_id}")).await;

    let flow = stage.db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.client_status.as_str()), ("PAYING", "PROCESSING"));
    assert_eq!(flow.frozen_reason, None);
    assert!(stage.db.value::<bool>("select needs_attention from paylatch.unfinished").await);
    let attention = format!("select says from paylatch.explain({flow_id}) where topic = 'attention'");
    let says: String = stage.db.value(&attention).await;
    assert!(says.ends_with("tries in state PAYING; now tried at the slow pace"), "{says}");
    let gauge = "select value from paylatch.metrics() where name = 'unfinished_need_attention'";
    assert_eq!(stage.db.value::<f64>(gauge).await, 1.0);
    let never = "select count(*) from paylatch.transition_log where to_status = 'PAY_FAIL'";
    assert_eq!(stage.db.value::<i64>(never).await, 0);
    let calls = stage.assert_rules().await.calls(&flow.trade_order_no, Op::Charge);
    assert_eq!(calls, 1, "not knowing never leads to a second send");

    // It is still the same payment, under the same number, once the wallet can be heard.
    stage.clear_script().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charges.len(), 1);
    assert_eq!(effects.charge_count(&flow.trade_order_no), 1);
    drop(daemon);
}

/// 404 after 404, also after the lease; then the charge shows. It is asked for again under its number all the while.
#[tokio::test]
async fn f14_not_found_and_then_the_charge_becomes_visible() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::LateEffect).times(1).arg(LATER_MS)).await;
    let flow_id = stage.create("topup", "late").await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;
    let _daemon = stage.daemon().await;
    // A second send only leaves after a NOT_FOUND that was asked after the first one's lease.
    eventually("the charge is sent again", PATIENCE, async || {
        (stage.sim.effects().await.calls(&order_no, Op::Charge) >= 2).then_some(())
    })
    .await;
    assert_eq!(stage.db.flow(flow_id).await.status, "PAYING");
    let lease_ms = paylatch_tests::stage::LEASE_MS;
    let one_after_the_other = format!(
        "select extract(epoch from f.act_lease_until - l.at) * 1000 >= 2 * {lease_ms}
         from paylatch.pay_flow f join paylatch.transition_log l on l.ref_id = f.flow_id and l.version = 1"
    );
    assert!(stage.db.value::<bool>(&one_after_the_other).await, "sent again within the first send's lease");

    stage.sim.admin().clock_offset(i64::try_from(LATER_MS).unwrap() + 1000).await.unwrap();
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charge_count(&order_no), 1);
}

/// The same after the deadline, where nothing is sent any more: within the window the flow stays, and money that shows
/// in the end is given back.
#[tokio::test]
async fn f14_a_charge_that_shows_after_the_deadline_is_given_back() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set not_found_final_after_ms = 600000").await;
    // Apart by the slow interval; with this one three denials come quickly, and only the window keeps the flow open.
    stage.db.execute("update paylatch.scene set slow_interval_ms = 60").await;
    stage.script(Rule::new("*", "charge", Fault::LateEffect).times(1).arg(LATER_MS)).await;
    let _daemon = stage.daemon().await;
    let flow_id = stage.create_until("shop", "late", 2500).await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;
    stage.becomes_true(&format!("select negative_count >= 5 from paylatch.pay_flow where flow_id = {flow_id}")).await;
    let flow = stage.db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.frozen_reason), ("PAYING", None), "five denials prove nothing yet");

    stage.sim.admin().clock_offset(i64::try_from(LATER_MS).unwrap() + 1000).await.unwrap();
    stage.reaches(flow_id, "REFUNDED").await;
    let effects = stage.assert_rules().await;
    assert_eq!((effects.charge_count(&order_no), effects.refunds.len()), (1, 1));
    assert_eq!(effects.calls(&order_no, Op::Charge), 1, "nothing is sent after the deadline");
    assert_eq!(effects.calls(&order_no, Op::Execute), 0, "nothing is executed after the deadline");
}

/// The channel answers CLOSED although the customer pays in between. A close is believed only after another question.
#[tokio::test]
async fn f15_a_close_was_answered_ok_though_the_customer_paid() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set can_close_charge = true").await;
    stage.script(Rule::new("*", "charge", Fault::LateEffect).times(1).arg(LATER_MS)).await;
    stage.script(Rule::new("*", "close_charge", Fault::CloseLies)).await;
    let mut gate =
        Gate::shut(&stage.db, "old.last_outcome is distinct from 'CLOSED' and new.last_outcome = 'CLOSED'").await;
    let _daemon = stage.daemon().await;
    let flow_id = stage.create_until("topup", "in-between", 2500).await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;

    gate.reached().await;
    stage.sim.admin().clock_offset(i64::try_from(LATER_MS).unwrap() + 1000).await.unwrap();
    gate.open().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.calls(&order_no, Op::CloseCharge), 1);
    assert_eq!((effects.charge_count(&order_no), effects.refunds.len()), (1, 0));
}

/// A close that is true, and confirmed by the next question, is the end: never charged.
#[tokio::test]
async fn f15_a_confirmed_close_ends_the_flow() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.channel set can_close_charge = true").await;
    stage.script(Rule::new("*", "charge", Fault::DropBefore)).await;
    let _daemon = stage.daemon().await;
    let flow_id = stage.create_until("topup", "abandoned", 2500).await;
    stage.reaches(flow_id, "PAY_FAIL").await;
    let effects = stage.assert_rules().await;
    assert!(effects.charges.is_empty() && effects.closed.len() == 1, "{effects:#?}");
}

#[tokio::test]
async fn f17_the_wallet_echoes_another_amount_currency_or_number() {
    let stage = Stage::set().await;
    let wrong = [Fault::WrongAmount, Fault::WrongCurrency, Fault::WrongNumber];
    let mut charging = Vec::new();
    let mut refunding = Vec::new();
    for (n, fault) in wrong.into_iter().enumerate() {
        let charge = stage.create("topup", &format!("charge-{n}")).await;
        let refund = stage.create("shop", &format!("refund-{n}")).await;
        let (charge_no, refund_no) =
            (stage.db.flow(charge).await.trade_order_no, stage.db.flow(refund).await.refund_order_no);
        for op in ["charge", "query_charge"] {
            stage.script(Rule::new(charge_no.clone(), op, fault)).await;
        }
        for op in ["refund", "query_refund"] {
            stage.script(Rule::new(refund_no.clone(), op, fault)).await;
        }
        charging.push(charge);
        refunding.push(refund);
    }
    stage.script(Rule::new("refund-*", "execute", Fault::Reject)).await;
    let honest = stage.create_many("topup", 5).await;
    let _daemon = stage.daemon().await;
    stage.all_reach(&honest, "BIZ_SUCCESS").await;
    stage.becomes_true("select count(*) = 6 from paylatch.pay_flow where frozen_reason is not null").await;

    for (flows, status) in [(&charging, "PAYING"), (&refunding, "REFUNDING")] {
        for flow_id in flows {
            let flow = stage.db.flow(*flow_id).await;
            assert_eq!(flow.status, status, "no edge was taken");
            assert_eq!(flow.frozen_reason.as_deref(), Some("EVIDENCE_MISMATCH"));
            assert_eq!(flow.client_status, "MANUAL_REVIEW");
            let incidents =
                format!("select count(*) from paylatch.incident where flow_id = {flow_id} and resolved_at is null");
            assert_eq!(stage.db.value::<i64>(&incidents).await, 1);
        }
    }
    assert_never_rules(&stage.db, &stage.sim.effects().await).await;

    // A person looks, finds the wallet's books right, and lets the flows go on.
    stage.clear_script().await;
    for flow_id in charging.iter().chain(&refunding) {
        stage
            .db
            .execute(&format!("select paylatch.resume_pay_flow({flow_id}, 'the statement names our amount')"))
            .await;
    }
    stage.all_reach(&charging, "BIZ_SUCCESS").await;
    stage.all_reach(&refunding, "REFUNDED").await;
    let effects = stage.assert_rules().await;
    assert_eq!((effects.charges.len(), effects.refunds.len()), (11, 3));
}
