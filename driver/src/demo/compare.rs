//! Every payment and refund beside the wallet's own count.
//!
//! The simulator counts what it did, by order number, and knows nothing of our states. What must hold: no number was
//! charged twice, each flow ended in the state that matches what really happened to the customer's money, a refund that
//! succeeded was given back once and any other never, and nobody got back more than was taken.

use std::collections::{BTreeMap, BTreeSet};

use paylatch_core::flow::Status;
use sqlx::FromRow;
use time::OffsetDateTime;

use crate::simulate::{Effects, TransferEffect};

/// A payment as the database has it.
#[derive(Debug, Clone, FromRow)]
pub struct Payment {
    /// The flow.
    pub flow_id: i64,
    /// What it was for.
    pub scene: String,
    /// Where it stands.
    pub status: String,
    /// The charge's number.
    pub order_no: String,
    /// The compensation's number, whether or not it was ever sent.
    pub refund_no: String,
    /// What was paid for.
    pub biz_key: String,
    /// In the minor unit.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// sql, http or none.
    pub business_mode: String,
    /// For a business in the same database: the charge that it was done for.
    pub restored_by: Option<String>,
}

/// A refund that somebody asked for, as the database has it.
#[derive(Debug, Clone, FromRow)]
pub struct Refund {
    /// The refund.
    pub refund_id: i64,
    /// Its payment.
    pub flow_id: i64,
    /// The charge's number.
    pub order_no: String,
    /// Its own number.
    pub refund_no: String,
    /// Where it stands.
    pub status: String,
    /// In the minor unit.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// When it was reserved, under its payment's lock.
    pub created_at: OffsetDateTime,
    /// When it ended, under the same lock.
    pub updated_at: OffsetDateTime,
}

/// Money by currency, in minor units.
pub type Money = BTreeMap<String, i64>;

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// How many flows were compared.
    pub compared: usize,
    /// Each difference of a payment, in words.
    pub differences: Vec<String>,
    /// How many payments kept or gave back what was charged.
    pub charged: usize,
    /// How many refunds succeeded: compensations and those that were asked for.
    pub refunds: usize,
    /// Each difference of a refund, in words.
    pub refund_differences: Vec<String>,
    /// How many numbers the wallet moved money under: charges, then refunds.
    pub moved: (usize, usize),
    /// The most often that money moved under one number; more than one is a double charge.
    pub most_charges: u32,
    /// The same for refunds.
    pub most_refunds: u32,
    /// What the wallet took.
    pub wallet_charged: Money,
    /// What the database says was taken.
    pub database_charged: Money,
    /// What the wallet gave back.
    pub wallet_refunded: Money,
    /// What the database says was given back.
    pub database_refunded: Money,
}

/// Compares every payment and refund with the wallet's count, and the sums.
pub fn compare(payments: &[Payment], refunds: &[Refund], effects: &Effects) -> Comparison {
    let mut found = Comparison { compared: payments.len(), ..Comparison::default() };
    for payment in payments {
        found.differences.extend(difference(payment, effects));
        let status = payment.status.parse().ok();
        if matches!(status, Some(Status::BizSuccess | Status::Refunded)) {
            found.charged += 1;
            *found.database_charged.entry(payment.currency.clone()).or_default() += payment.amount;
        }
        if status == Some(Status::Refunded) {
            found.refunds += 1;
            *found.database_refunded.entry(payment.currency.clone()).or_default() += payment.amount;
        }
    }
    for refund in refunds {
        found.refund_differences.extend(refund_difference(refund, effects));
        if refund.status == "SUCCEEDED" {
            found.refunds += 1;
            *found.database_refunded.entry(refund.currency.clone()).or_default() += refund.amount;
        }
    }
    found.refund_differences.extend(given_back_too_much(effects));
    let charges = payments.iter().map(|p| p.order_no.as_str()).collect();
    let backs = payments.iter().map(|p| p.refund_no.as_str()).chain(refunds.iter().map(|r| r.refund_no.as_str()));
    found.differences.extend(strangers(&effects.charges, &charges));
    found.refund_differences.extend(strangers(&effects.refunds, &backs.collect()));
    let moves = |of: &BTreeMap<String, TransferEffect>| of.values().filter(|effect| effect.count > 0).count();
    found.moved = (moves(&effects.charges), moves(&effects.refunds));
    found.most_charges = effects.charges.values().map(|effect| effect.count).max().unwrap_or(0);
    found.most_refunds = effects.refunds.values().map(|effect| effect.count).max().unwrap_or(0);
    found.wallet_charged = moved(effects.charges.values());
    found.wallet_refunded = moved(effects.refunds.values());
    if found.wallet_charged != found.database_charged {
        found.differences.push("the money charged differs between wallet and database".to_owned());
    }
    if found.wallet_refunded != found.database_refunded {
        found.refund_differences.push("the money refunded differs between wallet and database".to_owned());
    }
    found
}

