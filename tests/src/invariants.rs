//! What must hold whatever happened: the "Never" rules, by the database's own word and by the simulator's count.

use std::collections::{HashMap, HashSet};

use paylatchd::simulate::Effects;
use sqlx::FromRow;

use crate::Database;

#[derive(FromRow)]
struct Row {
    flow_id: i64,
    status: String,
    amount: i64,
    currency: String,
    late: bool,
    trade_order_no: String,
    refund_order_no: String,
    biz_key: String,
    business_mode: String,
}

/// A refund that is no compensation and was not made elsewhere.
#[derive(FromRow)]
struct RefundRow {
    trade_order_no: String,
    refund_order_no: String,
    status: String,
    amount: i64,
    currency: String,
}

/// Panics unless `verify()` finds every rule kept.
pub async fn assert_verified(db: &Database) {
    let rows: Vec<(i32, String, i64, Option<String>)> =
        sqlx::query_as("select rule, name, broken, detail from paylatch.verify() where not ok")
            .fetch_all(db.pool())
            .await
            .unwrap_or_else(|e| panic!("verify: {e}"));
    assert!(rows.is_empty(), "verify() finds broken rules: {rows:#?}");
}

/// Panics unless `verify()` finds every rule kept and every flow tells exactly what the simulator did.
pub async fn assert_never_rules(db: &Database, effects: &Effects) {
    assert_verified(db).await;
    let rows: Vec<Row> = sqlx::query_as(
        "select f.flow_id, f.status::text, f.amount::bigint, f.currency::text, f.trade_order_no::text,
                f.status = 'PAY_FAIL' and f.charged_amount is not null as late,
                paylatch.refund_order_no(f.trade_order_no) as refund_order_no, o.biz_key::text, s.business_mode::text
         from paylatch.pay_flow f
         join paylatch.pay_order o using (order_id)
         join paylatch.scene s on s.scene = f.scene",
    )
    .fetch_all(db.pool())
    .await
    .unwrap_or_else(|e| panic!("list flows: {e}"));

    let refunds: Vec<RefundRow> = sqlx::query_as(
        "select f.trade_order_no, r.refund_order_no, r.status::text, r.amount::bigint, r.currency::text
         from paylatch.refund r join paylatch.pay_flow f using (flow_id) where r.kind in ('AFTER_SALE', 'RECON')",
    )
    .fetch_all(db.pool())
    .await
    .unwrap_or_else(|e| panic!("list refunds: {e}"));

    let mut complaints: Vec<String> = rows.iter().flat_map(|row| complaints_about(row, effects)).collect();
    complaints.extend(refunds.iter().filter_map(|refund| complaint_about_refund(refund, effects)));
    complaints.extend(given_back_too_much(effects));
    let compensations = rows.iter().map(|row| &row.refund_order_no);
    for (what, moved, known) in [
        ("charge", &effects.charges, rows.iter().map(|row| &row.trade_order_no).collect::<HashSet<_>>()),
        (
            "refund",
            &effects.refunds,
            compensations.chain(refunds.iter().map(|refund| &refund.refund_order_no)).collect(),
        ),
    ] {
        let strangers = moved.keys().filter(|number| !known.contains(number));
        complaints.extend(strangers.map(|number| format!("a {what} under {number}, which no flow has")));
    }
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// One to one: what a flow's state claims against what was done under its numbers.
fn complaints_about(row: &Row, effects: &Effects) -> Vec<String> {
    let (charged, refunded) = (effects.charge_count(&row.trade_order_no), effects.refund_count(&row.refund_order_no));
    let (charges, refunds) = match row.status.as_str() {
        "PAY_FAIL" if row.late => (1..=1, 0..=0),
        "WAIT_PAY" | "PAY_FAIL" => (0..=0, 0..=0),
        "PAYING" => (0..=1, 0..=0),
        "PAYED" | "BIZ_SUCCESS" => (1..=1, 0..=0),
        "REFUNDING" => (1..=1, 0..=1),
        "REFUNDED" => (1..=1, 1..=1),
        other => panic!("flow {} is {other}", row.flow_id),
    };
    let mut complaints = Vec::new();
    let mut complain = |what: String| {
        complaints.push(format!("flow {} ({}) is {}: {what}", row.flow_id, row.trade_order_no, row.status));
    };
    if !charges.contains(&charged) {
        complain(format!("charged {charged} times"));
    }
    if !refunds.contains(&refunded) {
        complain(format!("refunded {refunded} times"));
    }
    let moved = [effects.charges.get(&row.trade_order_no), effects.refunds.get(&row.refund_order_no)];
    for effect in moved.into_iter().flatten().filter(|e| e.count > 0) {
        if (effect.amount, &effect.currency) != (row.amount, &row.currency) {
            complain(format!("{} {} moved, not {} {}", effect.amount, effect.currency, row.amount, row.currency));
        }
    }
    if row.business_mode == "http" {
        let target = effects.business.get(&row.biz_key);
        let owns = target.is_some_and(|t| t.owner.as_ref() == Some(&row.trade_order_no));
        if target.is_some_and(|t| t.count > 1) {
            complain("its business was done more than once".to_owned());
        }
        if row.status == "BIZ_SUCCESS" && !owns {
            complain(format!("the business says {target:?}"));
        }
        if owns && matches!(row.status.as_str(), "WAIT_PAY" | "PAYING" | "PAY_FAIL" | "REFUNDING" | "REFUNDED") {
            complain("its business was done for it".to_owned());
        }
    }
    complaints
}

/// One to one again: what a refund's state claims against what was given back under its number.
fn complaint_about_refund(refund: &RefundRow, effects: &Effects) -> Option<String> {
    let RefundRow { refund_order_no: number, status, .. } = refund;
    let count = effects.refund_count(number);
    let right = match status.as_str() {
        "PENDING" => count <= 1,
        "SUCCEEDED" => count == 1,
        _ => count == 0,
    };
    if !right {
        return Some(format!("refund {number} is {status}, given back {count} times"));
    }
    let effect = effects.refunds.get(number).filter(|effect| effect.count > 0)?;
    let said = (effect.amount, &effect.currency, &effect.order_no);
    let meant = (refund.amount, &refund.currency, &refund.trade_order_no);
    (said != meant).then(|| format!("refund {number} gave back {said:?}, not {meant:?}"))
}

/// No charge gave back more than it took, whatever the refunds were called.
fn given_back_too_much(effects: &Effects) -> Vec<String> {
    let mut back = HashMap::<&str, i64>::new();
    for refund in effects.refunds.values() {
        *back.entry(&refund.order_no).or_default() += i64::from(refund.count) * refund.amount;
    }
    let took = |number: &str| effects.charges.get(number).map_or(0, |charge| i64::from(charge.count) * charge.amount);
    back.iter()
        .filter(|(number, back)| took(number) < **back)
        .map(|(number, back)| format!("{number} took {} and gave back {back}", took(number)))
        .collect()
}
