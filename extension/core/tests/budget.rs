//! Budgets over simulated time: breaker, ramp, rate, in-flight limit, the refunds' share.
//!
//! Time here is a number that the test moves. The rule behind all of it (F8): whatever happened before, a channel is
//! never asked faster than it allows, and an outage is not followed by a flood.

use paylatch_core::budget::{Breaker, Grant, Limits, State, grant, settle, spend};
use paylatch_core::{MS, Micros};
use proptest::prelude::*;

const SECOND: Micros = 1_000 * MS;
const NOW: Micros = 1_000_000 * SECOND;

const LIMITS: Limits = Limits {
    max_in_flight: None,
    rate_per_second: Some(100),
    ramp_ms: 60_000,
    refund_share_percent: 25,
    breaker_threshold: 20,
    breaker_open_ms: 10_000,
    breaker_probes: 5,
};

const FRESH: State = State {
    breaker: Breaker::Closed,
    failures: 0,
    moved_at: None,
    probes_left: 0,
    tokens_milli: 0,
    filled_at: None,
    in_flight: 0,
};

/// A channel as the database drives it: grant, spend what was granted, settle what came back.
struct Channel {
    limits: Limits,
    state: State,
}

impl Channel {
    fn new(limits: Limits) -> Self {
        Self { limits, state: FRESH }
    }

    fn look(&self, now: Micros, want: i32, doubtful: bool) -> Grant {
        grant(&self.limits, &self.state, now, want, doubtful)
    }

    /// Takes all that is granted.
    fn take(&mut self, now: Micros, want: i32, doubtful: bool) -> Grant {
        let grant = self.look(now, want, doubtful);
        self.state = spend(&self.limits, &grant.state, now, grant.total);
        self.state.in_flight += grant.total;
        grant
    }

    /// `answered` calls came back with answers, then `failed` without.
    fn came_back(&mut self, now: Micros, answered: i32, failed: i32) {
        self.state = settle(&self.limits, &self.state, now, answered, failed, failed);
        self.state.in_flight -= answered + failed;
    }

    fn opened_at(now: Micros, limits: Limits) -> Self {
        let mut channel = Self::new(limits);
        channel.state = settle(&limits, &channel.state, now, 0, limits.breaker_threshold, limits.breaker_threshold);
        assert_eq!(channel.state.breaker, Breaker::Open);
        channel
    }
}

#[test]
fn opens_at_the_threshold_and_not_before() {
    let mut channel = Channel::new(LIMITS);
    channel.came_back(NOW, 0, 19);
    assert_eq!(channel.state.breaker, Breaker::Closed);
    assert_eq!(channel.look(NOW, 10, true).total, 10);
    channel.came_back(NOW, 0, 1);
    assert_eq!(channel.state.breaker, Breaker::Open);
    assert_eq!(channel.look(NOW, 10, true).total, 0);
}

#[test]
fn an_answer_of_any_kind_starts_the_count_again() {
    let mut channel = Channel::new(LIMITS);
    for _ in 0..10 {
        channel.came_back(NOW, 0, 19);
        channel.came_back(NOW, 1, 0);
        assert_eq!((channel.state.breaker, channel.state.failures), (Breaker::Closed, 0));
    }
    // Of a mixed batch only the newest in a row count.
    channel.state = settle(&LIMITS, &channel.state, NOW, 1, 30, 19);
    assert_eq!((channel.state.breaker, channel.state.failures), (Breaker::Closed, 19));
}

#[test]
fn stays_open_for_its_time_then_lets_a_few_questions_out() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    assert_eq!(channel.look(waited - 1, 100, true).total, 0);
    let probes = channel.take(waited, 100, true);
    assert_eq!((probes.total, probes.questions_only), (5, true));
    let more = channel.take(waited + SECOND, 100, true);
    assert_eq!((more.total, more.questions_only), (0, true), "the probes have not answered yet");
}

#[test]
fn probes_are_shared_out_over_several_claims() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    let shares = [2, 2, 2, 2].map(|want| channel.take(waited, want, true).total);
    assert_eq!(shares, [2, 2, 1, 0]);
}

