//! The SQLSTATEs of paylatch: class `PL`, and the standard class that guards use.
//!
//! ARCHITECTURE.md shows the same table; a test holds the two equal.

/// One error code and what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlState {
    /// Five characters.
    pub code: &'static str,
    /// What happened, in a few words.
    pub meaning: &'static str,
}

/// Every code that paylatch raises on purpose.
pub const ALL: &[SqlState] = &[
    SqlState { code: "PL001", meaning: "idempotency key reused with other parameters" },
    SqlState { code: "PL002", meaning: "illegal transition" },
    SqlState { code: "PL003", meaning: "the state is final" },
    SqlState { code: "PL004", meaning: "invalid argument" },
    SqlState { code: "PL005", meaning: "scene unknown or closed" },
    SqlState { code: "PL006", meaning: "lease lost" },
    SqlState { code: "PL007", meaning: "not migrated" },
    SqlState { code: "PL008", meaning: "flow, order or refund unknown" },
    SqlState { code: "PL009", meaning: "a second person must decide" },
    SqlState { code: "23514", meaning: "a guard refused the change" },
];
