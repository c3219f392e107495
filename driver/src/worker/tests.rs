#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::BoxFuture;
use paylatch_core::late::Disposition;
use paylatch_core::outcome::Action;

use super::*;
use crate::dispatch::tests::handout;
use crate::evidence::Answer;
use crate::wallet::{Capabilities, NullWallet, Wallet};

const LONG: Duration = Duration::from_secs(3600);

/// A database that lives in a script: what to hand out, and which errors to give first.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    due: VecDeque<Handout>,
    /// Handed out with the next report.
    follows: Vec<Handout>,
    claims: usize,
    report_errors: VecDeque<Error>,
    /// A set with this flow in it is refused.
    poison: Option<i64>,
    /// Flow ids of each report, and whether it asked for next actions.
    reports: Vec<(Vec<i64>, bool)>,
}

impl Script {
    fn due(flows: impl IntoIterator<Item = i64>) -> Self {
        let script = Self::default();
        script.state().due.extend(flows.into_iter().map(|flow| handout(flow, Action::Charge, LONG)));
        script
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn reported(&self) -> Vec<i64> {
        let mut flows: Vec<_> = self.state().reports.iter().flat_map(|(flows, _)| flows.clone()).collect();
        flows.sort_unstable();
        flows
    }
}

fn refused(source: sqlx::Error) -> Error {
    Error::Database { command: "report_evidence", source }
}

impl Queue for Script {
    async fn claim(&self, max: usize, _: Duration) -> Result<Vec<Handout>, Error> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut state = self.state();
        state.claims += 1;
        let take = max.min(state.due.len());
        Ok(state.due.drain(..take).collect())
    }

    async fn report(&self, evidence: &[&Evidence], lease: Option<Duration>) -> Result<Vec<Verdict>, Error> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut state = self.state();
        if let Some(error) = state.report_errors.pop_front() {
            return Err(error);
        }
        let flows: Vec<_> = evidence.iter().map(|e| e.flow_id()).collect();
        if state.poison.is_some_and(|flow| flows.contains(&flow)) {
            return Err(refused(sqlx::Error::RowNotFound));
        }
        state.reports.push((flows.clone(), lease.is_some()));
        let mut follows = if lease.is_some() { std::mem::take(&mut state.follows) } else { Vec::new() };
        let verdict = |evidence: &&Evidence| Verdict {
            flow_id: evidence.flow_id(),
            refund_id: evidence.refund_id(),
            disposition: Disposition::Applied,
            status: Some("PAYED".into()),
            frozen_reason: None,
            next: follows.pop(),
        };
        Ok(evidence.iter().map(verdict).collect())
    }
}

/// Answers after a while.
struct SlowWallet(Duration);

impl SlowWallet {
    fn answer(&self) -> BoxFuture<'_, Answer> {
        async {
            tokio::time::sleep(self.0).await;
            Answer::unknown("slow", "slow")
        }
        .boxed()
    }
}

impl Wallet for SlowWallet {
    fn charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        self.answer()
    }
    fn query_charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        self.answer()
    }
    fn close_charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        self.answer()
    }
    fn refund<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        self.answer()
    }
    fn query_refund<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        self.answer()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { close_charge: false, webhooks: false }
    }
}

fn settings() -> Settings {
    Settings {
        max_in_flight: 100,
        claim_batch: 50,
        lease: Duration::from_secs(30),
        poll_min: Duration::from_millis(5),
        poll_max: Duration::from_millis(250),
        shutdown_grace: Duration::from_secs(10),
    }
}

