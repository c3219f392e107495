//! F24: one poison job in a batch. The others go through; it alone freezes, or asks again where nothing is wrong with it.

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::{Database, Stage};
use serde_json::json;

/// From now on every change of this flow raises, except the one that sets it aside.
async fn poison(db: &Database, flow_id: i64) {
    db.execute(&format!(
        "create or replace function public.poison() returns trigger language plpgsql as $$
         begin raise exception 'poisoned' using errcode = 'XX001'; end $$;
         create or replace trigger t02_poison before update on paylatch.pay_flow
             for each row when (old.flow_id = {flow_id} and new.frozen_reason is null)
             execute function public.poison()"
    ))
    .await;
}

/// Exactly this flow waits for a person, as POISON, with an incident that says why.
async fn alone_is_frozen(db: &Database, flow_id: i64) {
    let frozen: Vec<(i64, String)> =
        sqlx::query_as("select flow_id, frozen_reason from paylatch.pay_flow where frozen_reason is not null")
            .fetch_all(db.pool())
            .await
            .unwrap();
    assert_eq!(frozen, [(flow_id, "POISON".to_owned())]);
    let error =
        format!("select detail ->> 'error' from paylatch.incident where flow_id = {flow_id} and resolved_at is null");
    assert_eq!(db.value::<String>(&error).await, "poisoned");
    let says = format!("select says from paylatch.explain({flow_id}) where topic = 'attention'");
    assert_eq!(db.value::<String>(&says).await, "waits for a person: processing it failed inside the database");
}

/// A row that fails wherever a daemon's claim or report touches it, among ninety-nine that do not.
#[tokio::test]
async fn f24_a_row_that_raises_freezes_alone() {
    let stage = Stage::set().await;
    let flows = [stage.create_many("shop", 50).await, stage.create_many("topup", 50).await].concat();
    let bad = flows[17];
    poison(&stage.db, bad).await;
    let _daemon = stage.daemon().await;
    for flow_id in flows.iter().filter(|flow_id| **flow_id != bad) {
        stage.reaches(*flow_id, "BIZ_SUCCESS").await;
    }
    stage.becomes_true(&format!("select frozen_reason is not null from paylatch.pay_flow where flow_id = {bad}")).await;
    alone_is_frozen(&stage.db, bad).await;
    let effects = stage.assert_rules().await;
    assert_eq!((effects.charges.len(), effects.business.len()), (99, 49));
    assert!(effects.charges.values().all(|charge| charge.count == 1));

    // Once the cause is gone, a person lets it go on.
    stage.db.execute("drop trigger t02_poison on paylatch.pay_flow").await;
    stage.db.execute(&format!("select paylatch.resume_pay_flow({bad}, 'the cause is mended')")).await;
    stage.reaches(bad, "BIZ_SUCCESS").await;
    assert_eq!(stage.assert_rules().await.charges.len(), 100);
}

/// The same where the poison shows only in the report: the wallet has charged, and the answer is not lost sight of.
#[tokio::test]
async fn f24_a_report_that_raises_freezes_its_flow_alone() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    for n in 0..20 {
        db.create_flow("topup", "alice", &format!("key-{n}")).await;
    }
    let mut session = db.session().await;
    let handouts = claim(&mut session, 100).await;
    assert_eq!(handouts.len(), 20);
    let bad = handouts[7].flow_id;
    poison(&db, bad).await;
    let evidence: Vec<_> = handouts.iter().map(|handout| handout.evidence(Outcome::Succeeded)).collect();
    let verdicts = report(&mut session, &evidence).await;
    assert_eq!(verdicts.len(), 20);
    for verdict in verdicts {
        let expected = if verdict.flow_id == Some(bad) { "rejected" } else { "applied" };
        assert_eq!(verdict.disposition, expected, "{verdict:?}");
    }
    alone_is_frozen(&db, bad).await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.pay_flow where status = 'BIZ_SUCCESS'").await, 19);
    assert_verified(&db).await;
}

/// The same in the scanner's round.
#[tokio::test]
async fn f24_a_scan_that_raises_freezes_its_flow_alone() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    for n in 0..20 {
        db.create_flow("topup", "alice", &format!("key-{n}")).await;
    }
    let bad: i64 = db.value("select flow_id from paylatch.pay_flow order by flow_id offset 11 limit 1").await;
    poison(&db, bad).await;
    let mut session = db.session().await;
    paylatch_tests::database::run(&mut session, "set paylatch.clock_offset_ms = 1000000").await;
    paylatch_tests::database::run(&mut session, "select paylatch.scan('test')").await;
    assert_eq!(db.value::<i64>("select count(*) from paylatch.pay_flow where status = 'PAY_FAIL'").await, 19);
    alone_is_frozen(&db, bad).await;
    assert_verified(&db).await;
}

