//! The decision tables: what evidence proves, and what to do next.
//!
//! [`decide`] turns (row, evidence) into one [`Decision`]; [`next_action`] picks what a due row needs. Both are total:
//! every combination has an answer, and none looks at anything but its arguments. Three ideas carry the tables:
//!
//! - An *act* (charge, execute, refund) is announced in a committed row before it leaves. Until an answer settles it,
//!   `act_unread` is set and only questions are asked, always under the same number.
//! - A negative answer proves something only if it was asked after the last lease in which the act could have left.
//! - Not knowing is never a failure. UNKNOWN leads to another question, to slower questions, to a person; to no edge.

use std::borrow::Cow;

use crate::flow::Status;
use crate::outcome::{Action, Outcome};
use crate::policy::{BusinessMode, Policy};
use crate::refund::Kind;
use crate::words::words;
use crate::{MS, Micros, order_no};

words! {
    /// Why a flow waits for a person.
    Reason {
        /// The channel cannot say whether an old charge exists, and no setting makes NOT_FOUND final.
        ChargeUnresolved = "CHARGE_UNRESOLVED",
        /// A success echoed another number, amount or currency.
        EvidenceMismatch = "EVIDENCE_MISMATCH",
        /// The counterparty holds other parameters under our number.
        ParameterConflict = "PARAMETER_CONFLICT",
        /// The business is done and does not say for whom.
        Unattributed = "UNATTRIBUTED",
        /// The business contradicts itself.
        BusinessContradictory = "BUSINESS_CONTRADICTORY",
        /// The business could not be asked for too long.
        BusinessUnresolved = "BUSINESS_UNRESOLVED",
        /// The wallet refuses the refund.
        RefundFailed = "REFUND_FAILED",
        /// The wallet has forgotten our keys and does not know the refund.
        RefundUnresolved = "REFUND_UNRESOLVED",
        /// Evidence for a branch that the flow had already excluded.
        ExcludedBranch = "EXCLUDED_BRANCH",
        /// Processing this flow failed inside the database.
        Poison = "POISON",
        /// A person froze it.
        Operator = "OPERATOR",
    }
}

/// The row as decisions see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The flow.
    pub flow_id: i64,
    /// The charge's number; the refund's derives from it.
    pub trade_order_no: &'a str,
    /// Minor units.
    pub amount: i64,
    /// Currency or asset code.
    pub currency: &'a str,
    /// No business act leaves after this.
    pub deadline: Micros,
    /// A client asked to cancel.
    pub cancelled: bool,
    /// The state.
    pub status: Status,
    /// Waits for a person.
    pub frozen: bool,
    /// Tries in this state.
    pub retry_count: i32,
    /// This state's act was announced and no answer has settled what became of it.
    pub act_unread: bool,
    /// When this state's act was first announced.
    pub act_sent_at: Option<Micros>,
    /// End of the last lease in which it could have left.
    pub act_lease_until: Option<Micros>,
    /// Answers that led nowhere: NOT_FOUND since the last send while charging, UNKNOWN or UNAVAILABLE in a row while the
    /// business is awaited, FAILED while refunding.
    pub negative_count: i32,
    /// While charging: when the first of them was asked. While the business is awaited: when the last NOT_DONE was.
    pub negative_since: Option<Micros>,
    /// The newest outcome in this state.
    pub last_outcome: Option<Outcome>,
    /// `None`: the row is a flow, and its refund is its own undo. Else it is a refund of this kind in the guise of a flow
    /// that is REFUNDING; `trade_order_no` is its own number then. See [`crate::refund`].
    pub refund: Option<Kind>,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence<'a> {
    /// The action that it answers.
    pub action: Action,
    /// Its class.
    pub outcome: Outcome,
    /// No later than the moment the request started.
    pub asked_at: Micros,
    /// The number that the counterparty echoed.
    pub number: Option<&'a str>,
    /// The amount that it echoed.
    pub amount: Option<i64>,
    /// The currency that it echoed.
    pub currency: Option<&'a str>,
    /// Whose doing a DONE is.
    pub owner: Option<&'a str>,
}

/// What evidence does to a row: at most one edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Take this edge.
    Become(Status),
    /// Wait for a person.
    Freeze(Reason),
    /// The wallet will not refund it: the refund has failed. Never said of a flow.
    Refused,
    /// No edge.
    Stay(Stay),
}

/// How a row that stays goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// What became of the act is still open.
    pub unread: bool,
    /// The new `(negative_count, negative_since)`.
    pub negative: (i32, Option<Micros>),
    /// Counts as a retry.
    pub retried: bool,
    /// When to go on.
    pub resume: Resume,
}

