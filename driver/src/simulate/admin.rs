//! The admin verbs under `/sim`: what a test, a demo or a curious person asks and tells the simulator.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::ledger_failed;
use super::fault::FaultRates;
use super::script::Rule;
use super::world::Shared;

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

fn refused(why: &dyn std::fmt::Display) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"error": why.to_string()}))).into_response()
}
