//! End to end: a simulator that charges, refunds and tells, a daemon that listens and asks.

use paylatch_tests::stage::PATIENCE;
use paylatch_tests::wait::eventually;
use paylatch_tests::{Daemon, Stage};
use paylatchd::simulate::{Dispute, DisputeWord, Fault, FaultRates, Op, RefundByHand, Rule};

use super::{door, key, setup};

/// A stage on which the simulator sends webhooks to a running daemon.
async fn listening() -> (Stage, Daemon) {
    let stage = Stage::set().await;
    let daemon = setup(&stage.db, &stage.sim.base_url(), &[key(1)]).start().await;
    send_to(&stage, &daemon).await;
    (stage, daemon)
}

async fn send_to(stage: &Stage, daemon: &Daemon) {
    stage.sim.admin().webhooks(&door(daemon, "sim"), &[&key(1).expose()]).await.unwrap();
}

/// Waits until the simulator has delivered all that it had to tell.
async fn all_told(stage: &Stage) -> u64 {
    eventually("every webhook is delivered", PATIENCE, async || {
        let count = stage.sim.admin().webhook_count().await.unwrap();
        (count.pending == 0).then_some(count.delivered)
    })
    .await
}

async fn applied(stage: &Stage) -> String {
    let words =
        "select string_agg(event_type || ' ' || coalesce(applied_as, 'waits'), ', ' order by event_type, applied_as)
                 from paylatch.webhook_event";
    stage.db.value(words).await
}

/// The answer is lost and the flow would ask in ten minutes; the webhook has it ask now.
#[tokio::test]
async fn a_webhook_speeds_up_a_flow_that_backs_off() {
    for told in ["at once", "later"] {
        let (stage, _daemon) = listening().await;
        stage.db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
        stage.script(Rule::new("*", "charge", Fault::DropAfter)).await;
        if told == "later" {
            stage.script(Rule::new("*", "webhook", Fault::Late).arg(1500)).await;
        }
        let flow_id = stage.create("topup", "one").await;
        let flow = stage.reaches(flow_id, "BIZ_SUCCESS").await;
        let effects = stage.assert_rules().await;
        let calls =
            (effects.calls(&flow.trade_order_no, Op::Charge), effects.calls(&flow.trade_order_no, Op::QueryCharge));
        assert_eq!(calls, (1, 1), "{told}: the webhook is a hint, the wallet was asked");
        all_told(&stage).await;
        assert_eq!(applied(&stage).await, "charge.succeeded woken");
    }
}

/// Where webhooks are trusted nobody asks at all.
#[tokio::test]
async fn a_trusted_webhook_saves_the_question() {
    let (stage, _daemon) = listening().await;
    stage.db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    stage.db.execute("update paylatch.channel set webhook_trust = 'evidence'").await;
    stage.script(Rule::new("*", "charge", Fault::DropAfter)).await;
    let flow_id = stage.create("topup", "one").await;
    let flow = stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.calls(&flow.trade_order_no, Op::QueryCharge), 0);
    all_told(&stage).await;
    assert_eq!(applied(&stage).await, "charge.succeeded decided");
}

/// The webhook comes before the answer of its own request.
#[tokio::test]
async fn a_webhook_that_is_earlier_than_its_answer_does_no_harm() {
    for trust in ["hint", "evidence"] {
        let (stage, _daemon) = listening().await;
        stage.db.execute(&format!("update paylatch.channel set webhook_trust = '{trust}'")).await;
        stage.script(Rule::new("*", "webhook", Fault::Early).arg(300)).await;
        let flows = stage.create_many("topup", 20).await;
        stage.all_reach(&flows, "BIZ_SUCCESS").await;
        let effects = stage.assert_rules().await;
        assert_eq!(effects.charges.len(), 20);
        assert_eq!(all_told(&stage).await, 20);
    }
}

/// Doubled, late, overtaken, forged and missing webhooks beside lost answers: every payment ends, and is charged once.
#[tokio::test]
async fn webhooks_with_every_fault_change_nothing_but_the_pace() {
    for trust in ["hint", "evidence"] {
        let (stage, daemon) = listening().await;
        stage.db.execute(&format!("update paylatch.channel set webhook_trust = '{trust}'")).await;
        stage.sim.admin().faults(&FaultRates::of(0.4)).await.unwrap();
        let flows = stage.create_many("topup", 60).await;
        stage.create_many("shop", 30).await;
        stage.converged(PATIENCE).await;
        stage.sim.admin().faults(&FaultRates::of(0.0)).await.unwrap();
        all_told(&stage).await;
        stage.db.execute("select paylatch.scan()").await;
        let effects = stage.assert_rules().await;
        assert!(effects.requests[&Op::Webhook] >= 90, "{:?}", effects.requests);
        assert_eq!(flows.len(), 60);
        let waiting = "select count(*) from paylatch.webhook_event where applied_at is null";
        assert_eq!(stage.db.value::<i64>(waiting).await, 0, "{}", applied(&stage).await);
        let doubled = "select count(*) from paylatch.webhook_event where times_received > 1";
        assert!(stage.db.value::<i64>(doubled).await > 0);
        let metrics = daemon.metrics().await;
        assert!(metrics.contains("paylatch_webhooks_total{channel=\"sim\",result=\"forged\"}"), "{metrics}");
    }
}

