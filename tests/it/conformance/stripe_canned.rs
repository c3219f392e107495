//! The Stripe adapter before answers that localstripe never gives: idempotency, its errors, replays, locks, lies.
//!
//! Each case is a script of answers, in the order of the requests, in the shape of Stripe's documented ones.

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::localstripe::KEY;
use paylatchd::clock;
use paylatchd::endpoint::EndpointSettings;
use paylatchd::evidence::{Answer, Handout};
use paylatchd::wallet::{About, StripeWallet, Wallet, WebhookEvent, carry_out};
use serde_json::{Value, json};

use super::canned::{Act, Canned};
use super::stripe::wallet;
use super::{AMOUNT, HASTY, PATIENT, Payment, settings};

/// An HTTP answer as Stripe gives it.
fn says(status: u16, body: &Value) -> Act {
    with_head(status, "", body)
}

/// The stored answer to an earlier request, given again.
fn replays(status: u16, body: &Value) -> Act {
    with_head(status, "idempotent-replayed: true\r\n", body)
}

fn with_head(status: u16, more: &str, body: &Value) -> Act {
    let body = body.to_string();
    Act::Say(format!("HTTP/1.1 {status} X\r\n{more}content-length: {}\r\n\r\n{body}", body.len()))
}

fn intent(status: &str) -> Value {
    json!({
        "id": "pi_1", "object": "payment_intent", "status": status, "amount": AMOUNT, "currency": "cny",
        "amount_received": if status == "succeeded" { AMOUNT } else { 0 }, "metadata": {"order_no": "sh_1_1"},
        "last_payment_error": null
    })
}

fn refund(status: &str) -> Value {
    json!({
        "id": "re_1", "object": "refund", "status": status, "amount": AMOUNT, "currency": "cny",
        "metadata": {"refund_no": "r_sh_1_1", "order_no": "sh_1_1"}, "payment_intent": "pi_1"
    })
}

fn list(objects: &[Value]) -> Value {
    json!({"object": "list", "data": objects, "has_more": false})
}

fn error(kind: &str, code: &str) -> Value {
    json!({"error": {"type": kind, "code": code, "message": "As documented."}})
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}

fn handout(action: Action) -> Handout {
    Handout {
        payload: Some(json!({"stripe": {"payment_method": "pm_1"}})),
        sent_at: Some(clock::now()),
        charge_ref: matches!(action, Action::Refund | Action::QueryRefund).then(|| "pi_1".to_owned()),
        ..Payment::nth(1).handout(action)
    }
}

/// The answer to `handout` when these are given one after the other, and what was asked: method and path of each.
async fn met_with(handout: &Handout, acts: Vec<Act>) -> (Answer, Vec<String>) {
    let scripted = acts.len();
    let canned = Canned::start(acts).await;
    let answer = carry_out(&wallet(&canned.base_url(), &[]), handout).await;
    let heard = canned.heard();
    assert_eq!(heard.len(), scripted, "{answer:?}: {heard:?}");
    let lines = heard.iter().map(|request| request.split(" HTTP/").next().unwrap_or_default().to_owned()).collect();
    (answer, lines)
}

async fn met(action: Action, acts: Vec<Act>) -> (Outcome, Option<String>) {
    let (answer, _) = met_with(&handout(action), acts).await;
    (answer.outcome, answer.code)
}

fn is(outcome: Outcome, code: &str) -> (Outcome, Option<String>) {
    (outcome, Some(code.to_owned()))
}

const CANCEL: &str = "POST /base/v1/payment_intents/pi_1/cancel";
const FETCH: &str = "GET /base/v1/payment_intents/pi_1";

#[tokio::test]
async fn the_same_key_with_other_parameters_is_a_conflict() {
    for act in [Action::Charge, Action::Refund] {
        let conflict = json!({"error": {"type": "idempotency_error", "message": "Keys for idempotent requests ..."}});
        assert_eq!(met(act, vec![says(400, &conflict)]).await, is(Outcome::Conflict, "idempotency_error"));
    }
}

#[tokio::test]
async fn in_use_or_locked_is_not_a_failure() {
    for act in [Action::Charge, Action::Refund] {
        for (status, kind, code) in [
            (409, "idempotency_error", "idempotency_key_in_use"),
            (400, "idempotency_error", "idempotency_key_in_use"),
            (409, "invalid_request_error", "lock_timeout"),
            (429, "invalid_request_error", "lock_timeout"),
            (424, "api_error", "external_dependency_failed"),
        ] {
            assert_eq!(met(act, vec![says(status, &error(kind, code))]).await, is(Outcome::Unknown, code), "{status}");
        }
        for (status, kind) in [(500, "api_error"), (503, "invalid_request_error")] {
            let answer = says(status, &error(kind, "resource_missing"));
            assert_eq!(met(act, vec![answer]).await, is(Outcome::Unknown, &format!("http_{status}")));
        }
    }
}

