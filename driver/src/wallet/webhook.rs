//! Webhooks: what a wallet tells without being asked, in the words that all adapters share.
//!
//! An event is a hint to look at a payment again. Whether it may be more than that is the database's to say
//! (`channel.webhook_trust`); an adapter only vouches for the signature and passes on what was said, as it came.

use axum::http::HeaderMap;
use paylatch_core::outcome::Outcome;
use paylatch_core::signature::{self, Key, Refusal};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::config::Secret;
use crate::endpoint::EndpointError;

/// Longest event id, in characters. An id names its event, so a longer one is refused, not cut.
pub const EVENT_ID_LIMIT: usize = 200;

/// A webhook whose signature holds. Every field that the provider left out is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookEvent {
    /// The provider's name for the event; duplicates share it.
    pub event_id: String,
    /// Its type, as the provider spells it.
    pub event_type: String,
    /// What it speaks of.
    pub about: About,
    /// The number of ours that it names: of a charge or a dispute the `trade_order_no`, of a refund the
    /// `refund_order_no`. A refund that we did not ask for (`external_no`) names its charge's `trade_order_no`.
    pub number: Option<String>,
    /// What became of the charge or refund: SUCCEEDED, FAILED or PROCESSING.
    pub status: Option<Outcome>,
    /// In the currency's minor unit.
    pub amount: Option<i64>,
    /// ISO 4217 code, in capitals.
    pub currency: Option<String>,
    /// The provider's own reference of the charge or refund.
    pub request_id: Option<String>,
    /// The provider's name of a refund or dispute that has no number of ours.
    pub external_no: Option<String>,
    /// How far a dispute is.
    pub dispute: Option<DisputeState>,
    /// When it happened, as the provider says. For people; nothing is ordered by it.
    pub occurred_at: Option<OffsetDateTime>,
    /// Which of the channel's secrets signed it, from 0.
    pub key: usize,
}

/// What an event speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A charge.
    Charge,
    /// A refund, ours or (with an `external_no`) one made at the provider.
    Refund,
    /// A dispute: the customer's bank takes the money back, or asks for it.
    Dispute,
    /// Nothing that this version understands. Kept and counted.
    Other,
}

impl About {
    /// As the database spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Dispute => "dispute",
            Self::Other => "other",
        }
    }
}

/// How far a dispute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisputeState {
    /// The money is withheld.
    Open,
    /// It stays with the merchant.
    Won,
    /// It is gone.
    Lost,
}

impl DisputeState {
    /// As the database spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Won => "WON",
            Self::Lost => "LOST",
        }
    }
}

/// Why a webhook was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The adapter understands no webhooks, or has no secret to check them by.
    #[error("this channel takes no webhooks")]
    NotSupported,
    /// The signature does not hold, or its time lies outside the tolerance.
    #[error("the webhook's signature does not hold")]
    BadSignature,
    /// Signed, but not readable.
    #[error("the webhook's body is not readable")]
    Malformed,
}

/// The secrets of a channel that signs as Standard Webhooks does.
///
/// # Errors
/// One of them is not `whsec_` and the base64 of 24 to 64 bytes.
pub fn standard_keys(secrets: &[Secret]) -> Result<Vec<Key>, EndpointError> {
    secrets.iter().map(|secret| Key::parse(secret.expose()).ok_or(EndpointError::BadWebhookSecret)).collect()
}

/// The body of our own protocol's webhooks: `docs/wallet.openapi.yaml`. What is not listed is ignored.
#[derive(Debug, Deserialize)]
struct Body {
    #[serde(rename = "type")]
    event_type: String,
    event_id: Option<String>,
    order_no: Option<String>,
    refund_no: Option<String>,
    amount: Option<i64>,
    currency: Option<String>,
    request_id: Option<String>,
    external_no: Option<String>,
    occurred_at: Option<String>,
}

/// Checks a webhook of our own protocol: Standard Webhooks headers over the raw body, then the body itself.
///
/// # Errors
/// See [`WebhookError`].
pub fn verify_standard(
    keys: &[Key],
    headers: &HeaderMap,
    body: &[u8],
    now: OffsetDateTime,
) -> Result<WebhookEvent, WebhookError> {
    if keys.is_empty() {
        return Err(WebhookError::NotSupported);
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).ok_or(WebhookError::BadSignature);
    let id = header("webhook-id")?;
    let timestamp: i64 = header("webhook-timestamp")?.parse().map_err(|_| WebhookError::BadSignature)?;
    let signature = header("webhook-signature")?;
    let key = signature::verify(keys, id, timestamp, body, signature, now.unix_timestamp());
    let key = key.map_err(|_: Refusal| WebhookError::BadSignature)?;
    read(id, body, key).ok_or(WebhookError::Malformed)
}

fn read(message_id: &str, body: &[u8], key: usize) -> Option<WebhookEvent> {
    let body: Body = serde_json::from_slice(body).ok()?;
    let event_id = body.event_id.unwrap_or_else(|| message_id.to_owned());
    if event_id.is_empty() || event_id.chars().count() > EVENT_ID_LIMIT || event_id.contains('\0') {
        return None;
    }
    let (about, status, dispute) = meaning(&body.event_type);
    // A refund of ours goes by its own number; one made at the wallet by its charge's and the wallet's name for it.
    let is_own_refund = about == About::Refund && status.is_some();
    Some(WebhookEvent {
        event_id,
        about,
        number: if is_own_refund { body.refund_no } else { body.order_no },
        status,
        amount: body.amount,
        currency: body.currency,
        request_id: body.request_id,
        external_no: if is_own_refund { None } else { body.external_no },
        dispute,
        occurred_at: body.occurred_at.and_then(|at| OffsetDateTime::parse(&at, &Rfc3339).ok()),
        key,
        event_type: body.event_type,
    })
}

