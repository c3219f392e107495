//! `paylatchd run`: the daemon, and `paylatchd serve`: the HTTP API alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::config::Config;
use crate::db::Db;
use crate::dispatch::Adapters;
use crate::error::{Class, Error};
use crate::pace::{Backoff, Polling};
use crate::{compat, deliver, http, relay, scanner, shutdown, worker};

/// Works until a signal, and serves the API where `api.listen` is set.
pub async fn run(config: Config) -> Result<(), Error> {
    let process = Process::begin(&config)?;
    let probes = process.probes().await?;
    let api = process.bind_api(config.api.listen.0).await?;
    if process.wait_for_database().await? {
        tracing::info!(driver = process.name, version = compat::BINARY, "working");
        warn_of_tight_leases(&config);
        let shutdown = process.shutdown.clone();
        let tick = Duration::from_millis(config.driver.tick_ms);
        let ticking = tokio::spawn(scanner::run(process.db.clone(), tick, shutdown.clone()));
        let delivering = config
            .webhooks
            .enabled
            .then(|| tokio::spawn(deliver::run(process.db.clone(), config.webhooks.clone(), shutdown.clone())));
        let working = worker::run(process.db.clone(), Arc::clone(&process.adapters), (&config.driver).into(), shutdown);
        // None goes on without the others: a daemon that does half of its work looks healthy and is not.
        let serving = process.stop_on_error(process.serve_api(api));
        let relaying = process.stop_on_error(process.relay());
        let (worked, served, relayed) = tokio::join!(process.stop_on_error(working), serving, relaying);
        ticking.await?;
        if let Some(delivering) = delivering {
            delivering.await?;
        }
        worked.and(served).and(relayed)?;
    }
    process.end(probes).await
}

/// Serves the API until a signal. Payments are carried out here only while a client waits for them.
pub async fn serve(config: Config) -> Result<(), Error> {
    let process = Process::begin(&config)?;
    let probes = process.probes().await?;
    let api = process.bind_api(Some(config.api.serve_address())).await?;
    if process.wait_for_database().await? {
        process.serve_api(api).await?;
    }
    process.end(probes).await
}

type Probes = Option<JoinHandle<Result<(), Error>>>;

/// What both have.
struct Process<'a> {
    config: &'a Config,
    name: String,
    db: Db,
    adapters: Arc<Adapters>,
    shutdown: CancellationToken,
    /// The probes outlive the wish to stop: whoever watches can see the daemon finish its work.
    done: CancellationToken,
}

impl<'a> Process<'a> {
    fn begin(config: &'a Config) -> Result<Self, Error> {
        let name = config.driver_name();
        Ok(Self {
            db: Db::open(&config.database, &name)?,
            adapters: Arc::new(Adapters::open(config)?),
            shutdown: shutdown::on_signals()?,
            done: CancellationToken::new(),
            config,
            name,
        })
    }

    /// Serves health and metrics from the start, so that the daemon can be seen waiting for its database.
    async fn probes(&self) -> Result<Probes, Error> {
        let Some(address) = self.config.http.listen.0 else { return Ok(None) };
        let listener = http::bind(address).await?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "serving /healthz, /readyz and /metrics");
        let (db, adapters) = (self.db.clone(), Arc::clone(&self.adapters));
        Ok(Some(tokio::spawn(http::serve(listener, db, adapters, self.shutdown.clone(), self.done.clone()))))
    }

    async fn bind_api(&self, address: Option<SocketAddr>) -> Result<Option<TcpListener>, Error> {
        match address {
            Some(address) => api::bind(address).await.map(Some),
            None => Ok(None),
        }
    }

    async fn serve_api(&self, listener: Option<TcpListener>) -> Result<(), Error> {
        match listener {
            Some(listener) => {
                let (db, adapters) = (self.db.clone(), Arc::clone(&self.adapters));
                api::serve(listener, self.config, db, adapters, self.shutdown.clone()).await
            }
            None => Ok(()),
        }
    }

    /// One loop a sink, each in a task of its own.
    async fn relay(&self) -> Result<(), Error> {
        let driver = &self.config.driver;
        let (least, most) = (Duration::from_millis(driver.poll_min_ms), Duration::from_millis(driver.poll_max_ms));
        let relays = self.config.relay.iter().map(|(sink, settings)| {
            let (db, metrics) = (self.db.clone(), self.adapters.metrics().clone());
            let polling = Polling::new(least, most);
            tokio::spawn(relay::run(db, sink.clone(), settings.clone(), polling, metrics, self.shutdown.clone()))
        });
        futures::future::try_join_all(relays).await?;
        Ok(())
    }

    async fn stop_on_error(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let done = work.await;
        if done.is_err() {
            self.shutdown.cancel();
        }
        done
    }

    async fn end(self, probes: Probes) -> Result<(), Error> {
        self.done.cancel();
        if let Some(probes) = probes {
            probes.await??;
        }
        self.db.close().await;
        tracing::info!("stopped");
        Ok(())
    }

    /// Waits until the database answers and belongs to this binary. False: the wish to stop came first.
    async fn wait_for_database(&self) -> Result<bool, Error> {
        let mut backoff = Backoff::default();
        loop {
            let checked = tokio::select! {
                checked = check(self.config) => checked,
                () = self.shutdown.cancelled() => return Ok(false),
            };
            let error = match checked {
                Ok(()) => return Ok(true),
                Err(error) if error.class() == Class::Retry => error,
                Err(error) => return Err(error),
            };
            let pause = backoff.after_error();
            tracing::warn!(%error, "waiting for the database");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.cancelled() => return Ok(false),
            }
        }
    }
}

async fn check(config: &Config) -> Result<(), Error> {
    let db = Db::connect(&config.database, "start").await?;
    let checked = compat::check(&db).await;
    db.close().await;
    checked
}

/// A lease that a slow call outlives is safe, but its answer then comes too late to count.
fn warn_of_tight_leases(config: &Config) {
    let wallets = config.wallet.iter().map(|(name, w)| ("wallet", name, w.connect_timeout_ms, w.call_timeout_ms));
    let businesses =
        config.business.iter().map(|(name, b)| ("business", name, b.connect_timeout_ms, b.call_timeout_ms));
    for (kind, name, connect_ms, call_ms) in wallets.chain(businesses) {
        if config.driver.lease_ms <= connect_ms + call_ms {
            tracing::warn!(
                section = format!("{kind}.{name}"),
                lease_ms = config.driver.lease_ms,
                call_timeout_ms = call_ms,
                "driver.lease_ms leaves little room for a slow call: answers may come too late to count"
            );
        }
    }
}
