//! The loop: claim -> call -> report.
//!
//! One task holds all state and waits for events: a claim that came back, a call that ended, a report that was
//! answered, a pause that is over. Claims and reports run beside any number of calls up to `max_in_flight`. A report
//! takes whatever has gathered since the last one left, so a lone answer waits for nothing, and under load sets form by
//! themselves. While there is more than one statement can take, a second one runs beside it.
//!
//! Invariants: an answer is held until the database has taken it, over any number of lost connections (lease tokens
//! make reporting it twice harmless); one set never holds two answers about one flow or refund; no call begins after the
//! wish to stop; no statement waits for a call.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config;
use crate::db::{Db, Verdict};
use crate::dispatch::{Adapters, Carried, Received, not_sent};
use crate::error::{Class, Error};
use crate::evidence::{Evidence, Handout};
use crate::pace::{Backoff, Polling};

pub(crate) mod report_log;

/// Most answers in one report.
const REPORT_LIMIT: usize = 500;
/// Claims, or reports, that run at once.
const AT_ONCE: usize = 2;
/// So many answers are worth a second report beside one that is under way.
const SIZEABLE: usize = 100;
/// After the last call has ended: how long the last reports may take.
const REPORT_GRACE: Duration = Duration::from_secs(5);

/// Where actions come from and evidence goes to: the database, or a stand-in for it in tests.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Takes up to `max` due actions, each leased for `lease`.
    fn claim(&self, max: usize, lease: Duration) -> impl Future<Output = Result<Vec<Handout>, Error>> + Send;

    /// Reports; with a `lease`, next actions that follow at once come along.
    fn report(
        &self,
        evidence: &[&Evidence],
        lease: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Verdict>, Error>> + Send;
}

impl Queue for Db {
    fn claim(&self, max: usize, lease: Duration) -> impl Future<Output = Result<Vec<Handout>, Error>> + Send {
        self.claim_actions(max, lease)
    }

    fn report(
        &self,
        evidence: &[&Evidence],
        lease: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Verdict>, Error>> + Send {
        self.report_evidence(evidence, lease)
    }
}

/// How a worker works; see [`config::Driver`].
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The most actions held at once.
    pub max_in_flight: usize,
    /// The most actions claimed with one statement.
    pub claim_batch: usize,
    /// How long an action is this worker's own.
    pub lease: Duration,
    /// The pause between claims while there is work.
    pub poll_min: Duration,
    /// The pause between claims while there is none.
    pub poll_max: Duration,
    /// How long calls may still take after the wish to stop.
    pub shutdown_grace: Duration,
}

impl From<&config::Driver> for Settings {
    fn from(driver: &config::Driver) -> Self {
        Self {
            max_in_flight: driver.max_in_flight,
            claim_batch: driver.claim_batch,
            lease: Duration::from_millis(driver.lease_ms),
            poll_min: Duration::from_millis(driver.poll_min_ms),
            poll_max: Duration::from_millis(driver.poll_max_ms),
            shutdown_grace: Duration::from_millis(driver.shutdown_grace_ms),
        }
    }
}

/// Works until `shutdown` is cancelled; then lets calls end within the grace and reports them, taking nothing more.
///
/// # Errors
/// Only [`Error::Panicked`]: everything that the database may answer is met by trying again.
pub async fn run(
    queue: impl Queue,
    adapters: Arc<Adapters>,
    settings: Settings,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let mut worker = Worker::new(queue, adapters, settings);
    loop {
        while worker.start_report() {}
        while worker.start_claim() {}
        worker.adapters.metrics().in_flight.set(i64::try_from(worker.held()).unwrap_or(i64::MAX));
        if worker.is_done() {
            return Ok(());
        }
        tokio::select! {
            () = shutdown.cancelled(), if !worker.stopping => worker.stop(),
            Some(event) = worker.tasks.join_next() => {
                worker.take(event?).await;
                while let Some(event) = worker.tasks.try_join_next() {
                    worker.take(event?).await;
                }
            }
        }
    }
}

/// Something that happened.
enum Event {
    /// A call ended.
    Called(Box<Carried>),
    /// A claim was answered.
    Claimed { wanted: usize, asked: Instant, received: Instant, result: Result<Vec<Handout>, Error> },
    /// A report was answered.
    Reported { batch: Vec<Carried>, asked: Instant, received: Instant, result: Result<Vec<Verdict>, Error> },
    /// The pause before the next claim is over.
    ClaimDue,
    /// The pause before the next report is over.
    ReportDue,
    /// Calls have had their grace.
    GraceOver,
    /// The last reports have had theirs.
    GiveUp,
}

