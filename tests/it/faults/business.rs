//! A business whose answers are lost, or that somebody else completed: F3, F6.

use paylatch_core::outcome::Outcome;
use paylatch_tests::payments::report;
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Gate, Stage, eventually};
use paylatchd::simulate::{Fault, Op, Rule};
use serde_json::json;

/// The business does its work, its answer times out, and until long after the deadline the fact cannot be read either.
/// Not knowing never refunds; the fact's owner decides.
#[tokio::test]
async fn f03_the_business_commits_and_its_answer_times_out() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "execute", Fault::Trickle).arg(100)).await;
    stage.script(Rule::new("*", "fact", Fault::DropBefore)).await;
    let _daemon = stage.daemon().await;
    let flow_id = stage.create_until("shop", "day", 4000).await;
    let order_no = stage.db.flow(flow_id).await.trade_order_no;
    let past_all = format!(
        "select paylatch.clock() > biz_deadline + interval '3 seconds' from paylatch.pay_flow where flow_id = {flow_id}"
    );
    stage.becomes_true(&past_all).await;
    let flow = stage.db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.frozen_reason), ("PAYED", None));
    let effects = stage.assert_rules().await;
    assert_eq!(effects.owner("day"), Some(order_no.as_str()), "the work was done before the deadline");

    stage.clear_script().await;
    stage.reaches(flow_id, "BIZ_SUCCESS").await;
    let effects = stage.assert_rules().await;
    assert!(effects.refunds.is_empty());
    assert_eq!(effects.calls(&flow.refund_order_no, Op::Refund), 0, "nobody even asked for a refund");
    assert_eq!((effects.business["day"].count, effects.charge_count(&order_no)), (1, 1));
}

/// Attempt 1 does not reach the business and is cancelled and refunded. Attempt 2 completes the target. Then a message
/// of attempt 1 comes after all: to the business, and to us.
#[tokio::test]
async fn f06_a_late_message_of_attempt_1_after_attempt_2_completed() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "execute", Fault::DropBefore)).await;
    let _daemon = stage.daemon().await;
    let first = stage.create("shop", "day").await;
    let first_no = stage.db.flow(first).await.trade_order_no;
    eventually("attempt 1 is on its way to the business", PATIENCE, async || {
        (stage.sim.effects().await.calls(&first_no, Op::Execute) >= 1).then_some(())
    })
    .await;
    stage.db.execute(&format!("select paylatch.cancel_pay_flow({first})")).await;
    stage.reaches(first, "REFUNDED").await;

    stage.clear_script().await;
    let second = stage.create("shop", "day").await;
    assert_ne!(first, second);
    let second_no = stage.reaches(second, "BIZ_SUCCESS").await.trade_order_no;
    execute_by_hand(&stage, &first_no).await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.owner("day"), Some(second_no.as_str()));
    assert_eq!(effects.business["day"].count, 1, "attempt 1's late message did no work");
    assert_eq!((effects.charges.len(), effects.refunds.len()), (2, 1));

    // And a late report of attempt 1 moves nothing: the truth is a replay, a claim to the target is an incident.
    let late = |owner: &str| {
        json!({"flow_id": first, "lease_token": 1, "action": "QUERY_BUSINESS", "outcome": Outcome::Done.as_str(),
               "owner": owner, "waited_ms": 0, "took_ms": 1})
    };
    let before = stage.db.flow(first).await;
    let mut session = stage.db.session().await;
    assert_eq!(report(&mut session, &[late(&second_no)]).await[0].disposition, "replayed");
    assert_eq!(report(&mut session, &[late(&first_no)]).await[0].disposition, "conflict");
    assert_eq!(stage.db.flow(first).await, before);
    let incidents = "select count(*) from paylatch.incident where kind = 'EXCLUDED_BRANCH' and resolved_at is null";
    assert_eq!(stage.db.value::<i64>(incidents).await, 1);
    let order = "select status from paylatch.get_pay_order('shop', 'day', 'day')";
    assert_eq!(stage.db.value::<String>(order).await, "PAID");
    stage.assert_rules().await;
}

/// Asks the business to do `day` for this number, as a message that was held up somewhere would.
async fn execute_by_hand(stage: &Stage, order_no: &str) {
    let url = format!("{}/business/execute", stage.sim.base_url());
    let body = json!({"order_no": order_no, "biz_key": "day"});
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    assert!(answer.status().is_success());
}

/// While the attempt is charged and about to execute, another number completes the target: it cannot claim that.
#[tokio::test]
async fn f06_a_target_that_another_number_completed_is_refunded() {
    let stage = Stage::set().await;
    let mut gate = Gate::shut(&stage.db, "old.status = 'PAYING' and new.status = 'PAYED'").await;
    let _daemon = stage.daemon().await;
    let flow_id = stage.create("shop", "day").await;
    gate.reached().await;
    execute_by_hand(&stage, "sh_other_1").await;
    gate.open().await;

    let flow = stage.reaches(flow_id, "REFUNDED").await;
    let effects = stage.assert_rules().await;
    assert_eq!(effects.owner("day"), Some("sh_other_1"));
    assert_eq!(effects.business["day"].count, 1);
    assert_eq!(effects.charge_count(&flow.trade_order_no), 1);
    assert_eq!(effects.refund_count(&flow.refund_order_no), 1);
}
