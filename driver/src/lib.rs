//! The paylatch daemon: it carries actions out and evidence back; the database decides.

#![deny(unsafe_code)]

pub mod api;
pub mod business;
pub mod cli;
pub mod clock;
pub mod compat;
pub mod config;
pub mod db;
pub mod deliver;
pub mod demo;
pub mod dispatch;
pub mod endpoint;
pub mod error;
pub mod evidence;
pub mod http;
pub mod metrics;
pub mod migrate;
pub mod pace;
pub mod relay;
pub mod scanner;
pub mod shutdown;
pub mod simulate;
pub mod wallet;
pub mod worker;
