//! The outbox: an event if and only if its transition committed (rule 12), and each of them published.

mod keeping;
mod late_commits;
mod leases;
mod retries;
mod rule_12;
mod schema;
