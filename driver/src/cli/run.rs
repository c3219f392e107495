//! `paylatchd run`: the daemon.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::db::Db;
use crate::dispatch::Adapters;
use crate::error::{Class, Error};
use crate::pace::Backoff;
use crate::{compat, http, scanner, shutdown, worker};

/// Works until a signal. Serves HTTP from the start, so that it can be seen waiting for its database.
pub async fn run(config: Config) -> Result<(), Error> {
    let name = config.driver_name();
    let db = Db::open(&config.database, &name)?;
    let adapters = Arc::new(Adapters::open(&config)?);
    let shutdown = shutdown::on_signals()?;
    // HTTP outlives the wish to stop: whoever watches can see the daemon finish its work.
    let done = CancellationToken::new();
    let serving = match config.http.listen.0 {
        Some(address) => {
            let listener = http::bind(address).await?;
            let address = listener.local_addr().unwrap_or(address);
            tracing::info!(%address, "serving /healthz, /readyz and /metrics");
            Some(tokio::spawn(http::serve(listener, db.clone(), Arc::clone(&adapters), shutdown.clone(), done.clone())))
        }
        None => None,
    };
    if wait_for_database(&config, &shutdown).await? {
        tracing::info!(driver = name, version = compat::BINARY, "working");
        warn_of_tight_leases(&config);
        let tick = Duration::from_millis(config.driver.tick_ms);
        let ticking = tokio::spawn(scanner::run(db.clone(), tick, shutdown.clone()));
        worker::run(db.clone(), adapters, (&config.driver).into(), shutdown).await?;
        ticking.await?;
    }
    done.cancel();
    if let Some(serving) = serving {
        serving.await??;
    }
    db.close().await;
    tracing::info!("stopped");
    Ok(())
}

async fn check(config: &Config) -> Result<(), Error> {
    let db = Db::connect(&config.database, "start").await?;
    let checked = compat::check(&db).await;
    db.close().await;
    checked
}

/// Waits until the database answers and belongs to this binary. False: the wish to stop came first.
async fn wait_for_database(config: &Config, shutdown: &CancellationToken) -> Result<bool, Error> {
    let mut backoff = Backoff::default();
    loop {
        let checked = tokio::select! {
            checked = check(config) => checked,
            () = shutdown.cancelled() => return Ok(false),
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
            () = shutdown.cancelled() => return Ok(false),
        }
    }
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
