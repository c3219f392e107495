//! `Prefer: wait=N`: carrying a payment out at once, and waiting for its end.
//!
//! The request claims the flow's action past the queue, calls, reports, and goes on with what follows, the same way as
//! the worker does; then it looks at the payment until it has settled or its time is over. Where another daemon holds the
//! flow, it only looks. Invariants: the work is a task of its own, so a client that leaves ends the waiting and nothing
//! else; no connection to the database is held while it waits; the wish to stop ends every wait at once, and the work
//! after the action under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Api;
use super::limits::Place;
use crate::clock;
use crate::db::Db;
use crate::dispatch::{Adapters, Received};
use crate::error::{Class, Error};
use crate::evidence::Handout;
use crate::pace::Backoff;
use crate::worker::report_log;

/// The pause between two looks grows from the first to the second.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The wait that a request asks for, if it asks for one (RFC 7240). What cannot be read is ignored, as preferences are.
pub fn preferred(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences.find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse::<u32>();
        name.trim().eq_ignore_ascii_case("wait").then_some(seconds.ok()?).map(|s| Duration::from_secs(s.into()))
    })
}

/// Says in an answer's headers which wait was granted.
pub fn applied(headers: &mut HeaderMap, granted: Option<Duration>) {
    let Some(granted) = granted else { return };
    if let Ok(value) = HeaderValue::try_from(format!("wait={}", granted.as_secs())) {
        headers.insert(HeaderName::from_static("preference-applied"), value);
        headers.append(header::VARY, HeaderValue::from_static("Prefer"));
    }
}

/// Something that a request may wait for.
pub trait Awaited: Sized + Send {
    /// Whether waiting for more makes no sense.
    fn is_settled(&self) -> bool;

    /// The flow whose action is due and should be carried out here, if there is one.
    fn due(&self, api: &Api) -> Option<i64>;

    /// Looks again.
    fn again(&self, api: &Api) -> impl Future<Output = Result<Option<Self>, Error>> + Send;
}

/// Waits, if the request asks for it and there is room to, until `seen` has settled. Returns what was seen last,
/// and the wait that was granted.
pub async fn wait<T: Awaited>(api: &Api, place: &Place, headers: &HeaderMap, mut seen: T) -> (T, Option<Duration>) {
    let Some(asked) = preferred(headers) else { return (seen, None) };
    let granted = asked.min(api.0.max_wait);
    let Some(_seat) = api.0.room.wait(place) else { return (seen, None) };
    let until = clock::instant() + granted;
    let mut pause = LOOKS.0;
    let mut work = None;
    while !seen.is_settled() && !api.stopping().is_cancelled() {
        let left = until.saturating_duration_since(clock::instant());
        if left.is_zero() {
            break;
        }
        if work.is_none() {
            work = seen.due(api).map(|flow_id| api.0.hands.begin(flow_id));
        }
        tokio::select! {
            () = sleep(pause.min(left)) => pause = (pause * 3 / 2).min(LOOKS.1),
            did_something = ended(&mut work) => {
                if did_something {
                    pause = LOOKS.0;
                } else {
                    // Somebody else has it, or the channel has no call left: no reason to ask faster.
                    sleep(pause.min(left)).await;
                    pause = (pause * 3 / 2).min(LOOKS.1);
                }
            }
            () = api.stopping().cancelled() => {}
        }
        match seen.again(api).await {
            Ok(Some(now)) => seen = now,
            Ok(None) => break,
            // What was seen last is still true, only older.
            Err(error) => tracing::warn!(%error, "could not look again for a client that waits"),
        }
    }
    (seen, Some(granted))
}

/// Ends when the work does, and says whether there was any; never ends where none was begun.
async fn ended(work: &mut Option<JoinHandle<bool>>) -> bool {
    match work {
        Some(task) => {
            // After a panic the flow's lease runs out.
            let did_something = task.await.unwrap_or(false);
            *work = None;
            did_something
        }
        None => std::future::pending().await,
    }
}