/// When a row that stays goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// At once.
    Now,
    /// By the retry curve.
    Backoff,
    /// By the retry curve, but no later than this.
    BackoffUntil(Micros),
    /// By the retry curve, but no earlier than this.
    BackoffFrom(Micros),
    /// At this time.
    At(Micros),
}

/// What a due row needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Carry this out.
    Act(Action),
    /// Take this edge; nothing outside is needed.
    Become(Status),
    /// Final or frozen.
    Nothing,
}

impl Facts<'_> {
    /// The deadline has passed or the client does not want it any more.
    pub const fn expired(&self, now: Micros) -> bool {
        self.cancelled || now >= self.deadline
    }

    /// After this a NOT_DONE is final; `None`: at once, since nothing was ever executed.
    pub fn business_cutoff(&self, policy: &Policy) -> Option<Micros> {
        let grace = policy.biz_grace_ms.saturating_mul(MS);
        let end = if self.cancelled { self.act_lease_until?.min(self.deadline) } else { self.deadline };
        Some(end.saturating_add(grace))
    }

    /// Never sent; or the channel accepts a second send and the provider still remembers its idempotency keys.
    pub fn may_send(&self, policy: &Policy, now: Micros) -> bool {
        let window = policy.resend_window_ms.saturating_mul(MS);
        self.act_sent_at.is_none_or(|sent| policy.can_resend && now < sent.saturating_add(window))
    }

    /// Asked when the act could no longer be on its way.
    fn asked_after_lease(&self, evidence: &Evidence<'_>) -> bool {
        self.act_lease_until.is_none_or(|end| evidence.asked_at > end)
    }

    const fn stay(&self, resume: Resume) -> Stay {
        let negative = (self.negative_count, self.negative_since);
        Stay { unread: self.act_unread, negative, retried: true, resume }
    }
}

/// What a due, unleased row needs at `now`.
pub fn next_action(facts: &Facts<'_>, policy: &Policy, now: Micros) -> Next {
    if facts.frozen {
        return Next::Nothing;
    }
    match facts.status {
        Status::WaitPay if facts.expired(now) => Next::Become(Status::Paying),
        Status::WaitPay => Next::Act(Action::Charge),
        Status::Paying => next_while_paying(facts, policy, now),
        Status::Payed => next_while_payed(facts, policy, now),
        Status::Refunding if facts.act_unread => Next::Act(Action::QueryRefund),
        Status::Refunding if facts.may_send(policy, now) => Next::Act(Action::Refund),
        Status::Refunding => Next::Act(Action::QueryRefund),
        Status::BizSuccess | Status::Refunded | Status::PayFail => Next::Nothing,
    }
}

fn next_while_paying(facts: &Facts<'_>, policy: &Policy, now: Micros) -> Next {
    if facts.act_unread {
        return Next::Act(Action::QueryCharge);
    }
    if facts.expired(now) {
        return match facts.act_sent_at {
            None => Next::Become(Status::PayFail),
            Some(_) if policy.can_close_charge => Next::Act(Action::CloseCharge),
            Some(_) => Next::Act(Action::QueryCharge),
        };
    }
    if facts.may_send(policy, now) { Next::Act(Action::Charge) } else { Next::Act(Action::QueryCharge) }
}

fn next_while_payed(facts: &Facts<'_>, policy: &Policy, now: Micros) -> Next {
    if policy.business_mode == BusinessMode::None {
        return Next::Become(Status::BizSuccess);
    }
    if facts.act_unread {
        return Next::Act(Action::QueryBusiness);
    }
    if !facts.expired(now) {
        return Next::Act(Action::ExecuteBusiness);
    }
    let finally_not_done = facts.last_outcome == Some(Outcome::NotDone)
        && facts.business_cutoff(policy).is_none_or(|end| facts.negative_since.is_some_and(|asked| asked > end));
    if finally_not_done && policy.business_can_close {
        Next::Act(Action::CloseBusiness)
    } else {
        Next::Act(Action::QueryBusiness)
    }
}

impl Evidence<'_> {
    /// Evidence that its action cannot bring is taken as UNKNOWN: it proves nothing, and the flow asks again.
    #[must_use]
    pub const fn taken(self) -> Self {
        let outcome = if self.action.may_report(self.outcome) { self.outcome } else { Outcome::Unknown };
        Self { outcome, ..self }
    }

    /// Whether it names exactly this number, amount and currency; a missing one is a difference.
    pub fn echoes(&self, number: &str, amount: i64, currency: &str) -> bool {
        self.number == Some(number) && self.amount == Some(amount) && self.currency == Some(currency)
    }
}

