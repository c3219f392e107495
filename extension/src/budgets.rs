//! The SQL faces of budgets: composites in, composites out. What they decide is `paylatch_core`'s.

use pgrx::pg_sys;

use paylatch_core::budget::{self, Breaker, Limits, State};

use crate::composite::{Fields, IntoColumn, arg, compose, pg_function, required, word};

pg_function!(pg_finfo_paylatch_grant, paylatch_grant, run_grant);
pg_function!(pg_finfo_paylatch_spend, paylatch_spend, run_spend);
pg_function!(pg_finfo_paylatch_settle, paylatch_settle, run_settle);

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
