//! The SQL faces of steps and budgets: composites in, composites out.
//!
//! These are called once per row of a set, so they take rows apart by position. What they decide is
//! `paylatch_core`'s; nothing is decided here.

use std::str::FromStr;

use pgrx::pg_sys;
use pgrx::prelude::*;

use paylatch_core::backoff::Curve;
use paylatch_core::budget::{self, Breaker, Limits, State};
use paylatch_core::decide::{Evidence, Facts};
use paylatch_core::flow::Status;
use paylatch_core::outcome::Action;
use paylatch_core::policy::Policy;
use paylatch_core::refund;
use paylatch_core::step::{self, Leave, Step};

use crate::composite::{Fields, IntoColumn, arg, compose, pg_function};

pg_function!(pg_finfo_paylatch_step, paylatch_step, run_step);
pg_function!(pg_finfo_paylatch_refund_step, paylatch_refund_step, run_refund_step);
pg_function!(pg_finfo_paylatch_retry_at, paylatch_retry_at, run_retry_at);
pg_function!(pg_finfo_paylatch_grant, paylatch_grant, run_grant);
pg_function!(pg_finfo_paylatch_spend, paylatch_spend, run_spend);
pg_function!(pg_finfo_paylatch_settle, paylatch_settle, run_settle);

/// `step(facts, policy, told, now, lease_until, questions_only, wallet_may_leave)`.
unsafe fn run_step(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let row = required(Fields::of_composite(arg(fcinfo, 0), 15), "facts");
        let rules = required(Fields::of_composite(arg(fcinfo, 1), 14), "policy");
        let told = Fields::of_composite(arg(fcinfo, 2), 12);
        let (now, leave) = now_and_leave(fcinfo);
        let facts = facts(&row);
        let evidence = told.as_ref().and_then(evidence);
        let step = step::step(&facts, &policy(&rules), evidence.as_ref(), now, leave);
        compose(fcinfo, stepped(step.facts.status.as_str(), &step))
    }
}

/// `refund_step(facts, policy, told, now, lease_until, questions_only, wallet_may_leave)`.
unsafe fn run_refund_step(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let row = required(Fields::of_composite(arg(fcinfo, 0), 14), "facts");
        let rules = required(Fields::of_composite(arg(fcinfo, 1), 14), "policy");
        let told = Fields::of_composite(arg(fcinfo, 2), 12);
        let (now, leave) = now_and_leave(fcinfo);
        let facts = refund_facts(&row);
        let evidence = told.as_ref().and_then(evidence);
        let (status, step) = refund::step(&facts, &policy(&rules), evidence.as_ref(), now, leave);
        compose(fcinfo, stepped(status.as_str(), &step))
    }
}

unsafe fn now_and_leave(fcinfo: pg_sys::FunctionCallInfo) -> (i64, Leave) {
    // SAFETY: the caller's declaration has these as its arguments 3 to 6.
    unsafe {
        let leave = Leave {
            lease_until: arg(fcinfo, 4).map(|datum| datum.value() as i64),
            questions_only: arg(fcinfo, 5).is_some_and(|datum| datum.value() & 0xFF != 0),
            wallet_may_leave: arg(fcinfo, 6).is_some_and(|datum| datum.value() & 0xFF != 0),
        };
        (required(arg(fcinfo, 3), "now").value() as i64, leave)
    }
}

/// The columns of `paylatch.step`; the state is a flow's or a refund's.
fn stepped(status: &str, step: &Step<'_>) -> [Option<pg_sys::Datum>; 16] {
    [
        status.column(),
        step.froze.map(|reason| reason.as_str()).column(),
        step.error_class.map(|class| class.as_str()).column(),
        step.logged_action.map(Action::as_str).column(),
        step.changed.column(),
        step.action.map(Action::as_str).column(),
        step.due_at.column(),
        step.again.column(),
        step.facts.retry_count.column(),
        step.facts.act_unread.column(),
        step.facts.act_sent_at.column(),
        step.facts.act_lease_until.column(),
        step.facts.negative_count.column(),
        step.facts.negative_since.column(),
        step.facts.last_outcome.map(|outcome| outcome.as_str()).column(),
        lane(step.facts.status).column(),
    ]
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

fn facts(row: &Fields) -> Facts<'_> {
    Facts {
        flow_id: required(row.i64(0), "flow_id"),
        trade_order_no: required(row.text(1), "trade_order_no"),
        amount: required(row.i64(2), "amount"),
        currency: required(row.text(3), "currency"),
        deadline: required(row.i64(4), "deadline"),
        cancelled: row.bool(5),
        status: word(row.text(6), "status"),
        frozen: row.bool(7),
        retry_count: row.i32(8).unwrap_or(0),
        act_unread: row.bool(9),
        act_sent_at: row.i64(10),
        act_lease_until: row.i64(11),
        negative_count: row.i32(12).unwrap_or(0),
        negative_since: row.i64(13),
        last_outcome: row.text(14).map(|text| word(Some(text), "last_outcome")),
        refund: None,
    }
}

