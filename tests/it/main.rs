//! One binary for all integration tests.

#![allow(clippy::unwrap_used)]

mod api;
mod chaos;
mod comments;
mod conformance;
mod cron;
mod database;
mod deliver;
mod docs;
mod dump;
mod end_to_end;
mod examples;
mod explain;
mod faults;
mod guards;
mod isolation;
mod journal;
mod keys;
mod links;
mod outbox;
mod reference;
mod refunds;
mod relay;
mod roles;
mod stripe;
mod webhooks;