#[tokio::test]
async fn our_own_misconfiguration_executes_nothing_and_fails_nothing() {
    for act in [Action::Charge, Action::QueryCharge, Action::CloseCharge, Action::Refund, Action::QueryRefund] {
        for (status, code, expected) in [
            (401, "", "stripe_key_refused"),
            (401, "api_key_expired", "stripe_key_refused"),
            (403, "more_permissions_required", "stripe_key_not_allowed"),
            (400, "testmode_charges_only", "testmode_charges_only"),
            (429, "rate_limit", "rate_limit"),
        ] {
            let answer = says(status, &error("invalid_request_error", code));
            assert_eq!(met(act, vec![answer]).await, is(Outcome::Unavailable, expected), "{act} {status}");
        }
    }
}

#[tokio::test]
async fn no_key_reaches_the_evidence() {
    let quoted =
        json!({"error": {"type": "invalid_request_error", "message": format!("Invalid API Key provided: {KEY}")}});
    for status in [401, 403, 400] {
        let (answer, _) = met_with(&handout(Action::Charge), vec![says(status, &quoted)]).await;
        assert!(!format!("{answer:?}").contains(KEY), "{answer:?}");
    }
}

#[tokio::test]
async fn a_decline_is_final_once_the_intent_is_canceled() {
    let declined = json!({"error": {
        "type": "card_error", "code": "card_declined", "decline_code": "insufficient_funds", "message": "No.",
        "payment_intent": intent("requires_payment_method")
    }});
    let (answer, lines) =
        met_with(&handout(Action::Charge), vec![says(402, &declined), says(200, &intent("canceled"))]).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Failed, Some("insufficient_funds")));
    assert_eq!((answer.request_id.as_deref(), answer.message.as_deref()), (Some("pi_1"), Some("No.")));
    assert_eq!(lines[1], CANCEL);

    // Paid with another card in that very moment: Stripe refuses to cancel, and tells so when asked.
    let refused = error("invalid_request_error", "payment_intent_unexpected_state");
    let (answer, lines) = met_with(
        &handout(Action::Charge),
        vec![says(402, &declined), says(400, &refused), says(200, &intent("succeeded"))],
    )
    .await;
    assert_eq!((answer.outcome, answer.amount), (Outcome::Succeeded, Some(AMOUNT)));
    assert_eq!(lines[1..], [CANCEL, FETCH]);

    // Somebody holds it: nothing is final, and it is no longer certain that nothing was executed.
    for (status, code, expected) in
        [(429, "lock_timeout", "lock_timeout"), (429, "rate_limit", "rate_limit"), (500, "", "http_500")]
    {
        let held = says(status, &error("invalid_request_error", code));
        assert_eq!(met(Action::Charge, vec![says(402, &declined), held]).await, is(Outcome::Unknown, expected));
    }
}

#[tokio::test]
async fn a_declined_intent_is_canceled_by_whoever_asks_about_it() {
    let declined = with(
        intent("requires_payment_method"),
        "last_payment_error",
        json!({"code": "card_declined", "decline_code": "lost_card", "message": "No."}),
    );
    let by_id = Handout { channel_ref: Some("pi_1".into()), ..handout(Action::QueryCharge) };
    let (answer, lines) = met_with(&by_id, vec![says(200, &declined), says(200, &intent("canceled"))]).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Failed, Some("lost_card")));
    assert_eq!(lines, [FETCH, CANCEL]);
    let page = list(std::slice::from_ref(&declined));
    let said = met(Action::QueryCharge, vec![says(200, &page), says(200, &intent("canceled"))]).await;
    assert_eq!(said, is(Outcome::Failed, "lost_card"));
}

#[tokio::test]
async fn a_refusal_before_any_intent_is_final() {
    for (status, code) in [(400, "amount_too_small"), (400, "resource_missing"), (404, "resource_missing")] {
        let refused = says(status, &error("invalid_request_error", code));
        assert_eq!(met(Action::Charge, vec![refused]).await, is(Outcome::Failed, code));
    }
}

