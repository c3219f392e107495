//! Where a claim begins to look for due jobs.
//!
//! A job that is gone stays in the queue's index until no transaction can see it any more. While somebody holds a
//! snapshot for long, every look from the beginning passes all jobs that were done since. So a session remembers how far
//! it has looked, and once a look from the beginning has passed too many that are gone, it begins there; and it looks
//! from the beginning again after four hundred times what that takes, or a minute, which bounds the price at one part in a
//! hundred. Until then it may miss a job that came in late with an early due time, or that another claim let go again.
//!
//! On a healthy database every look is from the beginning: the switch depends on pages touched, not on time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use pgrx::pg_sys;
use pgrx::prelude::*;

use paylatch_core::{MS, Micros};

/// The lanes as `pick_jobs()` has them: refund, ask, new, biz.
const LANES: usize = 4;
/// The due time of a job may lie so far before its commit and still be found at once.
const SLACK: Micros = 2_000 * MS;
/// A look from the beginning may touch so many pages, and so many more for each job that it took.
const PAGES: i64 = 500;
const PAGES_EACH: i64 = 10;
/// How many times its own duration passes between two looks from the beginning, and the longest that it may be.
const REST: u32 = 400;
const LONGEST_REST: Duration = Duration::from_secs(60);

thread_local! {
    static LOOKS: RefCell<HashMap<String, Look>> = RefCell::new(HashMap::new());
}

/// What a session remembers of one channel.
struct Look {
    /// Before which due time each lane had nothing left.
    upto: [Micros; LANES],
    /// When to look from the beginning again, if that is dear.
    whole_at: Option<Instant>,
    /// The look from the beginning that is under way: since when, and how many pages had been touched.
    whole: Option<(Instant, i64)>,
}

impl Default for Look {
    fn default() -> Self {
        Self { upto: [Micros::MIN; LANES], whole_at: None, whole: None }
    }
}

impl Look {
    fn begin(&mut self, at: Instant, pages: i64, now: Micros) -> [Micros; LANES] {
        if self.whole_at.is_some_and(|whole_at| at < whole_at) {
            self.whole = None;
            // A clock that was set back must hide nothing.
            return self.upto.map(|upto| upto.min(now).saturating_sub(SLACK));
        }
        self.whole = Some((at, pages));
        [Micros::MIN; LANES]
    }

    fn end(&mut self, at: Instant, pages: i64, upto: [Option<Micros>; LANES], taken: i64) {
        for (kept, seen) in self.upto.iter_mut().zip(upto) {
            *kept = seen.unwrap_or(*kept);
        }
        if let Some((began, before)) = self.whole.take() {
            let dear = pages - before > PAGES + PAGES_EACH * taken;
            let rest = ((at - began).max(Duration::from_millis(1)) * REST).min(LONGEST_REST);
            self.whole_at = dear.then(|| at + rest);
        }
    }
}

/// Pages that this session has touched so far.
fn pages() -> i64 {
    // SAFETY: reads two counters of this backend.
    unsafe { pg_sys::pgBufferUsage.shared_blks_hit + pg_sys::pgBufferUsage.shared_blks_read }
}

/// After which due time to look, for each lane; `-infinity`: from the beginning.
#[pg_extern(volatile, parallel_restricted, strict)]
fn look_from(channel: &str, now: TimestampWithTimeZone) -> Vec<TimestampWithTimeZone> {
    let now = Micros::from(now);
    let from = LOOKS.with_borrow_mut(|looks| match looks.get_mut(channel) {
        Some(look) => look.begin(Instant::now(), pages(), now),
        None => looks.entry(channel.to_owned()).or_default().begin(Instant::now(), pages(), now),
    });
    from.into_iter().map(time).collect()
}

/// Keeps what a look that began with `look_from()` has seen.
#[pg_extern(volatile, parallel_restricted, strict)]
fn looked(channel: &str, upto: Vec<Option<TimestampWithTimeZone>>, taken: i32) {
    let mut seen = [None; LANES];
    for (seen, upto) in seen.iter_mut().zip(upto) {
        *seen = upto.map(Micros::from);
    }
    LOOKS.with_borrow_mut(|looks| {
        if let Some(look) = looks.get_mut(channel) {
            look.end(Instant::now(), pages(), seen, taken.into());
        }
    });
}

fn time(at: Micros) -> TimestampWithTimeZone {
    match at {
        Micros::MIN => TimestampWithTimeZone::negative_infinity(),
        at => TimestampWithTimeZone::try_from(at).unwrap_or_else(|_| error!("the clock is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = 1_000_000 * MS;

    #[test]
    fn every_look_is_whole_while_looks_are_cheap() {
        let (mut look, at) = (Look::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(look.begin(at, 0, NOW), [Micros::MIN; LANES]);
            look.end(at, PAGES, [Some(NOW); LANES], 0);
        }
    }

    #[test]
    fn after_a_dear_one_it_begins_where_nothing_was_left() {
        let (mut look, at) = (Look::default(), Instant::now());
        look.begin(at, 0, NOW);
        look.end(at + Duration::from_millis(10), PAGES + 1, [Some(NOW), None, Some(NOW - 1), None], 0);
        let soon = at + Duration::from_secs(1);
        let from = look.begin(soon, 0, NOW + 5);
        assert_eq!((from[0], from[2]), (NOW - SLACK, NOW - 1 - SLACK));
        assert_eq!(from[1], Micros::MIN.saturating_sub(SLACK), "a lane that was not looked at is looked at whole");
        // A clock that was set back hides nothing.
        assert_eq!(look.begin(soon, 0, NOW - 10)[0], NOW - 10 - SLACK);
        let later = at + Duration::from_secs(5);
        assert_eq!(
            look.begin(later, 0, NOW),
            [Micros::MIN; LANES],
            "four seconds are four hundred times ten milliseconds"
        );
    }

    #[test]
    fn the_rest_ends_after_a_minute() {
        let (mut look, at) = (Look::default(), Instant::now());
        look.begin(at, 0, NOW);
        look.end(at + Duration::from_secs(9), 9_999_999, [Some(NOW); LANES], 200);
        assert_ne!(look.begin(at + Duration::from_secs(60), 0, NOW), [Micros::MIN; LANES]);
        assert_eq!(look.begin(at + Duration::from_secs(70), 0, NOW), [Micros::MIN; LANES]);
    }
}