/// What the types of our own protocol say; any other says nothing that we understand.
fn meaning(event_type: &str) -> (About, Option<Outcome>, Option<DisputeState>) {
    match event_type {
        "charge.succeeded" => (About::Charge, Some(Outcome::Succeeded), None),
        "charge.failed" => (About::Charge, Some(Outcome::Failed), None),
        "charge.processing" => (About::Charge, Some(Outcome::Processing), None),
        "refund.succeeded" => (About::Refund, Some(Outcome::Succeeded), None),
        "refund.failed" => (About::Refund, Some(Outcome::Failed), None),
        "refund.processing" => (About::Refund, Some(Outcome::Processing), None),
        "refund.external" => (About::Refund, None, None),
        "dispute.opened" => (About::Dispute, None, Some(DisputeState::Open)),
        "dispute.won" => (About::Dispute, None, Some(DisputeState::Won)),
        "dispute.lost" => (About::Dispute, None, Some(DisputeState::Lost)),
        _ => (About::Other, None, None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const AT: i64 = 1_796_083_200;

    fn key(byte: u8) -> Key {
        Key::from_bytes(&[byte; 32]).unwrap()
    }

    fn now() -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(AT).unwrap()
    }

    fn signed(key: &Key, body: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "msg_1".parse().unwrap());
        headers.insert("webhook-timestamp", AT.to_string().parse().unwrap());
        headers.insert("webhook-signature", key.sign("msg_1", AT, body.as_bytes()).parse().unwrap());
        headers
    }

    fn told(body: &str) -> Result<WebhookEvent, WebhookError> {
        verify_standard(&[key(1)], &signed(&key(1), body), body.as_bytes(), now())
    }

    #[test]
    fn a_charge_is_read_whole() {
        let event = told(
            r#"{"type": "charge.succeeded", "order_no": "sh_1_2", "amount": 5, "currency": "CNY", "request_id": "w1",
                "occurred_at": "2026-12-01T00:00:00Z", "more": [1]}"#,
        );
        let event = event.unwrap();
        assert_eq!(
            (event.event_id.as_str(), event.about, event.status),
            ("msg_1", About::Charge, Some(Outcome::Succeeded))
        );
        assert_eq!(
            (event.number.as_deref(), event.amount, event.currency.as_deref()),
            (Some("sh_1_2"), Some(5), Some("CNY"))
        );
        assert_eq!(event.occurred_at.unwrap().unix_timestamp(), AT);
    }

    #[test]
    fn the_bodys_event_id_wins_over_the_messages() {
        assert_eq!(told(r#"{"type": "charge.failed", "event_id": "e7"}"#).unwrap().event_id, "e7");
        let long = format!(r#"{{"type": "charge.failed", "event_id": "{}"}}"#, "e".repeat(EVENT_ID_LIMIT + 1));
        assert_eq!(told(&long), Err(WebhookError::Malformed));
    }

    #[test]
    fn a_refund_of_ours_has_its_own_number_and_another_its_charges() {
        let body = |kind| format!(r#"{{"type": "{kind}", "order_no": "o", "refund_no": "r_o", "external_no": "x"}}"#);
        let ours = told(&body("refund.succeeded")).unwrap();
        assert_eq!((ours.number.as_deref(), ours.external_no), (Some("r_o"), None));
        let other = told(&body("refund.external")).unwrap();
        assert_eq!((other.number.as_deref(), other.external_no.as_deref()), (Some("o"), Some("x")));
        assert_eq!(told(&body("dispute.lost")).unwrap().dispute, Some(DisputeState::Lost));
    }

    #[test]
    fn an_unknown_type_is_understood_as_nothing() {
        let event = told(r#"{"type": "payout.paid", "order_no": "o"}"#).unwrap();
        assert_eq!((event.about, event.status, event.event_type.as_str()), (About::Other, None, "payout.paid"));
    }

    #[test]
    fn the_signature_is_looked_at_before_the_body() {
        let headers = signed(&key(1), "{}");
        for (keys, body, expected) in [
            (vec![], "{}", WebhookError::NotSupported),
            (vec![key(2)], "{}", WebhookError::BadSignature),
            (vec![key(1)], "[]", WebhookError::BadSignature),
            (vec![key(2), key(1)], "{}", WebhookError::Malformed),
        ] {
            assert_eq!(verify_standard(&keys, &headers, body.as_bytes(), now()), Err(expected));
        }
        for missing in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut headers = headers.clone();
            headers.remove(missing);
            assert_eq!(verify_standard(&[key(1)], &headers, b"{}", now()), Err(WebhookError::BadSignature));
        }
        let later = now() + time::Duration::seconds(signature::TOLERANCE_S + 1);
        assert_eq!(verify_standard(&[key(1)], &headers, b"{}", later), Err(WebhookError::BadSignature));
    }
}
