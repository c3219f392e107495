//! Customers who want money back, as their application asks for it in SQL: some once, some twice with the same key, and
//! some with several requests at once that together exceed what was paid.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::compare::Refund;
use crate::db::{Db, Ended, RefundAnswer};
use crate::error::Error;

/// The share of payments whose customer wants money back.
const UNHAPPY: f64 = 0.15;
/// How many requests race for one payment.
const RACERS: usize = 6;
/// What is asked for, in percent of the payment; of a race, what each of the racers asks for.
const SHARES: &[i64] = &[20, 35, 45, 60, 100];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Once,
    /// The same request twice at once, under one idempotency key.
    Twice,
    Race,
}

/// Customers and what came of their wishes.
pub struct AfterSale {
    rng: ChaCha8Rng,
    run: String,
    waiting: BTreeMap<i64, (Manner, i64)>,
    /// How many asked once.
    pub once: usize,
    /// How many asked twice, with one key.
    pub twice: usize,
    /// Where several asked at once.
    races: Vec<Race>,
    /// What should not have been, in words.
    wrong: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Race {
    flow_id: i64,
    /// So many fit into the payment.
    fits: usize,
    accepted: Vec<i64>,
}

/// All races together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Raced {
    /// How many payments were raced for.
    pub races: usize,
    /// How many requests were made.
    pub requests: usize,
    /// How many fit.
    pub fits: usize,
    /// How many were accepted.
    pub accepted: usize,
    /// How many of them took the place of one that the wallet had refused.
    pub released: usize,
    /// What should not have been, in words.
    pub differences: Vec<String>,
}

impl AfterSale {
    /// Customers of the run named `run`; the same seed gives the same wishes.
    pub fn new(seed: u64, run: &str) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
        let (waiting, races, wrong) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { rng, run: run.to_owned(), waiting, once: 0, twice: 0, races, wrong }
    }

    /// Draws who of those who pay now will come back.
    pub fn pay(&mut self, flow_ids: &[i64]) {
        for flow_id in flow_ids {
            if self.rng.random_bool(UNHAPPY) {
                let manner = [Manner::Once, Manner::Twice, Manner::Race].choose(&mut self.rng).copied();
                let percent = SHARES.choose(&mut self.rng).copied().unwrap_or(100);
                self.waiting.insert(*flow_id, (manner.unwrap_or(Manner::Once), percent));
            }
        }
    }

    /// Whether nobody wants anything any more.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those whose payment has succeeded ask, all at the same time.
    pub async fn come_back(&mut self, db: &Db) -> Result<(), Error> {
        let flow_ids: Vec<i64> = self.waiting.keys().copied().collect();
        let mut asked = Vec::new();
        for Ended { flow_id, amount, succeeded } in db.demo_ended(&flow_ids).await? {
            let Some((manner, percent)) = self.waiting.remove(&flow_id).filter(|_| succeeded) else { continue };
            let part = (amount * percent / 100).max(1);
            let key = (manner == Manner::Twice).then(|| format!("{}-{flow_id}", self.run));
            asked.push(async move {
                let requests = match manner {
                    Manner::Once => 1,
                    Manner::Twice => 2,
                    Manner::Race => RACERS,
                };
                let requests = (0..requests).map(|_| db.demo_refund(flow_id, part, key.as_deref()));
                Ok::<_, Error>((
                    manner,
                    flow_id,
                    usize::try_from(amount / part).unwrap_or(0),
                    try_join_all(requests).await?,
                ))
            });
        }
        for (manner, flow_id, fits, answers) in try_join_all(asked).await? {
            self.hear(manner, flow_id, fits, &answers);
        }
        Ok(())
    }

    fn hear(&mut self, manner: Manner, flow_id: i64, fits: usize, answers: &[RefundAnswer]) {
        let mut outcomes: Vec<&str> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
        outcomes.sort_unstable();
        let ids: BTreeSet<_> = answers.iter().filter_map(|answer| answer.refund_id).collect();
        let as_it_should_be = match manner {
            Manner::Once => outcomes == ["reserved"],
            Manner::Twice => outcomes == ["replayed", "reserved"] && ids.len() == 1,
            Manner::Race => outcomes.iter().all(|outcome| ["reserved", "over_limit"].contains(outcome)),
        };
        if !as_it_should_be {
            self.wrong.push(format!("flow {flow_id}: asked {manner:?} for a refund, the answers were {outcomes:?}"));
        }
        match manner {
            Manner::Once => self.once += 1,
            Manner::Twice => self.twice += 1,
            Manner::Race => {
                let reserved = answers.iter().filter(|answer| answer.outcome == "reserved");
                let accepted = reserved.filter_map(|answer| answer.refund_id).collect();
                self.races.push(Race { flow_id, fits: fits.min(RACERS), accepted });
            }
        }
    }

    /// Holds every race against what the refunds became. At no time may more be held than fits; where the wallet refuses
    /// one and so makes room, another one may take its place.
    pub fn raced(&self, refunds: &[Refund]) -> Raced {
        let known: BTreeMap<i64, &Refund> = refunds.iter().map(|refund| (refund.refund_id, refund)).collect();
        let mut all = Raced { differences: self.wrong.clone(), ..Raced::default() };
        for Race { flow_id, fits, accepted } in &self.races {
            let most = most_at_once(accepted.iter().filter_map(|refund_id| known.get(refund_id).copied()));
            if most != *fits {
                all.differences.push(format!("flow {flow_id}: {most} racing refunds held money at once, {fits} fit"));
            }
            all.races += 1;
            all.requests += RACERS;
            all.fits += fits;
            all.accepted += accepted.len();
            all.released += accepted.len().saturating_sub(most);
        }
        all
    }
}