/// The simulator's queue survives its end, and the daemon's: what was to be told is told.
#[tokio::test]
async fn what_is_to_be_told_is_told_after_a_restart() {
    let (mut stage, mut daemon) = listening().await;
    daemon.kill();
    let flow_id = stage.create("topup", "one").await;
    let number = stage.db.flow(flow_id).await.trade_order_no;
    let charge = serde_json::json!({"order_no": number, "amount": 1500, "currency": "USD", "user_id": "one"});
    let answer = reqwest::Client::new().post(format!("{}/charges", stage.sim.base_url())).json(&charge).send().await;
    assert!(answer.unwrap().status().is_success());
    assert_eq!(stage.sim.admin().webhook_count().await.unwrap().pending, 1, "nobody is there to hear it");
    stage.sim.kill();
    stage.sim.restart().await;
    assert_eq!(stage.sim.admin().webhook_count().await.unwrap().pending, 1);
    daemon.restart().await;
    send_to(&stage, &daemon).await;
    assert_eq!(all_told(&stage).await, 1);
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    stage.assert_rules().await;
}

/// The wallet refuses, and charges after all. Nobody would have asked again.
#[tokio::test]
async fn f16_a_late_charge_is_told_found_and_given_back() {
    for trust in ["hint", "evidence"] {
        let (stage, _daemon) = listening().await;
        stage.db.execute(&format!("update paylatch.channel set webhook_trust = '{trust}'")).await;
        stage.script(Rule::new("*", "charge", Fault::Refuse)).await;
        let flow_id = stage.create("topup", "one").await;
        let number = stage.reaches(flow_id, "PAY_FAIL").await.trade_order_no;
        stage.script(Rule::new("*", "webhook", Fault::Duplicate)).await;
        stage.sim.admin().late_charge(&number).await.unwrap();
        stage
            .becomes_true("select exists (select from paylatch.refund where kind = 'RECON' and status = 'SUCCEEDED')")
            .await;
        assert_eq!(stage.db.flow(flow_id).await.status, "PAY_FAIL");
        all_told(&stage).await;
        let effects = stage.assert_rules().await;
        assert_eq!((effects.charge_count(&number), effects.refunds.len()), (1, 1));
        let incidents = "select string_agg(kind, ' ') from paylatch.incident where resolved_at is null";
        assert_eq!(stage.db.value::<String>(incidents).await, "LATE_CHARGE");
    }
}

/// A refund is refused, the notice of it comes twice: the reservation is released once, and another refund may follow.
#[tokio::test]
async fn f19_a_refused_refund_told_twice_is_released_once() {
    let (stage, _daemon) = listening().await;
    let flow_id = stage.create("topup", "one").await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    stage.script(Rule::new("r*", "refund", Fault::Refuse)).await;
    stage.script(Rule::new("r*", "webhook", Fault::Duplicate).arg(2)).await;
    let ask = format!("select refund_order_no from paylatch.request_refund({flow_id}, 900, 'broken')");
    let first: String = stage.db.value(&ask).await;
    stage
        .becomes_true(&format!("select status = 'FAILED' from paylatch.refund where refund_order_no = '{first}'"))
        .await;
    all_told(&stage).await;
    assert_eq!(stage.db.flow(flow_id).await.refunded_amount, 0);
    stage.clear_script().await;
    let second: String = stage.db.value(&ask).await;
    assert_ne!(first, second);
    stage
        .becomes_true(&format!("select status = 'SUCCEEDED' from paylatch.refund where refund_order_no = '{second}'"))
        .await;
    assert_eq!(stage.db.flow(flow_id).await.refunded_amount, 900);
    let effects = stage.assert_rules().await;
    assert_eq!((effects.refund_count(&first), effects.refund_count(&second)), (0, 1));
    let doubled = "select bool_or(times_received > 1) from paylatch.webhook_event where event_type = 'refund.failed'";
    assert!(stage.db.value::<bool>(doubled).await);
}

/// What nobody here asked for is told, and counts.
#[tokio::test]
async fn a_refund_by_hand_and_a_dispute_are_told() {
    let (stage, _daemon) = listening().await;
    let flow_id = stage.create("topup", "one").await;
    let order_no = stage.reaches(flow_id, "BIZ_SUCCESS").await.trade_order_no;
    let by_hand = RefundByHand { order_no: order_no.clone(), external_no: "rf_1".into(), amount: 500 };
    stage.sim.admin().refund_by_hand(&by_hand).await.unwrap();
    let mut dispute = Dispute { order_no, dispute_no: "dp_1".into(), amount: 1000, state: DisputeWord::Opened };
    stage.sim.admin().dispute(&dispute).await.unwrap();
    let held = format!(
        "select refunded_amount = 500 and disputed_amount = 1000 from paylatch.pay_flow where flow_id = {flow_id}"
    );
    stage.becomes_true(&held).await;
    dispute.state = DisputeWord::Won;
    stage.sim.admin().dispute(&dispute).await.unwrap();
    stage.becomes_true(&format!("select disputed_amount = 0 from paylatch.pay_flow where flow_id = {flow_id}")).await;
    stage.assert_rules().await;
}
