//! The SQL face of steps: a set of rows in, the planned steps of all of them out, in one call.
//!
//! What is decided here is `paylatch_core`'s. Rows are taken apart by position, as `sql/types.sql` has them. A flow goes
//! on for as long as its next edge needs nothing from outside, so one call plans all the versions that a set will make.

use std::collections::HashMap;

use pgrx::pg_sys;
use pgrx::prelude::*;

use paylatch_core::backoff::Curve;
use paylatch_core::decide::{Evidence, Facts};
use paylatch_core::flow::Status;
use paylatch_core::outcome::Action;
use paylatch_core::policy::{BusinessMode, Policy};
use paylatch_core::refund;
use paylatch_core::step::{self, Leave, Step};
use paylatch_core::{MS, Micros};

use crate::composite::{Columns, Fields, IntoColumn, arg, compose_all, pg_function, required, word};

pg_function!(pg_finfo_paylatch_flow_steps, paylatch_flow_steps, run_flow_steps);
pg_function!(pg_finfo_paylatch_refund_steps, paylatch_refund_steps, run_refund_steps);
pg_function!(pg_finfo_paylatch_retry_at, paylatch_retry_at, run_retry_at);

/// Most edges that a flow makes without anything from outside are three; more would be a bug.
const MOST_TURNS: i32 = 8;
/// A lease is so much longer than the call may take: time to connect and send.
const SEND_MS: i64 = 3000;

/// `flow_steps(facts, rules, told, now, lease_ms, probing, paced)`.
unsafe fn run_flow_steps(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let set = Set::of_call(fcinfo, 19);
        let mut plan = Vec::with_capacity(2 * set.rows.len());
        for row in &set.rows {
            set.plan_flow(row, &mut plan);
        }
        compose_all(fcinfo, &plan)
    }
}

/// `refund_steps(facts, rules, told, now, lease_ms, probing, paced)`.
unsafe fn run_refund_steps(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let set = Set::of_call(fcinfo, 18);
        let plan: Vec<_> = set.rows.iter().map(|row| set.plan_refund(row)).collect();
        compose_all(fcinfo, &plan)
    }
}

/// `retry_at(policy, id, tries, now)`.
unsafe fn run_retry_at(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument types that are read here, none of them NULL.
    unsafe {
        let rules = required(Fields::of_composite(arg(fcinfo, 0), 14), "policy");
        let number = |n, name| required(arg(fcinfo, n), name).value() as i64;
        pg_sys::Datum::from(policy(&rules).retry_at(number(1, "id"), number(2, "tries") as i32, number(3, "now")))
    }
}

/// What one call decides about: the rows, and what holds for all of them.
struct Set {
    rows: Vec<Fields>,
    rules: Vec<Rules>,
    told: Vec<Fields>,
    /// Where in `told` the answer about a flow, or a refund of it, stands.
    told_of: HashMap<(i64, Option<i64>), usize>,
    now: Micros,
    lease_ms: Option<i64>,
    probing: Vec<String>,
    paced: Vec<String>,
}

/// The settings of one scene and channel.
struct Rules {
    scene: String,
    channel: String,
    call_timeout_ms: i64,
    business_timeout_ms: i64,
    business_target: Option<String>,
    policy: Policy,
}

/// Which version of which row a step makes.
struct Place<'a> {
    kind: &'a str,
    flow_id: i64,
    refund_id: Option<i64>,
    version: i64,
    turn: i32,
}

/// Where a row stands after a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// Done, until something comes from outside.
    Settled,
    /// Its action is done in this database.
    InPlace,
    /// Its next step is in the plan as well.
    GoesOn,
}