/// Whether evidence for this action can decide a row in this state.
pub const fn answers(status: Status, action: Action) -> bool {
    match status {
        Status::Paying => matches!(action, Action::Charge | Action::QueryCharge | Action::CloseCharge),
        Status::Payed => !action.is_wallet(),
        Status::Refunding => matches!(action, Action::Refund | Action::QueryRefund),
        Status::WaitPay | Status::BizSuccess | Status::Refunded | Status::PayFail => false,
    }
}

/// What `evidence` does to the row. The caller has made sure that it answers this row's present lease.
pub fn decide(facts: &Facts<'_>, policy: &Policy, evidence: &Evidence<'_>) -> Decision {
    let evidence = evidence.taken();
    match facts.status {
        _ if !answers(facts.status, evidence.action) || facts.frozen => {
            Decision::Stay(Stay { retried: false, ..facts.stay(Resume::Now) })
        }
        Status::Paying => decide_paying(facts, policy, &evidence),
        Status::Payed => decide_payed(facts, policy, &evidence),
        _ => decide_refunding(facts, policy, &evidence),
    }
}

fn decide_paying(facts: &Facts<'_>, policy: &Policy, evidence: &Evidence<'_>) -> Decision {
    let asked_again = Decision::Stay(Stay { unread: true, ..facts.stay(Resume::Backoff) });
    match (evidence.action, evidence.outcome) {
        (_, Outcome::Succeeded) => match echoes(facts, evidence, facts.trade_order_no) {
            true => Decision::Become(Status::Payed),
            false => Decision::Freeze(Reason::EvidenceMismatch),
        },
        (_, Outcome::Failed) => Decision::Become(Status::PayFail),
        (_, Outcome::Conflict) => Decision::Freeze(Reason::ParameterConflict),
        (_, Outcome::NotFound) => decide_charge_not_found(facts, policy, evidence),
        // A close is believed only once a later question confirms it: the customer may have paid in between.
        (_, Outcome::Closed) => Decision::Stay(Stay { unread: true, retried: false, ..facts.stay(Resume::Now) }),
        // Seen by the wallet: the negative answers before it were wrong.
        (_, Outcome::Processing) => {
            Decision::Stay(Stay { unread: true, negative: (0, None), ..facts.stay(Resume::Backoff) })
        }
        (Action::QueryCharge, _) => Decision::Stay(facts.stay(Resume::Backoff)),
        _ => asked_again,
    }
}

fn decide_charge_not_found(facts: &Facts<'_>, policy: &Policy, evidence: &Evidence<'_>) -> Decision {
    if !facts.asked_after_lease(evidence) {
        let end = facts.act_lease_until.unwrap_or(evidence.asked_at);
        return Decision::Stay(facts.stay(Resume::BackoffFrom(end.saturating_add(MS))));
    }
    if facts.last_outcome == Some(Outcome::Closed) {
        return Decision::Become(Status::PayFail);
    }
    let (negative, apart) = count_negative(facts, policy, evidence.asked_at);
    let settled = Stay { unread: false, negative, ..facts.stay(Resume::Backoff) };
    if !facts.expired(evidence.asked_at) {
        let resume = if facts.may_send(policy, evidence.asked_at) { Resume::Now } else { Resume::Backoff };
        return Decision::Stay(Stay { retried: resume == Resume::Backoff, resume, ..settled });
    }
    if policy.can_close_charge {
        return Decision::Stay(Stay { retried: false, resume: Resume::Now, ..settled });
    }
    let since_lease = evidence.asked_at - facts.act_lease_until.unwrap_or(evidence.asked_at);
    match policy.not_found_final_after_ms {
        None if negative.0 >= 3 => Decision::Freeze(Reason::ChargeUnresolved),
        Some(span) if negative.0 >= 3 && since_lease >= span.saturating_mul(MS) => Decision::Become(Status::PayFail),
        _ => Decision::Stay(Stay { resume: Resume::At(evidence.asked_at.saturating_add(apart)), ..settled }),
    }
}

/// Counts a negative answer if it was asked apart from the ones before: a burst of questions is one answer.
fn count_negative(facts: &Facts<'_>, policy: &Policy, asked_at: Micros) -> ((i32, Option<Micros>), Micros) {
    let shortest = i64::from(policy.curve.base_ms.max(1)) * MS;
    let longest = policy.slow_interval_ms.saturating_mul(MS).max(shortest);
    let quarter = policy.not_found_final_after_ms.map_or(shortest, |span| span.saturating_mul(MS) / 4);
    let apart = quarter.clamp(shortest, longest);
    let negative = match facts.negative_since {
        None => (1, Some(asked_at)),
        Some(first) if asked_at >= first.saturating_add(apart.saturating_mul(facts.negative_count.into())) => {
            (facts.negative_count.saturating_add(1), Some(first))
        }
        Some(_) => (facts.negative_count, facts.negative_since),
    };
    (negative, apart)
}

