//! The configuration: one struct, read from a TOML file and from PAYLATCH_* variables, the latter winning.
//!
//! The comments of the fields are the manual: `paylatchd config --example` prints them as a template. Invariants: a
//! key that does not exist is an error, not ignored; an error names the key and says what to do; neither an error nor
//! a `Debug` shows a secret.

mod api;
mod keys;
mod relay;
mod secret;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tracing_subscriber::EnvFilter;

pub use self::api::Api;
pub use self::relay::Relay;
pub use self::secret::Secret;
use crate::business::BusinessAdapter;
use crate::endpoint::EndpointSettings;
use crate::wallet::{WalletAdapter, stripe};

/// The daemon's configuration.
///
/// Every key has a default unless it says otherwise; spans end in `_ms` and are milliseconds.
#[derive(Debug, Clone, confique::Config)]
pub struct Config {
    /// The database, which decides everything.
    #[config(nested)]
    pub database: Database,
    /// How this daemon works.
    #[config(nested)]
    pub driver: Driver,
    /// What it serves to those who watch it.
    #[config(nested)]
    pub http: Http,
    /// What it serves to merchants.
    #[config(nested)]
    pub api: Api,
    /// Merchants' webhooks, which it sends.
    #[config(nested)]
    pub webhooks: Webhooks,
    /// What it says, on standard error.
    #[config(nested)]
    pub log: Log,
    /// One section `[wallet.NAME]` for each channel of the database.
    #[config(default = {}, deserialize_with = keys::sections)]
    pub wallet: BTreeMap<String, Wallet>,
    /// One section `[business.NAME]` for each scene whose business is reached over HTTP.
    #[config(default = {}, deserialize_with = keys::sections)]
    pub business: BTreeMap<String, Business>,
    /// One section `[relay.NAME]` for each sink whose events this daemon publishes.
    #[config(default = {}, deserialize_with = keys::sections)]
    pub relay: BTreeMap<String, Relay>,
}

/// The database, which decides everything.
#[derive(Debug, Clone, confique::Config)]
pub struct Database {
    /// Where it is, as `postgres://USER:PASSWORD@HOST:PORT/NAME`. For `run` the user needs no more than
    /// `grant paylatch_driver to USER`; `migrate` needs a superuser, since it creates the extension.
    #[config(env = "PAYLATCH_DATABASE_URL")]
    pub url: Secret,
    /// The most connections that this process opens.
    #[config(default = 5, env = "PAYLATCH_DATABASE_MAX_CONNECTIONS")]
    pub max_connections: u32,
    /// A command that takes longer is given up and tried again.
    #[config(default = 30000, env = "PAYLATCH_DATABASE_COMMAND_TIMEOUT_MS")]
    pub command_timeout_ms: u64,
    /// Set this behind a pooler that gives a session to each transaction (PgBouncer's `pool_mode = transaction`): no
    /// prepared statement then outlives its transaction. It costs two round trips a command.
    #[config(default = false, env = "PAYLATCH_DATABASE_TRANSACTION_POOLING")]
    pub transaction_pooling: bool,
}

/// How this daemon works.
#[derive(Debug, Clone, confique::Config)]
pub struct Driver {
    /// Its name among several, as leases and logs show it. Without one: host name and process id.
    #[config(env = "PAYLATCH_DRIVER_NAME")]
    pub name: Option<String>,
    /// The most actions that it holds at once: calls under way and answers not yet reported.
    #[config(default = 1000, env = "PAYLATCH_DRIVER_MAX_IN_FLIGHT")]
    pub max_in_flight: usize,
    /// The most actions that it claims with one statement.
    #[config(default = 200, env = "PAYLATCH_DRIVER_CLAIM_BATCH")]
    pub claim_batch: usize,
    /// How long an action is this daemon's own. Must leave room for the slowest call, connecting included. It is also
    /// how long the work of a daemon that was killed waits for another one.
    #[config(default = 30000, env = "PAYLATCH_DRIVER_LEASE_MS")]
    pub lease_ms: u64,
    /// The pause between two claims while there is work.
    #[config(default = 2, env = "PAYLATCH_DRIVER_POLL_MIN_MS")]
    pub poll_min_ms: u64,
    /// The pause between two claims grows to this while there is none.
    #[config(default = 250, env = "PAYLATCH_DRIVER_POLL_MAX_MS")]
    pub poll_max_ms: u64,
    /// How often it makes sure that the scanner runs (it does so itself where pg_cron is silent).
    #[config(default = 20000, env = "PAYLATCH_DRIVER_TICK_MS")]
    pub tick_ms: u64,
    /// After SIGTERM: how long calls under way may still take.
    #[config(default = 10000, env = "PAYLATCH_DRIVER_SHUTDOWN_GRACE_MS")]
    pub shutdown_grace_ms: u64,
}