impl Set {
    /// # Safety
    /// `fcinfo` must belong to a call with the arguments of `flow_steps()`, its facts of so many columns.
    unsafe fn of_call(fcinfo: pg_sys::FunctionCallInfo, columns: usize) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let told = Fields::of_array(arg(fcinfo, 2), 12);
            let told_of = told.iter().enumerate().filter_map(|(at, told)| Some(((told.i64(7)?, told.i64(11)), at)));
            Self {
                rows: Fields::of_array(arg(fcinfo, 0), columns),
                rules: Fields::of_array(arg(fcinfo, 1), 6).iter().map(Rules::of).collect(),
                told_of: told_of.collect(),
                told,
                now: required(arg(fcinfo, 3), "now").value() as i64,
                lease_ms: arg(fcinfo, 4).map(|datum| i64::from(datum.value() as i32)),
                probing: names(arg(fcinfo, 5)),
                paced: names(arg(fcinfo, 6)),
            }
        }
    }

    fn rules_of(&self, row: &Fields) -> &Rules {
        let (scene, channel) = (required(row.text(2), "scene"), required(row.text(3), "channel"));
        let found = self.rules.iter().find(|rules| rules.scene == scene && rules.channel == channel);
        found.unwrap_or_else(|| error!("no rules for scene {scene} with channel {channel}"))
    }

    fn leave(&self, rules: &Rules, call_ms: i64) -> Leave {
        let is_in = |names: &[String]| names.contains(&rules.channel);
        Leave {
            lease_until: self.lease_ms.map(|lease_ms| self.now + lease_ms.max(SEND_MS + call_ms) * MS),
            questions_only: is_in(&self.probing),
            wallet_may_leave: !is_in(&self.paced),
        }
    }

    fn plan_flow(&self, row: &Fields, plan: &mut Vec<Columns<PLANNED>>) {
        let (mut facts, rules) = (flow_facts(row), self.rules_of(row));
        let mut told = self.told_of.get(&(facts.flow_id, None)).map(|at| &self.told[*at]);
        let mut version = required(row.i64(1), "version");
        let leave = self.leave(rules, rules.call_timeout_ms.max(rules.business_timeout_ms));
        for turn in 0..MOST_TURNS {
            let evidence = told.and_then(evidence);
            let step = step::step(&facts, &rules.policy, evidence.as_ref(), self.now, leave);
            let here = rules.policy.business_mode == BusinessMode::Sql;
            let after = match step.action {
                _ if step.again => After::GoesOn,
                Some(action) if here && !action.is_wallet() => After::InPlace,
                _ => After::Settled,
            };
            let place = Place { kind: "flow", flow_id: facts.flow_id, refund_id: None, version, turn };
            plan.push(planned(&place, rules, after, told, step.facts.status.as_str(), &step));
            if after != After::GoesOn {
                return;
            }
            told = None;
            version += i64::from(step.changed);
            facts = step.facts;
        }
        error!("flow {} takes no end of steps", facts.flow_id);
    }

    fn plan_refund(&self, row: &Fields) -> Columns<PLANNED> {
        let (facts, rules) = (refund_facts(row), self.rules_of(row));
        let flow_id = required(row.i64(17), "flow_id");
        let told = self.told_of.get(&(flow_id, Some(facts.refund_id))).map(|at| &self.told[*at]);
        let evidence = told.and_then(evidence);
        let leave = self.leave(rules, rules.call_timeout_ms);
        let (status, step) = refund::step(&facts, &rules.policy, evidence.as_ref(), self.now, leave);
        let version = required(row.i64(1), "version");
        let place = Place { kind: "refund", flow_id, refund_id: Some(facts.refund_id), version, turn: 0 };
        planned(&place, rules, After::Settled, told, status.as_str(), &step)
    }
}

impl Rules {
    fn of(row: &Fields) -> Self {
        // SAFETY: the column is declared as paylatch.policy.
        let settings = unsafe { Fields::of_composite(row.datum(5), 14) };
        Self {
            scene: required(row.text(0), "scene").to_owned(),
            channel: required(row.text(1), "channel").to_owned(),
            call_timeout_ms: required(row.i32(2), "call_timeout_ms").into(),
            business_timeout_ms: required(row.i32(3), "business_timeout_ms").into(),
            business_target: row.text(4).map(str::to_owned),
            policy: policy(&required(settings, "policy")),
        }
    }
}

/// How many columns `paylatch.planned` has.
const PLANNED: usize = 28;

/// A row of `paylatch.planned`; the state is a flow's or a refund's.
fn planned(
    place: &Place<'_>,
    rules: &Rules,
    after: After,
    told: Option<&Fields>,
    status: &str,
    step: &Step<'_>,
) -> Columns<PLANNED> {
    let asks_wallet = step.action.is_some_and(Action::is_wallet);
    let answered = told.and_then(|told| told.text(0)).map(|action| word::<Action>(Some(action), "action"));
    [
        place.kind.column(),
        place.flow_id.column(),
        place.refund_id.column(),
        place.version.column(),
        place.turn.column(),
        (after == After::Settled).column(),
        (after == After::InPlace).column(),
        told.is_some().column(),
        told.and_then(|told| told.datum(8)),
        // Only a wallet's reference is kept.
        told.filter(|_| answered.is_some_and(Action::is_wallet)).and_then(|told| told.datum(9)),
        told.and_then(|told| told.datum(10)),
        status.column(),
        step.froze.map(|reason| reason.as_str()).column(),
        step.error_class.map(|class| class.as_str()).column(),
        step.logged_action.map(Action::as_str).column(),
        step.changed.column(),
        step.action.map(Action::as_str).column(),
        step.due_at.column(),
        step.facts.retry_count.column(),
        step.facts.act_unread.column(),
        step.facts.act_sent_at.column(),
        step.facts.act_lease_until.column(),
        step.facts.negative_count.column(),
        step.facts.negative_since.column(),
        step.facts.last_outcome.map(|outcome| outcome.as_str()).column(),
        lane(step.facts.status).column(),
        (if asks_wallet { rules.call_timeout_ms } else { rules.business_timeout_ms } as i32).column(),
        rules.business_target.as_deref().filter(|_| !asks_wallet).column(),
    ]
}

