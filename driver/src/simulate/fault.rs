//! The faults that the simulator can commit, and the random mix of them.
//!
//! A random fault is a pure function of (seed, operation, number, how often that was asked): in whatever order the
//! requests of a run arrive, the n-th question about a number meets the same fate in every run with that seed.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// `POST /charges`
    Charge,
    /// `GET /charges/{order_no}`
    QueryCharge,
    /// `POST /charges/{order_no}/close`
    CloseCharge,
    /// `POST /refunds`
    Refund,
    /// `GET /refunds/{refund_no}`
    QueryRefund,
    /// `POST /business/execute`
    Execute,
    /// `GET /business/facts`
    Fact,
    /// `POST /business/close`
    CloseBusiness,
    /// A webhook that the simulator sends.
    Webhook,
}

impl Op {
    /// Whether the wallet is asked, and not the business.
    pub const fn is_wallet(self) -> bool {
        !self.is_business() && !matches!(self, Self::Webhook)
    }

    /// Whether the business is asked.
    pub const fn is_business(self) -> bool {
        matches!(self, Self::Execute | Self::Fact | Self::CloseBusiness)
    }
}

/// One kind of fault. `arg` is the number that a script may give along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No fault; in a script, shields from random ones.
    None,
    /// The effect happens, then the connection is cut.
    DropAfter,
    /// The connection is cut, without effect.
    DropBefore,
    /// HTTP 500, without effect.
    ErrorBefore,
    /// The effect happens, then HTTP 500.
    ErrorAfter,
    /// Accepted; the next `arg` questions (1) are answered PROCESSING.
    Processing,
    /// Accepted and the connection cut; the effect shows after `arg` ms (1000).
    LateEffect,
    /// Refused, for good where it is a charge.
    Refuse,
    /// HTTP 409, without effect.
    Conflict,
    /// HTTP 429, without effect.
    TooMany,
    /// HTTP status `arg` (418) with an empty body, without effect.
    Status,
    /// The effect happens, then the body comes at `arg` ms (50) a byte.
    Trickle,
    /// The effect happens, then HTTP 200 with bytes that are no JSON.
    Garbage,
    /// The effect happens, then half of the body and a cut connection.
    Truncate,
    /// The effect happens, then a right answer in a body of `arg` bytes (262144).
    Oversized,
    /// Waits `arg` ms (500), then goes on as usual.
    Slow,
    /// The effect happens as asked, the answer names another amount.
    WrongAmount,
    /// The effect happens as asked, the answer names another currency.
    WrongCurrency,
    /// The effect happens as asked, the answer names another number.
    WrongNumber,
    /// 404 though it exists.
    NotFound,
    /// CLOSED though nothing was closed and it may be paid.
    CloseLies,
    /// The wallet has forgotten the number and does it once more.
    ForgetKey,
    /// The wallet pays back although that exceeds the charge.
    Excess,
    /// The business refuses this number, for good.
    Reject,
    /// The business answers CONTRADICTORY.
    Contradictory,
    /// A DONE without its owner.
    NoOwner,
    /// A DONE with the owner `other_owner_0`.
    OtherOwner,
    /// A webhook comes `arg` times (3), all at once.
    Duplicate,
    /// A webhook comes some time within `arg` ms (500), so that later ones overtake it.
    Reordered,
    /// A webhook comes before the answer to its request, which waits for `arg` ms (200).
    Early,
    /// A webhook comes `arg` ms late (1000).
    Late,
    /// A webhook never comes.
    Never,
    /// A copy of the webhook that a stranger signed comes ahead of it.
    Forged,
}

impl Fault {
    /// Every fault, in the order of declaration.
    pub const ALL: &'static [Self] = &[
        Self::None,
        Self::DropAfter,
        Self::DropBefore,
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::Processing,
        Self::LateEffect,
        Self::Refuse,
        Self::Conflict,
        Self::TooMany,
        Self::Status,
        Self::Trickle,
        Self::Garbage,
        Self::Truncate,
        Self::Oversized,
        Self::Slow,
        Self::WrongAmount,
        Self::WrongCurrency,
        Self::WrongNumber,
        Self::NotFound,
        Self::CloseLies,
        Self::ForgetKey,
        Self::Excess,
        Self::Reject,
        Self::Contradictory,
        Self::NoOwner,
        Self::OtherOwner,
        Self::Duplicate,
        Self::Reordered,
        Self::Early,
        Self::Late,
        Self::Never,
        Self::Forged,
    ];

    /// Whether the fault means anything for `op`.
    pub const fn applies_to(self, op: Op) -> bool {
        match self {
            Self::None => true,
            Self::DropAfter
            | Self::DropBefore
            | Self::ErrorBefore
            | Self::ErrorAfter
            | Self::Conflict
            | Self::TooMany
            | Self::Status
            | Self::Trickle
            | Self::Garbage
            | Self::Truncate
            | Self::Oversized
            | Self::Slow => !matches!(op, Op::Webhook),
            Self::WrongAmount | Self::WrongCurrency | Self::WrongNumber => op.is_wallet(),
            Self::Processing | Self::Refuse | Self::ForgetKey => matches!(op, Op::Charge | Op::Refund),
            Self::LateEffect => matches!(op, Op::Charge | Op::Refund | Op::Execute),
            Self::NotFound => matches!(op, Op::QueryCharge | Op::QueryRefund),
            Self::CloseLies => matches!(op, Op::CloseCharge | Op::CloseBusiness),
            Self::Excess => matches!(op, Op::Refund),
            Self::Reject => matches!(op, Op::Execute),
            Self::Contradictory => matches!(op, Op::Execute | Op::Fact),
            Self::NoOwner | Self::OtherOwner => op.is_business(),
            Self::Duplicate | Self::Reordered | Self::Early | Self::Late | Self::Never | Self::Forged => {
                matches!(op, Op::Webhook)
            }
        }
    }

    /// What `arg` is where a script gives none.
    pub const fn default_arg(self) -> u64 {
        match self {
            Self::Processing => 1,
            Self::LateEffect | Self::Late => 1000,
            Self::Trickle => 50,
            Self::Slow | Self::Reordered => 500,
            Self::Duplicate => 3,
            Self::Early => 200,
            Self::Status => 418,
            Self::Oversized => 256 * 1024,
            _ => 0,
        }
    }
}

