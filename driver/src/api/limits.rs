//! How much may be asked at once: requests under way, requests that wait, requests a second for each merchant or token.
//!
//! Nothing queues here. What is too much is answered at once, with the time after which to come again.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Kind, Problem};
use crate::config;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Room for requests.
#[derive(Debug)]
pub struct Room {
    working: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// A request's place among those under way. It gives the place up while it only waits.
#[derive(Debug, Clone)]
pub struct Place(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Room {
    /// As configured.
    pub fn new(api: &config::Api) -> Self {
        let seats = |count: usize| Arc::new(Semaphore::new(count));
        Self { working: seats(api.max_requests), waiting: seats(api.max_waiting) }
    }

    /// A place for one more request.
    ///
    /// # Errors
    /// `overloaded`.
    pub fn enter(&self) -> Result<Place, Problem> {
        let permit = Arc::clone(&self.working).try_acquire_owned();
        permit.map(|permit| Place(Arc::new(Mutex::new(Some(permit))))).map_err(|_| Problem::new(Kind::Overloaded))
    }

    /// Moves a request to those that wait, if there is room among them. It waits as long as the permit lives.
    pub fn wait(&self, place: &Place) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.waiting).try_acquire_owned().ok()?;
        place.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(permit)
    }
}

/// The requests that the tokens of a merchant may send together, or one that has a rate of its own.
#[derive(Debug)]
pub struct Rate {
    limiter: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
    whose: &'static str,
    per_second: u32,
    burst: u32,
}

/// What is left of a rate, for the answer's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    whose: &'static str,
    burst: u32,
    per_second: u32,
    remaining: u32,
    /// Until one more request is let through.
    reset: Duration,
}

impl Rate {
    /// `per_second` on average, and `burst_seconds` worth of that at once; `whose`: merchant or token.
    pub fn new(whose: &'static str, per_second: u32, burst_seconds: u32) -> Self {
        let one = NonZeroU32::MIN;
        let rate = NonZeroU32::new(per_second).unwrap_or(one);
        let burst = rate.saturating_mul(NonZeroU32::new(burst_seconds).unwrap_or(one));
        let limiter = RateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        Self { limiter: limiter.with_middleware(), whose, per_second: rate.get(), burst: burst.get() }
    }

    /// Counts one request.
    ///
    /// # Errors
    /// It is one too many.
    pub fn take(&self) -> Result<Left, Left> {
        let Self { whose, burst, per_second, .. } = *self;
        let left = |remaining, reset| Left { whose, burst, per_second, remaining, reset };
        match self.limiter.check() {
            Ok(state) => Ok(left(state.remaining_burst_capacity(), Duration::ZERO)),
            Err(not_until) => Err(left(0, not_until.wait_time_from(DefaultClock::default().now()))),
        }
    }
}

impl Left {
    /// Too many requests, and when to come again.
    pub fn refused(&self) -> Problem {
        let Self { whose, per_second, burst, .. } = self;
        let detail = format!("this {whose} may send {per_second} requests a second, {burst} at once");
        Problem::says(Kind::RateLimited, detail).retry_after(self.reset_s().max(1))
    }

    /// `RateLimit` and `RateLimit-Policy`, as the IETF's draft has them.
    pub fn write(&self, headers: &mut HeaderMap) {
        let window = self.burst / self.per_second;
        let policy = format!("\"{}\";q={};w={window}", self.whose, self.burst);
        let limit = format!("\"{}\";r={};t={}", self.whose, self.remaining, self.reset_s());
        for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, limit)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }

    /// Rounded up: who comes then is let through.
    fn reset_s(&self) -> u16 {
        let whole = self.reset.as_secs() + u64::from(self.reset.subsec_nanos() > 0);
        u16::try_from(whole).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_lets_its_burst_through_and_says_when_to_come_again() {
        let rate = Rate::new("token", 1, 3);
        let remaining: Vec<_> = (0..3).map(|_| rate.take().unwrap().remaining).collect();
        assert_eq!(remaining, [2, 1, 0]);
        let left = rate.take().unwrap_err();
        assert_eq!((left.remaining, left.reset_s()), (0, 1));
        let mut headers = HeaderMap::new();
        left.write(&mut headers);
        assert_eq!(headers["ratelimit-policy"], "\"token\";q=3;w=3");
        assert_eq!(headers["ratelimit"], "\"token\";r=0;t=1");
    }

    #[test]
    fn one_that_waits_makes_room_for_one_that_works() {
        let room = Room { working: Arc::new(Semaphore::new(1)), waiting: Arc::new(Semaphore::new(1)) };
        let first = room.enter().unwrap();
        assert_eq!(room.enter().unwrap_err().kind(), Kind::Overloaded);
        let waiting = room.wait(&first).unwrap();
        let second = room.enter().unwrap();
        assert!(room.wait(&second).is_none(), "no room to wait; it keeps its place");
        assert!(room.enter().is_err());
        drop((waiting, second));
        assert!(room.enter().is_ok());
    }
}
