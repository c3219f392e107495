//! Carrying one action out: to the right counterparty, in time or not at all, and always with an answer.
//!
//! Invariants: a call is begun only while its send window is open, connecting counted in; whatever happens, a panic
//! in an adapter included, the action ends as evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::business::{self, Business};
use crate::clock;
use crate::config::Config;
use crate::error::Error;
use crate::evidence::{Answer, Evidence, Handout};
use crate::metrics::Metrics;
use crate::wallet::{self, Wallet, WalletAdapter};

/// A handout and when it came.
#[derive(Debug)]
pub struct Received {
    /// What to do.
    pub handout: Handout,
    /// Before the statement that handed it out was sent: its send window counts from here.
    pub asked: Instant,
    /// When that statement's answer was here.
    pub received: Instant,
}

/// An action that was carried out, or could not be.
#[derive(Debug)]
pub struct Carried {
    /// What was to be done; its payload is gone.
    pub handout: Handout,
    /// What came of it.
    pub evidence: Evidence,
    /// How long the call took.
    pub took: Duration,
}

/// Everyone who can be called.
#[derive(Default)]
pub struct Adapters {
    wallets: BTreeMap<String, (Arc<dyn Wallet>, bool)>,
    businesses: BTreeMap<String, Arc<dyn Business>>,
    metrics: Metrics,
    warned: Mutex<BTreeSet<String>>,
}

impl Adapters {
    /// Opens every wallet and business of the configuration; connects to none yet.
    ///
    /// # Errors
    /// The first one that cannot be opened.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let mut adapters = Self::default();
        for (name, settings) in &config.wallet {
            let opened = wallet::open(settings.adapter, settings.endpoint().as_ref(), &settings.webhook_secrets);
            let opened = opened.map_err(|source| Error::Endpoint { section: format!("wallet.{name}"), source })?;
            adapters.wallets.insert(name.clone(), (opened, settings.adapter == WalletAdapter::Null));
        }
        for (name, settings) in &config.business {
            let opened = business::open(settings.adapter, settings.endpoint().as_ref());
            let opened = opened.map_err(|source| Error::Endpoint { section: format!("business.{name}"), source })?;
            adapters.businesses.insert(name.clone(), opened);
        }
        Ok(adapters)
    }

    /// Adds or replaces the wallet of a channel.
    pub fn with_wallet(mut self, channel: &str, wallet: Arc<dyn Wallet>) -> Self {
        self.wallets.insert(channel.to_owned(), (wallet, false));
        self
    }

    /// Adds or replaces a business.
    pub fn with_business(mut self, target: &str, business: Arc<dyn Business>) -> Self {
        self.businesses.insert(target.to_owned(), business);
        self
    }

    /// The wallet of a channel, if the configuration has it.
    pub fn wallet(&self, channel: &str) -> Option<&dyn Wallet> {
        self.wallets.get(channel).map(|(wallet, _)| wallet.as_ref())
    }

    /// What their calls are counted in.
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether a channel's wallet can be called.
    pub fn has_wallet(&self, channel: &str) -> bool {
        self.wallets.contains_key(channel)
    }

    /// Whether the action is answered in-process, at once, so that a task of its own would only cost time.
    pub fn is_inline(&self, handout: &Handout) -> bool {
        handout.action.is_wallet() && self.wallets.get(&handout.channel).is_some_and(|(_, inline)| *inline)
    }

    /// Carries the action out, unless it is too late. When `abort` is cancelled, a call under way is given up as
    /// UNKNOWN: it may have been sent.
    pub async fn carry_out(&self, received: Received, abort: &CancellationToken) -> Carried {
        let Received { handout, asked, received } = received;
        let begun = clock::instant();
        let Some(counterparty) = self.route(&handout) else {
            let answer = self.no_adapter(&handout);
            return finished(handout, answer, begun - received, Duration::ZERO);
        };
        if handout.send_within <= counterparty.lead() {
            self.warn_once(&format!("{} {}", handout.channel, handout.action), |key| {
                tracing::warn!(
                    key,
                    "its lease leaves no time to connect and send: raise driver.lease_ms or lower connect_timeout_ms"
                );
            });
        }
        if clock::left_of(handout.send_within, asked).is_none_or(|left| left <= counterparty.lead()) {
            return finished(handout, Answer::not_sent(), begun - received, Duration::ZERO);
        }
        let answer = tokio::select! {
            answer = AssertUnwindSafe(counterparty.call(&handout)).catch_unwind() => {
                answer.unwrap_or_else(|_| panicked())
            }
            () = abort.cancelled() => Answer::unknown("daemon_stopped", "the daemon stopped before an answer came"),
        };
        let took = begun.elapsed();
        let carried = finished(handout, answer, begun - received, took);
        self.metrics.called(&carried.handout, carried.evidence.outcome(), took);
        carried
    }

    fn route(&self, handout: &Handout) -> Option<Counterparty<'_>> {
        if handout.action.is_wallet() {
            let (wallet, _) = self.wallets.get(&handout.channel)?;
            return Some(Counterparty::Wallet(wallet.as_ref()));
        }
        let business = self.businesses.get(handout.business_target.as_ref()?)?;
        Some(Counterparty::Business(business.as_ref()))
    }

    /// What goes wrong for every action alike is said once.
    fn warn_once(&self, about: &str, warn: impl FnOnce(&str)) {
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(about.to_owned()) {
            warn(about);
        }
    }

    fn no_adapter(&self, handout: &Handout) -> Answer {
        let section = if handout.action.is_wallet() {
            format!("wallet.{}", handout.channel)
        } else {
            format!("business.{}", handout.business_target.as_deref().unwrap_or_default())
        };
        self.warn_once(&section, |section| {
            tracing::warn!(section, "the configuration has no such section, so its actions cannot be carried out");
        });
        Answer::unavailable("no_adapter", format!("the daemon's configuration has no [{section}]"))
    }
}

/// Whom an action goes to.
enum Counterparty<'a> {
    Wallet(&'a dyn Wallet),
    Business(&'a dyn Business),
}

impl Counterparty<'_> {
    fn lead(&self) -> Duration {
        match self {
            Self::Wallet(wallet) => wallet.lead(),
            Self::Business(business) => business.lead(),
        }
    }

    async fn call(&self, handout: &Handout) -> Answer {
        match self {
            Self::Wallet(wallet) => wallet::carry_out(*wallet, handout).await,
            Self::Business(business) => business::carry_out(*business, handout).await,
        }
    }
}

/// An action that came when no call may begin any more.
pub fn not_sent(received: Received) -> Carried {
    let waited = received.received.elapsed();
    finished(received.handout, Answer::not_sent(), waited, Duration::ZERO)
}

fn finished(mut handout: Handout, answer: Answer, waited: Duration, took: Duration) -> Carried {
    let evidence = Evidence::new(&handout, answer, waited, took);
    handout.payload = None;
    Carried { handout, evidence, took }
}

fn panicked() -> Answer {
    tracing::error!("an adapter panicked; the call counts as perhaps executed");
    Answer::unknown("adapter_panicked", "the adapter failed inside")
}

#[cfg(test)]
pub(crate) mod tests;
