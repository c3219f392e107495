//! Asking: what is reserved, what is not, and what a refusal gives back.

use std::sync::Arc;

use paylatch_core::outcome::Outcome;
use paylatch_tests::database::{refused, run};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::refunds::ask;
use paylatch_tests::{Database, eventually};
use tokio::sync::Barrier;

/// F18: fifty at the same moment ask for 60 of 100. Exactly one gets it, every time.
#[tokio::test]
async fn f18_fifty_at_once_ask_for_sixty_of_a_hundred() {
    const ROUNDS: i64 = 10;
    let db = Arc::new(Database::fresh().await);
    db.add_scenes().await;
    let mut sessions = Vec::new();
    for _ in 0..50 {
        sessions.push(db.session().await);
    }
    for round in 1..=ROUNDS {
        let flow_id = db.settled_flow("alice", &format!("round-{round}")).await;
        let start = Arc::new(Barrier::new(sessions.len()));
        let mut asking = tokio::task::JoinSet::new();
        for mut session in sessions.drain(..) {
            let start = Arc::clone(&start);
            asking.spawn(async move {
                start.wait().await;
                let asked = ask(&mut session, flow_id, 900).await; // of 1500
                (session, asked)
            });
        }
        let mut accepted = 0;
        while let Some(done) = asking.join_next().await {
            let (session, asked) = done.unwrap();
            sessions.push(session);
            match asked.outcome.as_str() {
                "reserved" => accepted += 1,
                "over_limit" => assert_eq!((asked.refundable, asked.refund_id), (600, None), "{asked:?}"),
                other => panic!("{other}"),
            }
        }
        assert_eq!((accepted, db.refunds(flow_id).await.len()), (1, 1), "round {round}");
        assert_eq!(db.flow(flow_id).await.refunded_amount, 900);
    }
    assert_verified(&db).await;
}

/// A half-open breaker probes with a question, here about a refund that was never sent. Its sending must be announced in
/// the log all the same (rule 10), also where it follows at once from the answer.
#[tokio::test]
async fn a_probe_takes_no_announcement_away() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    db.ask_refund(flow_id, 500).await;
    let breaker = async |state: &str| {
        let set = "update paylatch.channel_state set probes_left = 1, moved_at = paylatch.clock() - interval '1 hour', breaker";
        db.execute(&format!("{set} = '{state}'")).await;
    };
    breaker("half_open").await;
    let mut session = db.session().await;
    let probe = claim(&mut session, 10).await.remove(0);
    assert_eq!(probe.action, "QUERY_REFUND");
    breaker("closed").await;
    report(&mut session, &[probe.evidence(Outcome::NotFound)]).await;
    let sent = claim(&mut session, 10).await.remove(0);
    assert_eq!(sent.action, "REFUND");
    report(&mut session, &[sent.evidence(Outcome::Succeeded)]).await;
    assert_verified(&db).await;
}

/// F19: the wallet refuses and says so twice. The reservation is released once, and the next refund has its own number.
#[tokio::test]
async fn f19_a_refusal_told_twice_releases_once() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let other = db.ask_refund(flow_id, 500).await;
    let asked = db.ask_refund(flow_id, 1000).await;
    assert_eq!((asked.outcome.as_str(), asked.refundable), ("reserved", 0));
    let mut session = db.session().await;
    let handouts = claim(&mut session, 10).await;
    let refused = handouts.iter().find(|h| h.refund_id == asked.refund_id).unwrap();
    assert_eq!((refused.action.as_str(), refused.amount), ("REFUND", 1000));
    assert_eq!(Some(&refused.refund_no), asked.refund_order_no.as_ref());
    let failed = refused.evidence(Outcome::Failed);

    for (disposition, version) in [("applied", 6), ("replayed", 6), ("replayed", 6)] {
        let verdict = report(&mut session, std::slice::from_ref(&failed)).await.remove(0);
        assert_eq!((verdict.disposition.as_str(), verdict.status.as_deref()), (disposition, Some("FAILED")));
        assert_eq!(verdict.refund_id, asked.refund_id);
        let flow = db.flow(flow_id).await;
        assert_eq!((flow.status.as_str(), flow.refunded_amount, flow.version), ("BIZ_SUCCESS", 500, version));
    }
    // Both copies in one report: the second is no evidence.
    let verdicts = report(&mut session, &[failed.clone(), failed]).await;
    assert_eq!((verdicts[0].disposition.as_str(), verdicts[1].disposition.as_str()), ("replayed", "rejected"));
    assert_eq!(db.flow(flow_id).await.refunded_amount, 500);

    let again = db.ask_refund(flow_id, 1000).await;
    assert_eq!((again.outcome.as_str(), again.refundable), ("reserved", 0));
    assert_ne!(again.refund_order_no, asked.refund_order_no);
    assert_ne!(again.refund_order_no, other.refund_order_no);
    assert_verified(&db).await;
}

