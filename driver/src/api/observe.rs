//! What is seen of each request: one log line, and counters by route and status.
//!
//! Invariant: neither shows a token, a key, a body or a user; a path is shown as its route, so that a stranger's text
//! reaches neither log nor label.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::Api;
use super::auth::Identity;
use super::problem::Kind;
use crate::clock;
use crate::metrics::HttpMetrics;

/// What a handler tells of the request it answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The payment.
    pub flow_id: Option<i64>,
    /// The refund.
    pub refund_id: Option<i64>,
    /// What became of it, in a word.
    pub outcome: Option<String>,
}

/// Counts and logs every request, also one whose client left before its answer.
pub async fn observe(State(api): State<Api>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let seen = Seen::begin(api.metrics().clone(), method(request.method()), route);
    let response = next.run(request).await;
    seen.end(&response);
    response
}

/// The method as a label: a stranger's own would make labels without end.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

struct Seen {
    metrics: HttpMetrics,
    method: &'static str,
    route: String,
    begun: Instant,
    answered: bool,
}

impl Seen {
    fn begin(metrics: HttpMetrics, method: &'static str, route: String) -> Self {
        metrics.in_flight.inc();
        Self { metrics, method, route, begun: clock::instant(), answered: false }
    }

    fn took_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn end(mut self, response: &Response) {
        self.answered = true;
        let status = response.status().as_u16();
        self.metrics.answered(self.method, &self.route, status, self.begun.elapsed());
        let told = response.extensions().get::<Told>().cloned().unwrap_or_default();
        let outcome = response.extensions().get::<Kind>().map(|kind| kind.slug()).or(told.outcome.as_deref());
        let identity = response.extensions().get::<std::sync::Arc<Identity>>();
        let (method, route, took_ms) = (self.method, &self.route, self.took_ms());
        if !self.route.starts_with("/v1/") && status < 400 {
            tracing::debug!(method, route, status, took_ms, "answered");
            return;
        }
        tracing::info!(
            method,
            route,
            status,
            outcome,
            flow_id = told.flow_id,
            refund_id = told.refund_id,
            merchant_id = identity.map(|identity| identity.merchant_id.as_str()),
            token_id = identity.and_then(|identity| identity.token_id),
            took_ms,
            "answered"
        );
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        if !self.answered {
            self.metrics.left(self.method, &self.route);
            tracing::info!(method = self.method, route = self.route, took_ms = self.took_ms(), "the client left");
        }
    }
}
