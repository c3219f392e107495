//! The one module that reads the clock.
//!
//! Two clocks, for two purposes. [`instant`] is monotonic and measures how long something took or may still take; it
//! is what leases and send windows are held against, since no step of the wall clock can stretch it. [`now`] is the
//! wall clock, for times that leave this process (a business deadline, a log line). No decision about money uses
//! either: those are made in the database, by `paylatch.clock()`.

use std::time::{Duration, Instant};

use time::OffsetDateTime;

/// The monotonic clock.
pub fn instant() -> Instant {
    Instant::now()
}

/// The wall clock, in UTC.
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// How much of `window`, counted from `since`, is left; `None` once it has passed.
pub fn left_of(window: Duration, since: Instant) -> Option<Duration> {
    window.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends() {
        let since = instant();
        assert!(left_of(Duration::from_secs(3600), since).is_some());
        assert_eq!(left_of(Duration::ZERO, since), None);
    }
}
