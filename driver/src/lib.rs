//! The paylatch daemon: it carries actions out and evidence back; the database decides.

#![deny(unsafe_code)]

pub mod clock;
pub mod evidence;
