//! The rules of paylatch, and nothing else.
//!
//! Everything here is a pure function of its arguments. Invariant: this crate never sees a clock, a socket, a table or
//! a random number, and depends on neither pgrx, sqlx nor tokio. The guard triggers, the SQL commands, the daemon and
//! the tests all use these functions, so there is one set of rules.
//!
//! Times are [`Micros`]: microseconds on the database's clock. Money is `i64` in the currency's minor unit.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod backoff;
pub mod budget;
pub mod decide;
pub mod fingerprint;
pub mod flow;
pub mod late;
pub mod log_hash;
pub mod money;
pub mod order;
pub mod order_no;
pub mod outcome;
pub mod policy;
pub mod refund;
pub mod signature;
pub mod sqlstate;
pub mod step;
pub mod words;

/// Microseconds on the database's clock; only differences and comparisons have a meaning here.
pub type Micros = i64;

/// Microseconds in a millisecond.
pub const MS: Micros = 1_000;

/// Later than any time: a row that waits for a person is due then.
pub const NEVER: Micros = i64::MAX;
