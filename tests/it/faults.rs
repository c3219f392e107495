//! The faults that paylatch is built for, by number. Each end-to-end test drives a real `paylatchd run` against a real
//! `paylatchd simulate`, counts what took effect at the simulator, and ends with every rule.

mod around_the_deadline;
mod business;
mod daemon;
mod overload;
mod poison;
mod schedule;
mod shutdown;
mod wallet;