/// Carries out what requests wait for.
#[derive(Clone)]
pub struct Hands {
    db: Db,
    adapters: Arc<Adapters>,
    lease: Duration,
    stopping: CancellationToken,
    abort: CancellationToken,
    tasks: TaskTracker,
}

impl Hands {
    /// With the worker's connections, which wait for locks as long as it takes: an answer must not be lost.
    pub fn new(db: Db, adapters: Arc<Adapters>, lease: Duration, stopping: CancellationToken) -> Self {
        Self { db, adapters, lease, stopping, abort: CancellationToken::new(), tasks: TaskTracker::new() }
    }

    /// Begins with the flow's action that is due.
    fn begin(&self, flow_id: i64) -> JoinHandle<bool> {
        let hands = self.clone();
        self.tasks.spawn(async move { hands.carry_on(flow_id).await })
    }

    /// Lets work under way end until `deadline`; then it is given up as UNKNOWN, and reported as that.
    pub async fn rest(&self, deadline: Instant) {
        self.tasks.close();
        let left = deadline.saturating_duration_since(clock::instant());
        if tokio::time::timeout(left, self.tasks.wait()).await.is_err() {
            self.abort.cancel();
            self.tasks.wait().await;
        }
    }

    /// Whether there was anything to do.
    async fn carry_on(&self, flow_id: i64) -> bool {
        let mut asked = clock::instant();
        let mut next = match self.db.claim_flow(flow_id, self.lease).await {
            Ok(handout) => handout,
            Err(error) => {
                tracing::warn!(flow_id, %error, "could not claim for a client that waits");
                None
            }
        };
        let did_something = next.is_some();
        while let Some(handout) = next {
            let received = Received { handout, asked, received: clock::instant() };
            (next, asked) = self.act_and_report(received).await;
        }
        did_something
    }

    /// One action and its report. Returns what follows at once, and when that was asked for.
    async fn act_and_report(&self, received: Received) -> (Option<Handout>, Instant) {
        let since = received.asked;
        let carried = self.adapters.carry_out(received, &self.abort).await;
        let mut backoff = Backoff::default();
        loop {
            let asked = clock::instant();
            let lease = (!self.stopping.is_cancelled()).then_some(self.lease);
            match self.db.report_evidence(&[&carried.evidence], lease).await {
                Ok(verdicts) => {
                    let mut next = None;
                    for verdict in verdicts {
                        self.adapters.metrics().reported(verdict.disposition.as_str());
                        report_log::verdict(&verdict, Some(&carried));
                        next = verdict.next;
                    }
                    return (next, asked);
                }
                Err(error) if error.class() == Class::Retry && clock::left_of(self.lease, since).is_some() => {
                    let pause = backoff.after_error();
                    tracing::warn!(%error, "an answer is not reported yet; trying again");
                    sleep(pause).await;
                }
                Err(error) => {
                    let flow_id = carried.handout.flow_id;
                    tracing::error!(flow_id, %error, "an answer is not reported; the flow asks again after its lease");
                    return (None, asked);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn prefer(values: &[&str]) -> Option<u64> {
        let headers = values.iter().map(|value| (HeaderName::from_static("prefer"), value.parse().unwrap()));
        preferred(&headers.collect()).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_preference_is_read_as_the_rfc_has_it() {
        assert_eq!(prefer(&["wait=10"]), Some(10));
        assert_eq!(prefer(&["respond-async, WAIT = \"7\"; x=y"]), Some(7));
        assert_eq!(prefer(&["respond-async", "wait=3, wait=4"]), Some(3));
        for ignored in ["", "wait", "wait=", "wait=-1", "wait=1.5", "wait=99999999999", "waiting=3", "=3"] {
            assert_eq!(prefer(&[ignored]), None, "{ignored}");
        }
        assert_eq!(preferred(&HeaderMap::new()), None);
    }
}
