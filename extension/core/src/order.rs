//! The state machine of a business target: a projection of its attempts.

use crate::flow;
use crate::words::words;

words! {
    /// Where an order stands; what a shop page shows.
    Status {
        /// No attempt is under way and none has kept money.
        Pending = "PENDING",
        /// An attempt is under way.
        Processing = "PROCESSING",
        /// An attempt succeeded.
        Paid = "PAID",
        /// After-sale refunds have succeeded, in full or in part.
        Refunded = "REFUNDED",
    }
}

/// The legal edges of an order.
pub const EDGES: &[(Status, Status)] = &[
    (Status::Pending, Status::Processing),
    (Status::Processing, Status::Pending),
    (Status::Processing, Status::Paid),
    (Status::Paid, Status::Refunded),
];

impl Status {
    /// Whether `self -> to` is one of the edges.
    pub fn can_become(self, to: Self) -> bool {
        EDGES.contains(&(self, to))
    }

    /// What an order is while its newest attempt stands at `attempt`.
    pub const fn after(attempt: flow::Status) -> Self {
        match attempt {
            flow::Status::BizSuccess => Self::Paid,
            flow::Status::PayFail | flow::Status::Refunded => Self::Pending,
            _ => Self::Processing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_moves_its_order_along_edges_only() {
        for (from, to) in flow::EDGES {
            let (before, after) = (Status::after(*from), Status::after(*to));
            assert!(before == after || before.can_become(after), "{from} -> {to} takes {before} to {after}");
        }
    }

    #[test]
    fn paid_never_opens_again() {
        assert!(!Status::Paid.can_become(Status::Pending) && !Status::Paid.can_become(Status::Processing));
        assert!(EDGES.iter().all(|(from, _)| *from != Status::Refunded));
    }
}
