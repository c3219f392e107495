//! Merchants' webhooks: claim -> send -> settle. The database says what goes where and when; this sends it once.
//!
//! An endpoint's deliveries leave one after the other, in the order of their events, until one is not taken; endpoints
//! are served side by side, so a slow one holds up nobody else. What was sent and not settled is sent again: receivers
//! drop repetitions by `webhook-id`.
//!
//! Nothing of an answer but its status is looked at. No redirect is followed and no proxy used; a plain `http://` URL is
//! refused unless the configuration allows it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paylatch_core::signature::Key;
use reqwest::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config;
use crate::db::{Db, Delivery, Tried};
use crate::endpoint::install_crypto;
use crate::pace::{Backoff, Polling};

/// The most endpoints served at once.
const ENDPOINTS: usize = 64;
/// How long an endpoint is this daemon's own.
const LEASE: Duration = Duration::from_secs(60);
/// The shortest pause between two claims.
const BUSY: Duration = Duration::from_millis(50);

/// Sends until `shutdown`, then finishes what is on its way.
pub async fn run(db: Db, settings: config::Webhooks, shutdown: CancellationToken) {
    let sender = match Sender::open(&settings) {
        Ok(sender) => sender,
        Err(error) => {
            // Payments go on without; deliveries wait in the database.
            tracing::error!(%error, "webhooks are off: their HTTP client cannot be set up");
            return;
        }
    };
    let mut polling = Polling::new(BUSY, Duration::from_millis(settings.poll_ms).max(BUSY));
    let mut backoff = Backoff::default();
    let mut batches = JoinSet::new();
    while !shutdown.is_cancelled() {
        while batches.try_join_next().is_some() {}
        let free = ENDPOINTS - batches.len();
        let pause = if free == 0 {
            BUSY
        } else {
            let since = clock::instant();
            match db.claim_deliveries(free, LEASE).await {
                Ok(deliveries) => {
                    backoff.after_success();
                    let pause = polling.after_claim(usize::MAX, deliveries.len(), usize::MAX);
                    for batch in by_endpoint(deliveries) {
                        batches.spawn(serve(db.clone(), sender.clone(), batch, since, shutdown.clone()));
                    }
                    pause
                }
                Err(error) => {
                    tracing::warn!(%error, advice = error.advice(), "deliveries cannot be claimed; trying again");
                    backoff.after_error()
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => {}
        }
    }
    batches.join_all().await;
}

fn by_endpoint(deliveries: Vec<Delivery>) -> impl Iterator<Item = Vec<Delivery>> {
    let mut batches: BTreeMap<i64, Vec<Delivery>> = BTreeMap::new();
    for delivery in deliveries {
        batches.entry(delivery.endpoint_id).or_default().push(delivery);
    }
    batches.into_values()
}

/// Sends one endpoint's deliveries until one is not taken or the lease gets short, and says what came of it.
async fn serve(db: Db, sender: Sender, batch: Vec<Delivery>, since: Instant, shutdown: CancellationToken) {
    let Some((endpoint, lease_token)) = batch.first().map(|d| (d.endpoint_id, d.lease_token)) else { return };
    let window = LEASE.saturating_sub(sender.longest * 2);
    let mut tried = Vec::new();
    for delivery in &batch {
        if shutdown.is_cancelled() || clock::left_of(window, since).is_none() {
            break;
        }
        let outcome = sender.send(delivery).await;
        let taken = outcome.error.is_none();
        if !taken {
            tracing::info!(
                endpoint,
                event_id = delivery.event_id,
                status = outcome.status,
                error = outcome.error,
                "a webhook was not taken"
            );
        }
        tried.push(outcome);
        if !taken {
            break;
        }
    }
    match db.settle_deliveries(endpoint, lease_token, &tried).await {
        Ok(said) => tracing::debug!(endpoint, sent = tried.len(), said, "webhooks"),
        Err(error) => {
            tracing::warn!(%error, endpoint, "what came of webhooks is not recorded; they will be sent again");
        }
    }
}

#[derive(Debug, Clone)]
struct Sender {
    client: Client,
    allow_http: bool,
    longest: Duration,
}

impl Sender {
    fn open(settings: &config::Webhooks) -> Result<Self, reqwest::Error> {
        install_crypto();
        let longest = Duration::from_millis(settings.call_timeout_ms).min(LEASE / 3);
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("paylatch/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_millis(settings.connect_timeout_ms))
            .timeout(longest)
            .build()?;
        Ok(Self { client, allow_http: settings.allow_http, longest })
    }

    async fn send(&self, delivery: &Delivery) -> Tried {
        let since = clock::instant();
        let (status, error) = match self.call(delivery).await {
            Ok(status) if (200..300).contains(&status) => (Some(status), None),
            Ok(status) => (Some(status), Some(format!("http_{status}"))),
            Err(why) => (None, Some(why.to_owned())),
        };
        let took_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        Tried { delivery_id: delivery.delivery_id, status, error, took_ms }
    }

    async fn call(&self, delivery: &Delivery) -> Result<u16, &'static str> {
        if !self.allow_http && !delivery.url.starts_with("https://") {
            return Err("http_not_allowed");
        }
        let at = clock::now().unix_timestamp();
        let signatures: Vec<String> = delivery
            .secrets
            .iter()
            .filter_map(|secret| Key::parse(secret))
            .map(|key| key.sign(&delivery.event_id, at, delivery.body.as_bytes()))
            .collect();
        if signatures.is_empty() {
            return Err("no_secret");
        }
        let request = self
            .client
            .post(&delivery.url)
            .header("content-type", "application/json")
            .header("webhook-id", &delivery.event_id)
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", signatures.join(" "))
            .body(delivery.body.clone());
        match request.send().await {
            Ok(response) => Ok(response.status().as_u16()),
            Err(error) if error.is_builder() => Err("bad_url"),
            Err(error) if error.is_connect() => Err("not_connected"),
            Err(error) if error.is_timeout() => Err("timed_out"),
            Err(_) => Err("no_answer"),
        }
    }
}
