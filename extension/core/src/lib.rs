//! The rules of paylatch, and nothing else.
//!
//! Everything here is a pure function of its arguments. Invariant: this crate never sees a clock, a socket, a table or
//! a random number, and depends on neither pgrx, sqlx nor tokio. The guard triggers, the SQL commands, the daemon and
//! the tests all use these functions, so there is one set of rules.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod flow;
pub mod outcome;
pub mod words;
