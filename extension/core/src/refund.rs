//! One refund of one attempt: its state machine, and its step.
//!
//! A compensation is part of its flow and moves with it. Any other refund is a row of its own, and while it is PENDING it
//! is decided as a flow in REFUNDING is: [`step()`] shows it to the one decision table as such a row. What differs is the
//! refusal: money that nobody asked for must go back, so it is tried again; a refund that a person asked for is over, and
//! the next one has its own number.

use crate::decide;
use crate::flow;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::step::{self, Leave, Step};
use crate::words::words;
use crate::{Micros, NEVER};

words! {
    /// Why a refund exists.
    Kind {
        /// The flow's own undo.
        Compensation = "COMPENSATION",
        /// Asked for by a person.
        AfterSale = "AFTER_SALE",
        /// Charged although the flow had failed: a late charge, or found by reconciliation.
        Recon = "RECON",
        /// Made elsewhere, in the provider's own dashboard: it succeeded before we knew of it.
        External = "EXTERNAL",
    }
}

words! {
    /// Where a refund stands.
    Status {
        /// Waits for approval.
        Requested = "REQUESTED",
        /// On its way to the wallet.
        Pending = "PENDING",
        /// Given back. Final.
        Succeeded = "SUCCEEDED",
        /// Definitely not given back. Final.
        Failed = "FAILED",
        /// Not approved. Final.
        Rejected = "REJECTED",
    }
}

/// The legal edges of a refund.
pub const EDGES: &[(Status, Status)] = &[
    (Status::Requested, Status::Pending),
    (Status::Requested, Status::Rejected),
    (Status::Pending, Status::Succeeded),
    (Status::Pending, Status::Failed),
];

impl Status {
    /// Whether `self -> to` is one of the edges.
    pub fn can_become(self, to: Self) -> bool {
        EDGES.contains(&(self, to))
    }

    /// Succeeded, failed or rejected: nothing moves it any more.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Rejected)
    }

    /// Whether it holds part of the charge back from other refunds.
    pub const fn reserves(self) -> bool {
        matches!(self, Self::Requested | Self::Pending | Self::Succeeded)
    }
}

impl Kind {
    /// Where a refund of this kind may begin.
    pub const fn may_begin(self, status: Status) -> bool {
        match self {
            Self::AfterSale => matches!(status, Status::Requested | Status::Pending),
            Self::Compensation | Self::Recon => matches!(status, Status::Pending),
            Self::External => matches!(status, Status::Succeeded),
        }
    }

    /// Whether a definite refusal ends it; the others have to go back, whatever it takes.
    pub const fn ends_refused(self) -> bool {
        matches!(self, Self::AfterSale)
    }
}

/// The row of a refund that is no compensation, as decisions see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The refund.
    pub refund_id: i64,
    /// Its number.
    pub number: &'a str,
    /// Minor units.
    pub amount: i64,
    /// Currency or asset code.
    pub currency: &'a str,
    /// Why it exists.
    pub kind: Kind,
    /// The state.
    pub status: Status,
    /// Waits for a person.
    pub frozen: bool,
    /// Tries so far.
    pub retry_count: i32,
    /// A REFUND was announced and no answer has settled what became of it.
    pub act_unread: bool,
    /// When it was first announced.
    pub act_sent_at: Option<Micros>,
    /// End of the last lease in which it could have left.
    pub act_lease_until: Option<Micros>,
    /// How often it was refused.
    pub negative_count: i32,
    /// Not used while refunding; kept as it is.
    pub negative_since: Option<Micros>,
    /// The newest outcome.
    pub last_outcome: Option<Outcome>,
}

impl<'a> Facts<'a> {
    /// The same as the decision table sees it.
    const fn as_refunding(&self) -> decide::Facts<'a> {
        decide::Facts {
            flow_id: self.refund_id,
            trade_order_no: self.number,
            amount: self.amount,
            currency: self.currency,
            deadline: NEVER,
            cancelled: false,
            status: flow::Status::Refunding,
            frozen: self.frozen || !matches!(self.status, Status::Pending),
            retry_count: self.retry_count,
            act_unread: self.act_unread,
            act_sent_at: self.act_sent_at,
            act_lease_until: self.act_lease_until,
            negative_count: self.negative_count,
            negative_since: self.negative_since,
            last_outcome: self.last_outcome,
            refund: Some(self.kind),
        }
    }
}

/// One step of a refund: see [`step::step()`]. The state that it leads to comes beside it.
pub fn step<'a>(
    facts: &Facts<'a>,
    policy: &Policy,
    evidence: Option<&decide::Evidence<'_>>,
    now: Micros,
    leave: Leave,
) -> (Status, Step<'a>) {
    let step = step::step(&facts.as_refunding(), policy, evidence, now, leave);
    let status = match step.facts.status {
        _ if step.refused => Status::Failed,
        flow::Status::Refunded => Status::Succeeded,
        _ => facts.status,
    };
    (status, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_states_are_left() {
        for status in Status::ALL {
            let leaves = EDGES.iter().any(|(from, _)| from == status);
            assert_eq!(leaves, matches!(status, Status::Requested | Status::Pending), "{status}");
            assert_eq!(leaves, !status.is_terminal(), "{status}");
        }
        assert!(!Status::Failed.reserves() && !Status::Rejected.reserves());
    }

    #[test]
    fn a_beginning_holds_its_money_and_only_a_stranger_s_is_an_end() {
        for kind in Kind::ALL {
            for status in Status::ALL.iter().filter(|status| kind.may_begin(**status)) {
                assert!(status.reserves(), "{kind} {status}");
                assert_eq!(status.is_terminal(), *kind == Kind::External, "{kind} {status}");
            }
        }
    }
}