fn decide_payed(facts: &Facts<'_>, policy: &Policy, evidence: &Evidence<'_>) -> Decision {
    match (evidence.action, evidence.outcome) {
        // What the act answered proves nothing; read the fact.
        (Action::ExecuteBusiness, _) => {
            Decision::Stay(Stay { unread: true, retried: false, ..facts.stay(Resume::Now) })
        }
        (_, Outcome::Done) => match evidence.owner {
            Some(owner) if owner == facts.trade_order_no => Decision::Become(Status::BizSuccess),
            Some(_) => Decision::Become(Status::Refunding),
            None => Decision::Freeze(Reason::Unattributed),
        },
        (_, Outcome::Rejected | Outcome::Closed) => Decision::Become(Status::Refunding),
        (_, Outcome::Contradictory) => Decision::Freeze(Reason::BusinessContradictory),
        (_, Outcome::NotDone) => decide_not_done(facts, policy, evidence.asked_at),
        // Nobody can say what became of it: neither refund nor wait for ever. An honest NOT_DONE begins the count anew.
        _ => {
            let unanswered = facts.negative_count.saturating_add(1);
            if policy.needs_attention(unanswered) {
                return Decision::Freeze(Reason::BusinessUnresolved);
            }
            let unread = facts.act_unread || evidence.action == Action::CloseBusiness;
            let negative = (unanswered, facts.negative_since);
            Decision::Stay(Stay { unread, negative, ..facts.stay(Resume::Backoff) })
        }
    }
}

fn decide_not_done(facts: &Facts<'_>, policy: &Policy, asked_at: Micros) -> Decision {
    let settled = Stay { unread: false, negative: (0, Some(asked_at)), ..facts.stay(Resume::Now) };
    match facts.business_cutoff(policy) {
        Some(end) if asked_at <= end => {
            let resume = Resume::BackoffUntil(end.saturating_add(MS));
            Decision::Stay(Stay { resume, ..settled })
        }
        _ if policy.business_can_close => Decision::Stay(Stay { retried: false, ..settled }),
        _ => Decision::Become(Status::Refunding),
    }
}

fn decide_refunding(facts: &Facts<'_>, policy: &Policy, evidence: &Evidence<'_>) -> Decision {
    let asked_again = Stay { unread: true, ..facts.stay(Resume::Backoff) };
    match evidence.outcome {
        Outcome::Succeeded => {
            let number = match facts.refund {
                None => Cow::Owned(order_no::compensation(facts.trade_order_no)),
                Some(_) => Cow::Borrowed(facts.trade_order_no),
            };
            match echoes(facts, evidence, &number) {
                true => Decision::Become(Status::Refunded),
                false => Decision::Freeze(Reason::EvidenceMismatch),
            }
        }
        Outcome::Conflict => Decision::Freeze(Reason::ParameterConflict),
        Outcome::Failed if facts.refund.is_some_and(Kind::ends_refused) => Decision::Refused,
        Outcome::Failed => {
            let failures = facts.negative_count.saturating_add(1);
            if failures >= policy.refund_max_failures {
                return Decision::Freeze(Reason::RefundFailed);
            }
            let negative = (failures, facts.negative_since);
            Decision::Stay(Stay { unread: false, negative, ..facts.stay(Resume::Backoff) })
        }
        Outcome::NotFound if !facts.asked_after_lease(evidence) => {
            let end = facts.act_lease_until.unwrap_or(evidence.asked_at);
            Decision::Stay(Stay { resume: Resume::BackoffFrom(end.saturating_add(MS)), ..asked_again })
        }
        Outcome::NotFound if facts.may_send(policy, evidence.asked_at) => {
            Decision::Stay(Stay { unread: false, retried: false, ..facts.stay(Resume::Now) })
        }
        Outcome::NotFound if policy.needs_attention(facts.retry_count.saturating_add(1)) => {
            Decision::Freeze(Reason::RefundUnresolved)
        }
        _ => Decision::Stay(asked_again),
    }
}

/// A success counts only if it echoes our number, amount and currency; a missing echo is a difference.
fn echoes(facts: &Facts<'_>, evidence: &Evidence<'_>, number: &str) -> bool {
    evidence.echoes(number, facts.amount, facts.currency)
}
