//! Health and metrics at the API's own address. Nobody needs a token for them, so they say little.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use super::Api;
use super::problem::{Document, Kind, Problem};
use crate::clock;
use crate::db::Db;
use crate::{compat, http};

/// So long a look at the database tells whether it answers, however often that is asked.
const LOOK: Duration = Duration::from_secs(1);

/// Whether the database answers, asked at most once in [`LOOK`].
#[derive(Debug, Default)]
pub struct Readiness(Mutex<Option<(bool, Instant)>>);

impl Readiness {
    async fn look(&self, db: &Db) -> bool {
        let mut last = self.0.lock().await;
        if let Some((ready, at)) = *last
            && at.elapsed() < LOOK
        {
            return ready;
        }
        let looked = compat::check(db).await;
        if let Err(error) = &looked {
            tracing::warn!(%error, "not ready");
        }
        *last = Some((looked.is_ok(), clock::instant()));
        looked.is_ok()
    }
}

/// The process lives.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "health", security(()),
    responses((status = 200, description = "It does.", body = String, content_type = "text/plain", example = "ok\n"))
)]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The server can answer: the database does, its version is this one, and nobody has asked the server to stop.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "health", security(()),
    responses(
        (status = 200, description = "It can.", body = String, content_type = "text/plain", example = "ready\n"),
        (status = 503, description = "It cannot.", body = Document, content_type = "application/problem+json",
         headers(("Retry-After" = u16, description = "Seconds"))),
    )
)]
pub async fn readyz(State(api): State<Api>) -> Response {
    if api.stopping().is_cancelled() {
        return Problem::says(Kind::Unavailable, "stopping").into_response();
    }
    if api.readiness().look(api.db()).await {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        Problem::says(Kind::Unavailable, "the database does not answer, or has another version").into_response()
    }
}

/// Metrics in Prometheus' text format. Only where the API listens on a loopback address; elsewhere `http.listen` alone
/// has them.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "health", security(()),
    responses(
        (status = 200, description = "All of them.", body = String, content_type = "text/plain"),
        (status = 404, description = "Not at this address.", body = Document, content_type = "application/problem+json"),
    )
)]
pub async fn metrics(State(api): State<Api>) -> Response {
    if !api.is_loopback() {
        return Problem::new(Kind::NotFound).into_response();
    }
    let text = http::metrics_text(api.db(), api.adapters()).await;
    ([(header::CONTENT_TYPE, http::METRICS_TYPE)], text).into_response()
}
