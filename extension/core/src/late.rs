//! Evidence that comes too late: the row has moved on, or another lease has taken its place.
//!
//! Such a report never moves a row. It either says what the row already knows, or nothing that counts, or something
//! that the row's branch excludes; the last a person must see.

use crate::flow::Status;
use crate::outcome::{Action, Outcome};
use crate::words::words;

words! {
    /// What became of one report.
    Disposition {
        /// It decided.
        Applied = "applied",
        /// The row already is where this evidence leads.
        Replayed = "replayed",
        /// Too old to decide; recorded, and the flow will ask again.
        Stale = "stale",
        /// It contradicts the branch that the row is on; an incident is open.
        Conflict = "conflict",
        /// Not evidence at all: malformed, or for an unknown flow.
        Rejected = "rejected",
    }
}

/// The state that this evidence would have led to, if it is definite. `owned`: a DONE names this flow.
pub const fn implied(action: Action, outcome: Outcome, owned: bool) -> Option<Status> {
    match (action, outcome) {
        (Action::Charge | Action::QueryCharge | Action::CloseCharge, Outcome::Succeeded) => Some(Status::Payed),
        (Action::Charge | Action::QueryCharge, Outcome::Failed) => Some(Status::PayFail),
        (Action::QueryBusiness | Action::CloseBusiness, Outcome::Done) if owned => Some(Status::BizSuccess),
        (Action::QueryBusiness | Action::CloseBusiness, Outcome::Done) => Some(Status::Refunding),
        (Action::QueryBusiness, Outcome::Rejected) => Some(Status::Refunding),
        (Action::CloseBusiness, Outcome::Closed) => Some(Status::Refunding),
        (Action::Refund | Action::QueryRefund, Outcome::Succeeded) => Some(Status::Refunded),
        _ => None,
    }
}

/// What becomes of late evidence for a row at `status`.
pub fn late(status: Status, action: Action, outcome: Outcome, owned: bool) -> Disposition {
    match implied(action, outcome, owned) {
        Some(there) if there.leads_to(status) => Disposition::Replayed,
        Some(there) if !status.leads_to(there) => Disposition::Conflict,
        _ => Disposition::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_article_s_cases() {
        let late_success = |status| late(status, Action::QueryCharge, Outcome::Succeeded, false);
        assert_eq!(late_success(Status::Paying), Disposition::Stale);
        assert_eq!(late_success(Status::Payed), Disposition::Replayed);
        assert_eq!(late_success(Status::BizSuccess), Disposition::Replayed);
        assert_eq!(late_success(Status::PayFail), Disposition::Conflict);
        assert_eq!(late(Status::Refunding, Action::QueryBusiness, Outcome::Done, true), Disposition::Conflict);
        assert_eq!(late(Status::BizSuccess, Action::Refund, Outcome::Succeeded, false), Disposition::Conflict);
    }

    #[test]
    fn not_knowing_never_conflicts() {
        for status in Status::ALL {
            for action in Action::ALL {
                for outcome in [Outcome::Unknown, Outcome::Unavailable, Outcome::Processing, Outcome::NotFound] {
                    assert_eq!(late(*status, *action, outcome, false), Disposition::Stale);
                }
            }
        }
    }
}
