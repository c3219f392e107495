//! The `paylatchd` command.

use std::process::ExitCode;

use clap::Parser;
use paylatchd::cli::{self, Cli};

#[tokio::main]
async fn main() -> ExitCode {
    cli::main(Cli::parse()).await
}
