//! What the daemon serves: whether it lives, whether it can work, and what it counts.
//!
//! No endpoint asks for a password or changes anything; bind them to a private address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::compat;
use crate::db::Db;
use crate::dispatch::Adapters;
use crate::error::Error;

/// At the end: how long requests under way may still take.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The media type of metrics.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the handlers look at.
#[derive(Clone)]
struct Served {
    db: Db,
    adapters: Arc<Adapters>,
    shutdown: CancellationToken,
}

/// Binds to `address`.
///
/// # Errors
/// [`Error::Io`], which says what to set instead.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let what = format!("listen at {address} (http.listen; \"off\" for nowhere)");
    TcpListener::bind(address).await.map_err(Error::io(what))
}

/// Serves until `done`; from `shutdown` on it says that it is not ready.
///
/// # Errors
/// [`Error::Io`] if the listener breaks.
pub async fn serve(
    listener: TcpListener,
    db: Db,
    adapters: Arc<Adapters>,
    shutdown: CancellationToken,
    done: CancellationToken,
) -> Result<(), Error> {
    let served = Served { db, adapters, shutdown };
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(served);
    let serving = axum::serve(listener, router).with_graceful_shutdown(done.clone().cancelled_owned());
    tokio::select! {
        served = serving => served.map_err(Error::io("serve HTTP")),
        () = async { done.cancelled().await; tokio::time::sleep(LAST_ANSWERS).await } => Ok(()),
    }
}

/// Ready: not stopping, the database answers, and its version is ours.
async fn readyz(State(served): State<Served>) -> (StatusCode, String) {
    if served.shutdown.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
    }
    match compat::check(&served.db).await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn metrics(State(served): State<Served>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], metrics_text(&served.db, &served.adapters).await)
}

/// What this process counts, and what the database measures if it answers.
pub async fn metrics_text(db: &Db, adapters: &Adapters) -> String {
    let samples = db.metrics().await;
    if let Err(error) = &samples {
        tracing::warn!(%error, "the database gave no metrics");
    }
    adapters.metrics().text(samples.as_deref().ok())
}
