//! The heartbeat: makes sure that the scanner runs, whoever runs it.
//!
//! pg_cron calls `paylatch.scan()` every minute. Where it is silent, the tick scans instead, so nothing depends on it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::db::Db;

/// Ticks at once and then every `interval`, until `shutdown`. A tick that fails is logged, and the next one tries again.
pub async fn run(db: Db, interval: Duration, shutdown: CancellationToken) {
    let mut armed = true;
    loop {
        match db.tick().await {
            Ok(done) => {
                let is_armed = done.get("armed").and_then(serde_json::Value::as_bool).unwrap_or(true);
                if armed && !is_armed {
                    tracing::warn!(
                        "this database is a copy that nobody has armed, so it hands out no action; \
                         once its payments are yours: select paylatch.arm('why')"
                    );
                }
                armed = is_armed;
                tracing::debug!(%done, "tick");
            }
            Err(error) => tracing::warn!(%error, advice = error.advice(), "the tick failed; the next one tries again"),
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = shutdown.cancelled() => return,
        }
    }
}