/// What it serves to those who watch it.
#[derive(Debug, Clone, confique::Config)]
pub struct Http {
    /// Where `/healthz`, `/readyz` and `/metrics` are served; "off" for nowhere. They ask for no password: keep
    /// this address private.
    #[config(default = "127.0.0.1:9464", env = "PAYLATCH_HTTP_LISTEN")]
    pub listen: Listen,
}

/// Merchants' webhooks, which it sends. Where they go is in the database: `paylatchd webhook`.
#[derive(Debug, Clone, confique::Config)]
pub struct Webhooks {
    /// Whether `run` sends them. One daemon that does is enough; several share the work.
    #[config(default = true, env = "PAYLATCH_WEBHOOKS_ENABLED")]
    pub enabled: bool,
    /// Whether an endpoint may be plain http://. For tests and private networks only.
    #[config(default = false, env = "PAYLATCH_WEBHOOKS_ALLOW_HTTP")]
    pub allow_http: bool,
    /// For name resolution, TCP and TLS together.
    #[config(default = 3000, env = "PAYLATCH_WEBHOOKS_CONNECT_TIMEOUT_MS")]
    pub connect_timeout_ms: u64,
    /// For a whole call, connecting included; at most 20000.
    #[config(default = 10000, env = "PAYLATCH_WEBHOOKS_CALL_TIMEOUT_MS")]
    pub call_timeout_ms: u64,
    /// The pause between two claims grows to this while there is nothing to send.
    #[config(default = 1000, env = "PAYLATCH_WEBHOOKS_POLL_MS")]
    pub poll_ms: u64,
}

/// What it says, on standard error.
#[derive(Debug, Clone, confique::Config)]
pub struct Log {
    /// "text" for people, "json" for machines.
    #[config(default = "text", env = "PAYLATCH_LOG_FORMAT")]
    pub format: LogFormat,
    /// "error", "warn", "info", "debug" or "trace", also by module as in "info,paylatchd::worker=debug".
    #[config(default = "info", env = "PAYLATCH_LOG_LEVEL")]
    pub level: String,
}

/// A wallet, or a payment provider behind our wallet protocol.
#[derive(Debug, Clone, confique::Config)]
pub struct Wallet {
    /// "http": our documented protocol. "sim": the same, against `paylatchd simulate`. "stripe": an account at Stripe.
    /// "null": says yes at once, takes no money; for benchmarks only.
    pub adapter: WalletAdapter,
    /// Where it is. Needed with "http" and "sim"; Stripe is where it is. PAYLATCH_WALLET_NAME_BASE_URL wins over it.
    pub base_url: Option<String>,
    /// For name resolution, TCP and TLS together.
    #[config(default = 1000)]
    pub connect_timeout_ms: u64,
    /// For a whole call, connecting included. Must not exceed the channel's `call_timeout_ms` in the database.
    #[config(default = 5000)]
    pub call_timeout_ms: u64,
    /// Sent as `Authorization: Bearer`; for Stripe the secret key. PAYLATCH_WALLET_NAME_TOKEN wins over it, and keeps it
    /// out of the file.
    pub token: Option<Secret>,
    /// What its webhooks are signed with: none (it sends none), one, or two while one replaces the other.
    /// PAYLATCH_WALLET_NAME_WEBHOOK_SECRETS, with a comma in between, wins over it.
    #[config(default = [], deserialize_with = keys::secrets)]
    pub webhook_secrets: Vec<Secret>,
}