/// The lane of the queue in which a flow waits: refunds and new charges have separate shares, questions come first
/// after an outage, and business calls spend no wallet budget.
pub fn lane(status: Status) -> &'static str {
    match status {
        Status::WaitPay => "new",
        Status::Paying => "ask",
        Status::Refunding => "refund",
        Status::Payed | Status::BizSuccess | Status::Refunded | Status::PayFail => "biz",
    }
}

fn flow_facts(row: &Fields) -> Facts<'_> {
    Facts {
        flow_id: required(row.i64(0), "flow_id"),
        trade_order_no: required(row.text(4), "trade_order_no"),
        amount: required(row.i64(5), "amount"),
        currency: required(row.text(6), "currency"),
        status: word(row.text(7), "status"),
        frozen: row.bool(8),
        retry_count: row.i32(9).unwrap_or(0),
        act_unread: row.bool(10),
        act_sent_at: row.i64(11),
        act_lease_until: row.i64(12),
        negative_count: row.i32(13).unwrap_or(0),
        negative_since: row.i64(14),
        last_outcome: row.text(15).map(|text| word(Some(text), "last_outcome")),
        deadline: required(row.i64(16), "deadline"),
        cancelled: row.bool(17),
        refund: None,
    }
}

fn refund_facts(row: &Fields) -> refund::Facts<'_> {
    refund::Facts {
        refund_id: required(row.i64(0), "refund_id"),
        number: required(row.text(4), "refund_order_no"),
        amount: required(row.i64(5), "amount"),
        currency: required(row.text(6), "currency"),
        status: word(row.text(7), "status"),
        frozen: row.bool(8),
        retry_count: row.i32(9).unwrap_or(0),
        act_unread: row.bool(10),
        act_sent_at: row.i64(11),
        act_lease_until: row.i64(12),
        negative_count: row.i32(13).unwrap_or(0),
        negative_since: row.i64(14),
        last_outcome: row.text(15).map(|text| word(Some(text), "last_outcome")),
        kind: word(row.text(16), "kind"),
    }
}

fn policy(rules: &Fields) -> Policy {
    Policy {
        business_mode: word(rules.text(0), "business_mode"),
        business_can_close: rules.bool(1),
        biz_grace_ms: required(rules.i64(2), "biz_grace_ms"),
        curve: Curve {
            base_ms: required(rules.i32(3), "retry_base_ms"),
            factor_percent: required(rules.i32(4), "retry_factor_percent"),
            max_ms: required(rules.i32(5), "retry_max_ms"),
            jitter_percent: required(rules.i32(6), "retry_jitter_percent"),
        },
        max_auto_retries: required(rules.i32(7), "max_auto_retries"),
        slow_interval_ms: required(rules.i64(8), "slow_interval_ms"),
        refund_max_failures: required(rules.i32(9), "refund_max_failures"),
        can_resend: rules.bool(10),
        can_close_charge: rules.bool(11),
        resend_window_ms: required(rules.i64(12), "resend_window_ms"),
        not_found_final_after_ms: rules.i64(13),
    }
}

/// `None` for an all-NULL row: there is no evidence.
fn evidence(told: &Fields) -> Option<Evidence<'_>> {
    Some(Evidence {
        action: word(Some(told.text(0)?), "action"),
        outcome: word(told.text(1), "outcome"),
        asked_at: required(told.i64(2), "asked_at"),
        number: told.text(3),
        amount: told.i64(4),
        currency: told.text(5),
        owner: told.text(6),
    })
}

/// # Safety
/// The datum must be an array of text.
unsafe fn names(datum: Option<pg_sys::Datum>) -> Vec<String> {
    // SAFETY: as the caller says.
    unsafe { Vec::<String>::from_datum(required(datum, "names"), false) }.unwrap_or_default()
}
