//! How long to wait: between claims, and after an error of the database.

use std::time::Duration;

use rand::RngExt;

/// The first pause after an error.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// So many claims in a row may find nothing before the pauses grow: at a steady trickle, work that has come waits for no
/// more than the least pause, and the price is a few cheap claims for each payment.
const PATIENCE: u32 = 8;

/// After a sizeable claim that was not full: so many least pauses, for the next set to form.
const GATHERING: u32 = 5;

/// The pause between two claims: short while there is work and a little longer, then doubling while there is none.
#[derive(Debug, Clone)]
pub struct Polling {
    least: Duration,
    most: Duration,
    next: Duration,
    empty: u32,
}

impl Polling {
    /// Pauses from `least` to `most`.
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least, empty: PATIENCE }
    }

    /// How long to wait after a claim of `got` out of `wanted` actions. A full and sizeable one says that there is
    /// more. A full one of a few actions says the same, but claiming a few at a time without a pause would keep the
    /// database busy with statements. A sizeable one that is not full says that work comes fast.
    pub fn after_claim(&mut self, wanted: usize, got: usize, sizeable: usize) -> Duration {
        if got == 0 {
            if self.empty < PATIENCE {
                self.empty += 1;
                return self.least;
            }
            let pause = self.next;
            self.next = (self.next * 2).min(self.most);
            return pause;
        }
        self.saw_work();
        match (got >= wanted, wanted.min(got) >= sizeable) {
            (true, true) => Duration::ZERO,
            // Work comes fast: waiting a little lets the next set be a large one, which costs far less a row.
            (false, true) => (self.least * GATHERING).min(self.most),
            _ => self.least,
        }
    }

    /// There was work by another way than a claim, so the next claim may find some soon.
    pub const fn saw_work(&mut self) {
        self.next = self.least;
        self.empty = 0;
    }
}

/// The pause after errors in a row: doubling, with jitter, so that daemons do not come back all at once.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    errors: u32,
}

impl Backoff {
    /// How long to wait after one more error.
    pub fn after_error(&mut self) -> Duration {
        let whole = FIRST_PAUSE.saturating_mul(1 << self.errors.min(10)).min(LONGEST_PAUSE);
        self.errors = self.errors.saturating_add(1);
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// It went well; the next error is a first one. Says whether there had been errors.
    pub fn after_success(&mut self) -> bool {
        std::mem::take(&mut self.errors) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_idle_daemon_asks_less_and_less() {
        let mut polling = Polling::new(5 * MS, 250 * MS);
        let pauses: Vec<_> = (0..8).map(|_| polling.after_claim(100, 0, 25).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 250, 250]);
    }

    #[test]
    fn work_makes_it_ask_at_once() {
        let mut polling = Polling::new(5 * MS, 250 * MS);
        for _ in 0..9 {
            polling.after_claim(100, 0, 25);
        }
        assert_eq!(polling.after_claim(100, 3, 25), 5 * MS, "some");
        for empty in 1..=9 {
            assert_eq!(polling.after_claim(100, 0, 25), 5 * MS, "the {empty}th without any: more may come");
        }
        assert_eq!(polling.after_claim(100, 0, 25), 10 * MS, "and the idle pauses begin anew");
        assert_eq!(polling.after_claim(100, 100, 25), Duration::ZERO, "full: there is more");
        assert_eq!(polling.after_claim(2, 2, 25), 5 * MS, "full, but small: paced");
        assert_eq!(polling.after_claim(100, 25, 25), 25 * MS, "sizeable, not full: the next set forms");
        polling.after_claim(100, 0, 25);
        polling.after_claim(100, 0, 25);
        polling.saw_work();
        assert_eq!(polling.after_claim(100, 0, 25), 5 * MS);
    }

    #[test]
    fn errors_back_off_with_jitter_and_a_limit() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000] {
            let pause = backoff.after_error();
            assert!(pause >= expected * MS / 2 && pause <= expected * MS, "{pause:?} of {expected} ms");
        }
        assert!(backoff.after_success());
        assert!(!backoff.after_success());
        assert!(backoff.after_error() <= 100 * MS);
    }
}
