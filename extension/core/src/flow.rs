//! The state machine of one payment attempt: seven states, exactly six edges.
//!
//! Invariant: [`EDGES`] is the only list of edges. The guard trigger, the decision table, the SQL view of the graph and
//! the diagram in README are all derived from it.

use crate::words::words;

words! {
    /// Where a payment attempt stands.
    Status {
        /// Created; nothing was ever sent.
        WaitPay = "WAIT_PAY",
        /// A charge may have left; its result is not yet known.
        Paying = "PAYING",
        /// Charged; the business result is not yet known.
        Payed = "PAYED",
        /// Charged and the business done for this attempt. Final.
        BizSuccess = "BIZ_SUCCESS",
        /// The refund is decided; its result is not yet known.
        Refunding = "REFUNDING",
        /// Charged and given back. Final.
        Refunded = "REFUNDED",
        /// Definitely not charged. Final.
        PayFail = "PAY_FAIL",
    }
}

/// The six legal edges.
pub const EDGES: &[(Status, Status)] = &[
    (Status::WaitPay, Status::Paying),
    (Status::Paying, Status::Payed),
    (Status::Paying, Status::PayFail),
    (Status::Payed, Status::BizSuccess),
    (Status::Payed, Status::Refunding),
    (Status::Refunding, Status::Refunded),
];

impl Status {
    /// Where every attempt begins.
    pub const INITIAL: Self = Self::WaitPay;

    /// Final: no edge leaves it, whoever asks.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::BizSuccess | Self::Refunded | Self::PayFail)
    }

    /// Money was taken in this state or on the way to it.
    pub const fn is_charged(self) -> bool {
        matches!(self, Self::Payed | Self::BizSuccess | Self::Refunding | Self::Refunded)
    }

    /// Whether `self -> to` is one of the six edges. Staying is no edge.
    pub fn can_become(self, to: Self) -> bool {
        EDGES.contains(&(self, to))
    }

    /// Whether `later` lies at or behind `self` along the edges.
    pub fn leads_to(self, later: Self) -> bool {
        self == later || EDGES.iter().any(|&(from, to)| from == self && to.leads_to(later))
    }

    /// What a client is shown: four unfinished states are one, and a frozen flow waits for a person.
    pub const fn shown(self, frozen: bool) -> &'static str {
        match self {
            Self::BizSuccess | Self::Refunded | Self::PayFail => self.as_str(),
            _ if frozen => "MANUAL_REVIEW",
            _ => "PROCESSING",
        }
    }
}

/// The graph as a Mermaid state diagram, as README shows it.
pub fn diagram() -> String {
    let mut text = String::from("stateDiagram-v2\n    direction LR\n");
    text.push_str(&format!("    [*] --> {}\n", Status::INITIAL));
    for (from, to) in EDGES {
        text.push_str(&format!("    {from} --> {to}: {}\n", edge_label(*from, *to)));
    }
    for status in Status::ALL.iter().filter(|s| s.is_terminal()) {
        text.push_str(&format!("    {status} --> [*]\n"));
    }
    text
}

/// Why an edge is taken, in a few words, for people.
pub fn edge_label(from: Status, to: Status) -> &'static str {
    match (from, to) {
        (Status::WaitPay, Status::Paying) => "charge announced",
        (Status::Paying, Status::Payed) => "wallet says charged",
        (Status::Paying, Status::PayFail) => "wallet says definitely not",
        (Status::Payed, Status::BizSuccess) => "business done, by this attempt",
        (Status::Payed, Status::Refunding) => "business finally not done by this attempt",
        (Status::Refunding, Status::Refunded) => "wallet says given back",
        _ => "no such edge",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_edges_and_three_ends() {
        assert_eq!(EDGES.len(), 6);
        for from in Status::ALL {
            let leaves = Status::ALL.iter().any(|to| from.can_become(*to));
            assert_eq!(leaves, !from.is_terminal(), "{from}");
            assert!(!from.can_become(*from));
            assert!(Status::INITIAL.leads_to(*from), "{from} is reachable");
        }
    }

    #[test]
    fn branches_exclude_each_other() {
        assert!(Status::Paying.leads_to(Status::Refunded));
        assert!(!Status::BizSuccess.leads_to(Status::Refunding));
        assert!(!Status::Refunding.leads_to(Status::BizSuccess));
        assert!(!Status::PayFail.leads_to(Status::Payed));
    }
}
