//! The command line. What a person asked for goes to standard output, logs go to standard error.

mod doctor;
mod doctor_outside;
pub(crate) mod flow;
mod migrate;
mod run;
pub(crate) mod table;
mod token;
pub(crate) mod verify;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::api::openapi;
use crate::config::{Config, Log, LogFormat};
use crate::demo::{self, DemoArgs};
use crate::error::Error;
use crate::shutdown;
use crate::simulate::{self, SimulateArgs};

/// The paylatch daemon: it carries actions out and evidence back; the database decides.
#[derive(Debug, Parser)]
#[command(name = "paylatchd", version, arg_required_else_help = true)]
pub struct Cli {
    /// The configuration file; `paylatchd config --example` prints one
    #[arg(long, global = true, value_name = "FILE", env = "PAYLATCH_CONFIG")]
    config: Option<PathBuf>,
    /// The database, instead of database.url or PAYLATCH_DATABASE_URL
    #[arg(long, global = true, value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a database to this version: create the extension, apply migrations
    Migrate,
    /// Carry payments out, until SIGTERM or SIGINT
    Run,
    /// Serve the HTTP API alone, until SIGTERM or SIGINT; `run` serves it too where api.listen is set
    Serve,
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Look at the database, the configuration and the way between them; exit 1 on an error
    Doctor,
    /// Check every rule of "Never" against the data; exit 1 if one is broken
    Verify,
    /// Look at one payment
    #[command(subcommand)]
    Flow(FlowCommand),
    /// Where merchants' events are sent: endpoints, secrets, deliveries
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Say who may use the HTTP API
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print the configuration in force, secrets hidden
    Config {
        /// Print a template with every key, its meaning and its default instead
        #[arg(long)]
        example: bool,
    },
    /// Send thousands of payments through a bad day in a database of its own, and prove that each came out right
    Demo(DemoArgs),
    /// Be a wallet and a business, with faults from a seed: for demos, tests and staging
    Simulate(SimulateArgs),
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token for a merchant, and print it this once
    Create {
        /// Whose payments it sees and makes
        #[arg(long)]
        merchant: String,
        /// What it is for, so that it can be told from others
        #[arg(long)]
        name: String,
        /// Requests a second; api.rate_per_second without it
        #[arg(long, value_name = "PER_SECOND")]
        rate: Option<i32>,
    },
    /// List every token ever made, without anything that could be used as one
    List,
    /// End a token; within a second no server takes it any more
    Revoke {
        /// Its id, as `token list` shows it
        #[arg(value_name = "ID")]
        token_id: i64,
    },
}

#[derive(Debug, Subcommand)]
enum FlowCommand {
    /// Say what is known of a payment, what happens next, and how it came here
    Show {
        /// A flow's id, or any order number of it
        #[arg(value_name = "ID|ORDER_NO")]
        which: String,
    },
}

/// Runs the command; says on standard error why it failed.
pub async fn main(cli: Cli) -> ExitCode {
    match dispatch(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paylatchd: {error}");
            if let Some(advice) = error.advice() {
                eprintln!("paylatchd: {advice}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn dispatch(cli: Cli) -> Result<(), Error> {
    let Cli { config, database_url, command } = cli;
    let load = || Config::load(config.as_deref(), database_url.clone());
    match command {
        Command::Config { example: true } => {
            print!("{}", Config::example());
            Ok(())
        }
        Command::Config { example: false } => {
            println!("{:#?}", load()?);
            Ok(())
        }
        Command::Simulate(arguments) => {
            log_to_stderr(None);
            Ok(simulate::run(arguments, shutdown::on_signals()?).await?)
        }
        Command::Openapi => {
            print!("{}", openapi::text());
            Ok(())
        }
        Command::Run | Command::Serve => {
            let config = load()?;
            log_to_stderr(Some(&config.log));
            if matches!(command, Command::Run) { run::run(config).await } else { run::serve(config).await }
        }
        other => {
            log_to_stderr(None);
            let config = load()?;
            match other {
                Command::Migrate => migrate::run(&config).await,
                Command::Doctor => doctor::run(&config).await,
                Command::Verify => verify::run(&config).await,
                Command::Demo(arguments) => demo::run(arguments, &config).await,
                Command::Flow(FlowCommand::Show { which }) => flow::show(&config, &which).await,
                Command::Webhook(command) => webhook::run(&config, command).await,
                Command::Token(TokenCommand::Create { merchant, name, rate }) => {
                    token::create(&config, &merchant, &name, rate).await
                }
                Command::Token(TokenCommand::List) => token::list(&config).await,
                Command::Token(TokenCommand::Revoke { token_id }) => token::revoke(&config, token_id).await,
                Command::Config { .. } | Command::Simulate(_) | Command::Run | Command::Serve | Command::Openapi => {
                    Ok(())
                }
            }
        }
    }
}

/// Logs to standard error: as configured for the daemon, warnings only for commands that answer a person.
fn log_to_stderr(log: Option<&Log>) {
    let level = log.map_or("warn", |log| &log.level);
    let filter = EnvFilter::builder().parse_lossy(level);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log.map_or(LogFormat::Text, |log| log.format) {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).init(),
    }
}
