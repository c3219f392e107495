//! Webhook events on their way into the database.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paylatch_core::outcome::Outcome;
use serde::Serialize;
use sqlx::FromRow;
use sqlx::types::Json;
use time::OffsetDateTime;

use super::Db;
use crate::error::Error;
use crate::evidence::{CURRENCY_LIMIT, NUMBER_LIMIT, REQUEST_ID_LIMIT, fit};
use crate::wallet::webhook::EVENT_ID_LIMIT;
use crate::wallet::{DisputeState, WebhookEvent};

/// What an event may say of a charge or refund.
const STATUSES: &[&str] = &["SUCCEEDED", "FAILED", "PROCESSING"];
/// Longest event type, in characters.
const TYPE_LIMIT: usize = 100;

/// One element of the array that `paylatch.receive_webhooks` takes.
///
/// Invariant: none spoils the set that it goes with. [`InboxEvent::new`] is the only way to make one, and it leaves
/// nothing in it that the database would refuse.
#[derive(Debug, Clone, Serialize)]
pub struct InboxEvent {
    event_id: String,
    event_type: String,
    about: &'static str,
    number: Option<String>,
    status: Option<&'static str>,
    amount: Option<i64>,
    currency: Option<String>,
    request_id: Option<String>,
    external_no: Option<String>,
    dispute: Option<&'static str>,
    #[serde(with = "time::serde::rfc3339::option")]
    occurred_at: Option<OffsetDateTime>,
    key: i16,
    headers: BTreeMap<String, String>,
    body_base64: String,
}

impl InboxEvent {
    /// Makes `event` storable; `None` if it cannot be told from others by its id.
    pub fn new(event: WebhookEvent, headers: BTreeMap<String, String>, body: &[u8]) -> Option<Self> {
        let is_id = |id: &str| (1..=EVENT_ID_LIMIT).contains(&id.chars().count()) && !id.chars().any(char::is_control);
        if !is_id(&event.event_id) {
            return None;
        }
        Some(Self {
            event_id: event.event_id,
            event_type: fit(Some(event.event_type), TYPE_LIMIT).filter(|name| !name.is_empty())?,
            about: event.about.as_str(),
            number: fit(event.number, NUMBER_LIMIT),
            status: event.status.map(Outcome::as_str).filter(|word| STATUSES.contains(word)),
            amount: event.amount,
            currency: fit(event.currency, CURRENCY_LIMIT),
            request_id: fit(event.request_id, REQUEST_ID_LIMIT),
            external_no: fit(event.external_no, REQUEST_ID_LIMIT),
            dispute: event.dispute.map(DisputeState::as_str),
            occurred_at: event.occurred_at,
            key: i16::try_from(event.key).unwrap_or(i16::MAX),
            headers,
            body_base64: STANDARD.encode(body),
        })
    }
}

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct InboxTold {
    /// The event.
    pub event_id: String,
    /// received or duplicate.
    pub disposition: String,
    /// What it did; parked: it waits; `None`: it failed and is tried again.
    pub applied: Option<String>,
}

impl Db {
    /// Stores events of a channel and applies them. One row each, in order.
    ///
    /// # Errors
    /// See [`Error::class`]. Passing on the same again is harmless: their ids make duplicates of them.
    pub async fn receive_webhooks(&self, channel: &str, events: &[InboxEvent]) -> Result<Vec<InboxTold>, Error> {
        let query = sqlx::query_as("select event_id, disposition, applied from paylatch.receive_webhooks($1, $2, $3)");
        self.rows("receive_webhooks", query.bind(&self.driver).bind(channel).bind(Json(events))).await
    }
}