fn refund_facts(row: &Fields) -> refund::Facts<'_> {
    refund::Facts {
        refund_id: required(row.i64(0), "refund_id"),
        number: required(row.text(1), "refund_order_no"),
        amount: required(row.i64(2), "amount"),
        currency: required(row.text(3), "currency"),
        kind: word(row.text(4), "kind"),
        status: word(row.text(5), "status"),
        frozen: row.bool(6),
        retry_count: row.i32(7).unwrap_or(0),
        act_unread: row.bool(8),
        act_sent_at: row.i64(9),
        act_lease_until: row.i64(10),
        negative_count: row.i32(11).unwrap_or(0),
        negative_since: row.i64(12),
        last_outcome: row.text(13).map(|text| word(Some(text), "last_outcome")),
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

/// `None` for an all-NULL row, which is how an outer join says that there is no evidence.
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

/// `grant_budget(limits, breaker, now, want, doubtful)`.
unsafe fn run_grant(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let (limits, state) = limits_and_state(fcinfo);
        let now = required(arg(fcinfo, 2), "now").value() as i64;
        let want = required(arg(fcinfo, 3), "want").value() as i32;
        let doubtful = arg(fcinfo, 4).is_some_and(|datum| datum.value() & 0xFF != 0);
        let grant = budget::grant(&limits, &state, now, want, doubtful);
        let [breaker, failures, moved_at, probes_left, tokens, filled_at, in_flight] = columns(&grant.state);
        compose(
            fcinfo,
            [
                grant.total.column(),
                grant.refunds_first.column(),
                grant.questions_only.column(),
                breaker,
                failures,
                moved_at,
                probes_left,
                tokens,
                filled_at,
                in_flight,
            ],
        )
    }
}

/// `spend_budget(limits, breaker, now, calls)`.
unsafe fn run_spend(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let (limits, state) = limits_and_state(fcinfo);
        let now = required(arg(fcinfo, 2), "now").value() as i64;
        let calls = required(arg(fcinfo, 3), "calls").value() as i32;
        compose(fcinfo, columns(&budget::spend(&limits, &state, now, calls)))
    }
}

/// `settle_breaker(limits, breaker, now, answered, failed, run)`.
unsafe fn run_settle(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the SQL declaration in native.sql gives the argument and result types that are read here.
    unsafe {
        let (limits, state) = limits_and_state(fcinfo);
        let now = required(arg(fcinfo, 2), "now").value() as i64;
        let count = |n| required(arg(fcinfo, n), "count").value() as i32;
        let state = budget::settle(&limits, &state, now, count(3), count(4), count(5));
        compose(fcinfo, columns(&state))
    }
}

unsafe fn limits_and_state(fcinfo: pg_sys::FunctionCallInfo) -> (Limits, State) {
    // SAFETY: the caller's declaration has the two composites first.
    let (limits, state) = unsafe { (Fields::of_composite(arg(fcinfo, 0), 7), Fields::of_composite(arg(fcinfo, 1), 7)) };
    let (limits, state) = (required(limits, "limits"), required(state, "breaker"));
    let limits = Limits {
        max_in_flight: limits.i32(0),
        rate_per_second: limits.i32(1),
        ramp_ms: required(limits.i64(2), "ramp_ms"),
        refund_share_percent: required(limits.i32(3), "refund_share_percent"),
        breaker_threshold: required(limits.i32(4), "breaker_threshold"),
        breaker_open_ms: required(limits.i64(5), "breaker_open_ms"),
        breaker_probes: required(limits.i32(6), "breaker_probes"),
    };
    let state = State {
        breaker: word::<Breaker>(state.text(0), "breaker"),
        failures: state.i32(1).unwrap_or(0),
        moved_at: state.i64(2),
        probes_left: state.i32(3).unwrap_or(0),
        tokens_milli: state.i64(4).unwrap_or(0),
        filled_at: state.i64(5),
        in_flight: state.i32(6).unwrap_or(0),
    };
    (limits, state)
}

fn columns(state: &State) -> [Option<pg_sys::Datum>; 7] {
    [
        state.breaker.as_str().column(),
        state.failures.column(),
        state.moved_at.column(),
        state.probes_left.column(),
        state.tokens_milli.column(),
        state.filled_at.column(),
        state.in_flight.column(),
    ]
}

fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| error!("{name} must not be null"))
}

fn word<T: FromStr<Err: std::fmt::Display>>(text: Option<&str>, name: &str) -> T {
    T::from_str(required(text, name)).unwrap_or_else(|unknown| {
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("{name}: {unknown}"));
    })
}
