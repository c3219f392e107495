//! The `paylatchd` command.

fn main() {}