/// Runs a worker for `time` of paused clock, then lets it stop.
async fn work(script: &Script, wallet: Arc<dyn Wallet>, settings: Settings, time: Duration) {
    let shutdown = CancellationToken::new();
    let adapters = Arc::new(Adapters::default().with_wallet("sim", wallet));
    let worker = tokio::spawn(run(script.clone(), adapters, settings, shutdown.clone()));
    tokio::time::sleep(time).await;
    shutdown.cancel();
    worker.await.unwrap().unwrap();
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn what_is_due_is_carried_out_and_reported_once() {
    let script = Script::due(1..=1000);
    work(&script, Arc::new(NullWallet), settings(), SECOND).await;
    assert_eq!(script.reported(), (1..=1000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_asks_four_times_a_second() {
    let script = Script::default();
    work(&script, Arc::new(NullWallet), settings(), 100 * SECOND).await;
    let claims = script.state().claims;
    assert!((390..=410).contains(&claims), "{claims}");
}

#[tokio::test(start_paused = true)]
async fn what_follows_is_carried_out_without_a_claim() {
    let script = Script::due([1]);
    script.state().follows.push(handout(2, Action::QueryCharge, LONG));
    work(&script, Arc::new(NullWallet), settings(), SECOND).await;
    assert_eq!(script.reported(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_than_can_be_held() {
    let script = Script::due(1..=500);
    let narrow = Settings { max_in_flight: 7, claim_batch: 5, ..settings() };
    // Two seconds at 100 ms a call and 7 at a time: at most 140, and not far from it.
    work(&script, Arc::new(SlowWallet(Duration::from_millis(100))), narrow, 2 * SECOND).await;
    let reported = script.reported().len();
    assert!((120..=147).contains(&reported), "{reported}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_survives_lost_connections() {
    let script = Script::due([1, 2, 3]);
    let lost = || refused(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
    let silent = Error::Silent { command: "report_evidence", within: SECOND };
    script.state().report_errors.extend([lost(), silent, refused(sqlx::Error::PoolTimedOut), lost()]);
    work(&script, Arc::new(NullWallet), settings(), 10 * SECOND).await;
    assert_eq!(script.reported(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn one_bad_answer_does_not_hold_up_the_others() {
    let script = Script::due(1..=40);
    script.state().poison = Some(23);
    work(&script, Arc::new(NullWallet), settings(), SECOND).await;
    assert_eq!(script.reported(), (1..=40).filter(|flow| *flow != 23).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn two_answers_about_one_flow_go_into_two_reports() {
    let script = Script::due([1, 1, 2]);
    work(&script, Arc::new(NullWallet), settings(), SECOND).await;
    assert_eq!(script.reported(), [1, 1, 2]);
    for (flows, _) in &script.state().reports {
        assert_eq!(flows.len(), flows.iter().collect::<HashSet<_>>().len(), "{flows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_refunds_of_one_flow_are_out_together() {
    let script = Script::default();
    let refund = |refund_id| Handout { refund_id: Some(refund_id), ..handout(1, Action::Refund, LONG) };
    script.state().due.extend([refund(1), refund(2)]);
    work(&script, Arc::new(SlowWallet(SECOND)), settings(), 2 * SECOND).await;
    assert_eq!(script.state().reports.iter().map(|(flows, _)| flows.len()).sum::<usize>(), 2);
    assert!(script.state().reports.iter().any(|(flows, _)| flows.len() == 2), "one report holds both");
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_calls_end_and_asks_for_no_more() {
    let script = Script::due(1..=3);
    script.state().follows.push(handout(9, Action::QueryCharge, LONG));
    let wallet = Arc::new(SlowWallet(2 * SECOND));
    work(&script, wallet, settings(), SECOND).await;
    assert_eq!(script.reported(), [1, 2, 3]);
    assert!(script.state().reports.iter().all(|(_, follows)| !follows));
}

#[tokio::test(start_paused = true)]
async fn stopping_gives_up_calls_after_the_grace_but_reports_them() {
    let script = Script::due(1..=3);
    let started = tokio::time::Instant::now();
    work(&script, Arc::new(SlowWallet(LONG)), settings(), SECOND).await;
    assert_eq!(script.reported(), [1, 2, 3]);
    assert!(started.elapsed() < 12 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_even_if_the_database_does_not_come_back() {
    let script = Script::due(1..=3);
    let lost = || refused(sqlx::Error::PoolTimedOut);
    script.state().report_errors.extend((0..1000).map(|_| lost()));
    let started = tokio::time::Instant::now();
    work(&script, Arc::new(NullWallet), settings(), SECOND).await;
    assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
}