#[test]
fn probes_that_never_come_back_are_sent_again() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    assert_eq!(channel.take(waited, 100, true).total, 5);
    assert_eq!(channel.take(waited + LIMITS.breaker_open_ms * MS - 1, 100, true).total, 0);
    assert_eq!(channel.take(waited + LIMITS.breaker_open_ms * MS, 100, true).total, 5);
}

#[test]
fn a_failed_probe_opens_it_for_another_full_time() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    channel.take(waited, 100, true);
    channel.came_back(waited + SECOND, 0, 1);
    assert_eq!(channel.state.breaker, Breaker::Open);
    assert_eq!(channel.look(waited + LIMITS.breaker_open_ms * MS, 100, true).total, 0);
    assert_eq!(channel.look(waited + SECOND + LIMITS.breaker_open_ms * MS, 100, true).total, 5);
}

#[test]
fn an_answered_probe_closes_it_into_the_ramp() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    channel.take(waited, 100, true);
    channel.came_back(waited, 1, 0);
    assert_eq!((channel.state.breaker, channel.state.failures), (Breaker::Closed, 0));
    assert_eq!(channel.look(waited, 1000, true).total, 0, "it begins with an empty bucket");
    let after_a_second = channel.take(waited + SECOND, 1000, true);
    assert_eq!((after_a_second.total, after_a_second.questions_only), (5, false), "at 5 percent of the rate");
}

#[test]
fn with_nobody_to_ask_it_closes_into_the_ramp() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    assert_eq!(channel.look(waited - 1, 1000, false).total, 0);
    let first = channel.take(waited, 1000, false);
    assert_eq!((first.total, first.questions_only, first.state.breaker), (0, false, Breaker::Closed));
    assert_eq!(channel.take(waited + SECOND, 1000, false).total, 5);
    // The failures that opened it are forgotten: one more must not open it at once.
    channel.came_back(waited + SECOND, 0, 1);
    assert_eq!(channel.state.breaker, Breaker::Closed);
}

#[test]
fn answers_to_old_calls_do_not_close_an_open_breaker() {
    let mut channel = Channel::opened_at(NOW, LIMITS);
    channel.came_back(NOW + SECOND, 3, 0);
    assert_eq!(channel.state.breaker, Breaker::Open);
}

#[test]
fn the_ramp_rises_to_the_full_rate_and_ends() {
    let ramping = State { moved_at: Some(NOW), filled_at: Some(NOW), ..FRESH };
    let in_second = |n: i64| {
        let state = State { filled_at: Some(NOW + (n - 1) * SECOND), ..ramping };
        grant(&LIMITS, &state, NOW + n * SECOND, i32::MAX, true).total
    };
    let rates: Vec<i32> = [1, 15, 30, 45, 60, 600].into_iter().map(in_second).collect();
    assert_eq!(rates, [5, 25, 50, 75, 100, 100]);
}

#[test]
fn a_channel_without_a_rate_ramps_too_and_is_then_unlimited() {
    let limits = Limits { rate_per_second: None, ..LIMITS };
    let mut channel = Channel::new(limits);
    assert_eq!(channel.take(NOW, 1_000_000, true).total, 1_000_000);
    channel.state = State { moved_at: Some(NOW), filled_at: Some(NOW), ..FRESH };
    assert_eq!(channel.look(NOW + SECOND, 1_000_000, true).total, 50);
    assert_eq!(channel.look(NOW + 30 * SECOND, 1_000_000, true).total, 500);
    assert_eq!(channel.look(NOW + 60 * SECOND, 1_000_000, true).total, 1_000_000);
}

#[test]
fn calls_under_way_count_against_the_limit() {
    let mut channel = Channel::new(Limits { max_in_flight: Some(10), ..LIMITS });
    assert_eq!(channel.take(NOW, 7, true).total, 7);
    assert_eq!(channel.take(NOW, 7, true).total, 3);
    assert_eq!(channel.take(NOW, 7, true).total, 0);
    channel.came_back(NOW, 4, 0);
    assert_eq!(channel.take(NOW, 7, true).total, 4);
    channel.state.in_flight = 99;
    assert_eq!(channel.look(NOW, 7, true).total, 0, "a limit that was lowered under way grants nothing");
}