/// Money that moved under numbers that nobody here gave out.
fn strangers(moved: &BTreeMap<String, TransferEffect>, ours: &BTreeSet<&str>) -> Vec<String> {
    let strange = moved.iter().filter(|(number, effect)| effect.count > 0 && !ours.contains(number.as_str()));
    strange.map(|(number, _)| format!("{number}: the wallet moved money under a number that is not ours")).collect()
}

/// Charges of which the wallet gave back more than it took.
fn given_back_too_much(effects: &Effects) -> Vec<String> {
    let mut given_back: BTreeMap<&str, i64> = BTreeMap::new();
    for refund in effects.refunds.values() {
        *given_back.entry(&refund.order_no).or_default() += refund.amount * i64::from(refund.count);
    }
    let taken = |order_no| effects.charges.get(order_no).map_or(0, |c| c.amount * i64::from(c.count.min(1)));
    let too_much = given_back.into_iter().filter(|(order_no, amount)| *amount > taken(*order_no));
    too_much.map(|(order_no, amount)| format!("{order_no}: {amount} given back of {}", taken(order_no))).collect()
}

/// How one refund differs from what happened, if it does.
fn refund_difference(refund: &Refund, effects: &Effects) -> Option<String> {
    let Refund { refund_no, status, .. } = refund;
    let expected = match status.as_str() {
        "SUCCEEDED" => 1,
        "FAILED" | "REJECTED" => 0,
        _ => return Some(format!("refund {refund_no} has not ended: it is {status}")),
    };
    let count = effects.refund_count(refund_no);
    if count != expected {
        return Some(format!("refund {refund_no} is {status}, but was given back {count} times"));
    }
    let asked = (refund.amount, refund.currency.as_str(), refund.order_no.as_str());
    let other = |e: &&TransferEffect| (e.amount, e.currency.as_str(), e.order_no.as_str()) != asked;
    let other = effects.refunds.get(refund_no).filter(|effect| effect.count > 0).is_some_and(|e| other(&e));
    other.then(|| format!("refund {refund_no}: the wallet gave back another amount, or of another charge"))
}

fn moved<'a>(effects: impl Iterator<Item = &'a TransferEffect>) -> Money {
    let mut money = Money::new();
    for effect in effects.filter(|effect| effect.count > 0) {
        *money.entry(effect.currency.clone()).or_default() += effect.amount * i64::from(effect.count);
    }
    money
}

