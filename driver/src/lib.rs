//! The paylatch daemon: it carries actions out and evidence back; the database decides.

#![deny(unsafe_code)]

pub mod business;
pub mod clock;
pub mod endpoint;
pub mod evidence;
pub mod simulate;
pub mod wallet;
