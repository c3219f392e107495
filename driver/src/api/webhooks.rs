//! `POST /webhooks/{channel}`: the door for what wallets tell.
//!
//! A body is read within its limits, its signature is checked over the raw bytes, and only then does anything else
//! happen: an event that does not name a number of ours is asked about, where its adapter knows how. The answer is 2xx
//! only after the event is committed; whatever keeps it from that is a 503, and the wallet sends again. What arrives
//! while a call of the database is under way goes with the next one, so a single webhook waits for nobody and a thousand
//! cost a handful of statements.
//!
//! Invariants: a signature that does not hold leaves nothing behind but a count; memory is bounded by [`QUEUE`],
//! [`ROOM`] and [`BODY_LIMIT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::StreamExt;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::problem::{Kind, Problem};
use crate::clock;
use crate::db::{Db, InboxEvent, InboxTold};
use crate::dispatch::Adapters;
use crate::metrics::Metrics;
use crate::wallet::WebhookError;

/// Most bytes of a body.
pub const BODY_LIMIT: usize = 256 * 1024;
/// How long a body may take.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// How long a sender waits for its answer; then it is asked to come again, whether or not the event is stored after all.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Most bodies that are being read at once.
const ROOM: usize = 256;
/// Most events that wait for the database.
const QUEUE: usize = 256;
/// Most events of one call.
const BATCH: usize = 100;
/// Calls under way at once: a payment whose lock is held long must not hold up all others.
const CALLS: usize = 2;

/// What the handler looks at.
#[derive(Clone)]
struct Door {
    adapters: Arc<Adapters>,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Waiting>,
}

/// An event on its way into the database, and who waits for it.
struct Waiting {
    channel: String,
    event: InboxEvent,
    answer: oneshot::Sender<InboxTold>,
}

/// How a request ends, as it is answered and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Received,
    Duplicate,
    UnknownChannel,
    Forged,
    Malformed,
    TooLarge,
    Slow,
    Unavailable,
}

impl End {
    const fn word(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Duplicate => "duplicate",
            Self::UnknownChannel => "unknown_channel",
            Self::Forged => "forged",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::Slow => "slow",
            Self::Unavailable => "unavailable",
        }
    }

    /// The problem that it is answered with; `None` where all is well.
    fn problem(self) -> Option<Problem> {
        let (kind, detail) = match self {
            Self::Received | Self::Duplicate => return None,
            Self::UnknownChannel => (Kind::NotFound, "there is no such channel, or it takes no webhooks"),
            Self::Forged => (Kind::BadSignature, "signed by nobody known here, or more than five minutes ago"),
            Self::Malformed => (Kind::BadRequest, "the body is no event that can be read"),
            Self::TooLarge => (Kind::BodyTooLarge, "the body exceeds 256 KiB"),
            Self::Slow => (Kind::Timeout, "the body did not come within 10 seconds"),
            Self::Unavailable => (Kind::Unavailable, "it cannot be stored now; send it again"),
        };
        Some(Problem::says(kind, detail))
    }
}

impl IntoResponse for End {
    fn into_response(self) -> Response {
        self.problem().map_or_else(|| StatusCode::NO_CONTENT.into_response(), Problem::into_response)
    }
}

/// The route, and the task behind it that carries events into the database.
pub fn router<S: Clone + Send + Sync + 'static>(db: Db, adapters: Arc<Adapters>) -> Router<S> {
    let (queue, arriving) = mpsc::channel(QUEUE);
    tokio::spawn(gather(db, adapters.metrics().clone(), arriving));
    let door = Door { adapters, room: Arc::new(Semaphore::new(ROOM)), queue };
    Router::new().route("/webhooks/{channel}", post(receive)).with_state(door)
}

async fn receive(State(door): State<Door>, Path(channel): Path<String>, headers: HeaderMap, body: Body) -> End {
    let end = door.take(&channel, &headers, body).await.unwrap_or_else(|end| end);
    // A channel that nobody knows is the caller's own word; it must not become a label.
    let label = if end == End::UnknownChannel { "" } else { &channel };
    door.adapters.metrics().webhook(label, end.word());
    end
}

