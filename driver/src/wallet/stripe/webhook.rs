//! Stripe's webhooks: `Stripe-Signature: t=1614265330,v1=5257a8...`, and what their events say.
//!
//! `v1` is HMAC-SHA256 in hex over the time, a dot and the raw body; several stand there while a secret is being rolled
//! at Stripe. The key is the signing secret as it is written, `whsec_` included. Each delivery is signed anew, so the
//! tolerance holds for retries too.

use std::fmt;

use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit, Mac};
use paylatch_core::outcome::Outcome;
use paylatch_core::signature::{SECRET_PREFIX, TOLERANCE_S};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::Sha256;
use time::OffsetDateTime;

use super::amount;
use super::api::{Intent, Refund};
use super::params::{ORDER_NO, REFUND_NO};
use super::verdict;
use crate::config::Secret;
use crate::endpoint::EndpointError;
use crate::wallet::webhook::EVENT_ID_LIMIT;
use crate::wallet::{About, DisputeState, WebhookError, WebhookEvent};

const HEADER: &str = "stripe-signature";
/// The shortest secret that is one; Stripe's have 32 characters behind the prefix.
const SECRET_LEAST: usize = 24;
/// Most signatures in a header that are looked at.
const SIGNATURES_LIMIT: usize = 16;

/// The signing secrets of our endpoint, ready for use. `Debug` shows nothing of them.
#[derive(Clone)]
pub(super) struct Secrets(Vec<Hmac<Sha256>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    pub(super) fn of(secrets: &[Secret]) -> Result<Self, EndpointError> {
        let ready = |secret: &Secret| {
            let text = secret.expose();
            let fits = text.starts_with(SECRET_PREFIX) && text.len() >= SECRET_LEAST;
            let mac = Hmac::new_from_slice(text.as_bytes()).ok().filter(|_| fits);
            mac.ok_or(EndpointError::BadStripeSecret)
        };
        secrets.iter().map(ready).collect::<Result<_, _>>().map(Self)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) fn verify(
    secrets: &Secrets,
    headers: &HeaderMap,
    body: &[u8],
    now: OffsetDateTime,
) -> Result<WebhookEvent, WebhookError> {
    if secrets.is_empty() {
        return Err(WebhookError::NotSupported);
    }
    let header = headers.get(HEADER).and_then(|value| value.to_str().ok());
    let key = header.and_then(|header| signed_by(secrets, header, body, now.unix_timestamp()));
    read(body, key.ok_or(WebhookError::BadSignature)?).ok_or(WebhookError::Malformed)
}

/// Which of our secrets made one of the header's signatures, if its time is near `now`.
fn signed_by(Secrets(macs): &Secrets, header: &str, body: &[u8], now: i64) -> Option<usize> {
    let mut parts = header.split(',').filter_map(|part| part.trim().split_once('='));
    let stamp = parts.clone().find_map(|(scheme, value)| (scheme == "t").then_some(value))?;
    let signatures: Vec<Vec<u8>> = parts
        .by_ref()
        .filter(|(scheme, _)| *scheme == "v1")
        .filter_map(|(_, hex)| bytes(hex))
        .take(SIGNATURES_LIMIT)
        .collect();
    let made = macs.iter().position(|mac| {
        let mut mac = mac.clone();
        mac.update(stamp.as_bytes());
        mac.update(b".");
        mac.update(body);
        signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    })?;
    let stamp: i64 = stamp.parse().ok()?;
    (now.saturating_sub(stamp).saturating_abs() <= TOLERANCE_S).then_some(made)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

#[derive(Deserialize)]
struct Event {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    created: Option<i64>,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: Value,
}

#[derive(Deserialize)]
struct Dispute {
    id: String,
    status: String,
    amount: i64,
    currency: String,
    payment_intent: Option<String>,
    charge: Option<String>,
}

fn read(body: &[u8], key: usize) -> Option<WebhookEvent> {
    let Event { id, event_type, created, data } = serde_json::from_slice(body).ok()?;
    if id.is_empty() || id.chars().count() > EVENT_ID_LIMIT || id.contains('\0') {
        return None;
    }
    let blank = WebhookEvent {
        event_id: id,
        event_type,
        about: About::Other,
        number: None,
        status: None,
        amount: None,
        currency: None,
        request_id: None,
        external_no: None,
        dispute: None,
        occurred_at: created.and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok()),
        key,
    };
    let told = match blank.event_type.as_str() {
        "payment_intent.succeeded"
        | "payment_intent.processing"
        | "payment_intent.payment_failed"
        | "payment_intent.canceled" => of_charge(object(&data.object)?, blank),
        // The second is what the first three are called in versions of Stripe's API before 2024-10-28.
        "refund.created" | "refund.updated" | "refund.failed" | "charge.refund.updated" => {
            of_refund(object(&data.object)?, blank)
        }
        // Only versions before 2022-11-15 tell the refunds along with the charge, the newest first.
        "charge.refunded" => match data.object.pointer("/refunds/data/0") {
            Some(newest) => of_refund(object(newest)?, blank),
            None => blank,
        },
        "charge.dispute.created"
        | "charge.dispute.updated"
        | "charge.dispute.closed"
        | "charge.dispute.funds_withdrawn"
        | "charge.dispute.funds_reinstated" => of_dispute(object(&data.object)?, blank),
        _ => blank,
    };
    Some(told)
}

fn object<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

/// An intent that does not bear our number was made by somebody else on the account.
fn of_charge(intent: Intent, event: WebhookEvent) -> WebhookEvent {
    let Some(number) = intent.metadata.get(ORDER_NO).cloned() else { return event };
    let answer = verdict::of_intent(&intent, &number, None);
    WebhookEvent {
        about: About::Charge,
        number: Some(number),
        // A declined intent can still be paid until it is canceled, which whoever asks about it sees to.
        status: definite(answer.outcome).or(Some(Outcome::Processing)),
        amount: answer.amount,
        currency: answer.currency,
        request_id: answer.request_id,
        ..event
    }
}

/// A refund without our number was made in the dashboard, or by somebody else on the account. It counts once the money
/// has gone; until then it says nothing.
fn of_refund(refund: Refund, event: WebhookEvent) -> WebhookEvent {
    let number = refund.metadata.get(REFUND_NO).cloned();
    let answer = verdict::of_refund(&refund, number.as_deref().unwrap_or_default());
    let told = WebhookEvent { about: About::Refund, amount: answer.amount, currency: answer.currency, ..event.clone() };
    match number {
        Some(_) => WebhookEvent { number, status: definite(answer.outcome), request_id: answer.request_id, ..told },
        None if answer.outcome == Outcome::Succeeded => {
            WebhookEvent { external_no: Some(refund.id), request_id: refund.payment_intent.or(refund.charge), ..told }
        }
        None => event,
    }
}

/// An inquiry (`warning_...`) withholds no money, and refunding it is what ends it well.
fn of_dispute(dispute: Dispute, event: WebhookEvent) -> WebhookEvent {
    let state = match dispute.status.as_str() {
        "needs_response" | "under_review" => DisputeState::Open,
        "won" => DisputeState::Won,
        "lost" => DisputeState::Lost,
        _ => return event,
    };
    let currency = dispute.currency.to_ascii_uppercase();
    WebhookEvent {
        about: About::Dispute,
        amount: amount::from_stripe(dispute.amount, &currency),
        currency: Some(currency),
        request_id: dispute.payment_intent.or(dispute.charge),
        external_no: Some(dispute.id),
        dispute: Some(state),
        ..event
    }
}

/// What a webhook may say became of something.
fn definite(outcome: Outcome) -> Option<Outcome> {
    matches!(outcome, Outcome::Succeeded | Outcome::Failed | Outcome::Processing).then_some(outcome)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fmt::Write;

    use serde_json::json;

    use super::*;

    const AT: i64 = 1_796_083_200;
    const OLD: &str = "whsec_oldoldoldoldoldoldoldold";
    const NEW: &str = "whsec_newnewnewnewnewnewnewnew";

    fn secrets(texts: &[&str]) -> Secrets {
        Secrets::of(&texts.iter().map(|text| Secret::from((*text).to_owned())).collect::<Vec<_>>()).unwrap()
    }

    fn v1(secret: &str, at: i64, body: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(format!("{at}.{body}").as_bytes());
        let mut hex = String::new();
        for byte in mac.finalize().into_bytes() {
            write!(hex, "{byte:02x}").unwrap();
        }
        hex
    }

    fn told(keys: &[&str], header: &str, body: &str) -> Result<WebhookEvent, WebhookError> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, header.parse().unwrap());
        verify(&secrets(keys), &headers, body.as_bytes(), OffsetDateTime::from_unix_timestamp(AT).unwrap())
    }

    fn event(event_type: &str, object: &Value) -> WebhookEvent {
        let body = json!({"id": "evt_1", "type": event_type, "created": AT, "data": {"object": object}}).to_string();
        told(&[NEW], &format!("t={AT},v1={}", v1(NEW, AT, &body)), &body).unwrap()
    }

    fn intent(status: &str) -> Value {
        json!({"id": "pi_1", "status": status, "amount": 1234, "amount_received": if status == "succeeded" { 1234 } else { 0 },
               "currency": "usd", "metadata": {"order_no": "sh_1_1"}})
    }

    fn refund(status: &str, metadata: &Value) -> Value {
        json!({"id": "re_1", "status": status, "amount": 34, "currency": "usd", "metadata": metadata,
               "payment_intent": "pi_1", "charge": "ch_1"})
    }

    /// Signed with OpenSSL: `printf '%s' '1614265330.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec_oldold...`
    #[test]
    fn signs_as_another_tool_does() {
        let body = r#"{"id":"evt_1"}"#;
        assert_eq!(v1(OLD, 1_614_265_330, body), "eb86696581760e3c2ffe2dab0f6c2861e9ee9cdedfe35b8c609e34cea44483a4");
    }

    #[test]
    fn either_of_two_live_secrets_is_taken() {
        let body = r#"{"id":"evt_1","type":"payout.paid","data":{"object":{}}}"#;
        for (header, key) in [
            (format!("t={AT},v1={}", v1(OLD, AT, body)), 0),
            (format!("t={AT},v1={},v0=1234", v1(NEW, AT, body)), 1),
            (format!("v1={}, v1={}, t={AT}", "00".repeat(32), v1(NEW, AT, body)), 1),
            (format!("t={},v1={}", AT - 300, v1(NEW, AT - 300, body)), 1),
        ] {
            assert_eq!(told(&[OLD, NEW], &header, body).unwrap().key, key, "{header}");
        }
    }

    #[test]
    fn refuses_what_is_forged_changed_old_or_not_signed() {
        let body = r#"{"id":"evt_1","type":"payout.paid","data":{"object":{}}}"#;
        let good = v1(NEW, AT, body);
        for header in [
            String::new(),
            "t=,v1=".to_owned(),
            format!("t={AT}"),
            format!("v1={good}"),
            format!("t={AT},v0={good}"),
            format!("t={},v1={good}", AT + 1),
            format!("t={AT},v1={}", v1(OLD, AT, body)),
            format!("t={AT},v1={}", &good[..62]),
            format!("t={AT},v1=é{}", &good[2..]),
            format!("t={},v1={}", AT - 301, v1(NEW, AT - 301, body)),
            format!("t={},v1={}", AT + 301, v1(NEW, AT + 301, body)),
            format!("t={},v1={}", i64::MIN, v1(NEW, i64::MIN, body)),
        ] {
            assert_eq!(told(&[NEW], &header, body), Err(WebhookError::BadSignature), "{header}");
        }
        let header = format!("t={AT},v1={good}");
        assert_eq!(told(&[NEW], &header, "{}"), Err(WebhookError::BadSignature));
        assert_eq!(told(&[], &header, body), Err(WebhookError::NotSupported));
        for unreadable in ["", "{}", "[]", r#"{"id":"","type":"a","data":{"object":{}}}"#] {
            let header = format!("t={AT},v1={}", v1(NEW, AT, unreadable));
            assert_eq!(told(&[NEW], &header, unreadable), Err(WebhookError::Malformed), "{unreadable}");
        }
    }

    #[test]
    fn a_secret_has_stripes_shape_and_is_shown_nowhere() {
        for bad in ["", "whsec_", "sk_test_0123456789012345678901", "whsec_short"] {
            assert!(Secrets::of(&[Secret::from(bad.to_owned())]).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", secrets(&[OLD, NEW])), "Secrets(2)");
    }

    #[test]
    fn a_charge_is_told_as_it_would_be_answered() {
        for (kind, status, expected) in [
            ("payment_intent.succeeded", "succeeded", Outcome::Succeeded),
            ("payment_intent.processing", "processing", Outcome::Processing),
            ("payment_intent.payment_failed", "requires_payment_method", Outcome::Processing),
            ("payment_intent.canceled", "canceled", Outcome::Failed),
        ] {
            let event = event(kind, &intent(status));
            assert_eq!((event.about, event.status), (About::Charge, Some(expected)), "{kind}");
            assert_eq!((event.number.as_deref(), event.request_id.as_deref()), (Some("sh_1_1"), Some("pi_1")));
            assert_eq!(event.currency.as_deref(), Some("USD"));
            assert_eq!(event.occurred_at.unwrap().unix_timestamp(), AT);
        }
        assert_eq!(event("payment_intent.succeeded", &intent("succeeded")).amount, Some(1234));
    }

    #[test]
    fn somebody_elses_charge_is_nothing_of_ours() {
        let mut other = intent("succeeded");
        other["metadata"] = json!({"order": "77"});
        let event = event("payment_intent.succeeded", &other);
        assert_eq!((event.about, event.number, event.request_id), (About::Other, None, None));
    }

    #[test]
    fn a_refund_of_ours_goes_by_its_number() {
        let ours = json!({"refund_no": "r1_sh_1_1", "order_no": "sh_1_1"});
        for (kind, status, expected) in [
            ("refund.created", "pending", Outcome::Processing),
            ("refund.updated", "succeeded", Outcome::Succeeded),
            ("refund.failed", "failed", Outcome::Failed),
            ("charge.refund.updated", "canceled", Outcome::Failed),
        ] {
            let event = event(kind, &refund(status, &ours));
            assert_eq!((event.about, event.status), (About::Refund, Some(expected)), "{kind}");
            assert_eq!((event.number.as_deref(), event.external_no), (Some("r1_sh_1_1"), None));
            assert_eq!((event.request_id.as_deref(), event.amount), (Some("re_1"), Some(34)));
        }
    }

    #[test]
    fn a_refund_made_in_the_dashboard_counts_once_the_money_has_gone() {
        let done = event("refund.updated", &refund("succeeded", &json!({})));
        assert_eq!((done.about, done.number, done.status), (About::Refund, None, None));
        assert_eq!((done.external_no.as_deref(), done.request_id.as_deref()), (Some("re_1"), Some("pi_1")));
        assert_eq!((done.amount, done.currency.as_deref()), (Some(34), Some("USD")));
        for status in ["pending", "failed"] {
            assert_eq!(event("refund.created", &refund(status, &json!({}))).about, About::Other, "{status}");
        }
    }

    #[test]
    fn a_refunded_charge_tells_only_what_it_carries() {
        let old = json!({"id": "ch_1", "refunds": {"data": [refund("succeeded", &json!({}))]}});
        assert_eq!(event("charge.refunded", &old).external_no.as_deref(), Some("re_1"));
        assert_eq!(event("charge.refunded", &json!({"id": "ch_1", "amount_refunded": 34})).about, About::Other);
    }

    #[test]
    fn a_dispute_is_open_won_or_lost() {
        let dispute = |status: &str| json!({"id": "dp_1", "status": status, "amount": 1234, "currency": "usd", "payment_intent": "pi_1", "charge": "ch_1"});
        for (kind, status, state) in [
            ("charge.dispute.created", "needs_response", DisputeState::Open),
            ("charge.dispute.updated", "under_review", DisputeState::Open),
            ("charge.dispute.closed", "won", DisputeState::Won),
            ("charge.dispute.closed", "lost", DisputeState::Lost),
        ] {
            let event = event(kind, &dispute(status));
            assert_eq!((event.about, event.dispute), (About::Dispute, Some(state)), "{kind} {status}");
            assert_eq!((event.external_no.as_deref(), event.request_id.as_deref()), (Some("dp_1"), Some("pi_1")));
            assert_eq!((event.amount, event.number), (Some(1234), None));
        }
        for status in ["warning_needs_response", "warning_closed", "something_new"] {
            assert_eq!(event("charge.dispute.created", &dispute(status)).about, About::Other, "{status}");
        }
    }

    #[test]
    fn everything_else_is_kept_and_understood_as_nothing() {
        for kind in ["payout.paid", "payment_intent.created", "payment_intent.requires_action", "charge.succeeded"] {
            let event = event(kind, &intent("succeeded"));
            assert_eq!((event.about, event.number, event.event_type.as_str()), (About::Other, None, kind));
        }
    }
}
