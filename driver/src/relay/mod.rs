//! Events out: claim -> publish -> settle, one loop a sink.
//!
//! At most one batch is under way, so a slow broker slows the claims, and whatever cannot be published stays where it is:
//! in the database. Within a batch flows are published side by side, and each flow's events one after the other, the
//! next one only once the broker has acknowledged the one before.
//!
//! Invariants: no event is settled that the broker has not acknowledged; none is begun that could outlast the lease; an
//! event that the broker refuses holds up its own flow only, and a broker that is down refuses nothing; no payload
//! reaches the log.

mod kafka;
mod nats;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config;
use crate::db::Db;
use crate::error::{Class, Error};
use crate::metrics::Metrics;
use crate::pace::{Backoff, Polling};

/// What publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RelayAdapter {
    /// NATS JetStream.
    Nats,
    /// Kafka, or what speaks its protocol.
    Kafka,
}

/// One event on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the outbox; what is settled.
    pub outbox_id: i64,
    /// Its identity, by which subscribers drop what comes twice.
    pub event_id: String,
    /// As `flow.paying`.
    pub kind: String,
    /// The unit of order.
    pub flow_id: i64,
    /// What is published: JSON.
    pub envelope: String,
}

/// Events of one claim, and the token that settles them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Fences: an older one settles nothing.
    pub lease_token: i64,
    /// In the order of their ids.
    pub events: Vec<Event>,
}

/// Why an event was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishError {
    /// The broker will not take this one, however often it is asked.
    Refused(String),
    /// Nobody can say what became of it, or it was not sent: the broker is down, slow, or not set up.
    Unavailable(String),
}

/// An open connection to a broker.
enum Broker {
    Nats(nats::Nats),
    Kafka(kafka::Kafka),
}

impl Broker {
    async fn open(settings: &config::Relay) -> Result<Self, String> {
        match settings.adapter {
            RelayAdapter::Nats => nats::Nats::open(settings).await.map(Self::Nats),
            RelayAdapter::Kafka => kafka::Kafka::open(settings).await.map(Self::Kafka),
        }
    }

    async fn publish(&self, event: &Event) -> Result<(), PublishError> {
        match self {
            Self::Nats(nats) => nats.publish(event).await,
            Self::Kafka(kafka) => kafka.publish(event).await,
        }
    }
}

/// Publishes the events of `sink` until `shutdown`; then ends the batch under way, taking nothing more, and gives the
/// lease back. Whatever fails is met by trying again.
pub async fn run(
    db: Db,
    sink: String,
    settings: config::Relay,
    polling: Polling,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut relay = Relay::new(db, sink, settings, polling, metrics, shutdown.clone());
    while !shutdown.is_cancelled() {
        let pause = relay.round().await;
        if !pause.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }
    relay.leave().await;
}

struct Relay {
    db: Db,
    sink: String,
    /// This process among several: a lease belongs to one.
    name: String,
    settings: config::Relay,
    metrics: Metrics,
    shutdown: CancellationToken,
    broker: Option<Arc<Broker>>,
    polling: Polling,
    broker_backoff: Backoff,
    database_backoff: Backoff,
    lease: Option<i64>,
}

/// What became of a batch.
#[derive(Debug, Default)]
struct Published {
    done: Vec<i64>,
    refused: Vec<(i64, String)>,
    /// Why the rest was not tried to the end.
    trouble: Option<String>,
}