/// A business service behind our business protocol.
#[derive(Debug, Clone, confique::Config)]
pub struct Business {
    /// "http": our documented protocol.
    pub adapter: BusinessAdapter,
    /// Where it is. PAYLATCH_BUSINESS_NAME_BASE_URL wins over it.
    pub base_url: Option<String>,
    /// For name resolution, TCP and TLS together.
    #[config(default = 1000)]
    pub connect_timeout_ms: u64,
    /// For a whole call, connecting included. Must not exceed the scene's `business_timeout_ms` in the database.
    #[config(default = 5000)]
    pub call_timeout_ms: u64,
    /// Sent as `Authorization: Bearer`. PAYLATCH_BUSINESS_NAME_TOKEN wins over it, and keeps it out of the file.
    pub token: Option<Secret>,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// An address to listen at, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(Self(None));
        }
        let address = SocketAddr::from_str(&text)
            .map_err(|_| serde::de::Error::custom("must be an address and port, as 127.0.0.1:9464, or \"off\""))?;
        Ok(Self(Some(address)))
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, or the file where it is about all of it.
    pub key: String,
    /// What is wrong with it and what to do.
    pub problem: String,
}

impl ConfigError {
    fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration, {}: {}", self.key, self.problem)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads `file` if one is given, and the environment. `url` wins over both for `database.url`.
    ///
    /// # Errors
    /// The first key that is unknown, missing or out of range.
    pub fn load(file: Option<&Path>, url: Option<String>) -> Result<Self, ConfigError> {
        let text = match file {
            Some(file) => std::fs::read_to_string(file)
                .map_err(|e| ConfigError::new(file.display().to_string(), format!("cannot be read: {e}")))?,
            None => String::new(),
        };
        let name = file.map_or_else(|| PathBuf::from("the environment"), Path::to_owned);
        let config = keys::read(&text, &name.display().to_string(), url)?;
        config.overlaid(|variable| std::env::var(variable).ok()).checked()
    }

    /// The template that `paylatchd config --example` prints: every key, its meaning, its default.
    pub fn example() -> String {
        keys::example()
    }

    /// This daemon's name among several.
    pub fn driver_name(&self) -> String {
        self.driver.name.clone().unwrap_or_else(|| {
            let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
            format!("{}-{}", host.as_deref().unwrap_or("paylatchd"), std::process::id())
        })
    }

    /// What sections may take from the environment, so that secrets need not be in the file.
    fn overlaid(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let of = |kind: &str, name: &str, key: &str| {
            variable(&format!("PAYLATCH_{kind}_{}_{key}", name.to_uppercase().replace('-', "_")))
        };
        for (name, wallet) in &mut self.wallet {
            wallet.base_url = of("WALLET", name, "BASE_URL").or(wallet.base_url.take());
            wallet.token = of("WALLET", name, "TOKEN").map(Secret::from).or(wallet.token.take());
            if let Some(secrets) = of("WALLET", name, "WEBHOOK_SECRETS") {
                let secrets = secrets.split(',').map(str::trim).filter(|secret| !secret.is_empty());
                wallet.webhook_secrets = secrets.map(|secret| Secret::from(secret.to_owned())).collect();
            }
        }
        for (name, business) in &mut self.business {
            business.base_url = of("BUSINESS", name, "BASE_URL").or(business.base_url.take());
            business.token = of("BUSINESS", name, "TOKEN").map(Secret::from).or(business.token.take());
        }
        for (name, relay) in &mut self.relay {
            relay.overlay(|key| of("RELAY", name, key));
        }
        self
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let Driver { max_in_flight, claim_batch, lease_ms, poll_min_ms, poll_max_ms, tick_ms, .. } = self.driver;
        within("database.max_connections", self.database.max_connections, 2, 100)?;
        within("database.command_timeout_ms", self.database.command_timeout_ms, 100, 600_000)?;
        within("driver.max_in_flight", max_in_flight, 1, 50_000)?;
        within("driver.claim_batch", claim_batch, 1, 1000)?;
        within("driver.lease_ms", lease_ms, 1000, 3_600_000)?;
        within("driver.poll_max_ms", poll_max_ms, 1, 60_000)?;
        within("driver.poll_min_ms", poll_min_ms, 1, poll_max_ms)?;
        within("driver.tick_ms", tick_ms, 100, 600_000)?;
        within("driver.shutdown_grace_ms", self.driver.shutdown_grace_ms, 0, 600_000)?;
        self.api.check()?;
        if self.driver.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > 64) {
            return Err(ConfigError::new("driver.name", "must have 1 to 64 characters; leave it out for host and pid"));
        }
        EnvFilter::builder()
            .parse(&self.log.level)
            .map_err(|e| ConfigError::new("log.level", format!("{e}; use error, warn, info, debug or trace")))?;
        for (name, wallet) in &self.wallet {
            wallet.check(&format!("wallet.{name}"))?;
        }
        for (name, business) in &self.business {
            business.check(&format!("business.{name}"))?;
        }
        for (name, relay) in &self.relay {
            relay.check(&format!("relay.{name}"))?;
        }
        Ok(self)
    }
}

