//! The words that the table is written in: rows of the database, policies, answers, and what shall happen.

use paylatch_core::backoff::Curve;
use paylatch_core::decide::{Evidence, Facts, Reason};
use paylatch_core::flow::Status::{self, *};
use paylatch_core::outcome::Action::{self, *};
use paylatch_core::outcome::Outcome::{self, *};
use paylatch_core::policy::{BusinessMode, Policy};
use paylatch_core::step::{Leave, Step, step};
use paylatch_core::{Micros, NEVER};

pub(crate) const SECOND: Micros = 1_000_000;
pub(crate) const NOW: Micros = 1_000_000 * SECOND;
pub(crate) const LEASE: Micros = NOW + 30 * SECOND;
pub(crate) const NUMBER: &str = "h2r_u6_p1";
pub(crate) const REFUND_NUMBER: &str = "r_h2r_u6_p1";
pub(crate) const OTHER: &str = "h2r_u6_p2";

/// Retries after 1, 2, 4 ... 60 s, and every 300 s once ten have been made. The grace is 20 s.
pub(crate) const HTTP: Policy = Policy {
    business_mode: BusinessMode::Http,
    business_can_close: false,
    biz_grace_ms: 20_000,
    curve: Curve { base_ms: 1_000, factor_percent: 200, max_ms: 60_000, jitter_percent: 0 },
    max_auto_retries: 10,
    slow_interval_ms: 300_000,
    refund_max_failures: 3,
    can_resend: true,
    can_close_charge: false,
    resend_window_ms: 3_600_000,
    not_found_final_after_ms: Some(400_000),
};
pub(crate) const CLOSES: Policy = Policy { can_close_charge: true, ..HTTP };
pub(crate) const SENDS_ONCE: Policy = Policy { can_resend: false, ..HTTP };
pub(crate) const NEVER_FINAL: Policy = Policy { not_found_final_after_ms: None, ..HTTP };
pub(crate) const BUSINESS_CLOSES: Policy = Policy { business_can_close: true, ..HTTP };
pub(crate) const SQL: Policy = Policy { business_mode: BusinessMode::Sql, ..HTTP };
pub(crate) const SQL_CLOSES: Policy = Policy { business_can_close: true, ..SQL };
pub(crate) const NO_BUSINESS: Policy = Policy { business_mode: BusinessMode::None, ..HTTP };

pub(crate) const FREELY: Leave = Leave { lease_until: Some(LEASE), questions_only: false, wallet_may_leave: true };
pub(crate) const NOTHING_LEAVES: Leave = Leave { lease_until: None, ..FREELY };
pub(crate) const QUESTIONS_ONLY: Leave = Leave { questions_only: true, ..FREELY };
pub(crate) const WALLET_QUEUES: Leave = Leave { wallet_may_leave: false, ..FREELY };

// The row.

pub(crate) fn flow(status: Status) -> Facts<'static> {
    Facts {
        flow_id: 901,
        trade_order_no: NUMBER,
        amount: 500,
        currency: "CNY",
        deadline: NOW + 600 * SECOND,
        cancelled: false,
        status,
        frozen: false,
        retry_count: 0,
        act_unread: false,
        act_sent_at: None,
        act_lease_until: None,
        negative_count: 0,
        negative_since: None,
        last_outcome: None,
        refund: None,
    }
}

pub(crate) fn sent(status: Status) -> Facts<'static> {
    let (sent_at, lease) = (Some(NOW - 60 * SECOND), Some(NOW - 30 * SECOND));
    Facts { act_unread: true, act_sent_at: sent_at, act_lease_until: lease, ..flow(status) }
}

pub(crate) fn wait_pay() -> Facts<'static> {
    flow(WaitPay)
}
pub(crate) fn charge_sent() -> Facts<'static> {
    sent(Paying)
}
pub(crate) fn payed() -> Facts<'static> {
    flow(Payed)
}
pub(crate) fn execute_sent() -> Facts<'static> {
    sent(Payed)
}
pub(crate) fn refunding() -> Facts<'static> {
    flow(Refunding)
}
pub(crate) fn refund_sent() -> Facts<'static> {
    sent(Refunding)
}

pub(crate) trait Given: Sized {
    fn cancelled(self) -> Self;
    fn deadline(self, seconds: i64) -> Self;
    fn lease_ends(self, seconds: i64) -> Self;
    fn first_sent(self, seconds: i64) -> Self;
    fn settled(self) -> Self;
    fn negatives(self, count: i32, since: i64) -> Self;
    fn last(self, outcome: Outcome) -> Self;
    fn retried(self, times: i32) -> Self;
    fn unanswered(self, times: i32) -> Self;
    fn frozen(self) -> Self;
}