/// What one request will meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The fault.
    pub fault: Fault,
    /// Its argument.
    pub arg: u64,
    /// How long to wait before anything else.
    pub latency_ms: u64,
}

impl Plan {
    /// Nothing happens to the request.
    pub const CLEAR: Self = Self { fault: Fault::None, arg: 0, latency_ms: 0 };

    /// `fault` with `arg`, or with the fault's own.
    pub fn of(fault: Fault, arg: Option<u64>) -> Self {
        Self { fault, arg: arg.unwrap_or(fault.default_arg()), latency_ms: 0 }
    }
}

/// How often random faults strike, and which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRates {
    /// The share of requests that meet a fault, 0 to 1.
    pub rate: f64,
    /// Weights, relative to each other; left out, [`FaultRates::usual_mix`].
    #[serde(default = "FaultRates::usual_mix")]
    pub mix: BTreeMap<Fault, u32>,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self::of(0.0)
    }
}

impl FaultRates {
    /// The usual mix, at `rate`.
    pub fn of(rate: f64) -> Self {
        Self { rate, mix: Self::usual_mix() }
    }

    /// What ordinary networks and counterparties do. Left out are the faults of a counterparty that lies (wrong
    /// echoes, conflicts, a 404 of what it knows): those need a person, and come by script or by a mix of one's own.
    pub fn usual_mix() -> BTreeMap<Fault, u32> {
        BTreeMap::from([
            (Fault::DropAfter, 20),
            (Fault::DropBefore, 15),
            (Fault::ErrorBefore, 10),
            (Fault::ErrorAfter, 10),
            (Fault::Processing, 10),
            (Fault::TooMany, 8),
            (Fault::LateEffect, 5),
            (Fault::Slow, 5),
            (Fault::Truncate, 5),
            (Fault::Garbage, 4),
            (Fault::Trickle, 3),
            (Fault::Refuse, 3),
            (Fault::Reject, 2),
            (Fault::Duplicate, 20),
            (Fault::Reordered, 20),
            (Fault::Early, 10),
            (Fault::Late, 10),
            (Fault::Never, 10),
            (Fault::Forged, 10),
        ])
    }

    /// What the `call`-th request of kind `op` about `number` meets.
    pub fn draw(&self, seed: u64, op: Op, number: &str, call: u32) -> Plan {
        if self.rate <= 0.0 {
            return Plan::CLEAR;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(hash(seed, op, number, call));
        let latency_ms = rng.random_range(1..=20);
        if !rng.random_bool(self.rate.clamp(0.0, 1.0)) {
            return Plan { latency_ms, ..Plan::CLEAR };
        }
        let fault = self.pick(op, &mut rng);
        let arg = match fault {
            Fault::Processing => rng.random_range(1..=3),
            Fault::LateEffect => rng.random_range(200..=2000),
            Fault::Slow => rng.random_range(100..=1500),
            Fault::Duplicate => rng.random_range(2..=5),
            Fault::Late => rng.random_range(200..=3000),
            Fault::Trickle => 5,
            other => other.default_arg(),
        };
        Plan { fault, arg, latency_ms }
    }

    fn pick(&self, op: Op, rng: &mut ChaCha8Rng) -> Fault {
        let fitting = || self.mix.iter().filter(|(fault, _)| fault.applies_to(op));
        let total: u64 = fitting().map(|(_, weight)| u64::from(*weight)).sum();
        if total == 0 {
            return Fault::None;
        }
        let mut ticket = rng.random_range(0..total);
        for (fault, weight) in fitting() {
            match ticket.checked_sub(u64::from(*weight)) {
                Some(rest) => ticket = rest,
                None => return *fault,
            }
        }
        Fault::None
    }
}

/// FNV-1a: stable across releases, so a seed keeps its meaning.
fn hash(seed: u64, op: Op, number: &str, call: u32) -> u64 {
    let op = op as u8;
    let bytes = seed.to_le_bytes().into_iter().chain([op]).chain(number.bytes()).chain(call.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_fate() {
        let rates = FaultRates::of(0.5);
        let fates = |seed| (0..200).map(|call| rates.draw(seed, Op::Charge, "sh_1_1", call)).collect::<Vec<_>>();
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }

    #[test]
    fn the_rate_is_kept_and_every_fault_of_the_mix_occurs() {
        let rates = FaultRates::of(0.15);
        let plans: Vec<_> = (0..20_000).map(|n| rates.draw(7, Op::Charge, &format!("sh_1_{n}"), 0)).collect();
        let struck = plans.iter().filter(|plan| plan.fault != Fault::None).count();
        assert!((2_700..3_300).contains(&struck), "{struck}");
        for fault in rates.mix.keys().filter(|fault| fault.applies_to(Op::Charge)) {
            assert!(plans.iter().any(|plan| plan.fault == *fault), "{fault:?}");
        }
        assert!(plans.iter().all(|plan| plan.fault.applies_to(Op::Charge) && (1..=20).contains(&plan.latency_ms)));
    }

    #[test]
    fn without_a_rate_nothing_happens() {
        assert_eq!(FaultRates::default().draw(1, Op::Refund, "r_1", 0), Plan::CLEAR);
    }
}
