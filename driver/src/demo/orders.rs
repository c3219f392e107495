//! What the demo buys: a stream of payments drawn from the seed.

use std::collections::BTreeMap;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use time::OffsetDateTime;

/// Scene, currency, and the range of amounts in the currency's minor unit. None, two and three digits among them.
const GOODS: &[(&str, &str, i64, i64)] = &[
    ("shop", "USD", 100, 50_000),
    ("shop", "JPY", 100, 9_000),
    ("topup", "CNY", 1_000, 20_000),
    ("streak", "CNY", 600, 3_000),
    ("streak", "VND", 10_000, 90_000),
    ("donate", "KWD", 500, 25_000),
];

/// The share of payments whose business must be done within a few seconds.
const HURRIED: f64 = 0.12;
/// The share of payments for something that another payment is for, too; only one can have it.
const CONTESTED: f64 = 0.04;

/// One request, as `paylatch.create_pay_flows` reads it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Order {
    scene: &'static str,
    user_id: String,
    biz_key: String,
    amount: i64,
    currency: &'static str,
    #[serde(with = "time::serde::rfc3339::option")]
    biz_deadline: Option<OffsetDateTime>,
    payload: BTreeMap<&'static str, String>,
}

/// An endless stream of orders; the same seed gives the same stream but for the deadlines' dates.
pub struct Orders {
    rng: ChaCha8Rng,
    run: String,
    made: u64,
}

impl Orders {
    /// Orders of the run named `run`, which keeps its targets apart from those of earlier runs.
    pub fn new(seed: u64, run: &str) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), run: run.to_owned(), made: 0 }
    }

    /// The next `count` orders, `now` being what deadlines count from.
    pub fn next_set(&mut self, count: usize, now: OffsetDateTime) -> Vec<Order> {
        (0..count).map(|_| self.next(now)).collect()
    }

    /// Whether the customer thinks better of the latest order.
    pub fn is_cancelled(&mut self) -> bool {
        self.rng.random_bool(0.02)
    }

    fn next(&mut self, now: OffsetDateTime) -> Order {
        self.made += 1;
        let (scene, currency, least, most) = GOODS.choose(&mut self.rng).copied().unwrap_or(GOODS[0]);
        // A contested target is the one of the order before, asked for by another user.
        let target = if self.rng.random_bool(CONTESTED) { self.made.saturating_sub(1) } else { self.made };
        let hurried = self.rng.random_bool(HURRIED);
        let seconds = self.rng.random_range(2..=6);
        Order {
            scene,
            user_id: (100_000 + self.made).to_string(),
            biz_key: format!("{}-{scene}-{target}", self.run),
            amount: self.rng.random_range(least..=most),
            currency,
            biz_deadline: hurried.then(|| now + time::Duration::seconds(seconds)),
            payload: BTreeMap::from([("note", format!("order {} of the demo", self.made))]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_buys_the_same() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let bought = |seed| Orders::new(seed, "r").next_set(500, now);
        assert_eq!(bought(7), bought(7));
        assert_ne!(bought(7), bought(8));
    }

    #[test]
    fn there_is_some_of_everything() {
        let orders = Orders::new(1, "r").next_set(2000, OffsetDateTime::UNIX_EPOCH);
        for (scene, currency, _, _) in GOODS {
            assert!(orders.iter().filter(|o| o.scene == *scene && o.currency == *currency).count() > 200);
        }
        assert!((150..350).contains(&orders.iter().filter(|o| o.biz_deadline.is_some()).count()));
        let users: std::collections::BTreeSet<_> = orders.iter().map(|o| &o.user_id).collect();
        assert_eq!(users.len(), orders.len(), "each order has a customer of its own");
        let mut keys: BTreeMap<&str, usize> = BTreeMap::new();
        for order in &orders {
            *keys.entry(&order.biz_key).or_default() += 1;
        }
        assert!(keys.values().any(|payments| *payments == 2));
    }
}
