//! The state machine of one refund of one attempt.

use crate::words::words;

words! {
    /// Why a refund exists.
    Kind {
        /// The flow's own undo.
        Compensation = "COMPENSATION",
        /// Asked for by a person.
        AfterSale = "AFTER_SALE",
        /// Found by reconciliation.
        Recon = "RECON",
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

    /// Whether it holds part of the charge back from other refunds.
    pub const fn reserves(self) -> bool {
        matches!(self, Self::Requested | Self::Pending | Self::Succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_states_are_left() {
        for status in Status::ALL {
            let leaves = EDGES.iter().any(|(from, _)| from == status);
            assert_eq!(leaves, matches!(status, Status::Requested | Status::Pending), "{status}");
        }
        assert!(!Status::Failed.reserves() && !Status::Rejected.reserves());
    }
}