#[tokio::test]
async fn a_stored_answer_is_not_todays_state() {
    // The first answer was "requires_action"; the customer has acted since.
    let replay = vec![replays(200, &intent("requires_action")), says(200, &intent("succeeded"))];
    let (answer, lines) = met_with(&handout(Action::Charge), replay).await;
    assert_eq!(answer.outcome, Outcome::Succeeded);
    assert_eq!(lines[1], FETCH);
    // The first answer was a decline, whose intent has been canceled since.
    let declined = json!({"error": {"type": "card_error", "code": "card_declined",
        "payment_intent": intent("requires_payment_method")}});
    let replay = vec![replays(402, &declined), says(200, &intent("canceled"))];
    assert_eq!(met(Action::Charge, replay).await, is(Outcome::Failed, "closed"));
    // The first answer was "succeeded"; the refund has bounced since.
    let bounced = with(refund("failed"), "failure_reason", json!("lost_or_stolen_card"));
    let replay = vec![replays(200, &refund("succeeded")), says(200, &bounced)];
    assert_eq!(met(Action::Refund, replay).await, is(Outcome::Failed, "lost_or_stolen_card"));
    // Stripe stores its own trouble, too.
    let replay = vec![replays(500, &error("api_error", "api_error"))];
    assert_eq!(met(Action::Charge, replay).await.0, Outcome::Unknown);
}

#[tokio::test]
async fn an_id_that_stripe_does_not_know_is_somebody_elses() {
    let missing = || says(404, &error("invalid_request_error", "resource_missing"));
    for action in [Action::QueryCharge, Action::CloseCharge] {
        let known = Handout { channel_ref: Some("pi_1".into()), ..handout(action) };
        let (answer, _) = met_with(&known, vec![missing()]).await;
        assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unknown, Some("resource_missing")), "{action}");
    }
    let known = Handout { channel_ref: Some("re_1".into()), ..handout(Action::QueryRefund) };
    assert_eq!(met_with(&known, vec![missing()]).await.0.outcome, Outcome::Unknown);
    assert_eq!(met(Action::Refund, vec![missing()]).await, is(Outcome::Unavailable, "resource_missing"));
}

#[tokio::test]
async fn not_found_needs_a_list_that_ends() {
    assert_eq!(met(Action::QueryCharge, vec![says(200, &list(&[]))]).await.0, Outcome::NotFound);
    let other = with(intent("succeeded"), "metadata", json!({"order_no": "sh_1_2"}));
    assert_eq!(
        met(Action::QueryCharge, vec![says(200, &list(std::slice::from_ref(&other)))]).await.0,
        Outcome::NotFound
    );
    let more = with(list(&[other]), "has_more", json!(true));
    let endless = vec![says(200, &more); 50];
    assert_eq!(met(Action::QueryCharge, endless).await, is(Outcome::Unknown, "list_too_long"));
    let torn = vec![says(200, &more), says(500, &json!({}))];
    assert_eq!(met(Action::QueryCharge, torn).await.0, Outcome::Unknown);
    let no_list = vec![says(200, &json!({"object": "list"}))];
    assert_eq!(met(Action::QueryCharge, no_list).await.0, Outcome::Unknown);
    let (_, lines) = met_with(&handout(Action::QueryCharge), vec![says(200, &more), says(200, &list(&[]))]).await;
    assert!(lines[1].ends_with("&starting_after=pi_1"), "{lines:?}");
}

#[tokio::test]
async fn wrong_echoes_are_passed_on_and_denials_of_other_numbers_are_not() {
    let by_id = Handout { channel_ref: Some("pi_1".into()), ..handout(Action::QueryCharge) };
    let other_amount = with(intent("succeeded"), "amount_received", json!(AMOUNT - 1));
    let (answer, _) = met_with(&by_id, vec![says(200, &other_amount)]).await;
    assert_eq!((answer.outcome, answer.amount), (Outcome::Succeeded, Some(AMOUNT - 1)));
    let other_number = with(intent("succeeded"), "metadata", json!({"order_no": "sh_1_2"}));
    let (answer, _) = met_with(&by_id, vec![says(200, &other_number)]).await;
    assert_eq!((answer.outcome, answer.order_no.as_deref()), (Outcome::Succeeded, Some("sh_1_2")));
    // Another's declined intent is neither judged nor canceled.
    let others = with(intent("requires_payment_method"), "metadata", json!({"order_no": "sh_1_2"}));
    let (answer, lines) = met_with(&by_id, vec![says(200, &others)]).await;
    assert_eq!((answer.outcome, lines.len()), (Outcome::Unknown, 1));
    let by_id = Handout { action: Action::CloseCharge, ..by_id };
    let (answer, lines) = met_with(&by_id, vec![says(200, &others)]).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unknown, Some("wrong_number")));
    assert_eq!(lines.len(), 1);
}

