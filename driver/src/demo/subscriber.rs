//! A subscriber of the demo's events, as docs/events.md wants one: it takes an event, then acknowledges it, and drops
//! what comes twice by `event_id`. Now and then it forgets to acknowledge, so that something does come twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use async_nats::jetstream::{self, Message, consumer::pull};
use futures::StreamExt;
use serde::Deserialize;
use sqlx::FromRow;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Where the daemon publishes, unless its configuration says otherwise.
const STREAM: &str = "paylatch";
/// One acknowledgement in so many is forgotten.
const FORGETS: u64 = 100;
/// After so long without one, an event comes again.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// How long one request waits for events.
const LISTEN: Duration = Duration::from_millis(500);
/// Before the stream is looked for again.
const RETRY: Duration = Duration::from_millis(200);
/// The most that one request takes.
const BATCH: usize = 500;

/// An event that there must be, as the log has it.
#[derive(Debug, Clone, FromRow)]
pub struct Due {
    /// Its identity.
    pub event_id: String,
    /// As `flow.paying`.
    #[sqlx(rename = "type")]
    pub kind: String,
}

#[derive(Deserialize)]
struct Envelope {
    event_id: String,
    #[serde(rename = "type")]
    kind: String,
    version: i64,
}

/// All that a subscriber has heard.
#[derive(Debug, Default)]
pub struct Heard {
    events: BTreeMap<String, String>,
    /// The latest version of each flow, order and refund.
    latest: HashMap<String, i64>,
    /// How many messages came.
    pub messages: u64,
    wrong: Vec<String>,
}

/// Events and log, one beside the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// How many there must be.
    pub due: usize,
    /// How many there are.
    pub heard: usize,
    /// How many messages were dropped, because they had come before.
    pub again: u64,
    /// What should not be, in words.
    pub differences: Vec<String>,
}

impl Heard {
    /// Takes one; false if it had come before.
    fn take(&mut self, Envelope { event_id, kind, version, .. }: Envelope) -> bool {
        self.messages += 1;
        if self.events.contains_key(&event_id) {
            return false;
        }
        let about = event_id.rsplit_once('_').map_or(event_id.as_str(), |(about, _)| about).to_owned();
        if self.latest.insert(about, version).is_some_and(|before| before >= version) {
            self.wrong.push(format!("{event_id} came after a later event of the same thing"));
        }
        self.events.insert(event_id, kind);
        true
    }

    /// Holds what came against what must have come.
    pub fn beside(&self, due: &[Due]) -> Events {
        let mut differences = self.wrong.clone();
        for Due { event_id, kind } in due {
            match self.events.get(event_id) {
                None => differences.push(format!("{event_id} ({kind}) never came")),
                Some(heard) if heard != kind => differences.push(format!("{event_id} is {heard}, in the log {kind}")),
                Some(_) => {}
            }
        }
        let known: BTreeSet<_> = due.iter().map(|due| due.event_id.as_str()).collect();
        let strange = self.events.keys().filter(|event_id| !known.contains(event_id.as_str()));
        differences.extend(strange.map(|event_id| format!("{event_id} came, but nothing in the log stands for it")));
        if known.len() != due.len() {
            differences.push("the log names an event twice".to_owned());
        }
        let again = self.messages - self.events.len() as u64;
        Events { due: due.len(), heard: self.events.len(), again, differences }
    }
}

/// One that listens, on a task of its own.
pub struct Subscriber {
    listening: JoinHandle<Result<Heard, async_nats::Error>>,
    enough: CancellationToken,
}

impl Subscriber {
    /// Begins to listen at `url`.
    pub fn start(url: &str) -> Self {
        let enough = CancellationToken::new();
        Self { listening: tokio::spawn(listen(url.to_owned(), enough.clone())), enough }
    }

    /// Takes what is still there, and ends.
    pub async fn finish(self) -> Result<Heard, Error> {
        self.enough.cancel();
        let heard = self.listening.await.map_err(|e| Error::Broken(format!("the subscriber ended: {e}")))?;
        heard.map_err(|e| Error::Broken(format!("the subscriber cannot listen: {e}")))
    }
}

async fn listen(url: String, enough: CancellationToken) -> Result<Heard, async_nats::Error> {
    let context = jetstream::new(async_nats::connect(url).await?);
    // The daemon makes it.
    let stream = loop {
        match context.get_stream(STREAM).await {
            Ok(stream) => break stream,
            Err(error) if enough.is_cancelled() => return Err(error.into()),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    };
    let settings = pull::Config {
        durable_name: Some("demo".to_owned()),
        ack_wait: ACK_WAIT,
        max_ack_pending: i64::try_from(BATCH).unwrap_or(i64::MAX),
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(settings).await?;
    let mut heard = Heard::default();
    loop {
        // First: what is published before `finish` is heard by the request that begins after it.
        let is_last = enough.is_cancelled();
        let mut batch = consumer.batch().max_messages(BATCH).expires(LISTEN).messages().await?;
        let mut is_empty = true;
        while let Some(message) = batch.next().await {
            is_empty = false;
            take(&mut heard, &message?).await?;
        }
        if is_last && is_empty {
            return Ok(heard);
        }
    }
}

async fn take(heard: &mut Heard, message: &Message) -> Result<(), async_nats::Error> {
    let is_new = heard.take(serde_json::from_slice(&message.payload)?);
    let forgets = is_new && heard.messages.is_multiple_of(FORGETS);
    if !forgets {
        message.ack().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(ids: &[&str]) -> Heard {
        let mut heard = Heard::default();
        for id in ids {
            let version = id.rsplit_once('_').and_then(|(_, version)| version.parse().ok()).unwrap_or(0);
            heard.take(Envelope { event_id: (*id).to_owned(), kind: "flow.paying".to_owned(), version });
        }
        heard
    }

    fn due(ids: &[&str]) -> Vec<Due> {
        ids.iter().map(|id| Due { event_id: (*id).to_owned(), kind: "flow.paying".to_owned() }).collect()
    }

    #[test]
    fn what_comes_twice_counts_once() {
        let found = heard(&["evt_1_f1_1", "evt_1_f1_2", "evt_1_f1_1"]).beside(&due(&["evt_1_f1_1", "evt_1_f1_2"]));
        assert_eq!(found, Events { due: 2, heard: 2, again: 1, differences: vec![] });
    }

    #[test]
    fn every_kind_of_wrong_is_seen() {
        for (came, expected) in [
            (vec!["evt_1_f1_1"], "never came"),
            (vec!["evt_1_f1_1", "evt_1_f1_2", "evt_1_f1_3"], "nothing in the log"),
            (vec!["evt_1_f1_2", "evt_1_f1_1"], "after a later event"),
        ] {
            let found = heard(&came).beside(&due(&["evt_1_f1_1", "evt_1_f1_2"]));
            assert!(found.differences.iter().any(|d| d.contains(expected)), "{:?}", found.differences);
        }
        let other = [Due { event_id: "evt_1_f1_1".to_owned(), kind: "flow.payed".to_owned() }];
        assert!(heard(&["evt_1_f1_1"]).beside(&other).differences[0].contains("in the log flow.payed"));
    }
}