impl Door {
    async fn take(&self, channel: &str, headers: &HeaderMap, body: Body) -> Result<End, End> {
        let wallet = self.adapters.wallet(channel).filter(|wallet| wallet.capabilities().webhooks);
        let wallet = wallet.ok_or(End::UnknownChannel)?;
        let _room = self.room.try_acquire().map_err(|_| End::Unavailable)?;
        let body = read(headers, body).await?;
        let event = wallet.verify_webhook(headers, &body, clock::now()).map_err(|error| match error {
            WebhookError::NotSupported => End::UnknownChannel,
            WebhookError::BadSignature => End::Forged,
            WebhookError::Malformed => End::Malformed,
        })?;
        let event = wallet.identify_webhook(event).await.map_err(|answer| {
            tracing::warn!(
                channel,
                code = answer.code,
                "the wallet does not say whom a webhook is about; it sends it again"
            );
            End::Unavailable
        })?;
        let event = InboxEvent::new(event, signed(headers), &body).ok_or(End::Malformed)?;
        let (answer, told) = oneshot::channel();
        let waiting = Waiting { channel: channel.to_owned(), event, answer };
        self.queue.try_send(waiting).map_err(|_| End::Unavailable)?;
        let told = tokio::time::timeout(ANSWER_WITHIN, told).await;
        let told = told.ok().and_then(Result::ok).ok_or(End::Unavailable)?;
        tracing::debug!(channel, event_id = told.event_id, applied = told.applied, "a webhook was stored");
        Ok(if told.disposition == "duplicate" { End::Duplicate } else { End::Received })
    }
}

/// The whole body, within its size and its time.
async fn read(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, End> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_LIMIT) {
        return Err(End::TooLarge);
    }
    let reading = async {
        let mut chunks = body.into_data_stream();
        let mut read = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| End::Malformed)?;
            if read.len() + chunk.len() > BODY_LIMIT {
                return Err(End::TooLarge);
            }
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    };
    tokio::time::timeout(BODY_WITHIN, reading).await.unwrap_or(Err(End::Slow))
}

/// The headers that a signature stands on, so that it can be checked again.
fn signed(headers: &HeaderMap) -> BTreeMap<String, String> {
    let kept = headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        name.starts_with("webhook-") || name.ends_with("-signature")
    });
    kept.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}

/// Takes what is there, and hands it on as soon as a call is free.
async fn gather(db: Db, metrics: Metrics, mut arriving: mpsc::Receiver<Waiting>) {
    let calls = Arc::new(Semaphore::new(CALLS));
    while let Some(first) = arriving.recv().await {
        let Ok(call) = Arc::clone(&calls).acquire_owned().await else { return };
        let mut by_channel: BTreeMap<String, Vec<Waiting>> = BTreeMap::new();
        by_channel.entry(first.channel.clone()).or_default().push(first);
        for _ in 1..BATCH {
            let Ok(next) = arriving.try_recv() else { break };
            by_channel.entry(next.channel.clone()).or_default().push(next);
        }
        let (db, metrics) = (db.clone(), metrics.clone());
        tokio::spawn(async move {
            for (channel, waiting) in by_channel {
                store(&db, &metrics, &channel, waiting).await;
            }
            drop(call);
        });
    }
}

/// One call; whoever gets no answer is told 503, since its sender then goes.
async fn store(db: &Db, metrics: &Metrics, channel: &str, waiting: Vec<Waiting>) {
    let (events, answers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|w| (w.event, w.answer)).unzip();
    match db.receive_webhooks(channel, &events).await {
        Ok(told) => {
            for (answer, told) in answers.into_iter().zip(told) {
                // Whoever gave up waiting finds it stored when the wallet sends it again.
                let _ = answer.send(told);
            }
        }
        Err(error) => {
            metrics.database_errors.inc();
            tracing::warn!(channel, events = events.len(), %error, "webhooks are not stored; the wallet sends them again");
        }
    }
}
