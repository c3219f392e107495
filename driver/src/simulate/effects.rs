//! What `GET /sim/effects` tells: everything that took effect, and everything that was asked.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::business_book::Target;
use super::fault::Op;
use super::wallet_book::{Standing, Transfer};

/// The whole report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effects {
    /// What random faults are drawn from.
    pub seed: u64,
    /// Charges by order number.
    pub charges: BTreeMap<String, TransferEffect>,
    /// Order numbers that were closed before they were charged.
    pub closed: BTreeSet<String>,
    /// Refunds by refund number.
    pub refunds: BTreeMap<String, TransferEffect>,
    /// Refunds made by hand, by the wallet's own name.
    #[serde(default)]
    pub by_hand: BTreeMap<String, TransferEffect>,
    /// Business targets by key.
    pub business: BTreeMap<String, TargetEffect>,
    /// How many requests of each kind have come since the simulator started.
    pub requests: BTreeMap<Op, u64>,
    /// The same by number (the refund number for refunds, else the order number).
    pub calls: BTreeMap<String, BTreeMap<Op, u32>>,
}

/// One charge or refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferEffect {
    /// How often money moved. A faithful wallet never shows more than one.
    pub count: u32,
    /// In the minor unit.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// Where it stands.
    pub status: Standing,
    /// The charge's number, for a refund too.
    pub order_no: String,
}

/// One business target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEffect {
    /// The order number that completed it.
    pub owner: Option<String>,
    /// How often the work was done.
    pub count: u32,
    /// Order numbers that were closed.
    pub closed: BTreeSet<String>,
}

impl TransferEffect {
    /// None for a number that was closed before it was charged.
    pub(super) fn of(transfer: &Transfer) -> Option<Self> {
        let terms = transfer.terms.as_ref()?;
        Some(Self {
            count: transfer.count,
            amount: terms.amount,
            currency: terms.currency.clone(),
            status: transfer.standing,
            order_no: terms.order_no.clone(),
        })
    }
}

impl From<&Target> for TargetEffect {
    fn from(target: &Target) -> Self {
        Self { owner: target.owner.clone(), count: target.count, closed: target.closed.clone() }
    }
}

impl Effects {
    /// How often `order_no` was charged.
    pub fn charge_count(&self, order_no: &str) -> u32 {
        self.charges.get(order_no).map_or(0, |charge| charge.count)
    }

    /// How often `refund_no` was paid back.
    pub fn refund_count(&self, refund_no: &str) -> u32 {
        self.refunds.get(refund_no).map_or(0, |refund| refund.count)
    }

    /// Who completed `biz_key`.
    pub fn owner(&self, biz_key: &str) -> Option<&str> {
        self.business.get(biz_key)?.owner.as_deref()
    }

    /// How often `op` was asked about `number`.
    pub fn calls(&self, number: &str, op: Op) -> u32 {
        self.calls.get(number).and_then(|calls| calls.get(&op)).copied().unwrap_or(0)
    }
}