#[test]
fn probes_keep_to_rate_and_in_flight_limit() {
    let waited = NOW + LIMITS.breaker_open_ms * MS;
    let mut busy = Channel::opened_at(NOW, Limits { max_in_flight: Some(10), ..LIMITS });
    busy.state.in_flight = 8;
    assert_eq!(busy.take(waited, 100, true).total, 2);
    let mut slow = Channel::opened_at(NOW, Limits { rate_per_second: Some(2), ..LIMITS });
    assert_eq!(slow.take(waited, 100, true).total, 2);
    assert_eq!(slow.take(waited + SECOND, 100, true).total, 2);
    assert_eq!(slow.take(waited + 2 * SECOND, 100, true).total, 1, "five probes in all");
}

#[test]
fn refunds_come_first_for_their_share_rounded_up() {
    let share = |percent, want| {
        let channel = Channel::new(Limits { refund_share_percent: percent, ..LIMITS });
        channel.look(NOW, want, true).refunds_first
    };
    assert_eq!([share(25, 100), share(25, 10), share(25, 1), share(25, 0)], [25, 3, 1, 0]);
    assert_eq!([share(0, 100), share(100, 100), share(900, 100), share(-1, 100)], [0, 100, 100, 0]);
}

#[test]
fn nothing_wanted_is_nothing_granted() {
    for want in [0, -1, i32::MIN] {
        assert_eq!(Channel::new(LIMITS).look(NOW, want, true).total, 0);
        assert_eq!(Channel::opened_at(NOW, LIMITS).look(NOW + 60 * SECOND, want, true).total, 0);
    }
}

/// Many daemons that look often must not starve a slow channel by rounding.
#[test]
fn a_slow_channel_flows_however_often_it_is_looked_at() {
    for every in [1, 17, 300, 999, 1_001, 1_999, 15_000] {
        let limits = Limits { rate_per_second: Some(1), ..LIMITS };
        let mut channel = Channel { limits, state: State { filled_at: Some(NOW), ..FRESH } };
        let calls: i32 = (1..=3 * SECOND / every).map(|n| channel.take(NOW + n * every, 1, true).total).sum();
        assert!((2..=3).contains(&calls), "looked at every {every} us: {calls} calls in 3 s at 1 a second");
    }
}

/// F8: the wallet is down for ten minutes under a backlog that never ends, then back.
#[test]
fn an_outage_is_followed_by_a_ramp_and_no_flood() {
    let tick = 20 * MS;
    let (down, up) = (NOW + 30 * SECOND, NOW + 630 * SECOND);
    let mut channel = Channel::new(Limits { max_in_flight: Some(50), ..LIMITS });
    let mut per_second = vec![0; 800];
    let mut acts_while_half_open = 0;
    for n in 0..800 * SECOND / tick {
        let now = NOW + n * tick;
        let grant = channel.take(now, 64, true);
        per_second[((now - NOW) / SECOND) as usize] += grant.total;
        acts_while_half_open += i32::from(channel.state.breaker == Breaker::HalfOpen && !grant.questions_only);
        // Every call comes back within its tick.
        let back = channel.state.in_flight;
        let is_down = (down..up).contains(&now);
        if back > 0 {
            channel.came_back(now, if is_down { 0 } else { back }, if is_down { back } else { 0 });
        }
    }
    assert_eq!(acts_while_half_open, 0);
    assert!(per_second[2..30].iter().all(|calls| (99..=101).contains(calls)), "before: {:?}", &per_second[..30]);
    let while_down: i32 = per_second[31..630].iter().sum();
    let probes = 5 * 600 / 10;
    assert!((60..=probes).contains(&while_down), "{while_down} calls to a wallet that is down");
    let after = &per_second[630..];
    let back = after.iter().position(|calls| *calls > 0).unwrap_or(usize::MAX);
    assert!(back <= 10, "noticed after {back} s");
    for (second, calls) in after.iter().enumerate().skip(back + 1) {
        let ramped = ((second - back + 1) * 100 / 60).clamp(5, 100) as i32;
        assert!(*calls <= ramped + 1, "{calls} calls in second {second} after the outage, {ramped} allowed");
    }
    assert!(after[back + 62..].iter().all(|calls| (99..=101).contains(calls)), "the full rate comes back");
}