/// Statements of one kind: how many are under way, for how many actions, and whether the next one has to wait.
#[derive(Debug, Default)]
struct Turns {
    under_way: usize,
    actions: usize,
    waiting: bool,
}

impl Turns {
    /// Whether one may be sent; a second one only if there is enough for it.
    const fn may_begin(&self, enough_for_two: bool) -> bool {
        !self.waiting && (self.under_way == 0 || (self.under_way < AT_ONCE && enough_for_two))
    }

    const fn begin(&mut self, actions: usize) {
        self.under_way += 1;
        self.actions += actions;
    }

    const fn end(&mut self, actions: usize) {
        self.under_way -= 1;
        self.actions -= actions;
    }
}

struct Worker<Q> {
    queue: Q,
    adapters: Arc<Adapters>,
    settings: Settings,
    tasks: JoinSet<Event>,
    /// Ends calls under way.
    abort: CancellationToken,
    calls: usize,
    pending: VecDeque<Carried>,
    claims: Turns,
    reports: Turns,
    /// The last claim was full and sizeable, so there is more.
    more: bool,
    /// Halves when a set is refused, until the one bad answer in it stands alone.
    report_limit: usize,
    polling: Polling,
    claim_backoff: Backoff,
    report_backoff: Backoff,
    stopping: bool,
    given_up: bool,
}

impl<Q: Queue> Worker<Q> {
    fn new(queue: Q, adapters: Arc<Adapters>, settings: Settings) -> Self {
        Self {
            queue,
            adapters,
            settings,
            tasks: JoinSet::new(),
            abort: CancellationToken::new(),
            calls: 0,
            pending: VecDeque::new(),
            claims: Turns::default(),
            reports: Turns::default(),
            more: false,
            report_limit: REPORT_LIMIT,
            polling: Polling::new(settings.poll_min, settings.poll_max),
            claim_backoff: Backoff::default(),
            report_backoff: Backoff::default(),
            stopping: false,
            given_up: false,
        }
    }

    /// Actions that this worker is responsible for, counting those it has just asked for.
    fn held(&self) -> usize {
        self.calls + self.pending.len() + self.reports.actions + self.claims.actions
    }

    fn is_done(&self) -> bool {
        self.given_up || (self.stopping && self.held() == 0)
    }

    /// Whether one was sent.
    fn start_claim(&mut self) -> bool {
        let wanted = self.settings.max_in_flight.saturating_sub(self.held()).min(self.settings.claim_batch);
        if self.stopping || wanted == 0 || !self.claims.may_begin(self.more && wanted == self.settings.claim_batch) {
            return false;
        }
        self.claims.begin(wanted);
        self.adapters.metrics().claims.inc();
        let (queue, lease) = (self.queue.clone(), self.settings.lease);
        self.tasks.spawn(async move {
            let asked = clock::instant();
            let result = queue.claim(wanted, lease).await;
            Event::Claimed { wanted, asked, received: clock::instant(), result }
        });
        true
    }

    /// Whether one was sent.
    fn start_report(&mut self) -> bool {
        if self.pending.is_empty() || !self.reports.may_begin(self.pending.len() >= SIZEABLE) {
            return false;
        }
        let batch = self.next_batch();
        self.reports.begin(batch.len());
        let queue = self.queue.clone();
        let lease = (!self.stopping).then_some(self.settings.lease);
        self.tasks.spawn(async move {
            let asked = clock::instant();
            let evidence: Vec<_> = batch.iter().map(|carried| &carried.evidence).collect();
            let result = queue.report(&evidence, lease).await;
            Event::Reported { asked, received: clock::instant(), result, batch }
        });
        true
    }

    /// The oldest answers, no two about one flow or refund: the database would reject the second.
    fn next_batch(&mut self) -> Vec<Carried> {
        let mut rows = HashSet::new();
        let mut batch = Vec::new();
        let mut later = VecDeque::new();
        while let Some(carried) = self.pending.pop_front() {
            if batch.len() < self.report_limit && rows.insert(carried.handout.row()) {
                batch.push(carried);
            } else {
                later.push_back(carried);
            }
        }
        self.pending = later;
        batch
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.after(self.settings.shutdown_grace, Event::GraceOver);
    }

