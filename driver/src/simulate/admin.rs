//! The admin verbs under `/sim`: what a test, a demo or a curious person asks and tells the simulator.

use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use paylatch_core::signature::Key;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::ledger_failed;
use super::fault::FaultRates;
use super::notices;
use super::script::Rule;
use super::sender::WebhookTarget;
use super::world::{Shared, World};

type Sim = State<Arc<Shared>>;

/// The routes.
pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sim/health", get(async || Json(json!({"ok": true}))))
        .route("/sim/effects", get(effects))
        .route("/sim/script", get(rules).post(add_rule).delete(clear_rules))
        .route("/sim/outage", post(outage))
        .route("/sim/faults", get(rates).post(set_rates))
        .route("/sim/clock", post(set_clock))
        .route("/sim/webhooks", get(notice_count).post(set_webhooks))
        .route("/sim/late_charge", post(late_charge))
        .route("/sim/refund_by_hand", post(refund_by_hand))
        .route("/sim/dispute", post(dispute))
}

/// Every wallet request is cut for this long.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// From now; 0 ends an outage.
    pub ms: u64,
}

/// How far the simulator's time is from the machine's.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockOffset {
    /// Positive: the simulator is ahead.
    pub offset_ms: i64,
}

/// Where webhooks go from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSetting {
    /// The whole URL.
    pub url: String,
    /// `whsec_...`, one or two.
    pub secrets: Vec<String>,
}

/// A charge that had failed takes effect after all.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateCharge {
    /// Its number.
    pub order_no: String,
}

/// Money is given back by hand.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundByHand {
    /// The charge.
    pub order_no: String,
    /// The wallet's own name for the refund.
    pub external_no: String,
    /// In the minor unit.
    pub amount: i64,
}

/// A dispute moves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispute {
    /// The charge.
    pub order_no: String,
    /// The wallet's name for the dispute.
    pub dispute_no: String,
    /// In the minor unit.
    pub amount: i64,
    /// opened, won or lost.
    pub state: DisputeWord,
}

/// How far a dispute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisputeWord {
    /// The money is withheld.
    Opened,
    /// It stays.
    Won,
    /// It is gone.
    Lost,
}

async fn effects(State(sim): Sim) -> Response {
    let effects = sim.lock().effects();
    match effects {
        Ok(effects) => Json(effects).into_response(),
        Err(error) => ledger_failed(&error),
    }
}

async fn rules(State(sim): Sim) -> Response {
    let rules = sim.lock().script.rules();
    Json(rules).into_response()
}

async fn add_rule(State(sim): Sim, body: Bytes) -> Response {
    let rule: Rule = match serde_json::from_slice(&body) {
        Ok(rule) => rule,
        Err(error) => return refused(&error),
    };
    let added = sim.lock().script.add(rule);
    match added {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refused(&error),
    }
}

async fn clear_rules(State(sim): Sim) -> StatusCode {
    sim.lock().script.clear();
    StatusCode::NO_CONTENT
}

async fn outage(State(sim): Sim, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(Outage { ms }) => {
            sim.lock().start_outage(ms);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => refused(&error),
    }
}

async fn rates(State(sim): Sim) -> Response {
    let rates = sim.lock().rates.clone();
    Json(rates).into_response()
}

async fn set_rates(State(sim): Sim, body: Bytes) -> Response {
    match serde_json::from_slice::<FaultRates>(&body) {
        Ok(rates) if (0.0..=1.0).contains(&rates.rate) => {
            sim.lock().rates = rates;
            StatusCode::NO_CONTENT.into_response()
        }
        Ok(_) => refused(&"rate is a share, 0 to 1"),
        Err(error) => refused(&error),
    }
}

async fn set_clock(State(sim): Sim, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(ClockOffset { offset_ms }) => {
            sim.lock().set_clock_offset(offset_ms);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => refused(&error),
    }
}

async fn notice_count(State(sim): Sim) -> Response {
    let count = sim.lock().notice_count();
    Json(count).into_response()
}

async fn set_webhooks(State(sim): Sim, body: Bytes) -> Response {
    let WebhookSetting { url, secrets } = match serde_json::from_slice(&body) {
        Ok(setting) => setting,
        Err(error) => return refused(&error),
    };
    let keys: Option<Vec<Key>> = secrets.iter().map(|secret| Key::parse(secret)).collect();
    let Some(keys) = keys.filter(|keys| !keys.is_empty()) else {
        return refused(&"secrets are whsec_ and the base64 of 24 to 64 random bytes");
    };
    sim.lock().set_webhooks(WebhookTarget { url, keys });
    sim.queued().notify_one();
    StatusCode::NO_CONTENT.into_response()
}

async fn late_charge(State(sim): Sim, body: Bytes) -> Response {
    happens(&sim, &body, |world, LateCharge { order_no }| world.happens(|book| book.charge_late(&order_no)))
}

async fn refund_by_hand(State(sim): Sim, body: Bytes) -> Response {
    happens(&sim, &body, |world, RefundByHand { order_no, external_no, amount }| {
        world.happens(|book| book.refund_by_hand(&external_no, &order_no, amount))
    })
}

async fn dispute(State(sim): Sim, body: Bytes) -> Response {
    happens(&sim, &body, |world, Dispute { order_no, dispute_no, amount, state }| {
        let word = match state {
            DisputeWord::Opened => "opened",
            DisputeWord::Won => "won",
            DisputeWord::Lost => "lost",
        };
        notices::dispute(world, &order_no, &dispute_no, amount, word)
    })
}

fn happens<T: DeserializeOwned>(
    sim: &Shared,
    body: &[u8],
    act: impl FnOnce(&mut World, T) -> io::Result<bool>,
) -> Response {
    let asked = match serde_json::from_slice(body) {
        Ok(asked) => asked,
        Err(error) => return refused(&error),
    };
    let happened = act(&mut sim.lock(), asked);
    sim.queued().notify_one();
    match happened {
        Ok(true) => StatusCode::NO_CONTENT.into_response(),
        Ok(false) => refused(&"that charge's standing does not allow it"),
        Err(error) => ledger_failed(&error),
    }
}

fn refused(why: &dyn std::fmt::Display) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"error": why.to_string()}))).into_response()
}