#[tokio::test]
async fn charged_twice_under_one_number_is_a_wrong_amount() {
    let twice = list(&[intent("succeeded"), with(intent("succeeded"), "id", json!("pi_2"))]);
    let (answer, _) = met_with(&handout(Action::QueryCharge), vec![says(200, &twice)]).await;
    assert_eq!((answer.outcome, answer.amount), (Outcome::Succeeded, Some(2 * AMOUNT)));
}

#[tokio::test]
async fn closing() {
    let by_id = Handout { channel_ref: Some("pi_1".into()), ..handout(Action::CloseCharge) };
    let (answer, lines) =
        met_with(&by_id, vec![says(200, &intent("requires_action")), says(200, &intent("canceled"))]).await;
    assert_eq!((answer.outcome, lines[1].as_str()), (Outcome::Closed, CANCEL));
    assert_eq!(met_with(&by_id, vec![says(200, &intent("canceled"))]).await.0.outcome, Outcome::Closed);
    assert_eq!(met_with(&by_id, vec![says(200, &intent("succeeded"))]).await.0.outcome, Outcome::Succeeded);
    // Too late, found out by canceling.
    let refused = || says(400, &error("invalid_request_error", "payment_intent_unexpected_state"));
    let late = vec![says(200, &intent("requires_action")), refused(), says(200, &intent("succeeded"))];
    assert_eq!(met_with(&by_id, late).await.0.outcome, Outcome::Succeeded);
    let underway = vec![says(200, &intent("processing")), refused(), says(200, &intent("processing"))];
    assert_eq!(met_with(&by_id, underway).await.0.outcome, Outcome::Unknown);
}

#[tokio::test]
async fn closing_an_unseen_number_meets_a_charge_on_its_way() {
    // Its key is used up already: a charge bears it, which the list did not show yet.
    let conflict = json!({"error": {"type": "idempotency_error", "message": "Keys for idempotent requests ..."}});
    let seen = vec![says(200, &list(&[])), says(400, &conflict)];
    assert_eq!(met(Action::CloseCharge, seen).await, is(Outcome::Unknown, "idempotency_error"));
    let in_use = error("idempotency_error", "idempotency_key_in_use");
    let seen = vec![says(200, &list(&[])), says(409, &in_use)];
    assert_eq!(met(Action::CloseCharge, seen).await, is(Outcome::Unknown, "idempotency_key_in_use"));
    // A charge that comes after it meets the same.
    assert_eq!(met(Action::Charge, vec![says(400, &conflict)]).await.0, Outcome::Conflict);
    // A close whose answer was lost is completed by the next.
    let again = vec![says(200, &list(&[intent("requires_payment_method")])), says(200, &intent("canceled"))];
    assert_eq!(met(Action::CloseCharge, again).await.0, Outcome::Closed);
}

#[tokio::test]
async fn refund_states() {
    for (object, outcome, code) in [
        (refund("succeeded"), Outcome::Succeeded, None),
        (
            with(refund("pending"), "pending_reason", json!("insufficient_funds")),
            Outcome::Processing,
            Some("insufficient_funds"),
        ),
        (refund("requires_action"), Outcome::Processing, Some("requires_action")),
        (with(refund("failed"), "failure_reason", json!("declined")), Outcome::Failed, Some("declined")),
        (refund("canceled"), Outcome::Failed, Some("canceled")),
    ] {
        let expected = (outcome, code.map(str::to_owned));
        assert_eq!(met(Action::Refund, vec![says(200, &object)]).await, expected);
        assert_eq!(met(Action::QueryRefund, vec![says(200, &list(std::slice::from_ref(&object)))]).await, expected);
        let by_id = Handout { channel_ref: Some("re_1".into()), ..handout(Action::QueryRefund) };
        assert_eq!(met_with(&by_id, vec![says(200, &object)]).await.0.outcome, outcome);
    }
    assert_eq!(met(Action::QueryRefund, vec![says(200, &list(&[]))]).await.0, Outcome::NotFound);
}

#[tokio::test]
async fn a_refused_refund_has_failed_unless_it_is_there() {
    for (status, code) in [
        (400, "charge_already_refunded"),
        (400, "charge_disputed"),
        (400, "amount_too_large"),
        (402, "balance_insufficient"),
    ] {
        let refused = || says(status, &error("invalid_request_error", code));
        let failed = met(Action::Refund, vec![refused(), says(200, &list(&[]))]).await;
        assert_eq!(failed, is(Outcome::Failed, code));
        let there = met(Action::Refund, vec![refused(), says(200, &list(&[refund("succeeded")]))]).await;
        assert_eq!(there.0, Outcome::Succeeded, "{code}");
        let unsure = met(Action::Refund, vec![refused(), says(500, &json!({}))]).await;
        assert_eq!(unsure, is(Outcome::Unknown, code));
    }
}

