//! `paylatchd demo`: thousands of payments through a bad day, and proof that each came out right.
//!
//! The demo is an administrator and an application in one: it migrates a database, sets up scenes and a business of its
//! own (`app.sql`), and pays. Simulator and daemon run as processes of their own; the simulator loses answers, the
//! wallet is away for a while, and the daemon is killed in the middle. At the end every payment is compared with the
//! wallet's own count. Whatever is wrong makes the demo fail.

mod children;
mod compare;
mod orders;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::distr::{Alphanumeric, SampleString};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::children::{Daemon, Simulator};
pub use self::compare::{Comparison, Money, Payment, compare};
use self::orders::Orders;
use self::report::Progress;
use crate::cli::{flow, verify};
use crate::config::Config;
use crate::db::{Db, Standing};
use crate::error::Error;
use crate::simulate::SimAdmin;
use crate::{clock, migrate, shutdown};

/// The demo's own SQL: what an administrator and an application would write.
const APP: &str = include_str!("app.sql");

/// The demo's own name towards the database.
const APPLICATION: &str = "demo-application";

/// How many payments are created with one statement, and the pause between two.
const SET: usize = 50;
const SET_EVERY: Duration = Duration::from_millis(150);
/// How long the daemon stays dead.
const DEAD: Duration = Duration::from_secs(1);
/// How long the wallet is away.
const OUTAGE: Duration = Duration::from_secs(3);
/// Everything must have ended so long after the last payment was created.
const CONVERGE: Duration = Duration::from_secs(120);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `paylatchd demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// How many payments
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    flows: u32,
    /// What payments and faults are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The share of requests that meet a fault, 0 to 1
    #[arg(long, default_value_t = 0.15)]
    faults: f64,
    /// Leave simulator and daemon running, and say how to reach them
    #[arg(long)]
    keep: bool,
    /// A folder for logs, configuration and ledger; a temporary one unless given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// [`Error::Broken`] if a rule is broken, a payment has not ended, or a count differs; or whatever kept it from running.
pub async fn run(args: DemoArgs, config: &Config) -> Result<(), Error> {
    let stop = shutdown::on_signals()?;
    let work = WorkDir::of(args.dir.clone())?;
    let shown = tokio::select! {
        shown = play(&args, config, &work) => shown,
        () = stopped(stop) => Err(Error::Broken("interrupted".to_owned())),
    };
    match &shown {
        Err(Error::Broken(_)) => {
            println!("\nLogs, configuration and the simulator's ledger: {}", work.leave().display())
        }
        Ok(()) if args.keep => drop(work.leave()),
        _ => {}
    }
    shown
}

async fn stopped(stop: CancellationToken) {
    stop.cancelled().await;
}

async fn play(args: &DemoArgs, config: &Config, work: &WorkDir) -> Result<(), Error> {
    let begun = clock::instant();
    let db = set_up(config).await?;
    let driver_url = driver_url(&db, config).await?;
    let simulator = Simulator::start(&work.path, args.seed, args.faults).await?;
    let mut daemon = Daemon::start(&work.path, &driver_url, &simulator.base_url)?;
    println!(
        "{} payments, seed {}, {} % of the requests meet a fault; simulator at {}",
        args.flows,
        args.seed,
        args.faults * 100.0,
        simulator.base_url
    );
    let admin = SimAdmin::new(&simulator.base_url)?;
    let mut stage = Stage { db, admin, progress: Progress::new(begun), begun, first_flow_id: 0, created: 0 };
    stage.pay(args, &mut daemon).await?;
    stage.converge(&mut daemon).await?;
    let verdict = stage.judge().await;
    if args.keep {
        leave_running(work, simulator, daemon)?;
    }
    verdict
}

async fn set_up(config: &Config) -> Result<Db, Error> {
    let mut session = Db::session(&config.database, APPLICATION).await?;
    let mut applied = 0;
    migrate::run(&mut session, |_| applied += 1).await?;
    drop(session);
    println!("database ready: {applied} migrations applied");
    let db = Db::open(&config.database, APPLICATION)?;
    db.script("set up the demo's scenes", APP).await?;
    Ok(db)
}

/// The same database, as a user that may do nothing but what a daemon must.
async fn driver_url(db: &Db, config: &Config) -> Result<String, Error> {
    let password = Alphanumeric.sample_string(&mut rand::rng(), 32);
    let user = db.demo_driver_login(&password).await?;
    let mut url = reqwest::Url::parse(config.database.url.expose())
        .map_err(|e| Error::Refused(format!("database.url is not a URL: {e}")))?;
    if url.set_username(&user).is_err() || url.set_password(Some(&password)).is_err() {
        return Err(Error::Refused("the demo needs a database.url with a host in it".to_owned()));
    }
    Ok(url.into())
}

/// What the scenes of the demo share.
struct Stage {
    db: Db,
    admin: SimAdmin,
    progress: Progress,
    begun: Instant,
    first_flow_id: i64,
    created: usize,
}

impl Stage {
    /// Creates the payments, and meanwhile kills the daemon and takes the wallet away.
    async fn pay(&mut self, args: &DemoArgs, daemon: &mut Daemon) -> Result<(), Error> {
        let run = Alphanumeric.sample_string(&mut rand::rng(), 6).to_lowercase();
        let mut orders = Orders::new(args.seed, &run);
        let total = args.flows as usize;
        let (mut killed, mut away, mut dead_since) = (false, false, None);
        while self.created < total {
            let set = orders.next_set(SET.min(total - self.created), clock::now());
            let flows = self.db.create_pay_flows(&set).await?;
            if self.first_flow_id == 0 {
                self.first_flow_id = flows.iter().copied().min().unwrap_or(0);
            }
            self.created += set.len();
            for flow_id in flows.into_iter().filter(|_| orders.is_cancelled()) {
                self.db.cancel_pay_flow(flow_id).await?;
            }
            if !killed && self.created * 2 >= total {
                self.progress.event("the daemon is killed, without a goodbye");
                daemon.kill().await?;
                (killed, dead_since) = (true, Some(clock::instant()));
            }
            if dead_since.is_some_and(|since| since.elapsed() >= DEAD) {
                self.restart(daemon)?;
                dead_since = None;
            }
            if !away && self.created * 4 >= total * 3 {
                self.progress.event("the wallet goes away for three seconds");
                self.admin.outage(OUTAGE).await?;
                away = true;
            }
            let standing = self.db.demo_standing(self.first_flow_id).await?;
            self.progress.show(self.created, &standing);
            tokio::time::sleep(SET_EVERY).await;
        }
        if dead_since.is_some() {
            self.restart(daemon)?;
        }
        self.progress.event("the last payment is created");
        Ok(())
    }

    fn restart(&mut self, daemon: &mut Daemon) -> Result<(), Error> {
        self.progress.event("the daemon is started again");
        daemon.restart()
    }

    /// Waits until every payment has ended.
    async fn converge(&mut self, daemon: &mut Daemon) -> Result<(), Error> {
        let waited = clock::instant();
        loop {
            let standing = self.db.demo_standing(self.first_flow_id).await?;
            if report::unfinished(&standing) == 0 {
                self.progress.done(self.created, &standing);
                return Ok(());
            }
            self.progress.show(self.created, &standing);
            if let Some(status) = daemon.ended() {
                return Err(Error::Broken(format!("the daemon ended by itself: {status}")));
            }
            if waited.elapsed() > CONVERGE {
                self.progress.done(self.created, &standing);
                self.tell_one(self.db.demo_unfinished(self.first_flow_id).await?, "A payment that has not ended")
                    .await?;
                let unfinished = report::unfinished(&standing);
                return Err(Error::Broken(format!("{unfinished} payments have not ended")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Compares, verifies, tells one story; an error if anything is wrong.
    async fn judge(&mut self) -> Result<(), Error> {
        let standing: Vec<Standing> = self.db.demo_standing(self.first_flow_id).await?;
        let effects = self.admin.effects().await?;
        let found = compare(&self.db.demo_payments(self.first_flow_id).await?, &effects);
        report::standing_table(&standing);
        report::hardship(&effects, &self.db.demo_lost_answers(self.first_flow_id).await?);
        report::comparison_table(&found);
        let rules = self.db.verify().await?;
        println!("\nWhat must never happen");
        verify::print_rules(&rules);
        self.tell_one(self.db.demo_lost_answer(self.first_flow_id).await?, "One payment whose answer was lost").await?;
        verify::judge(&rules)?;
        let twice = found.most_charges > 1 || found.most_refunds > 1;
        if twice || !found.differences.is_empty() || found.compared != self.created {
            return Err(Error::Broken(format!(
                "{} of {} payments differ from the wallet's count",
                found.differences.len(),
                found.compared
            )));
        }
        println!(
            "\nAll {} payments ended as they should, in {:.0} s; nothing charged twice, every rule holds.",
            self.created,
            self.begun.elapsed().as_secs_f64()
        );
        Ok(())
    }

    async fn tell_one(&self, flow_id: Option<i64>, title: &str) -> Result<(), Error> {
        if let Some(flow_id) = flow_id {
            print!("\n{title}: flow {flow_id}\n{}", flow::readable(&self.db.explain(flow_id).await?));
        }
        Ok(())
    }
}

fn leave_running(work: &WorkDir, simulator: Simulator, daemon: Daemon) -> Result<(), Error> {
    let pids: Vec<_> = [daemon.id(), simulator.id()].into_iter().flatten().map(|pid| pid.to_string()).collect();
    let file = work.path.join("pids");
    std::fs::write(&file, pids.join("\n") + "\n").map_err(Error::io(file.display().to_string()))?;
    println!(
        "\nLeft running: the simulator at {}/sim/effects, the daemon at http://{}/metrics",
        simulator.base_url, daemon.listen
    );
    println!("  look     paylatchd --config {}/paylatchd.toml doctor", work.path.display());
    println!("  end      kill {}", pids.join(" "));
    simulator.keep();
    daemon.keep();
    Ok(())
}

/// Where the demo's files lie.
struct WorkDir {
    path: PathBuf,
    temporary: std::cell::Cell<Option<TempDir>>,
}

impl WorkDir {
    fn of(dir: Option<PathBuf>) -> Result<Self, Error> {
        if let Some(path) = dir {
            std::fs::create_dir_all(&path).map_err(Error::io(path.display().to_string()))?;
            return Ok(Self { path, temporary: None.into() });
        }
        let temporary =
            tempfile::Builder::new().prefix("paylatch-demo-").tempdir().map_err(Error::io("make a folder"))?;
        Ok(Self { path: temporary.path().to_owned(), temporary: Some(temporary).into() })
    }

    /// The folder, which then stays.
    fn leave(&self) -> PathBuf {
        self.temporary.take().map_or_else(|| self.path.clone(), TempDir::keep)
    }
}
