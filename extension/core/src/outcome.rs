//! What the daemon may be asked to do and what may come back.
//!
//! Three closed vocabularies, shared by the database, the daemon and the tests: the actions that the database hands
//! out, the outcome classes that evidence carries, and the five error classes that a row keeps. A word that is not
//! listed here does not exist; parsing refuses it.

use crate::words::words;

words! {
    /// One external act, handed out by the database and carried out by the daemon.
    Action {
        /// Ask the wallet to take the money, under `trade_order_no`.
        Charge = "CHARGE",
        /// Ask the wallet what became of a charge.
        QueryCharge = "QUERY_CHARGE",
        /// Ask the wallet to refuse a charge that it does not know yet.
        CloseCharge = "CLOSE_CHARGE",
        /// Ask the business to do what was paid for.
        ExecuteBusiness = "EXECUTE_BUSINESS",
        /// Read the business fact and its owner.
        QueryBusiness = "QUERY_BUSINESS",
        /// Ask the business to refuse any later execution under this number.
        CloseBusiness = "CLOSE_BUSINESS",
        /// Ask the wallet to give the money back, under `refund_order_no`.
        Refund = "REFUND",
        /// Ask the wallet what became of a refund.
        QueryRefund = "QUERY_REFUND",
    }
}

impl Action {
    /// Whether the counterparty is the wallet (true) or the business (false).
    pub const fn is_wallet(self) -> bool {
        !matches!(self, Self::ExecuteBusiness | Self::QueryBusiness | Self::CloseBusiness)
    }

    /// Whether carrying it out may change something outside; a question never does.
    pub const fn is_act(self) -> bool {
        matches!(self, Self::Charge | Self::CloseCharge | Self::ExecuteBusiness | Self::CloseBusiness | Self::Refund)
    }

    /// The outcome classes that this action may report; any other is refused as malformed evidence.
    pub const fn may_report(self, outcome: Outcome) -> bool {
        use Outcome::*;
        match self {
            Self::Charge | Self::Refund => {
                matches!(outcome, Succeeded | Failed | Processing | Unknown | Unavailable | Conflict)
            }
            Self::QueryCharge | Self::QueryRefund => {
                matches!(outcome, Succeeded | Failed | Processing | NotFound | Unknown | Unavailable)
            }
            Self::CloseCharge => matches!(outcome, Closed | Succeeded | Unknown | Unavailable),
            Self::ExecuteBusiness => true,
            Self::QueryBusiness => {
                matches!(outcome, Done | NotDone | Rejected | Contradictory | Unknown | Unavailable)
            }
            Self::CloseBusiness => matches!(outcome, Closed | Done | Unknown | Unavailable),
        }
    }
}

words! {
    /// The class of what came back. UNKNOWN is never a failure; UNAVAILABLE means certainly not executed.
    Outcome {
        /// Done, with the number, amount and currency echoed.
        Succeeded = "SUCCEEDED",
        /// Definitely refused.
        Failed = "FAILED",
        /// Accepted, not finished.
        Processing = "PROCESSING",
        /// The authoritative source does not know the number.
        NotFound = "NOT_FOUND",
        /// Closed: a later execution under this number will be refused.
        Closed = "CLOSED",
        /// Sent, or perhaps sent, and no definite answer.
        Unknown = "UNKNOWN",
        /// Certainly not executed.
        Unavailable = "UNAVAILABLE",
        /// The counterparty holds other parameters under this number.
        Conflict = "CONFLICT",
        /// Business fact: the target is completed; the evidence names its owner.
        Done = "DONE",
        /// Business fact: the target is not completed.
        NotDone = "NOT_DONE",
        /// Business fact: it will never be done for this number.
        Rejected = "REJECTED",
        /// Business fact: state and owner contradict each other.
        Contradictory = "CONTRADICTORY",
    }
}

impl Outcome {
    /// The error class that a row keeps for this outcome; `None` for outcomes that are no error.
    pub const fn error_class(self) -> Option<ErrorClass> {
        match self {
            Self::Failed | Self::Rejected => Some(ErrorClass::ExplicitFailure),
            Self::Unavailable => Some(ErrorClass::TemporarilyUnavailable),
            Self::Unknown => Some(ErrorClass::Unknown),
            Self::Conflict | Self::Contradictory => Some(ErrorClass::ParameterConflict),
            _ => None,
        }
    }

    /// Whether an answer of this class tells of something that exists, and so brings the counterparty's own reference.
    pub const fn brings_reference(self) -> bool {
        !matches!(self, Self::Unknown | Self::Unavailable | Self::NotFound)
    }

    /// Whether the counterparty failed to answer: what a breaker counts.
    pub const fn is_no_answer(self) -> bool {
        matches!(self, Self::Unknown | Self::Unavailable)
    }
}

words! {
    /// Why a row could not go on: the five classes of `last_error_class`.
    ErrorClass {
        /// A definite refusal.
        ExplicitFailure = "EXPLICIT_FAILURE",
        /// Certainly not executed; try again later.
        TemporarilyUnavailable = "TEMPORARILY_UNAVAILABLE",
        /// Perhaps executed; ask with the same number.
        Unknown = "UNKNOWN",
        /// The counterparty contradicts the row.
        ParameterConflict = "PARAMETER_CONFLICT",
        /// Waits for a person.
        ManualFreeze = "MANUAL_FREEZE",
    }
}
