//! F9: the business succeeds before, at or after the deadline, or is still at it.

use std::collections::BTreeMap;

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{Handout, Verdict, claim, report};
use paylatch_tests::{Database, Stage};
use paylatchd::simulate::{Fault, Op, Rule};
use sqlx::PgConnection;

const DEADLINE_MS: i32 = 6000;

/// Each way in which an execution can lie around the deadline: key, fault, its argument, how often, and the end.
const WAYS: &[(&str, Fault, u64, Option<u32>, &str)] = &[
    ("before", Fault::None, 0, None, "BIZ_SUCCESS"),
    ("answer-lost", Fault::DropAfter, 0, None, "BIZ_SUCCESS"),
    // Still under way when its answer is given up, done before the deadline.
    ("in-flight", Fault::Slow, 1500, Some(1), "BIZ_SUCCESS"),
    ("lands-before", Fault::LateEffect, 1000, None, "BIZ_SUCCESS"),
    // Under way when the deadline comes: the business refuses it.
    ("still-in-flight", Fault::Slow, 9000, None, "REFUNDED"),
    ("would-land-after", Fault::LateEffect, 60_000, None, "REFUNDED"),
    ("never-arrives", Fault::DropBefore, 0, None, "REFUNDED"),
];

#[tokio::test]
async fn f09_done_is_never_refunded_and_not_done_always_is() {
    let stage = Stage::set().await;
    for (key, fault, arg, times, _) in WAYS {
        let rule = Rule::new(format!("{key}-*"), "execute", *fault).arg(*arg);
        stage.script(times.map_or(rule.clone(), |times| rule.times(times * 3))).await;
    }
    let _daemon = stage.daemon().await;
    let mut flows = Vec::new();
    for (key, .., end) in WAYS {
        for n in 1..=3 {
            flows.push((stage.create_until("shop", &format!("{key}-{n}"), DEADLINE_MS).await, *end));
        }
    }
    let executions = async || -> BTreeMap<String, u32> {
        let calls = stage.sim.effects().await.calls.into_iter();
        calls.map(|(number, calls)| (number, calls.get(&Op::Execute).copied().unwrap_or(0))).collect()
    };
    // A call that left in time has arrived by then.
    stage.becomes_true("select paylatch.clock() > max(biz_deadline) + interval '500 ms' from paylatch.pay_flow").await;
    let by_the_deadline = executions().await;
    for (flow_id, end) in &flows {
        stage.reaches(*flow_id, end).await;
    }
    // Long after the last call in flight has come to the business.
    stage.becomes_true("select paylatch.clock() > max(biz_deadline) + interval '10 s' from paylatch.pay_flow").await;
    for (order_no, calls) in executions().await {
        assert_eq!(
            by_the_deadline.get(&order_no).copied().unwrap_or(0),
            calls,
            "{order_no} is executed after the deadline"
        );
    }
    let effects = stage.assert_rules().await;
    for (key, .., end) in WAYS {
        for n in 1..=3 {
            let done = effects.business.get(&format!("{key}-{n}")).map_or(0, |target| target.count);
            assert_eq!(done, u32::from(*end == "BIZ_SUCCESS"), "{key}-{n} ends {end}");
        }
    }
    let refunds = WAYS.iter().filter(|(.., end)| *end == "REFUNDED").count() * 3;
    assert_eq!((effects.charges.len(), effects.refunds.len()), (flows.len(), refunds));
}

/// A session in which a flow was charged at 0 ms, its deadline at 60,000 ms, the business's grace 15,000 ms.
struct Hour {
    session: PgConnection,
    flow_id: i64,
}

impl Hour {
    async fn of_a_charged_flow(db: &Database) -> Self {
        let mut session = db.session().await;
        let create = "select flow_id from paylatch.create_pay_flow('shop', 'alice', 'day', 1500, 'USD',
                          biz_deadline => paylatch.clock() + interval '60 seconds')";
        let flow_id = sqlx::query_scalar(create).fetch_one(&mut session).await.unwrap();
        let charge = claim(&mut session, 1).await.remove(0);
        // Without a lease no execution is handed out.
        let evidence = serde_json::json!([charge.evidence(Outcome::Succeeded)]);
        sqlx::query("select paylatch.report_evidence('by-hand', $1)")
            .bind(evidence)
            .execute(&mut session)
            .await
            .unwrap();
        Self { session, flow_id }
    }

    async fn at(&mut self, ms: i32) {
        paylatch_tests::database::run(&mut self.session, &format!("set paylatch.clock_offset_ms = {ms}")).await;
    }

    async fn claim(&mut self) -> Option<Handout> {
        let mut handouts = claim(&mut self.session, 10).await;
        handouts.retain(|handout| handout.flow_id == self.flow_id);
        handouts.pop()
    }

    async fn told(&mut self, handout: &Handout, outcome: Outcome) -> Verdict {
        report(&mut self.session, &[handout.evidence(outcome)]).await.remove(0)
    }
}

#[tokio::test]
async fn f09_no_execution_leaves_after_the_deadline() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut hour = Hour::of_a_charged_flow(&db).await;
    hour.at(50_000).await;
    let execute = hour.claim().await.expect("there is time to execute");
    assert_eq!(execute.action, "EXECUTE_BUSINESS");
    assert!((1..=10_000).contains(&execute.send_within_ms), "to be sent by the deadline: {execute:?}");
    // The lease is over, and so is the deadline: from here on there are only questions.
    hour.at(90_000).await;
    let question = hour.claim().await.expect("the fact is asked for");
    assert_eq!(question.action, "QUERY_BUSINESS");
    assert_eq!(hour.told(&question, Outcome::Done).await.status.as_deref(), Some("BIZ_SUCCESS"));
    assert_verified(&db).await;
}

#[tokio::test]
async fn f09_only_a_fact_read_after_the_grace_proves_not_done() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut hour = Hour::of_a_charged_flow(&db).await;
    hour.at(62_000).await;
    let early = hour.claim().await.expect("the fact is asked for");
    assert_eq!(early.action, "QUERY_BUSINESS");
    assert_eq!(
        hour.told(&early, Outcome::NotDone).await.status.as_deref(),
        Some("PAYED"),
        "an execution may be in flight"
    );
    hour.at(76_000).await;
    let late = hour.claim().await.expect("the fact is asked for again");
    assert_eq!(late.action, "QUERY_BUSINESS");
    let verdict = hour.told(&late, Outcome::NotDone).await;
    assert_eq!((verdict.status.as_deref(), verdict.action.as_deref()), (Some("REFUNDING"), Some("REFUND")));
    assert_verified(&db).await;
}