#[derive(Debug, Clone)]
struct Turn {
    wait: Micros,
    want: i32,
    doubtful: bool,
    answered: i32,
    failed: i32,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let wait = prop_oneof![Just(0), 1..2_000i64, 1..SECOND, 1..30 * SECOND];
    let turn = (wait, -1..400i32, any::<bool>(), 0..40i32, 0..40i32)
        .prop_map(|(wait, want, doubtful, answered, failed)| Turn { wait, want, doubtful, answered, failed });
    prop::collection::vec(turn, 1..60)
}

fn limits() -> impl Strategy<Value = Limits> {
    let rate = prop_oneof![Just(1), 1..20, 1..1_000i32];
    (prop::option::of(0..60i32), rate, 0..90_000i64, 0..=100i32, 1..30i32, 1..20_000i64, 1..20i32).prop_map(
        |(max_in_flight, rate, ramp_ms, refund_share_percent, breaker_threshold, breaker_open_ms, breaker_probes)| {
            Limits {
                max_in_flight,
                rate_per_second: Some(rate),
                ramp_ms,
                refund_share_percent,
                breaker_threshold,
                breaker_open_ms,
                breaker_probes,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Over any span, whatever the breaker does: no more than the rate for the span and one bucket.
    #[test]
    fn grants_never_exceed_what_the_channel_allows(limits in limits(), turns in turns()) {
        let rate = i64::from(limits.rate_per_second.unwrap_or(0));
        let mut channel = Channel::new(limits);
        let mut now = NOW;
        let mut taken: Vec<(Micros, i64)> = Vec::new();
        for turn in turns {
            now += turn.wait;
            let grant = channel.take(now, turn.want, turn.doubtful);
            prop_assert!((0..=turn.want.max(0)).contains(&grant.total));
            prop_assert!((0..=grant.total).contains(&grant.refunds_first));
            prop_assert_eq!(grant.questions_only, grant.state.breaker == Breaker::HalfOpen);
            prop_assert!(limits.max_in_flight.is_none_or(|max| channel.state.in_flight <= max));
            prop_assert!(grant.state.probes_left <= limits.breaker_probes);
            match grant.state.breaker {
                Breaker::Open => prop_assert_eq!(grant.total, 0),
                Breaker::HalfOpen => prop_assert!(grant.total <= grant.state.probes_left),
                Breaker::Closed => {}
            }
            taken.push((now, i64::from(grant.total)));
            let mut sum = 0;
            for (at, calls) in taken.iter().rev() {
                sum += calls;
                let allowed = rate + rate * (now - at) / SECOND + 1;
                prop_assert!(sum <= allowed, "{} calls in {} us at {} a second", sum, now - at, rate);
            }
            let answered = turn.answered.min(channel.state.in_flight);
            let failed = turn.failed.min(channel.state.in_flight - answered);
            channel.came_back(now, answered, failed);
            prop_assert!(channel.state.tokens_milli >= 0 && channel.state.tokens_milli <= rate * 1_000);
        }
    }

    /// Whatever happened, a channel whose calls are answered flows again at its full rate in bounded time.
    #[test]
    fn a_healthy_channel_comes_back(limits in limits(), turns in turns()) {
        let limits = Limits { max_in_flight: None, ..limits };
        let mut channel = Channel::new(limits);
        let mut now = NOW;
        for turn in turns {
            now += turn.wait;
            channel.take(now, turn.want, turn.doubtful);
            channel.came_back(now, turn.answered, turn.failed);
        }
        let healthy_for = (limits.breaker_open_ms + limits.ramp_ms) * MS + 4 * SECOND;
        let (step, until) = (healthy_for / 400, now + healthy_for);
        while now < until {
            now += step;
            let calls = channel.take(now, 3, true).total;
            channel.came_back(now, calls, 0);
        }
        prop_assert_eq!(channel.state.breaker, Breaker::Closed);
        prop_assert!(channel.take(now + SECOND, i32::MAX, true).total >= limits.rate_per_second.unwrap_or(0));
    }
}