impl Given for Facts<'_> {
    fn cancelled(self) -> Self {
        Self { cancelled: true, ..self }
    }
    fn deadline(self, seconds: i64) -> Self {
        Self { deadline: NOW + seconds * SECOND, ..self }
    }
    fn lease_ends(self, seconds: i64) -> Self {
        Self { act_lease_until: Some(NOW + seconds * SECOND), ..self }
    }
    fn first_sent(self, seconds: i64) -> Self {
        Self { act_sent_at: Some(NOW + seconds * SECOND), ..self }
    }
    fn settled(self) -> Self {
        Self { act_unread: false, ..self }
    }
    fn negatives(self, negative_count: i32, since: i64) -> Self {
        Self { negative_count, negative_since: Some(NOW + since * SECOND), ..self }
    }
    fn last(self, outcome: Outcome) -> Self {
        Self { last_outcome: Some(outcome), ..self }
    }
    fn unanswered(self, times: i32) -> Self {
        Self { retry_count: times, negative_count: times, ..self }
    }
    fn retried(self, retry_count: i32) -> Self {
        Self { retry_count, ..self }
    }
    fn frozen(self) -> Self {
        Self { frozen: true, ..self }
    }
}

// What came back.

pub(crate) type Told = Option<Evidence<'static>>;

/// Nothing: the row is simply due.
pub(crate) const DUE: Told = None;

/// An answer asked for a second ago. A success echoes everything, a DONE names this flow.
pub(crate) fn says(action: Action, outcome: Outcome) -> Told {
    let number = if matches!(action, Refund | QueryRefund) { REFUND_NUMBER } else { NUMBER };
    let echo = outcome == Succeeded;
    Some(Evidence {
        action,
        outcome,
        asked_at: NOW - SECOND,
        number: echo.then_some(number),
        amount: echo.then_some(500),
        currency: echo.then_some("CNY"),
        owner: (outcome == Done).then_some(NUMBER),
    })
}

pub(crate) fn says_at(seconds: i64, action: Action, outcome: Outcome) -> Told {
    says(action, outcome).map(|told| Evidence { asked_at: NOW + seconds * SECOND, ..told })
}

pub(crate) fn echoes(
    action: Action,
    number: Option<&'static str>,
    amount: Option<i64>,
    currency: Option<&'static str>,
) -> Told {
    says(action, Succeeded).map(|told| Evidence { number, amount, currency, ..told })
}

pub(crate) fn done_by(action: Action, owner: Option<&'static str>) -> Told {
    says(action, Done).map(|told| Evidence { owner, ..told })
}

// What shall happen.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Then {
    pub(crate) status: Option<Status>,
    pub(crate) froze: Option<Reason>,
    pub(crate) action: Option<Action>,
    pub(crate) due_at: Micros,
    pub(crate) again: bool,
    pub(crate) changed: bool,
    pub(crate) unread: Option<bool>,
    pub(crate) negatives: Option<i32>,
}

pub(crate) const STAYS: Then = Then {
    status: None,
    froze: None,
    action: None,
    due_at: NOW,
    again: false,
    changed: true,
    unread: None,
    negatives: None,
};
pub(crate) const NOTHING: Then = Then { due_at: NEVER, changed: false, ..STAYS };

/// Stays; due in so many seconds.
pub(crate) fn waits(seconds: i64) -> Then {
    Then { due_at: NOW + seconds * SECOND, ..STAYS }
}

/// Stays; this leaves at once, under the lease.
pub(crate) fn sends(action: Action) -> Then {
    Then { action: Some(action), due_at: LEASE, ..STAYS }
}

/// Nothing came back and nothing changes; this question leaves.
pub(crate) fn asks(action: Action) -> Then {
    Then { changed: false, ..sends(action) }
}

pub(crate) fn becomes(status: Status) -> Then {
    let due_at = if status.is_terminal() { NEVER } else { NOW };
    Then { status: Some(status), due_at, ..STAYS }
}

pub(crate) fn freezes(reason: Reason) -> Then {
    Then { froze: Some(reason), due_at: NEVER, ..STAYS }
}

impl Then {
    pub(crate) fn and_sends(self, action: Action) -> Self {
        Self { action: Some(action), due_at: LEASE, ..self }
    }
    pub(crate) fn and_in_place(self, action: Action) -> Self {
        Self { action: Some(action), due_at: NOW, ..self }
    }
    pub(crate) fn and_again(self) -> Self {
        Self { again: true, ..self }
    }
    pub(crate) fn unchanged(self) -> Self {
        Self { changed: false, ..self }
    }
    pub(crate) fn unread(self) -> Self {
        Self { unread: Some(true), ..self }
    }
    pub(crate) fn settled(self) -> Self {
        Self { unread: Some(false), ..self }
    }
    pub(crate) fn negatives(self, count: i32) -> Self {
        Self { negatives: Some(count), ..self }
    }

    /// What did happen, in the terms of this expectation.
    fn of(self, was: &Facts<'_>, step: &Step<'_>) -> Self {
        Self {
            status: (step.facts.status != was.status).then_some(step.facts.status),
            froze: step.froze,
            action: step.action,
            due_at: step.due_at,
            again: step.again,
            changed: step.changed,
            unread: self.unread.map(|_| step.facts.act_unread),
            negatives: self.negatives.map(|_| step.facts.negative_count),
        }
    }
}

pub(crate) type Row = (&'static str, Facts<'static>, Policy, Told, Then);

pub(crate) fn hold(rows: &[Row], leave: Leave) {
    let mut wrong = String::new();
    for (name, facts, policy, told, then) in rows {
        let got = then.of(facts, &step(facts, policy, told.as_ref(), NOW, leave));
        if got != *then {
            wrong.push_str(&format!("\n{name}\n  shall {then:?}\n  did   {got:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
