//! One step of one flow: evidence applied, then what follows. The only way in which SQL uses the decision tables.
//!
//! A step makes at most one edge and so at most one version. Where the next edge needs nothing from outside, `again`
//! asks the caller to write this step and come back.

use crate::decide::{self, Decision, Evidence, Facts, Next, Reason, Resume};
use crate::flow::Status;
use crate::outcome::{Action, ErrorClass};
use crate::policy::{BusinessMode, Policy};
use crate::{Micros, NEVER};

/// The row after the step, and what to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// The row's decision columns as they shall be.
    pub facts: Facts<'a>,
    /// Why it is frozen, if this step froze it.
    pub froze: Option<Reason>,
    /// The newest error class, if the evidence is an error.
    pub error_class: Option<ErrorClass>,
    /// The action that goes into the log: the one answered, or else the act announced.
    pub logged_action: Option<Action>,
    /// Whether the row changes (one version more).
    pub changed: bool,
    /// The action to carry out now, under the lease.
    pub action: Option<Action>,
    /// When the row is due again (the lease's end where an action leaves).
    pub due_at: Micros,
    /// Another step follows at once, without anything from outside.
    pub again: bool,
    /// The wallet refused for good: only a refund that a person asked for can end so.
    pub refused: bool,
}

/// What a step may do besides deciding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// End of the lease under which an action may leave; `None`: no action leaves now.
    pub lease_until: Option<Micros>,
    /// Only questions may leave (a half-open breaker probes, it does not charge).
    pub questions_only: bool,
    /// Wallet calls may leave; where the channel is paced they go through the queue and its budget instead.
    pub wallet_may_leave: bool,
}

/// Applies `evidence` (if any) to the row and finds what follows at `now`.
pub fn step<'a>(
    facts: &Facts<'a>,
    policy: &Policy,
    evidence: Option<&Evidence<'_>>,
    now: Micros,
    leave: Leave,
) -> Step<'a> {
    let mut step = Step {
        facts: *facts,
        froze: None,
        error_class: None,
        logged_action: None,
        changed: false,
        action: None,
        due_at: now,
        again: false,
        refused: false,
    };
    if let Some(evidence) = evidence {
        step.apply(policy, evidence, now);
    }
    if step.facts.frozen || step.facts.status.is_terminal() || step.refused {
        step.due_at = NEVER;
    } else if step.due_at <= now {
        step.go_on(facts.status, policy, now, leave);
    }
    step
}

impl Step<'_> {
    fn apply(&mut self, policy: &Policy, evidence: &Evidence<'_>, now: Micros) {
        let before = self.facts;
        // The row keeps what is decided on, since the next decision reads it.
        let evidence = &evidence.taken();
        self.error_class = evidence.outcome.error_class();
        self.logged_action = Some(evidence.action);
        self.facts.last_outcome = Some(evidence.outcome);
        match decide::decide(&before, policy, evidence) {
            Decision::Become(status) => self.enter(status),
            Decision::Freeze(reason) => {
                self.facts.frozen = true;
                self.froze = Some(reason);
                self.changed = true;
            }
            Decision::Refused => {
                self.facts.act_unread = false;
                self.refused = true;
                self.changed = true;
            }
            Decision::Stay(stay) => {
                self.facts.act_unread = stay.unread;
                (self.facts.negative_count, self.facts.negative_since) = stay.negative;
                if stay.retried {
                    self.facts.retry_count = self.facts.retry_count.saturating_add(1);
                }
                self.due_at = self.resume_at(policy, stay.resume, now);
                // An act's answer that is no error and moves nothing leaves no trace: the fact is read next.
                self.changed = stay.retried
                    || self.error_class.is_some()
                    || self.facts.act_unread != before.act_unread
                    || !matches!(evidence.action, Action::ExecuteBusiness);
            }
        }
    }

    fn resume_at(&self, policy: &Policy, resume: Resume, now: Micros) -> Micros {
        let backoff = || policy.retry_at(self.facts.flow_id, self.facts.retry_count, now);
        match resume {
            Resume::Now => now,
            Resume::Backoff => backoff(),
            Resume::BackoffUntil(latest) => backoff().min(latest).max(now.saturating_add(1)),
            Resume::BackoffFrom(earliest) => backoff().max(earliest),
            Resume::At(time) => time.max(now.saturating_add(1)),
        }
    }

    /// Takes an edge: every state begins with a clean count.
    fn enter(&mut self, status: Status) {
        self.facts.status = status;
        self.facts.retry_count = 0;
        self.facts.act_unread = false;
        self.facts.act_sent_at = None;
        self.facts.act_lease_until = None;
        self.facts.negative_count = 0;
        self.facts.negative_since = None;
        self.changed = true;
    }

    fn go_on(&mut self, came_from: Status, policy: &Policy, now: Micros, leave: Leave) {
        let moved = self.facts.status != came_from;
        match decide::next_action(&self.facts, policy, now) {
            Next::Nothing => self.due_at = NEVER,
            Next::Become(_) if moved => self.again = true,
            Next::Become(status) => {
                self.enter(status);
                self.facts.last_outcome = None;
                self.again = !status.is_terminal();
                self.due_at = if self.again { now } else { NEVER };
            }
            // Nothing was ever sent, so there is nothing to ask about either.
            Next::Act(Action::Charge) if leave.questions_only && self.facts.act_sent_at.is_none() => self.due_at = now,
            // Business in the same database is done in place, in the caller's transaction: nothing leaves.
            Next::Act(action) if !action.is_wallet() && policy.business_mode == BusinessMode::Sql => {
                self.action = Some(action);
            }
            Next::Act(action) if action.is_wallet() && !leave.wallet_may_leave => self.due_at = now,
            Next::Act(action) if !leave.questions_only && self.would_go_untold(action) => self.due_at = now,
            Next::Act(action) => match leave.lease_until {
                None => self.due_at = now,
                Some(until) => {
                    self.hand_out(if leave.questions_only { question(action) } else { action }, now, until);
                }
            },
        }
    }

    /// A version whose log row tells an answer cannot tell an announcement too, and the log must have a refund's first one
    /// (rule 10). This comes up where a breaker's probe has asked about a refund that was never sent. A compensation is
    /// announced by its edge.
    const fn would_go_untold(&self, action: Action) -> bool {
        matches!(action, Action::Refund)
            && self.facts.refund.is_some()
            && self.facts.act_sent_at.is_none()
            && self.logged_action.is_some()
    }

    /// Announces an act in the row; a question changes nothing.
    fn hand_out(&mut self, action: Action, now: Micros, until: Micros) {
        self.action = Some(action);
        self.due_at = until;
        if !matches!(action, Action::Charge | Action::ExecuteBusiness | Action::Refund) {
            return;
        }
        if self.facts.status == Status::WaitPay {
            self.enter(Status::Paying);
        }
        self.changed = true;
        self.facts.act_unread = true;
        self.facts.act_sent_at = self.facts.act_sent_at.or(Some(now));
        self.facts.act_lease_until = Some(until);
        if action == Action::Charge {
            (self.facts.negative_count, self.facts.negative_since) = (0, None);
        }
        if self.logged_action.is_none() {
            self.logged_action = Some(action);
            self.facts.last_outcome = None;
        }
    }
}

/// The question that takes an act's place while only questions may leave.
const fn question(action: Action) -> Action {
    match action {
        Action::Charge | Action::CloseCharge => Action::QueryCharge,
        Action::Refund => Action::QueryRefund,
        other => other,
    }
}