impl Wallet {
    /// Where it is.
    pub fn base_url(&self) -> Option<&str> {
        let known = (self.adapter == WalletAdapter::Stripe).then_some(stripe::BASE_URL);
        self.base_url.as_deref().or(known)
    }

    /// What its adapter is opened with; `None` where the adapter needs nothing.
    pub fn endpoint(&self) -> Option<EndpointSettings> {
        endpoint(self.base_url()?, self.connect_timeout_ms, self.call_timeout_ms, self.token.as_ref())
    }

    fn check(&self, section: &str) -> Result<(), ConfigError> {
        let needed = self.adapter != WalletAdapter::Null;
        if self.webhook_secrets.len() > 2 {
            let problem = "give at most two: the one in use, and the one that replaces it";
            return Err(ConfigError::new(format!("{section}.webhook_secrets"), problem));
        }
        if self.adapter == WalletAdapter::Stripe {
            stripe::check_key(self.token.as_ref().map(Secret::expose), self.base_url().unwrap_or_default())
                .map_err(|problem| ConfigError::new(format!("{section}.{}", problem.key), problem.says))?;
        }
        check_endpoint(section, needed, self.base_url(), self.connect_timeout_ms, self.call_timeout_ms)
    }
}

impl Business {
    /// What its adapter is opened with.
    pub fn endpoint(&self) -> Option<EndpointSettings> {
        endpoint(self.base_url.as_ref()?, self.connect_timeout_ms, self.call_timeout_ms, self.token.as_ref())
    }

    fn check(&self, section: &str) -> Result<(), ConfigError> {
        check_endpoint(section, true, self.base_url.as_deref(), self.connect_timeout_ms, self.call_timeout_ms)
    }
}

fn endpoint(base_url: &str, connect_ms: u64, call_ms: u64, token: Option<&Secret>) -> Option<EndpointSettings> {
    Some(EndpointSettings {
        base_url: base_url.to_owned(),
        connect_timeout: Duration::from_millis(connect_ms),
        call_timeout: Duration::from_millis(call_ms),
        token: token.map(|token| token.expose().to_owned()),
    })
}

fn check_endpoint(
    section: &str,
    needed: bool,
    base_url: Option<&str>,
    connect_ms: u64,
    call_ms: u64,
) -> Result<(), ConfigError> {
    if needed && base_url.is_none() {
        return Err(ConfigError::new(
            format!("{section}.base_url"),
            "is missing: say where it is, as \"http://127.0.0.1:8080\"",
        ));
    }
    within(&format!("{section}.call_timeout_ms"), call_ms, 1, 600_000)?;
    within(&format!("{section}.connect_timeout_ms"), connect_ms, 1, call_ms)
}

fn within<T: PartialOrd + fmt::Display>(key: &str, value: T, least: T, most: T) -> Result<(), ConfigError> {
    if value < least || value > most {
        return Err(ConfigError::new(key, format!("is {value}; set it to {least} at least and {most} at most")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
