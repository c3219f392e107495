//! Evidence that comes too late: the row has moved on, or another lease has taken its place.
//!
//! Such a report never moves a row. It either says what the row already knows, or nothing that counts, or something
//! that the row's branch excludes; the last a person must see.

use crate::flow::Status;
use crate::outcome::{Action, Outcome};
use crate::refund;
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

/// What becomes of late evidence for a refund at `status`, one that is no compensation.
pub fn late_refund(kind: refund::Kind, status: refund::Status, action: Action, outcome: Outcome) -> Disposition {
    use refund::Status::{Failed, Succeeded};
    let there = match (action, outcome) {
        (Action::Refund | Action::QueryRefund, Outcome::Succeeded) => Succeeded,
        (Action::Refund | Action::QueryRefund, Outcome::Failed) if kind.ends_refused() => Failed,
        _ => return Disposition::Stale,
    };
    match status {
        _ if status == there => Disposition::Replayed,
        refund::Status::Pending => Disposition::Stale,
        // Refused, where nobody let it go out in the first place: no news.
        refund::Status::Requested | refund::Status::Rejected if there == Failed => Disposition::Stale,
        _ => Disposition::Conflict,
    }
}

words! {
    /// What an inquiry makes of one answer: a question about a flow that has ended as not charged.
    Inquiry {
        /// It was charged after all: the money goes back.
        Charged = "charged",
        /// It was not.
        Clear = "clear",
        /// A success of another number, amount or currency: a person must see it.
        Contradicted = "contradicted",
        /// Nothing definite; ask again.
        Open = "open",
    }
}

/// What an inquiry makes of an answer; `echoed`: it names our number, amount and currency.
pub const fn inquiry(outcome: Outcome, echoed: bool) -> Inquiry {
    match outcome {
        Outcome::Succeeded if echoed => Inquiry::Charged,
        Outcome::Succeeded => Inquiry::Contradicted,
        Outcome::Failed | Outcome::NotFound => Inquiry::Clear,
        _ => Inquiry::Open,
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
    fn a_refund_s_end_is_contradicted_by_the_other_end_only() {
        use refund::Kind::{AfterSale, Recon};
        use refund::Status::{Failed, Pending, Rejected, Requested, Succeeded};
        let late = |kind, status, outcome| late_refund(kind, status, Action::QueryRefund, outcome);
        for (status, succeeded, failed) in [
            (Requested, Disposition::Conflict, Disposition::Stale),
            (Pending, Disposition::Stale, Disposition::Stale),
            (Succeeded, Disposition::Replayed, Disposition::Conflict),
            (Failed, Disposition::Conflict, Disposition::Replayed),
            (Rejected, Disposition::Conflict, Disposition::Stale),
        ] {
            assert_eq!(late(AfterSale, status, Outcome::Succeeded), succeeded, "{status}");
            assert_eq!(late(AfterSale, status, Outcome::Failed), failed, "{status}");
            assert_eq!(late(Recon, status, Outcome::Failed), Disposition::Stale, "a refusal on the way to {status}");
        }
        for kind in refund::Kind::ALL {
            for status in refund::Status::ALL {
                for action in Action::ALL {
                    for outcome in Outcome::ALL {
                        let late = late_refund(*kind, *status, *action, *outcome);
                        let definite = matches!(outcome, Outcome::Succeeded | Outcome::Failed);
                        assert!(definite || late == Disposition::Stale, "{kind} {status} {action} {outcome}");
                        assert!(matches!(action, Action::Refund | Action::QueryRefund) || late == Disposition::Stale);
                    }
                }
            }
        }
    }

    #[test]
    fn an_inquiry_asks_until_it_knows() {
        for outcome in Outcome::ALL {
            for echoed in [true, false] {
                let expected = match (outcome, echoed) {
                    (Outcome::Succeeded, true) => Inquiry::Charged,
                    (Outcome::Succeeded, false) => Inquiry::Contradicted,
                    (Outcome::Failed | Outcome::NotFound, _) => Inquiry::Clear,
                    _ => Inquiry::Open,
                };
                assert_eq!(inquiry(*outcome, echoed), expected, "{outcome}");
            }
        }
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
