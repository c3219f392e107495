//! The test harness: real clusters, databases, daemons and simulators, and what must hold of them.
//!
//! Every test has a database of its own, cloned from one migrated template, so tests run side by side and in any order.
//! Nothing here sleeps for a guessed time: [`wait::eventually`] polls a condition. The harness panics where a test would
//! have to fail anyway, and a failing test prints the logs of the processes it started.

#![deny(unsafe_code)]

pub mod api;
pub mod cluster;
pub mod daemon;
pub mod database;
pub mod events;
pub mod invariants;
pub mod lines;
pub mod localstripe;
pub mod nats;
pub mod payments;
pub mod process;
pub mod proxy;
pub mod refunds;
pub mod simulator;
pub mod stage;
pub mod wait;

pub use api::ApiClient;
pub use cluster::Cluster;
pub use daemon::Daemon;
pub use database::Database;
pub use localstripe::LocalStripe;
pub use simulator::{LocalSimulator, Simulator};
pub use stage::{Gate, Stage};
pub use wait::eventually;