/// The whole way: partial refunds until nothing is left, the order says how much, the flow stays what it is.
#[tokio::test]
async fn a_payment_goes_back_in_parts() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let mut session = db.session().await;
    let order = "select status::text || ' ' || refunded_amount from paylatch.pay_order";
    for (amount, left, stands) in [(400, 1100, "REFUNDED 400"), (100, 1000, "REFUNDED 500"), (1000, 0, "REFUNDED 1500")]
    {
        let before: String = db.value(order).await;
        let asked = db.ask_refund(flow_id, amount).await;
        assert_eq!((asked.outcome.as_str(), asked.refundable), ("reserved", left));
        assert_eq!(db.value::<String>(order).await, before, "reserved is not given back yet");
        let handout = claim(&mut session, 10).await.remove(0);
        assert_eq!((handout.refund_id, handout.amount), (asked.refund_id, amount));
        assert_eq!(handout.charge_ref.as_deref(), Some("req-1"), "the charge's own reference comes along");
        let verdict = report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await.remove(0);
        assert_eq!((verdict.status.as_deref(), verdict.action), (Some("SUCCEEDED"), None));
        assert_eq!(db.value::<String>(order).await, stands);
    }
    let flow = db.flow(flow_id).await;
    assert_eq!((flow.status.as_str(), flow.refunded_amount), ("BIZ_SUCCESS", 1500));
    assert_eq!(db.ask_refund(flow_id, 1).await.outcome, "over_limit");
    let again = "select outcome from paylatch.create_pay_flow('topup', 'alice', 'one', 1500, 'USD')";
    assert_eq!(db.value::<String>(again).await, "refunded_already");
    assert_verified(&db).await;
}

/// UNKNOWN is no failure: asked about under the same number, sent again only when the wallet does not know it.
#[tokio::test]
async fn a_lost_answer_is_asked_about_under_the_same_number() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let asked = db.ask_refund(flow_id, 700).await;
    let mut session = db.session().await;
    let mut offset = 0;
    for (action, outcome) in [
        ("REFUND", Outcome::Unknown),
        ("QUERY_REFUND", Outcome::Unavailable),
        ("QUERY_REFUND", Outcome::Processing),
        ("QUERY_REFUND", Outcome::NotFound), // asked after the lease: it never arrived
        ("REFUND", Outcome::Processing),
        ("QUERY_REFUND", Outcome::Succeeded),
    ] {
        let mut handouts = claim(&mut session, 10).await;
        if handouts.is_empty() {
            offset += 600_000;
            run(&mut session, &format!("set paylatch.clock_offset_ms = {offset}")).await;
            handouts = claim(&mut session, 10).await;
        }
        let handout = handouts.remove(0);
        assert_eq!((handout.action.as_str(), handout.refund_id), (action, asked.refund_id));
        assert_eq!(Some(handout.refund_no.clone()), asked.refund_order_no, "never another number");
        // Nothing follows at once, so that each step is seen here.
        let report = "select disposition from paylatch.report_evidence('by-hand', $1)";
        let evidence = serde_json::json!([handout.evidence(outcome)]);
        let disposition: String = sqlx::query_scalar(report).bind(evidence).fetch_one(&mut session).await.unwrap();
        assert_eq!(disposition, "applied", "{action} {outcome}");
    }
    assert_eq!(db.refunds(flow_id).await[0].status, "SUCCEEDED");
    let lines =
        format!("select count(*) from paylatch.explain({flow_id}) where topic = 'timeline' and says like '%refund v%'");
    assert_eq!(db.value::<i64>(&lines).await, db.refunds(flow_id).await[0].version + 1, "each version is told");
    assert_verified(&db).await;
}