/// How many of these held money at the same time. One that was refused holds none from then on.
fn most_at_once<'a>(refunds: impl Iterator<Item = &'a Refund>) -> usize {
    let refunds: Vec<_> = refunds.collect();
    let held = |at| {
        let holds = |r: &&&Refund| r.created_at <= at && (r.status != "FAILED" || r.updated_at > at);
        refunds.iter().filter(holds).count()
    };
    refunds.iter().map(|refund| held(refund.created_at)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use time::{Duration, OffsetDateTime};

    use super::*;

    fn answers(outcomes: &[&str]) -> Vec<RefundAnswer> {
        let answer = |(id, outcome): (usize, &&str)| RefundAnswer {
            outcome: (*outcome).to_owned(),
            refund_id: (*outcome != "over_limit").then(|| i64::try_from(id).unwrap_or(0)),
        };
        outcomes.iter().enumerate().map(answer).collect()
    }

    /// Refunds 0, 1, ... that were reserved in this order; the first was refused after `held_s` seconds, if at all.
    fn refunds(count: i64, held_s: Option<i64>) -> Vec<Refund> {
        let at = |second| OffsetDateTime::UNIX_EPOCH + Duration::seconds(second);
        let refund = |refund_id| {
            let refused = held_s.filter(|_| refund_id == 0);
            let status = if refused.is_some() { "FAILED" } else { "SUCCEEDED" }.to_owned();
            let (order_no, refund_no, currency) = (String::new(), String::new(), "USD".to_owned());
            let (created_at, updated_at) = (at(refund_id * 10), at(refused.unwrap_or(1000)));
            Refund { refund_id, flow_id: 1, order_no, refund_no, status, amount: 1, currency, created_at, updated_at }
        };
        (0..count).map(refund).collect()
    }

    fn wrong(manner: Manner, outcomes: &[&str], refunds: &[Refund]) -> usize {
        let mut customers = AfterSale::new(1, "r");
        customers.hear(manner, 1, 1, &answers(outcomes));
        customers.raced(refunds).differences.len()
    }

    #[test]
    fn a_race_is_won_by_as_many_as_fit() {
        let wrong = |outcomes: &[&str], refunds: &[Refund]| wrong(Manner::Race, outcomes, refunds);
        assert_eq!(wrong(&["reserved", "over_limit"], &refunds(1, None)), 0);
        assert_eq!(wrong(&["over_limit", "over_limit"], &[]), 1);
        assert_eq!(wrong(&["reserved", "reserved"], &refunds(2, None)), 1);
        assert_eq!(wrong(&["reserved", "reserved"], &refunds(2, Some(5))), 0, "the first made room");
        assert_eq!(wrong(&["reserved", "reserved"], &refunds(2, Some(15))), 1, "it made room too late");
        assert_eq!(wrong(&["reserved", "precondition_failed"], &refunds(1, None)), 1);
    }

    #[test]
    fn one_key_is_one_refund() {
        assert_eq!(wrong(Manner::Once, &["reserved"], &[]), 0);
        assert_eq!(wrong(Manner::Once, &["over_limit"], &[]), 1);
        assert_eq!(wrong(Manner::Twice, &["reserved", "reserved"], &[]), 1);
        let mut customers = AfterSale::new(1, "r");
        let same = |outcome: &str| RefundAnswer { outcome: outcome.to_owned(), refund_id: Some(7) };
        customers.hear(Manner::Twice, 1, 1, &[same("replayed"), same("reserved")]);
        assert!(customers.raced(&[]).differences.is_empty());
    }

    #[test]
    fn there_is_some_of_every_wish() {
        let mut customers = AfterSale::new(1, "r");
        customers.pay(&(1..=1000).collect::<Vec<_>>());
        for manner in [Manner::Once, Manner::Twice, Manner::Race] {
            assert!(customers.waiting.values().filter(|(m, _)| *m == manner).count() > 20, "{manner:?}");
        }
    }
}