/// How one payment differs from what happened, if it does.
fn difference(payment: &Payment, effects: &Effects) -> Option<String> {
    let charges = effects.charge_count(&payment.order_no);
    let refunds = effects.refund_count(&payment.refund_no);
    let expected = match payment.status.parse() {
        Ok(Status::BizSuccess) => (1, 0, true),
        Ok(Status::Refunded) => (1, 1, false),
        Ok(Status::PayFail) => (0, 0, false),
        _ => return Some(format!("flow {} has not ended: it is {}", payment.flow_id, payment.status)),
    };
    let Payment { flow_id, status, .. } = payment;
    if (charges, refunds) != (expected.0, expected.1) {
        return Some(format!("flow {flow_id} is {status}, but was charged {charges} and refunded {refunds} times"));
    }
    let owner = match payment.business_mode.as_str() {
        "http" => effects.owner(&payment.biz_key),
        _ => payment.restored_by.as_deref(),
    };
    let owns = owner == Some(payment.order_no.as_str());
    if payment.business_mode != "none" && owns != expected.2 {
        let whose = owner.unwrap_or("nobody");
        return Some(format!("flow {flow_id} is {status}, but its business was done for {whose}"));
    }
    let other = |effect: Option<&TransferEffect>| {
        effect.is_some_and(|e| e.count > 0 && (e.amount, &e.currency) != (payment.amount, &payment.currency))
    };
    if other(effects.charges.get(&payment.order_no)) || other(effects.refunds.get(&payment.refund_no)) {
        return Some(format!("flow {flow_id}: the wallet moved another amount"));
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::simulate::{Standing, TargetEffect};

    fn payment(flow_id: i64, status: Status) -> Payment {
        Payment {
            flow_id,
            scene: "shop".into(),
            status: status.as_str().into(),
            order_no: format!("sh_1_{flow_id}"),
            refund_no: format!("r_sh_1_{flow_id}"),
            biz_key: format!("b{flow_id}"),
            amount: 100,
            currency: "USD".into(),
            business_mode: "http".into(),
            restored_by: None,
        }
    }

    fn effects(charges: &[(i64, u32)], refunds: &[(i64, u32)], done: &[i64]) -> Effects {
        let transfer = |number: String, flow: &i64, count: u32| {
            let effect = TransferEffect {
                count,
                amount: 100,
                currency: "USD".into(),
                status: Standing::Succeeded,
                order_no: format!("sh_1_{flow}"),
            };
            (number, effect)
        };
        let target = |flow: &i64| {
            let effect = TargetEffect { owner: Some(format!("sh_1_{flow}")), count: 1, closed: BTreeSet::new() };
            (format!("b{flow}"), effect)
        };
        Effects {
            seed: 1,
            charges: charges.iter().map(|(flow, n)| transfer(format!("sh_1_{flow}"), flow, *n)).collect(),
            closed: BTreeSet::new(),
            refunds: refunds.iter().map(|(flow, n)| transfer(format!("r_sh_1_{flow}"), flow, *n)).collect(),
            by_hand: BTreeMap::new(),
            business: done.iter().map(target).collect(),
            requests: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    fn only_difference(status: Status, effects: &Effects) -> String {
        compare(&[payment(1, status)], &[], effects).differences.first().cloned().unwrap_or_default()
    }

    #[test]
    fn what_happened_and_what_is_written_agree() {
        let payments = [payment(1, Status::BizSuccess), payment(2, Status::Refunded), payment(3, Status::PayFail)];
        // A refused charge is known to the wallet, but moved nothing.
        let found = compare(&payments, &[], &effects(&[(1, 1), (2, 1), (3, 0)], &[(2, 1)], &[1]));
        assert_eq!(found.differences, Vec::<String>::new());
        assert_eq!((found.most_charges, found.most_refunds), (1, 1));
        assert_eq!(found.wallet_charged, Money::from([("USD".into(), 200)]));
        assert_eq!(found.wallet_refunded, Money::from([("USD".into(), 100)]));
    }

    #[test]
    fn every_kind_of_wrong_is_seen() {
        let wrong = [
            (Status::BizSuccess, effects(&[(1, 2)], &[], &[1]), "charged 2"),
            (Status::BizSuccess, effects(&[], &[], &[1]), "charged 0"),
            (Status::BizSuccess, effects(&[(1, 1)], &[(1, 1)], &[1]), "refunded 1"),
            (Status::BizSuccess, effects(&[(1, 1)], &[], &[]), "done for nobody"),
            (Status::Refunded, effects(&[(1, 1)], &[], &[]), "refunded 0"),
            (Status::Refunded, effects(&[(1, 1)], &[(1, 1)], &[1]), "done for sh_1_1"),
            (Status::PayFail, effects(&[(1, 1)], &[], &[]), "charged 1"),
            (Status::PayFail, effects(&[], &[], &[1]), "done for sh_1_1"),
            (Status::Payed, effects(&[(1, 1)], &[], &[]), "has not ended"),
        ];
        for (status, effects, expected) in wrong {
            let said = only_difference(status, &effects);
            assert!(said.contains(expected), "{status}: {said:?}, expected {expected:?}");
        }
    }

    #[test]
    fn a_business_in_the_database_is_asked_there() {
        let sql = |status, restored_by: Option<&str>| Payment {
            business_mode: "sql".into(),
            restored_by: restored_by.map(str::to_owned),
            ..payment(1, status)
        };
        let charged = effects(&[(1, 1)], &[], &[]);
        let refunded = effects(&[(1, 1)], &[(1, 1)], &[]);
        let differences = |payment, effects| compare(&[payment], &[], effects).differences.len();
        assert_eq!(differences(sql(Status::BizSuccess, Some("sh_1_1")), &charged), 0);
        assert_eq!(differences(sql(Status::BizSuccess, Some("sh_1_9")), &charged), 1);
        assert_eq!(differences(sql(Status::Refunded, Some("sh_1_9")), &refunded), 0);
        assert_eq!(differences(sql(Status::Refunded, Some("sh_1_1")), &refunded), 1);
    }

    #[test]
    fn sums_and_strangers_are_seen() {
        let mut another_amount = effects(&[(1, 1)], &[], &[1]);
        another_amount.charges.values_mut().for_each(|effect| effect.amount = 99);
        let found = compare(&[payment(1, Status::BizSuccess)], &[], &another_amount);
        assert_eq!(found.differences.len(), 2, "{:?}", found.differences);
        let found = compare(&[], &[], &effects(&[(8, 1)], &[], &[]));
        assert!(found.differences[0].contains("not ours"));
    }

    fn refund(status: &str, amount: i64) -> Refund {
        let (order_no, refund_no) = ("sh_1_1".into(), "r1_sh_1_1".into());
        let (status, currency, at) = (status.into(), "USD".into(), OffsetDateTime::UNIX_EPOCH);
        Refund {
            refund_id: 1,
            flow_id: 1,
            order_no,
            refund_no,
            status,
            amount,
            currency,
            created_at: at,
            updated_at: at,
        }
    }

    /// A charge of 100 whose refund r1 of `amount` was given back so many times.
    fn given_back(amount: i64, count: u32) -> Effects {
        let mut effects = effects(&[(1, 1)], &[(1, count)], &[1]);
        let effect = effects.refunds.remove("r_sh_1_1").map(|effect| TransferEffect { amount, ..effect });
        effects.refunds.insert("r1_sh_1_1".into(), effect.unwrap());
        effects
    }

    #[test]
    fn a_refund_that_was_asked_for_is_compared_by_its_number() {
        let differences = |refunds: &[Refund], effects: &Effects| {
            compare(&[payment(1, Status::BizSuccess)], refunds, effects).refund_differences.join("; ")
        };
        assert_eq!(differences(&[refund("SUCCEEDED", 60)], &given_back(60, 1)), "");
        assert_eq!(differences(&[refund("FAILED", 60)], &given_back(60, 0)), "");
        for (refunds, effects, expected) in [
            (vec![refund("SUCCEEDED", 60)], given_back(60, 0), "given back 0 times"),
            (vec![refund("SUCCEEDED", 60)], given_back(60, 2), "120 given back of 100"),
            (vec![refund("SUCCEEDED", 60)], given_back(59, 1), "another amount"),
            (vec![refund("FAILED", 60)], given_back(60, 1), "given back 1 times"),
            (vec![refund("PENDING", 60)], given_back(60, 0), "has not ended"),
            (vec![], given_back(60, 1), "not ours"),
            (vec![refund("SUCCEEDED", 101)], given_back(101, 1), "101 given back of 100"),
        ] {
            let said = differences(&refunds, &effects);
            assert!(said.contains(expected), "{said:?}, expected {expected:?}");
        }
    }
}