    fn after(&mut self, pause: Duration, event: Event) {
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            event
        });
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Called(carried) => {
                self.calls -= 1;
                self.pending.push_back(*carried);
            }
            Event::Claimed { wanted, asked, received, result } => self.claimed(wanted, asked, received, result).await,
            Event::Reported { batch, asked, received, result } => self.reported(batch, asked, received, result).await,
            Event::ClaimDue => self.claims.waiting = false,
            Event::ReportDue => self.reports.waiting = false,
            Event::GraceOver => {
                if self.calls > 0 {
                    tracing::warn!(calls = self.calls, "the grace is over: calls under way are given up as UNKNOWN");
                }
                self.abort.cancel();
                self.after(REPORT_GRACE, Event::GiveUp);
            }
            Event::GiveUp => {
                tracing::error!(
                    answers = self.held(),
                    "could not report these; their flows ask again after their leases"
                );
                self.given_up = true;
            }
        }
    }

    async fn claimed(&mut self, wanted: usize, asked: Instant, received: Instant, result: Result<Vec<Handout>, Error>) {
        self.claims.end(wanted);
        self.more = false;
        let pause = match result {
            Ok(handouts) => {
                if self.claim_backoff.after_success() {
                    tracing::info!("the database answers claims again");
                }
                let got = handouts.len();
                self.dispatch(handouts, asked, received).await;
                let sizeable = (self.settings.claim_batch.min(self.settings.max_in_flight) / 4).max(1);
                let pause = self.polling.after_claim(wanted, got, sizeable);
                self.more = pause.is_zero();
                pause
            }
            Err(error) => {
                self.adapters.metrics().database_errors.inc();
                let pause = self.claim_backoff.after_error();
                log_trouble(&error, pause);
                pause
            }
        };
        if !pause.is_zero() && !self.claims.waiting {
            self.claims.waiting = true;
            self.after(pause, Event::ClaimDue);
        }
    }

    async fn reported(
        &mut self,
        batch: Vec<Carried>,
        asked: Instant,
        received: Instant,
        result: Result<Vec<Verdict>, Error>,
    ) {
        self.reports.end(batch.len());
        match result {
            Ok(verdicts) => {
                if self.report_backoff.after_success() {
                    tracing::info!("the database takes reports again");
                }
                self.report_limit = (self.report_limit * 2).min(REPORT_LIMIT);
                let told: HashMap<_, _> = batch.iter().map(|carried| (carried.handout.row(), carried)).collect();
                let mut next = Vec::new();
                for verdict in verdicts {
                    self.adapters.metrics().reported(verdict.disposition.as_str());
                    report_log::verdict(&verdict, told.get(&(verdict.flow_id, verdict.refund_id)).copied());
                    next.extend(verdict.next);
                }
                if !next.is_empty() {
                    self.polling.saw_work();
                }
                self.dispatch(next, asked, received).await;
            }
            Err(error) => self.not_reported(batch, &error),
        }
    }

    /// Keeps every answer that the database may still take. Only one that it refuses on its own, and for what it is,
    /// is let go: its flow asks again once the lease is over.
    fn not_reported(&mut self, mut batch: Vec<Carried>, error: &Error) {
        self.adapters.metrics().database_errors.inc();
        let lasting = error.class() != Class::Retry && error.advice().is_none();
        if lasting && batch.len() == 1 {
            let (flow_id, refund_id) = batch[0].handout.row();
            tracing::error!(flow_id, refund_id, %error, "the database refuses this answer; the flow asks again after its lease");
            return;
        }
        if lasting {
            tracing::warn!(answers = batch.len(), %error, "the database refuses a set of answers; halving it");
            self.report_limit = batch.len().div_ceil(2);
        } else {
            let pause = self.report_backoff.after_error();
            log_trouble(error, pause);
            if !self.reports.waiting {
                self.reports.waiting = true;
                self.after(pause, Event::ReportDue);
            }
        }
        batch.extend(self.pending.drain(..));
        self.pending = batch.into();
    }

    /// Begins each call. One that is answered without waiting ends here and needs no task.
    async fn dispatch(&mut self, handouts: Vec<Handout>, asked: Instant, received: Instant) {
        for handout in handouts {
            let inline = self.adapters.is_inline(&handout);
            let received = Received { handout, asked, received };
            if self.stopping {
                self.pending.push_back(not_sent(received));
                continue;
            }
            let (adapters, abort) = (Arc::clone(&self.adapters), self.abort.clone());
            let mut call = Box::pin(async move { adapters.carry_out(received, &abort).await });
            if inline && let Poll::Ready(carried) = futures::poll!(&mut call) {
                self.pending.push_back(carried);
                continue;
            }
            self.calls += 1;
            self.tasks.spawn(async move { Event::Called(Box::new(call.await)) });
        }
    }
}

fn log_trouble(error: &Error, pause: Duration) {
    let retry_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    match (error.class(), error.advice()) {
        (_, Some(advice)) => tracing::error!(%error, advice, retry_ms, "the database is not set up for this"),
        (Class::Retry, None) => tracing::warn!(%error, retry_ms, "trying again"),
        (_, None) => tracing::error!(%error, retry_ms, "the database refuses; trying again"),
    }
}

#[cfg(test)]
mod tests;