/// A success that names another number, amount or currency proves nothing: the refund freezes, and an operator resumes it.
#[tokio::test]
async fn a_success_must_echo_the_refund() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    for (n, (key, value)) in
        [("order_no", "r9_tp_1_1".into()), ("amount", 1500.into()), ("currency", serde_json::Value::from("EUR"))]
            .into_iter()
            .enumerate()
    {
        let flow_id = db.settled_flow("alice", &format!("key-{n}")).await;
        let refund_id = db.ask_refund(flow_id, 700).await.refund_id.unwrap();
        let handout = claim(&mut session, 10).await.remove(0);
        let mut evidence = handout.evidence(Outcome::Succeeded);
        evidence[key] = value;
        let verdict = report(&mut session, &[evidence]).await.remove(0);
        assert_eq!(verdict.frozen_reason.as_deref(), Some("EVIDENCE_MISMATCH"), "{key}");
        assert!(claim(&mut session, 10).await.is_empty(), "frozen: nothing leaves");
        let open =
            format!("select count(*) from paylatch.incident where refund_id = {refund_id} and resolved_at is null");
        assert_eq!(db.value::<i64>(&open).await, 1);
        assert_verified(&db).await;
        db.execute(&format!("select paylatch.resume_refund({refund_id}, 'the adapter is mended')")).await;
        assert_eq!(db.value::<i64>(&open).await, 0);
        let handout = claim(&mut session, 10).await.remove(0);
        assert_eq!(handout.action, "QUERY_REFUND", "whatever was sent is asked for first");
        report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
        assert_eq!(db.refunds(flow_id).await[0].status, "SUCCEEDED");
    }
    assert_verified(&db).await;
}

#[tokio::test]
async fn only_a_payment_that_succeeded_is_refunded() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    let waiting = db.create_flow("topup", "alice", "waiting").await;
    assert_eq!(db.ask_refund(waiting, 1).await.outcome, "not_refundable");
    let failed = claim(&mut session, 10).await.remove(0);
    assert_eq!(db.ask_refund(waiting, 1).await.outcome, "not_refundable", "PAYING");
    report(&mut session, &[failed.evidence(Outcome::Failed)]).await;
    let asked = db.ask_refund(waiting, 1).await;
    assert_eq!((asked.outcome.as_str(), asked.refundable, asked.status), ("not_refundable", 0, None));
    assert_eq!(db.value::<i64>("select count(*) from paylatch.refund").await, 0);

    let flow_id = db.settled_flow("alice", "settled").await;
    for (bad, code) in [
        (format!("{flow_id}, 0, 'why'"), "PL004"),
        (format!("{flow_id}, -1, 'why'"), "PL004"),
        (format!("{flow_id}, null, 'why'"), "PL004"),
        (format!("{flow_id}, 1, ''"), "PL004"),
        (format!("{flow_id}, 1, '  '"), "PL004"),
        (format!("{flow_id}, 1, null"), "PL004"),
        (format!("{flow_id}, 1, repeat('x', 501)"), "PL004"),
        (format!("{flow_id}, 1, 'why', requested_by => ''"), "PL004"),
        (format!("{flow_id}, 1, 'why', requested_by => repeat('x', 129)"), "PL004"),
        (format!("{flow_id}, 1, 'why', expected_refundable => -1"), "PL004"),
        ("null, 1, 'why'".to_owned(), "PL004"),
        ("999999, 1, 'why'".to_owned(), "PL008"),
        (format!("{flow_id}, 1, 'why', merchant_id => 'another'"), "PL008"),
    ] {
        let (found, message) = refused(&mut session, &format!("select paylatch.request_refund({bad})")).await;
        assert_eq!(found, code, "{bad}: {message}");
    }
    assert_eq!(db.ask_refund(flow_id, 1501).await.outcome, "over_limit");
    assert_eq!(db.ask_refund(flow_id, i64::MAX).await.outcome, "over_limit");
    let expecting = |expected: i64| {
        format!("select outcome from paylatch.request_refund({flow_id}, 100, 'why', expected_refundable => {expected})")
    };
    assert_eq!(db.value::<String>(&expecting(1499)).await, "precondition_failed");
    assert_eq!(db.value::<String>(&expecting(1500)).await, "reserved");
    assert_eq!(db.value::<String>(&expecting(1500)).await, "precondition_failed", "a page that was old by then");
    let of_another = "select count(*) from paylatch.get_refunds($1, 'another')";
    let seen: i64 = sqlx::query_scalar(of_another).bind(flow_id).fetch_one(db.pool()).await.unwrap();
    assert_eq!(seen, 0);
    assert_verified(&db).await;
}

