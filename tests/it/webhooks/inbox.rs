//! What the database does with events whose signatures hold.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::refused;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{Flow, Handout, claim, report};
use serde_json::json;

use super::{event, receive, receive_one, with_money};

/// A flow that was charged, nobody knows how it went, and backs off for long.
async fn backing_off(db: &Database, scene: &str) -> Flow {
    db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    let flow_id = db.create_flow(scene, "alice", "one").await;
    let mut session = db.session().await;
    let handout = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Unknown)]).await;
    assert!(claim(&mut session, 10).await.is_empty());
    db.flow(flow_id).await
}

async fn set() -> Database {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db
}

async fn trusting() -> Database {
    let db = set().await;
    db.execute("update paylatch.channel set webhook_trust = 'evidence'").await;
    db
}

async fn claimed(db: &Database) -> Vec<Handout> {
    claim(&mut db.session().await, 10).await
}

#[tokio::test]
async fn an_event_has_the_wallet_asked_at_once() {
    let db = set().await;
    let flow = backing_off(&db, "topup").await;
    let told = receive_one(&db, with_money(event("e1", "charge.succeeded", &flow.trade_order_no))).await;
    assert_eq!(told.words(), ("received", Some("woken")));
    assert_eq!(db.flow(flow.flow_id).await, flow, "a hint changes nothing by itself");
    let handout = claimed(&db).await.remove(0);
    assert_eq!(handout.action, "QUERY_CHARGE");
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_call_that_is_out_keeps_its_lease() {
    let db = set().await;
    let flow_id = db.create_flow("topup", "alice", "one").await;
    let handout = claimed(&db).await.remove(0);
    let told = receive_one(&db, with_money(event("e1", "charge.succeeded", &handout.order_no))).await;
    assert_eq!(told.applied.as_deref(), Some("woken"));
    assert!(claimed(&db).await.is_empty(), "nobody else asks while the call is out");
    let verdicts = report(&mut db.session().await, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(verdicts[0].disposition, "applied");
    assert_eq!(db.flow(flow_id).await.status, "BIZ_SUCCESS");
}

/// The usual way: the answer is lost, and while the call still waits for it the wallet tells.
#[tokio::test]
async fn what_is_told_while_a_call_is_out_is_asked_about_once_it_is_back() {
    let db = set().await;
    db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    db.create_flow("topup", "alice", "one").await;
    let handout = claimed(&db).await.remove(0);
    receive_one(&db, event("e1", "charge.succeeded", &handout.order_no)).await;
    report(&mut db.session().await, &[handout.evidence(Outcome::Unknown)]).await;
    let question = claimed(&db).await.remove(0);
    assert_eq!(question.action, "QUERY_CHARGE");
    report(&mut db.session().await, &[question.evidence(Outcome::Unknown)]).await;
    assert!(claimed(&db).await.is_empty(), "once, not for ever");
}

#[tokio::test]
async fn a_trusted_success_decides_and_fences_the_call_that_is_out() {
    let db = trusting().await;
    db.execute("update paylatch.channel set max_in_flight = 10").await;
    let flow_id = db.create_flow("topup", "alice", "one").await;
    let handout = claimed(&db).await.remove(0);
    assert_eq!(db.value::<i32>("select in_flight from paylatch.channel_state").await, 1);
    let mut event = with_money(event("e1", "charge.succeeded", &handout.order_no));
    event["request_id"] = json!("w-17");
    assert_eq!(receive_one(&db, event).await.words(), ("received", Some("decided")));
    assert_eq!(db.flow(flow_id).await.status, "BIZ_SUCCESS");
    assert_eq!(db.value::<i32>("select in_flight from paylatch.channel_state").await, 0);
    let logged = "select source || ' ' || actor || ' ' || request_id from paylatch.transition_log
                  where kind = 'flow' and to_status = 'PAYED'";
    assert_eq!(db.value::<String>(logged).await, "WEBHOOK door w-17");
    let verdicts = report(&mut db.session().await, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(verdicts[0].disposition, "replayed");
    assert_verified(&db).await;
}

#[tokio::test]
async fn less_than_a_full_echo_is_a_hint_also_where_webhooks_are_trusted() {
    let db = trusting().await;
    let flow = backing_off(&db, "topup").await;
    for (n, missing) in ["amount", "currency"].iter().enumerate() {
        let mut event = with_money(event(&format!("e{n}"), "charge.succeeded", &flow.trade_order_no));
        event[*missing] = json!(null);
        assert_eq!(receive_one(&db, event).await.applied.as_deref(), Some("woken"), "{missing}");
    }
    let failed = with_money(event("e9", "charge.failed", &flow.trade_order_no));
    assert_eq!(receive_one(&db, failed).await.applied.as_deref(), Some("woken"), "a failure is never believed");
    assert_eq!(db.flow(flow.flow_id).await, flow);
}

#[tokio::test]
async fn a_trusted_success_with_another_amount_freezes_and_later_is_an_incident() {
    let db = trusting().await;
    let flow = backing_off(&db, "topup").await;
    let mut wrong = with_money(event("e1", "charge.succeeded", &flow.trade_order_no));
    wrong["amount"] = json!(1501);
    // In one set with a right one, the wrong one comes first, whatever their names.
    let right = with_money(event("e0", "charge.succeeded", &flow.trade_order_no));
    let told = receive(&db, &[right, wrong.clone()]).await;
    assert_eq!(told.iter().map(|t| t.applied.as_deref()).collect::<Vec<_>>(), [Some("known"), Some("decided")]);
    assert_eq!(db.flow(flow.flow_id).await.frozen_reason.as_deref(), Some("EVIDENCE_MISMATCH"));
    let told = receive_one(&db, with_money(event("e2", "charge.succeeded", &flow.trade_order_no))).await;
    assert_eq!(told.applied.as_deref(), Some("frozen"));

    let done = db.settled_flow("bob", "two").await;
    wrong["event_id"] = json!("e3");
    wrong["number"] = json!(db.flow(done).await.trade_order_no);
    assert_eq!(receive_one(&db, wrong).await.applied.as_deref(), Some("contradicts"));
    let kinds = "select string_agg(kind, ' ' order by kind) from paylatch.incident";
    assert_eq!(db.value::<String>(kinds).await, "EVIDENCE_MISMATCH WEBHOOK_CONTRADICTS");
    assert_verified(&db).await;
}

#[tokio::test]
async fn what_is_told_of_an_ended_flow_again_changes_nothing() {
    for db in [set().await, trusting().await] {
        let flow_id = db.settled_flow("alice", "one").await;
        let flow = db.flow(flow_id).await;
        for (n, event_type) in ["charge.succeeded", "charge.failed", "charge.processing"].iter().enumerate() {
            let told = receive_one(&db, with_money(event(&format!("e{n}"), event_type, &flow.trade_order_no))).await;
            assert_eq!(told.words(), ("received", Some("known")), "{event_type}");
        }
        assert_eq!(db.flow(flow_id).await, flow);
        assert_eq!(db.value::<i64>("select count(*) from paylatch.incident").await, 0);
    }
}

#[tokio::test]
async fn f21_an_event_before_its_flow_is_parked_and_then_applied() {
    let db = set().await;
    let number = "tp_1_1"; // of the first flow, which is not there yet
    assert_eq!(receive_one(&db, event("e1", "charge.succeeded", number)).await.words(), ("received", Some("parked")));
    assert_eq!(receive_one(&db, event("e1", "charge.succeeded", number)).await.words(), ("duplicate", Some("parked")));
    let waiting = "select value from paylatch.metrics() where name = 'webhooks_waiting'";
    assert_eq!(db.value::<f64>(waiting).await, 1.0);
    let flow_id = db.create_flow("topup", "1", "one").await;
    assert_eq!(db.flow(flow_id).await.trade_order_no, number);
    let event = "select applied_as || ' ' || times_received from paylatch.webhook_event";
    assert_eq!(db.value::<String>(event).await, "woken 2");
}

/// Where creation and event cross, neither sees the other; the scanner does.
#[tokio::test]
async fn the_scanner_applies_what_creation_could_not_see() {
    let db = set().await;
    let mut creating = db.session().await;
    let create = "begin; select paylatch.create_pay_flow('topup', '1', 'one', 1500, 'USD')";
    paylatch_tests::database::run(&mut creating, create).await;
    assert_eq!(receive_one(&db, event("e1", "charge.succeeded", "tp_1_1")).await.applied.as_deref(), Some("parked"));
    paylatch_tests::database::run(&mut creating, "commit").await;
    let seen = "select (paylatch.scan() ->> 'webhooks')::integer";
    assert_eq!(db.value::<i32>(seen).await, 1);
    assert_eq!(db.value::<String>("select applied_as from paylatch.webhook_event").await, "woken");
}

#[tokio::test]
async fn what_only_an_ended_flow_can_take_waits_for_its_end() {
    let db = set().await;
    let flow = backing_off(&db, "topup").await;
    let mut dispute = event("e1", "dispute.opened", &flow.trade_order_no);
    dispute["external_no"] = json!("dp_1");
    dispute["dispute"] = json!("OPEN");
    let mut refund = with_money(event("e2", "refund.external", &flow.trade_order_no));
    refund["external_no"] = json!("rf_1");
    for event in [dispute, refund] {
        assert_eq!(receive_one(&db, event).await.applied.as_deref(), Some("parked"));
    }
    assert_eq!(claimed(&db).await.len(), 1, "it says that something happened, so the wallet is asked");
    assert_eq!(db.value::<i32>("select (paylatch.scan() ->> 'webhooks')::integer").await, 0, "not before its end");
}

#[tokio::test]
async fn what_is_not_ours_and_what_is_not_known_is_kept_and_counted() {
    let db = set().await;
    db.execute("insert into paylatch.channel (channel) values ('other')").await;
    db.execute(
        "insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('o', 'other', 'ot', 'none')",
    )
    .await;
    let foreign = db.create_flow("o", "1", "one").await;
    let number = db.flow(foreign).await.trade_order_no;
    let no_flow = "nobody_knows_this";
    let other_shard = "tp_1_2gosa7pa2gv"; // 2^63 - 1 in base 36 does not fit a flow id
    let altered = number.replacen("_1_", "_2_", 1);
    for (n, (number, event_type, word)) in [
        (number.as_str(), "charge.succeeded", "not_ours"),
        (&altered, "charge.succeeded", "not_ours"),
        (no_flow, "charge.succeeded", "not_ours"),
        (other_shard, "refund.succeeded", "not_ours"),
        ("zz_1_5", "charge.succeeded", "not_ours"),
        (&number, "payout.paid", "unknown_type"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = receive_one(&db, event(&format!("e{n}"), event_type, number)).await;
        assert_eq!(told.words(), ("received", Some(word)), "{number} {event_type}");
    }
    let counted =
        "select string_agg(labels ->> 'applied' || ' ' || value, ', ' order by value desc) from paylatch.metrics()
                   where name = 'webhooks_last_5_minutes'";
    assert_eq!(db.value::<String>(counted).await, "not_ours 5, unknown_type 1");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.incident").await, 0);
}

/// A failure keeps the event, with its error, and harms no other; a later try finds it.
#[tokio::test]
async fn an_event_that_fails_stays_and_is_tried_again() {
    let db = set().await;
    let flow = backing_off(&db, "topup").await;
    let bad = db.create_flow("topup", "bob", "two").await;
    let bad_no = db.flow(bad).await.trade_order_no;
    db.execute(&format!(
        "create function public.fail() returns trigger language plpgsql as $$ begin raise 'broken'; end $$;
         create trigger t01_fail before update on paylatch.job for each row when (new.ref_id = {bad}) execute function public.fail();
         update paylatch.pay_flow set cancel_requested_at = null where false"
    ))
    .await;
    let later = "alter table paylatch.job disable trigger t01_fail; update paylatch.job set due_at = due_at + interval '1 hour';
                 alter table paylatch.job enable trigger t01_fail";
    db.execute(later).await;
    let told = receive(
        &db,
        &[event("e1", "charge.succeeded", &bad_no), event("e2", "charge.succeeded", &flow.trade_order_no)],
    )
    .await;
    assert_eq!(told.iter().map(|t| t.applied.as_deref()).collect::<Vec<_>>(), [None, Some("woken")]);
    let error = "select error from paylatch.webhook_event where event_id = 'e1'";
    assert_eq!(db.value::<String>(error).await, "P0001: broken");
    let doctor = "select ok from paylatch.doctor() where check_name = 'webhooks'";
    assert!(!db.value::<bool>(doctor).await);

    db.execute("drop trigger t01_fail on paylatch.job").await;
    assert_eq!(db.value::<i32>("select (paylatch.scan() ->> 'webhooks')::integer").await, 1);
    assert_eq!(
        db.value::<String>("select applied_as from paylatch.webhook_event where event_id = 'e1'").await,
        "woken"
    );
    assert!(db.value::<bool>(doctor).await);
}

#[tokio::test]
async fn an_operator_replays_an_event() {
    let db = set().await;
    let flow = backing_off(&db, "topup").await;
    receive(&db, &[event("e1", "charge.succeeded", &flow.trade_order_no)]).await;
    assert_eq!(claimed(&db).await.len(), 1);
    let mut operator = db.session_as("operator").await;
    let replay = "select paylatch.replay_webhook('sim', 'e1')";
    let word: String = sqlx::query_scalar(replay).fetch_one(&mut operator).await.unwrap();
    assert_eq!(word, "woken");
    assert_eq!(refused(&mut operator, "select paylatch.replay_webhook('sim', 'e2')").await.0, "PL008");
}

#[tokio::test]
async fn a_copy_stores_and_applies_nothing() {
    let db = set().await;
    let flow = backing_off(&db, "topup").await;
    db.execute("update paylatch.armed set database_name = 'elsewhere'").await;
    let told = receive_one(&db, event("e1", "charge.succeeded", &flow.trade_order_no)).await;
    assert_eq!(told.words(), ("received", Some("parked")));
    db.execute("select paylatch.arm('here')").await;
    db.execute("select paylatch.scan()").await;
    assert_eq!(db.value::<String>("select applied_as from paylatch.webhook_event").await, "woken");
}

#[tokio::test]
async fn what_was_received_stays_as_it_was_until_its_time() {
    let db = set().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let number = db.flow(flow_id).await.trade_order_no;
    receive(&db, &[event("e1", "charge.succeeded", &number), event("e2", "charge.succeeded", "tp_1_77")]).await;
    for attempt in [
        "update paylatch.webhook_event set body = 'other'",
        "update paylatch.webhook_event set amount = 7",
        "update paylatch.webhook_event set event_id = 'e3' where event_id = 'e1'",
        "update paylatch.webhook_event set applied_at = null, applied_as = null",
        "update paylatch.webhook_event set times_received = 0",
        "delete from paylatch.webhook_event where event_id = 'e2'",
        "truncate paylatch.webhook_event",
    ] {
        for mode in ["origin", "replica"] {
            let attempt = format!("set session_replication_role = {mode}; {attempt}");
            assert!(db.refused(&attempt).await.0.starts_with("23"), "{attempt}");
        }
    }
    let forget = "select paylatch.forget_webhooks(paylatch.clock() + make_interval(days => $d))";
    assert_eq!(db.value::<i64>(&forget.replace("$d", "89")).await, 0);
    assert_eq!(db.value::<i64>(&forget.replace("$d", "91")).await, 1, "what waits stays");
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_bad_call_is_refused_whole() {
    let db = set().await;
    let mut driver = db.session_as("driver").await;
    for call in [
        "('door', 'nowhere', '[]')",
        "('', 'sim', '[]')",
        "('door', 'sim', '{}')",
        "('door', 'sim', '[1]')",
        "('door', 'sim', '[{}]')",
        r#"('door', 'sim', '[{"event_id": "e", "event_type": "t", "about": "love", "key": 0, "body_base64": ""}]')"#,
        r#"('door', 'sim', '[{"event_id": "e", "event_type": "t", "about": "other", "key": 0, "body_base64": "?"}]')"#,
        r#"('door', 'sim', '[{"event_id": "e", "event_type": "t", "about": "other", "key": 0, "amount": "x", "body_base64": ""}]')"#,
    ] {
        let call = format!("select paylatch.receive_webhooks{call}");
        assert_eq!(refused(&mut driver, &call).await.0, "PL004", "{call}");
    }
    assert_eq!(db.value::<i64>("select count(*) from paylatch.webhook_event").await, 0);
}

/// F16 as SQL sees it: a hint has the wallet asked, a trusted success needs no question.
#[tokio::test]
async fn f16_a_success_told_of_a_failed_flow_brings_the_money_back() {
    for (db, word) in [(set().await, "inquired"), (trusting().await, "late_charge")] {
        let flow_id = db.create_flow("topup", "alice", "one").await;
        let handout = claimed(&db).await.remove(0);
        report(&mut db.session().await, &[handout.evidence(Outcome::Failed)]).await;
        let flow = db.flow(flow_id).await;
        assert_eq!(flow.status, "PAY_FAIL");
        for id in ["e1", "e2"] {
            let told = receive_one(&db, with_money(event(id, "charge.succeeded", &flow.trade_order_no))).await;
            assert_eq!(told.words(), ("received", Some(word)));
        }
        let mut handout = claimed(&db).await.remove(0);
        if word == "inquired" {
            assert_eq!(handout.action, "QUERY_CHARGE");
            report(&mut db.session().await, &[handout.evidence(Outcome::Succeeded)]).await;
            handout = claimed(&db).await.remove(0);
        }
        assert_eq!(handout.action, "REFUND");
        report(&mut db.session().await, &[handout.evidence(Outcome::Succeeded)]).await;
        assert_eq!(db.flow(flow_id).await.status, "PAY_FAIL");
        let refunds = "select string_agg(kind || ' ' || status, ',') from paylatch.refund";
        assert_eq!(db.value::<String>(refunds).await, "RECON SUCCEEDED");
        assert_verified(&db).await;
    }
}

async fn after_sale(db: &Database) -> (i64, String) {
    let flow_id = db.settled_flow("alice", "one").await;
    let ask = format!("select refund_order_no from paylatch.request_refund({flow_id}, 600, 'broken')");
    (flow_id, db.value(&ask).await)
}

fn about_refund(id: &str, event_type: &str, number: &str) -> serde_json::Value {
    let mut event = event(id, event_type, number);
    event["amount"] = json!(600);
    event["currency"] = json!("USD");
    event
}

#[tokio::test]
async fn a_refund_under_way_is_asked_about_or_decided() {
    let db = set().await;
    db.execute("update paylatch.scene set retry_base_ms = 600000, retry_max_ms = 600000").await;
    let (_, number) = after_sale(&db).await;
    let handout = claimed(&db).await.remove(0);
    // While the call is out, as the answer is lost.
    let told = receive_one(&db, about_refund("e1", "refund.succeeded", &number)).await;
    assert_eq!(told.applied.as_deref(), Some("woken"));
    report(&mut db.session().await, &[handout.evidence(Outcome::Unknown)]).await;
    assert_eq!(claimed(&db).await.remove(0).action, "QUERY_REFUND");

    let db = trusting().await;
    let (flow_id, number) = after_sale(&db).await;
    let handout = claimed(&db).await.remove(0);
    let told = receive_one(&db, about_refund("e1", "refund.succeeded", &number)).await;
    assert_eq!(told.applied.as_deref(), Some("decided"));
    assert_eq!(db.flow(flow_id).await.refunded_amount, 600);
    assert_eq!(db.value::<String>("select status from paylatch.refund").await, "SUCCEEDED");
    let verdicts = report(&mut db.session().await, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(verdicts[0].disposition, "replayed");
    let told = receive_one(&db, about_refund("e2", "refund.failed", &number)).await;
    assert_eq!(told.applied.as_deref(), Some("contradicts"), "the bank gave it back");
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_refund_made_by_hand_and_a_dispute_lower_what_can_be_refunded() {
    let db = set().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let number = db.flow(flow_id).await.trade_order_no;
    let mut refund = about_refund("e1", "refund.external", &number);
    refund["external_no"] = json!("rf_1");
    assert_eq!(receive_one(&db, refund.clone()).await.applied.as_deref(), Some("external_refund"));
    refund["event_id"] = json!("e2");
    receive_one(&db, refund).await;
    let mut dispute = about_refund("e3", "dispute.opened", &number);
    dispute["external_no"] = json!("dp_1");
    dispute["dispute"] = json!("OPEN");
    assert_eq!(receive_one(&db, dispute.clone()).await.applied.as_deref(), Some("dispute"));
    let left = format!("select refundable from paylatch.request_refund({flow_id}, 301, 'too much')");
    assert_eq!(db.value::<i64>(&left).await, 300);
    let mut won = event("e4", "dispute.won", &number);
    won["external_no"] = json!("dp_1");
    won["dispute"] = json!("WON");
    assert_eq!(receive_one(&db, won).await.applied.as_deref(), Some("dispute"), "its amount is known");
    let outcome = format!("select outcome from paylatch.request_refund({flow_id}, 900, 'all of it')");
    assert_eq!(db.value::<String>(&outcome).await, "reserved");
    dispute["event_id"] = json!("e5");
    dispute["external_no"] = json!("dp_2");
    dispute["amount"] = json!(null);
    assert_eq!(receive_one(&db, dispute).await.applied.as_deref(), Some("incomplete"));
    assert_verified(&db).await;
}
