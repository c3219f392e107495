//! One binary for all integration tests.

#![allow(clippy::unwrap_used)]

mod comments;
mod docs;
mod dump;
mod guards;
mod isolation;
mod roles;
