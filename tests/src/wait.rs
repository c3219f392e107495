//! Waiting on conditions.

use std::time::{Duration, Instant};

/// How long a test waits for something that normally takes well under a second, on a loaded machine.
pub const SOON: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(20);

/// Polls `probe` until it yields a value; panics with `what` once `timeout` has passed.
pub async fn eventually<T>(what: &str, timeout: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < timeout, "after {timeout:?} still not so: {what}");
        tokio::time::sleep(POLL).await;
    }
}
