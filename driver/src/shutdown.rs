//! The wish to stop: one signal asks for a graceful end, a second one gets an immediate end.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// What a shell expects of a process that a signal ended.
const EXIT_BY_SIGNAL: i32 = 130;

/// Cancelled on the first SIGTERM or SIGINT. The second ends the process where it stands, which is always safe: what
/// was under way is found again once its lease is over.
///
/// # Errors
/// The signal handlers could not be installed.
pub fn on_signals() -> Result<CancellationToken, Error> {
    let install = |kind| signal(kind).map_err(Error::io("install a signal handler"));
    let mut signals = (install(SignalKind::terminate())?, install(SignalKind::interrupt())?);
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        let name = either(&mut signals).await;
        tracing::info!(signal = name, "stopping: no further claims; calls under way may finish");
        asked.cancel();
        let name = either(&mut signals).await;
        tracing::warn!(signal = name, "stopping at once");
        std::process::exit(EXIT_BY_SIGNAL);
    });
    Ok(shutdown)
}

async fn either((terminate, interrupt): &mut (Signal, Signal)) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
