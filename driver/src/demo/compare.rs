//! Every payment beside the wallet's own count.
//!
//! The simulator counts what it did, by order number, and knows nothing of our states. What must hold: no number was
//! charged twice, and each flow ended in the state that matches what really happened to the customer's money.

use std::collections::{BTreeMap, BTreeSet};

use paylatch_core::flow::Status;
use sqlx::FromRow;

use crate::simulate::Effects;

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

/// Money by currency, in minor units.
pub type Money = BTreeMap<String, i64>;

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// How many flows were compared.
    pub compared: usize,
    /// Each difference, in words.
    pub differences: Vec<String>,
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

/// Compares every payment with the wallet's count, and the sums.
pub fn compare(payments: &[Payment], effects: &Effects) -> Comparison {
    let mut found = Comparison { compared: payments.len(), ..Comparison::default() };
    for payment in payments {
        found.differences.extend(difference(payment, effects));
        let status = payment.status.parse().ok();
        if matches!(status, Some(Status::BizSuccess | Status::Refunded)) {
            *found.database_charged.entry(payment.currency.clone()).or_default() += payment.amount;
        }
        if status == Some(Status::Refunded) {
            *found.database_refunded.entry(payment.currency.clone()).or_default() += payment.amount;
        }
    }
    let known: BTreeSet<&str> = payments.iter().flat_map(|p| [p.order_no.as_str(), p.refund_no.as_str()]).collect();
    for (number, effect) in effects.charges.iter().chain(&effects.refunds) {
        if effect.count > 0 && !known.contains(number.as_str()) {
            found.differences.push(format!("{number}: the wallet moved money under a number that is not ours"));
        }
    }
    found.most_charges = effects.charges.values().map(|effect| effect.count).max().unwrap_or(0);
    found.most_refunds = effects.refunds.values().map(|effect| effect.count).max().unwrap_or(0);
    found.wallet_charged = moved(effects.charges.values());
    found.wallet_refunded = moved(effects.refunds.values());
    if found.wallet_charged != found.database_charged {
        found.differences.push("the money charged differs between wallet and database".to_owned());
    }
    if found.wallet_refunded != found.database_refunded {
        found.differences.push("the money refunded differs between wallet and database".to_owned());
    }
    found
}

fn moved<'a>(effects: impl Iterator<Item = &'a crate::simulate::TransferEffect>) -> Money {
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
    let other = |effect: Option<&crate::simulate::TransferEffect>| {
        effect.is_some_and(|e| e.count > 0 && (e.amount, &e.currency) != (payment.amount, &payment.currency))
    };
    if other(effects.charges.get(&payment.order_no)) || other(effects.refunds.get(&payment.refund_no)) {
        return Some(format!("flow {flow_id}: the wallet moved another amount"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Standing, TargetEffect, TransferEffect};

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
        compare(&[payment(1, status)], effects).differences.first().cloned().unwrap_or_default()
    }

    #[test]
    fn what_happened_and_what_is_written_agree() {
        let payments = [payment(1, Status::BizSuccess), payment(2, Status::Refunded), payment(3, Status::PayFail)];
        // A refused charge is known to the wallet, but moved nothing.
        let found = compare(&payments, &effects(&[(1, 1), (2, 1), (3, 0)], &[(2, 1)], &[1]));
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
        let differences = |payment, effects| compare(&[payment], effects).differences.len();
        assert_eq!(differences(sql(Status::BizSuccess, Some("sh_1_1")), &charged), 0);
        assert_eq!(differences(sql(Status::BizSuccess, Some("sh_1_9")), &charged), 1);
        assert_eq!(differences(sql(Status::Refunded, Some("sh_1_9")), &refunded), 0);
        assert_eq!(differences(sql(Status::Refunded, Some("sh_1_1")), &refunded), 1);
    }

    #[test]
    fn sums_and_strangers_are_seen() {
        let mut another_amount = effects(&[(1, 1)], &[], &[1]);
        another_amount.charges.values_mut().for_each(|effect| effect.amount = 99);
        let found = compare(&[payment(1, Status::BizSuccess)], &another_amount);
        assert_eq!(found.differences.len(), 2, "{:?}", found.differences);
        let found = compare(&[], &effects(&[(8, 1)], &[], &[]));
        assert!(found.differences[0].contains("not ours"));
    }
}
