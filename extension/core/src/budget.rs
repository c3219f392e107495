//! How much a channel may be asked for now: in-flight limit, rate, breaker and the ramp after an outage.
//!
//! Budgets live in the database, so they hold for all daemons together. A closed breaker grants by rate and in-flight
//! limit; an open one grants nothing; a half-open one grants a few questions about doubtful flows and never a new
//! charge. When it closes, the rate ramps up, so that the backlog does not become a second flood.

use crate::words::words;
use crate::{MS, Micros};

/// A channel without a rate of its own ramps up to this after an outage, then is unlimited again.
pub const RAMP_RATE_PER_SECOND: i64 = 1_000;

/// The ramp begins at this part of the full rate.
const RAMP_FLOOR_PERCENT: i64 = 5;

words! {
    /// Where a breaker stands.
    Breaker {
        /// Everything passes.
        Closed = "closed",
        /// Nothing passes.
        Open = "open",
        /// A few questions pass.
        HalfOpen = "half_open",
    }
}

/// A channel's settings. Spans in milliseconds; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Wallet calls under way at once.
    pub max_in_flight: Option<i32>,
    /// Wallet calls handed out a second.
    pub rate_per_second: Option<i32>,
    /// How long the rate takes to come back after an outage.
    pub ramp_ms: i64,
    /// The part of each grant that refunds may take before new charges.
    pub refund_share_percent: i32,
    /// So many answers in a row that are no answers open the breaker.
    pub breaker_threshold: i32,
    /// How long it stays open before it probes.
    pub breaker_open_ms: i64,
    /// How many questions probe.
    pub breaker_probes: i32,
}

/// A channel's moving parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Where the breaker stands.
    pub breaker: Breaker,
    /// Answers in a row that were no answers.
    pub failures: i32,
    /// When the breaker last moved; after a recovery, when the ramp began.
    pub moved_at: Option<Micros>,
    /// Probes that may still leave while half open.
    pub probes_left: i32,
    /// Thousandths of a call in the bucket.
    pub tokens_milli: i64,
    /// When the bucket was last filled.
    pub filled_at: Option<Micros>,
    /// Wallet calls under way.
    pub in_flight: i32,
}

/// What may be handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Calls of any kind.
    pub total: i32,
    /// How many of them refunds may take first.
    pub refunds_first: i32,
    /// Only questions may leave.
    pub questions_only: bool,
    /// The state after time has passed (nothing is spent yet).
    pub state: State,
}

/// What a channel may be asked for at `now`, `want` at most. `doubtful`: flows exist that a probe could ask about.
pub fn grant(limits: &Limits, state: &State, now: Micros, want: i32, doubtful: bool) -> Grant {
    let mut state = *state;
    let waited = state.moved_at.is_none_or(|at| now - at >= limits.breaker_open_ms.saturating_mul(MS));
    if state.breaker != Breaker::Closed && waited {
        // Open long enough, or probed and not answered: probe (again). With nobody to ask about, only the ramp is left.
        let breaker = if doubtful { Breaker::HalfOpen } else { Breaker::Closed };
        let failures = if doubtful { state.failures } else { 0 };
        state = State { breaker, failures, moved_at: Some(now), probes_left: limits.breaker_probes.max(1), ..state };
        if breaker == Breaker::Closed {
            state = State { tokens_milli: 0, filled_at: Some(now), ..state };
        }
    }
    refill(limits, &mut state, now);
    let free = limits.max_in_flight.map_or(i32::MAX, |max| max.saturating_sub(state.in_flight).max(0));
    let paced = if is_paced(limits, &state, now) { (state.tokens_milli / 1000) as i32 } else { i32::MAX };
    let may_leave = match state.breaker {
        Breaker::Open => 0,
        Breaker::HalfOpen => state.probes_left,
        Breaker::Closed => i32::MAX,
    };
    let total = want.min(may_leave).min(free).min(paced).max(0);
    let share = i64::from(total) * i64::from(limits.refund_share_percent.clamp(0, 100));
    Grant {
        total,
        refunds_first: ((share + 99) / 100) as i32,
        questions_only: state.breaker == Breaker::HalfOpen,
        state,
    }
}

/// Takes `calls` handed-out calls out of the state.
pub fn spend(limits: &Limits, state: &State, now: Micros, calls: i32) -> State {
    let mut state = *state;
    if state.breaker == Breaker::HalfOpen {
        state.probes_left = (state.probes_left - calls).max(0);
    }
    if is_paced(limits, &state, now) {
        state.tokens_milli = (state.tokens_milli - i64::from(calls) * 1000).max(0);
    }
    state
}

/// Feeds a set of answers: `answered` of them were answers of any kind, `failed` were none, and the newest `run` of
/// them in a row were none.
pub fn settle(limits: &Limits, state: &State, now: Micros, answered: i32, failed: i32, run: i32) -> State {
    let mut state = *state;
    state.failures = if answered == 0 { state.failures.saturating_add(failed) } else { run };
    match state.breaker {
        Breaker::Closed if state.failures >= limits.breaker_threshold => {
            state = State { breaker: Breaker::Open, moved_at: Some(now), ..state };
        }
        Breaker::HalfOpen if answered > 0 => {
            state = State {
                breaker: Breaker::Closed,
                failures: 0,
                moved_at: Some(now),
                tokens_milli: 0,
                filled_at: Some(now),
                ..state
            };
        }
        Breaker::HalfOpen if failed > 0 => {
            state = State { breaker: Breaker::Open, moved_at: Some(now), ..state };
        }
        _ => {}
    }
    state
}

/// Calls a second at `now`: the channel's own rate, or while ramping the part of it that has come back.
fn rate(limits: &Limits, state: &State, now: Micros) -> i64 {
    let full = limits.rate_per_second.map_or(RAMP_RATE_PER_SECOND, i64::from);
    match ramped(limits, state, now) {
        Some(percent) => (full * percent.max(RAMP_FLOOR_PERCENT) / 100).max(1),
        None => full,
    }
}

/// How far the ramp has come, in percent; `None` once it is over.
fn ramped(limits: &Limits, state: &State, now: Micros) -> Option<i64> {
    let ramp = limits.ramp_ms.saturating_mul(MS);
    let passed = now - state.moved_at?;
    (state.breaker == Breaker::Closed && passed < ramp).then(|| (passed.max(0) * 100) / ramp.max(1))
}

fn is_paced(limits: &Limits, state: &State, now: Micros) -> bool {
    limits.rate_per_second.is_some() || ramped(limits, state, now).is_some()
}

/// Fills the bucket for the time that has passed; it holds one second's worth.
///
/// Time that did not buy a whole thousandth of a call is kept for the next time: a slow channel that many daemons look
/// at every few microseconds would else never fill.
fn refill(limits: &Limits, state: &mut State, now: Micros) {
    let rate = rate(limits, state, now);
    let passed = state.filled_at.map_or(1_000 * MS, |at| (now - at).clamp(0, 1_000 * MS));
    let unspent = rate * passed % MS / rate.max(1);
    state.tokens_milli = (state.tokens_milli + rate * passed / MS).min(rate * 1000);
    state.filled_at = Some(now - unspent);
}