#[tokio::test]
async fn a_refund_without_its_charge_is_not_made() {
    let lost = Handout { charge_ref: None, ..handout(Action::Refund) };
    let (answer, _) = met_with(&lost, vec![says(200, &list(&[intent("canceled")]))]).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unavailable, Some("charge_not_found")));
    let (answer, _) = met_with(&lost, vec![says(500, &json!({}))]).await;
    assert_eq!(answer.outcome, Outcome::Unavailable, "no refund was sent");
    let (answer, lines) =
        met_with(&lost, vec![says(200, &list(&[intent("succeeded")])), says(200, &refund("succeeded"))]).await;
    assert_eq!(answer.outcome, Outcome::Succeeded);
    assert!(!lines[0].contains("created"), "the charge may be older than the refund: {lines:?}");
}

/// The whole of an action takes no longer than its call, however many requests it needs.
#[tokio::test]
async fn several_requests_share_one_timeout() {
    let declined = json!({"error": {"type": "card_error", "code": "card_declined",
        "payment_intent": intent("requires_payment_method")}});
    let canned = Canned::start(vec![says(402, &declined), Act::Silence]).await;
    let wallet = StripeWallet::open(&settings(&canned.base_url(), HASTY), &[]).expect("the wallet opens");
    let begun = clock::instant();
    let answer = carry_out(&wallet, &handout(Action::Charge)).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unknown, Some("timeout")));
    assert!(begun.elapsed() < HASTY * 10);
}

/// Money never moves later than the adapter says: a refund whose charge is not found in time is not sent.
#[tokio::test]
async fn a_slow_look_up_keeps_a_refund_from_leaving_late() {
    let canned = Canned::start(vec![Act::Silence, says(200, &refund("succeeded"))]).await;
    let settings = EndpointSettings { connect_timeout: HASTY, ..settings(&canned.base_url(), PATIENT) };
    let wallet = StripeWallet::open(&settings, &[]).expect("the wallet opens");
    let answer = carry_out(&wallet, &Handout { charge_ref: None, ..handout(Action::Refund) }).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unavailable, Some("charge_not_found_in_time")));
    assert_eq!((canned.heard().len(), wallet.lead()), (1, HASTY * 2));
}

#[tokio::test]
async fn what_names_only_the_intent_is_identified_by_asking() {
    let event = |about, request_id: &str| WebhookEvent {
        event_id: "evt_1".into(),
        event_type: "t".into(),
        about,
        number: None,
        status: None,
        amount: Some(AMOUNT),
        currency: Some("CNY".into()),
        request_id: Some(request_id.into()),
        external_no: Some("dp_1".into()),
        dispute: None,
        occurred_at: None,
        key: 0,
    };
    for (about, request_id, acts, number) in [
        (About::Dispute, "pi_1", vec![says(200, &intent("succeeded"))], Some("sh_1_1")),
        (About::Refund, "pi_1", vec![says(200, &intent("succeeded"))], Some("sh_1_1")),
        (About::Refund, "pi_1", vec![says(200, &with(intent("succeeded"), "metadata", json!({})))], None),
        (About::Dispute, "ch_1", vec![], None),
        (About::Other, "pi_1", vec![], None),
    ] {
        let asked = acts.len();
        let canned = Canned::start(acts).await;
        let event = wallet(&canned.base_url(), &[]).identify_webhook(event(about, request_id)).await.expect("an event");
        assert_eq!(event.number.as_deref(), number, "{about:?} {request_id}");
        assert_eq!(canned.heard().len(), asked);
    }
    let canned = Canned::start(vec![says(500, &json!({}))]).await;
    let lost = wallet(&canned.base_url(), &[]).identify_webhook(event(About::Dispute, "pi_1")).await;
    assert_eq!(lost.map_err(|answer| answer.outcome), Err(Outcome::Unknown), "so that it is sent once more");
}

#[tokio::test]
async fn a_key_is_tried_without_doing_anything() {
    let canned = Canned::start(vec![says(200, &list(&[])), says(401, &error("invalid_request_error", ""))]).await;
    let wallet = wallet(&canned.base_url(), &[]);
    assert_eq!(wallet.probe().await, Ok(()));
    assert_eq!(wallet.probe().await.map_err(|answer| answer.outcome), Err(Outcome::Unavailable));
    assert!(canned.heard().iter().all(|request| request.starts_with("GET /base/v1/payment_intents?limit=1 ")));
}