/// Elements that are no evidence at all harm neither the others nor the flow that they name.
#[tokio::test]
async fn f24_malformed_reports_are_rejected_alone() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    for n in 0..4 {
        db.create_flow("topup", "alice", &format!("key-{n}")).await;
    }
    let mut session = db.session().await;
    let handouts = claim(&mut session, 10).await;
    let [a, b, c, named] = [0, 1, 2, 3].map(|n| handouts[n].clone());
    let good = |handout: &paylatch_tests::payments::Handout| handout.evidence(Outcome::Succeeded);
    let mut huge_wait = named.evidence(Outcome::Succeeded);
    huge_wait["waited_ms"] = json!("a while");
    let malformed = [
        json!("nonsense"),
        json!(null),
        json!([]),
        json!({}),
        json!({"flow_id": "x"}),
        json!({"flow_id": 1e300}),
        json!({"flow_id": 999_999, "action": "CHARGE", "outcome": "SUCCEEDED"}),
        json!({"flow_id": named.flow_id, "lease_token": named.lease_token, "action": "CHARGE", "outcome": "PERHAPS"}),
        json!({"flow_id": named.flow_id, "lease_token": named.lease_token, "action": "DANCE", "outcome": "SUCCEEDED"}),
        huge_wait,
    ];
    for bad in malformed {
        let verdicts = report(&mut session, std::slice::from_ref(&bad)).await;
        assert_eq!(verdicts.len(), 1, "{bad}");
        assert_eq!(verdicts[0].disposition, "rejected", "{bad}");
    }
    let verdicts =
        report(&mut session, &[good(&a), json!("nonsense"), good(&b), json!({"flow_id": "x"}), good(&c)]).await;
    let dispositions: Vec<_> = verdicts.iter().map(|verdict| verdict.disposition.as_str()).collect();
    assert_eq!(dispositions, ["applied", "rejected", "applied", "rejected", "applied"]);
    // Nothing is wrong with the flow that they named: its true answer still counts.
    let flow = db.flow(named.flow_id).await;
    assert_eq!((flow.status.as_str(), flow.frozen_reason), ("PAYING", None));
    assert_eq!(report(&mut session, &[good(&named)]).await[0].disposition, "applied");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.pay_flow where status = 'BIZ_SUCCESS'").await, 4);
    assert_verified(&db).await;
}

/// A business function that raises for one flow: its act proves nothing and its fact stays unknown, so that flow asks
/// again until it needs a person. Its neighbours commit in the same statement.
#[tokio::test]
async fn f24_a_business_function_that_raises_for_one_flow() {
    let stage = Stage::set().await;
    stage.db.execute("update paylatch.scene set max_auto_retries = 3").await;
    stage
        .db
        .execute(
            "alter table app.streak add constraint not_this_one check (biz_key <> 'streak-7');
             create or replace function app.streak_fact(biz_key text, order_no text, out fact text, out owner text)
                 language plpgsql security definer as $$
             begin
                 if biz_key = 'streak-7' and exists (select from pg_constraint where conname = 'not_this_one') then
                     raise exception 'no such streak' using errcode = 'P0002';
                 end if;
                 owner := (select s.owner from app.streak s where s.biz_key = streak_fact.biz_key);
                 fact := case when owner is null then 'NOT_DONE' else 'DONE' end;
             end $$",
        )
        .await;
    let flows = stage.create_many("streak", 30).await;
    let _daemon = stage.daemon().await;
    for flow_id in flows.iter().filter(|flow_id| **flow_id != flows[6]) {
        stage.reaches(*flow_id, "BIZ_SUCCESS").await;
    }
    let bad = flows[6];
    stage.becomes_true(&format!("select frozen_reason is not null from paylatch.pay_flow where flow_id = {bad}")).await;
    let flow = stage.db.flow(bad).await;
    assert_eq!((flow.status.as_str(), flow.frozen_reason.as_deref()), ("PAYED", Some("BUSINESS_UNRESOLVED")));
    let code = format!("select last_error_code from paylatch.pay_flow where flow_id = {bad}");
    assert_eq!(stage.db.value::<String>(&code).await, "P0002", "what the function raised is on the row");
    assert_eq!(
        stage.db.value::<i64>("select count(*) from paylatch.pay_flow where frozen_reason is not null").await,
        1
    );
    let effects = stage.assert_rules().await;
    assert_eq!((effects.charges.len(), effects.refunds.len()), (30, 0), "charged, and not refunded blindly");

    stage.db.execute("alter table app.streak drop constraint not_this_one").await;
    stage.db.execute(&format!("select paylatch.resume_pay_flow({bad}, 'the function is mended')")).await;
    stage.reaches(bad, "BIZ_SUCCESS").await;
    stage.assert_rules().await;
}