/// The longest charge leaves one character for n: 35 refunds, and then a clear error. An ordinary one never runs out.
#[tokio::test]
async fn numbers_run_out_late_and_loudly() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    run(&mut session, "set paylatch.shard_id = 1023; update paylatch.scene set order_prefix = order_prefix").await;
    db.execute(
        "insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('long', 'sim', 'zzz', 'none')",
    )
    .await;
    let create = "select flow_id from paylatch.create_pay_flow('long', '9223372036854775807', 'k', 1000, 'USD')";
    let flow_id: i64 = sqlx::query_scalar(create).fetch_one(&mut session).await.unwrap();
    let handout = claim(&mut session, 10).await.remove(0);
    assert_eq!(handout.order_no.len(), 29);
    report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
    for n in 1..=35 {
        let asked = db.ask_refund(flow_id, 1).await;
        assert_eq!(asked.outcome, "reserved", "number {n}");
        assert_eq!(asked.refund_order_no.map(|number| number.len()), Some(32));
    }
    let (code, message) = db.refused(&format!("select paylatch.request_refund({flow_id}, 1, 'one more')")).await;
    assert_eq!(code, "PL004", "{message}");
    assert!(message.contains("every refund number"), "{message}");
    assert_eq!(db.flow(flow_id).await.refunded_amount, 35, "and nothing was held back for it");

    let ordinary = db.settled_flow("1086", "ordinary").await;
    for _ in 0..40 {
        assert_eq!(db.ask_refund(ordinary, 1).await.outcome, "reserved");
    }
    assert!(db.refunds(ordinary).await[35].refund_order_no.starts_with("r10_"), "36 in base 36");
    let found = "select bool_and(paylatch.flow_id_of(refund_order_no) = flow_id) from paylatch.refund";
    assert!(db.value::<bool>(found).await);
    assert_verified(&db).await;
}

/// Poison in a refund freezes it alone, at the claim and at the report; its flow and its neighbours go on.
#[tokio::test]
async fn f24_a_refund_that_raises_freezes_alone() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    for _ in 0..5 {
        db.ask_refund(flow_id, 100).await;
    }
    let poison = |refund_id: i64| {
        format!(
            "create or replace function public.poison() returns trigger language plpgsql as $$
             begin raise exception 'poisoned' using errcode = 'XX001'; end $$;
             create or replace trigger t02_poison before update on paylatch.refund
                 for each row when (old.refund_id = {refund_id} and new.frozen_reason is null)
                 execute function public.poison()"
        )
    };
    db.execute(&poison(2)).await;
    let mut session = db.session().await;
    let mut handouts = Vec::new();
    eventually("the others are handed out", paylatch_tests::stage::PATIENCE, async || {
        handouts.extend(claim(&mut session, 100).await);
        (handouts.len() == 4).then_some(())
    })
    .await;
    db.execute(&poison(4)).await;
    let evidence: Vec<_> = handouts.iter().map(|handout| handout.evidence(Outcome::Succeeded)).collect();
    for verdict in report(&mut session, &evidence).await {
        let expected = if verdict.refund_id == Some(4) { "rejected" } else { "applied" };
        assert_eq!(verdict.disposition, expected, "{verdict:?}");
    }
    let stands: Vec<_> = db.refunds(flow_id).await.into_iter().map(|r| (r.refund_id, r.frozen_reason)).collect();
    let frozen: Vec<_> = stands.into_iter().filter_map(|(id, reason)| reason.map(|reason| (id, reason))).collect();
    assert_eq!(frozen, [(2, "POISON".to_owned()), (4, "POISON".to_owned())]);
    let why = "select count(*) from paylatch.incident where detail ->> 'error' = 'poisoned' and refund_id in (2, 4)";
    assert_eq!(db.value::<i64>(why).await, 2);
    assert_eq!(db.flow(flow_id).await.frozen_reason, None);
    assert_verified(&db).await;
}
