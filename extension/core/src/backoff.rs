//! Exponential back-off with deterministic jitter.
//!
//! The jitter comes from the row's id and its retry count, so that any process computes the same due time and a crowd
//! of rows that failed together does not come back together.

use crate::{MS, Micros};

/// The retry curve of a scene. All spans in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Curve {
    /// The first wait.
    pub base_ms: i32,
    /// Growth per retry, in percent: 200 doubles.
    pub factor_percent: i32,
    /// The longest wait, before jitter.
    pub max_ms: i32,
    /// How far the wait may be moved either way, in percent of itself.
    pub jitter_percent: i32,
}

impl Curve {
    /// The wait before try number `retry` (0 is the first retry) of row `id`.
    pub fn delay(&self, id: i64, retry: i32) -> Micros {
        let cap = i64::from(self.max_ms.max(1)) * MS;
        let mut wait = (i64::from(self.base_ms.max(1)) * MS).min(cap);
        let factor = i64::from(self.factor_percent.max(100));
        // A factor of 100 never reaches the cap; more than 64 doublings cannot change a capped wait.
        for _ in 0..retry.clamp(0, 64) {
            if wait >= cap {
                break;
            }
            wait = (wait.saturating_mul(factor) / 100).min(cap);
        }
        jittered(wait, self.jitter_percent, id, retry)
    }
}

/// `wait` moved by up to `percent` of itself either way, the same for the same `(id, salt)`.
pub fn jittered(wait: Micros, percent: i32, id: i64, salt: i32) -> Micros {
    let span = wait / 100 * i64::from(percent.clamp(0, 100));
    if span == 0 {
        return wait.max(1);
    }
    let dice = mix((id as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(salt as u64));
    let offset = (dice % (2 * span as u64 + 1)) as i64 - span;
    (wait + offset).max(1)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): neighbouring ids land far apart.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CURVE: Curve = Curve { base_ms: 1000, factor_percent: 200, max_ms: 60_000, jitter_percent: 20 };

    #[test]
    fn doubles_until_the_cap() {
        let plain = Curve { jitter_percent: 0, ..CURVE };
        let waits: Vec<i64> = (0..8).map(|n| plain.delay(7, n) / MS).collect();
        assert_eq!(waits, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn a_crowd_spreads() {
        let waits: std::collections::HashSet<i64> = (0..1000).map(|id| CURVE.delay(id, 3) / MS).collect();
        assert!(waits.len() > 500, "only {} different waits", waits.len());
    }

    proptest! {
        #[test]
        fn stays_near_the_curve_and_is_repeatable(id: i64, retry in -5i32..1000) {
            let exact = Curve { jitter_percent: 0, ..CURVE }.delay(id, retry);
            let wait = CURVE.delay(id, retry);
            prop_assert!((wait - exact).abs() <= exact / 5 + 1);
            prop_assert_eq!(wait, CURVE.delay(id, retry));
        }
    }
}