impl Relay {
    fn new(
        db: Db,
        sink: String,
        settings: config::Relay,
        polling: Polling,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> Self {
        let name = format!("{}/{:08x}", db.driver(), rand::random::<u32>());
        let (broker_backoff, database_backoff) = (Backoff::default(), Backoff::default());
        let (broker, lease) = (None, None);
        Self { db, sink, name, settings, metrics, shutdown, broker, polling, broker_backoff, database_backoff, lease }
    }

    /// One batch, if there is one. Returns how long to wait before the next round.
    async fn round(&mut self) -> Duration {
        // Without a broker nothing is claimed.
        let broker = match self.open().await {
            Ok(broker) => broker,
            Err(pause) => return pause,
        };
        let lease = Duration::from_millis(self.settings.lease_ms);
        let asked = clock::instant();
        let claimed = self.db.claim_events(&self.sink, &self.name, self.settings.batch, lease).await;
        let batch = match claimed {
            Ok(batch) => batch,
            Err(error) => return self.database_trouble(&error),
        };
        if self.database_backoff.after_success() {
            tracing::info!(sink = self.sink, "the database answers again");
        }
        let Some(Batch { lease_token, events }) = batch else {
            return self.polling.after_claim(self.settings.batch, 0, 1);
        };
        self.lease = Some(lease_token);
        let count = events.len();
        let published = self.publish(&broker, events, asked + lease).await;
        self.settle(lease_token, &published, asked + lease).await;
        tracing::debug!(sink = self.sink, events = count, published = published.done.len(), "a batch");
        match published.trouble {
            Some(trouble) => self.broker_trouble(&trouble),
            None => self.polling.after_claim(self.settings.batch, count, 1),
        }
    }

    async fn open(&mut self) -> Result<Arc<Broker>, Duration> {
        if let Some(broker) = &self.broker {
            return Ok(Arc::clone(broker));
        }
        let opened = tokio::select! {
            opened = Broker::open(&self.settings) => opened,
            () = self.shutdown.cancelled() => return Err(Duration::ZERO),
        };
        match opened {
            Ok(broker) => {
                let broker = Arc::new(broker);
                self.broker = Some(Arc::clone(&broker));
                self.metrics.relay.connected(&self.sink, true);
                tracing::info!(sink = self.sink, "connected to the broker");
                Ok(broker)
            }
            Err(trouble) => Err(self.broker_trouble(&trouble)),
        }
    }

    /// Lets go of the connection: what is still buffered in it must not be sent behind what comes next.
    fn broker_trouble(&mut self, trouble: &str) -> Duration {
        self.broker = None;
        self.metrics.relay.connected(&self.sink, false);
        let pause = self.broker_backoff.after_error();
        let retry_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(sink = self.sink, error = trouble, retry_ms, "the broker takes no events; they wait");
        pause
    }

    fn database_trouble(&mut self, error: &Error) -> Duration {
        self.metrics.database_errors.inc();
        let pause = self.database_backoff.after_error();
        let retry_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        match error.class() {
            Class::Retry => tracing::warn!(sink = self.sink, %error, retry_ms, "trying again"),
            _ => tracing::error!(sink = self.sink, %error, advice = error.advice(), retry_ms, "no events to publish"),
        }
        pause
    }

    /// Every flow's events one after the other, flows side by side, nothing begun that may outlast the lease.
    async fn publish(&mut self, broker: &Broker, events: Vec<Event>, lease_end: Instant) -> Published {
        let last_start = lease_end - Duration::from_millis(self.settings.publish_timeout_ms);
        let stop = self.shutdown.child_token();
        let chains = futures::stream::iter(by_flow(events)).map(|chain| chain_out(broker, chain, last_start, &stop));
        let parts: Vec<Published> = chains.buffer_unordered(self.settings.max_in_flight).collect().await;
        let mut whole = Published::default();
        for part in parts {
            whole.done.extend(part.done);
            whole.refused.extend(part.refused);
            whole.trouble = whole.trouble.or(part.trouble);
        }
        if whole.trouble.is_none() {
            self.broker_backoff.after_success();
        }
        self.metrics.relay.published(&self.sink, whole.done.len(), whole.refused.len());
        for (outbox_id, error) in &whole.refused {
            tracing::warn!(sink = self.sink, outbox_id, error, "the broker refuses an event; it is tried again later");
        }
        whole
    }

    /// Tries until the lease is over: from then on others may have published the same again, which is no loss.
    async fn settle(&mut self, lease_token: i64, published: &Published, lease_end: Instant) {
        if published.done.is_empty() && published.refused.is_empty() {
            return;
        }
        let mut backoff = Backoff::default();
        loop {
            let (done, refused) = (&published.done, &published.refused);
            let error = match self.db.settle_events(&self.sink, &self.name, lease_token, done, refused, false).await {
                Ok(true) => return,
                Ok(false) => {
                    tracing::warn!(sink = self.sink, events = done.len(), "the lease was lost: these come twice");
                    return;
                }
                Err(error) => error,
            };
            self.metrics.database_errors.inc();
            let pause = backoff.after_error();
            if error.class() != Class::Retry || clock::instant() + pause >= lease_end {
                tracing::error!(sink = self.sink, %error, events = done.len(), "cannot say that these are published: they come twice");
                return;
            }
            tracing::warn!(sink = self.sink, %error, "trying again to say what is published");
            tokio::time::sleep(pause).await;
        }
    }

    /// Others need not wait for the lease's end. That this may fail loses nothing.
    async fn leave(self) {
        if let Some(token) = self.lease {
            let left = self.db.settle_events(&self.sink, &self.name, token, &[], &[], true).await;
            if let Err(error) = left {
                tracing::debug!(sink = self.sink, %error, "the lease runs out by itself");
            }
        }
    }
}

/// Publishes the events of one flow until one fails.
async fn chain_out(broker: &Broker, chain: Vec<Event>, last_start: Instant, stop: &CancellationToken) -> Published {
    let mut part = Published::default();
    for event in chain {
        if stop.is_cancelled() || clock::instant() >= last_start {
            break;
        }
        match broker.publish(&event).await {
            Ok(()) => part.done.push(event.outbox_id),
            Err(PublishError::Refused(error)) => {
                part.refused.push((event.outbox_id, error));
                break;
            }
            Err(PublishError::Unavailable(error)) => {
                part.trouble = Some(error);
                // The others would only find out the same.
                stop.cancel();
                break;
            }
        }
    }
    part
}

/// The events of each flow, in order; flows in the order of their first event.
fn by_flow(events: Vec<Event>) -> Vec<Vec<Event>> {
    let mut chains: Vec<Vec<Event>> = Vec::new();
    let mut at: HashMap<i64, usize> = HashMap::new();
    for event in events {
        let chain = *at.entry(event.flow_id).or_insert(chains.len());
        if chain == chains.len() {
            chains.push(Vec::new());
        }
        chains[chain].push(event);
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flows_events_stay_in_order() {
        let event = |outbox_id: i64, flow_id: i64| Event {
            outbox_id,
            flow_id,
            event_id: String::new(),
            kind: String::new(),
            envelope: String::new(),
        };
        let chains = by_flow(vec![event(1, 7), event(2, 8), event(5, 7), event(6, 9), event(9, 8), event(10, 7)]);
        let ids: Vec<Vec<i64>> = chains.iter().map(|chain| chain.iter().map(|e| e.outbox_id).collect()).collect();
        assert_eq!(ids, [vec![1, 5, 10], vec![2, 9], vec![6]]);
    }
}
