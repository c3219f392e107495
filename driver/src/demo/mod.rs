//! `paylatchd demo`: thousands of payments through a bad day, and proof that each came out right.
//!
//! The demo is an administrator and an application in one: it migrates a database, sets up scenes and a business of its
//! own (`app.sql`), pays, and wants some of it back. Simulator and daemon run as processes of their own; the simulator
//! loses answers and sends webhooks with faults, the wallet is away for a while, and the daemon is killed in the middle.
//! Events go through a NATS server to a subscriber. At the end whatever was counted in two places is compared: payments
//! and refunds with the wallet's own count, webhooks with what was sent, events with the log. Whatever is wrong makes the
//! demo fail.

mod after_sale;
mod children;
mod compare;
mod judge;
mod orders;
mod report;
mod subscriber;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rand::distr::{Alphanumeric, SampleString};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::after_sale::AfterSale;
use self::children::{Broker, Daemon, Setting, Simulator};
pub use self::compare::{Comparison, Money, Payment, Refund, compare};
use self::orders::Orders;
use self::report::Progress;
pub use self::subscriber::Due;
use self::subscriber::Subscriber;
use crate::cli::flow;
use crate::config::Config;
use crate::db::{Db, OnItsWay};
use crate::error::Error;
use crate::simulate::{Fault, Rule, SimAdmin};
use crate::{clock, migrate, shutdown};

/// The demo's own SQL: what an administrator and an application would write.
const APP: &str = include_str!("app.sql");

/// The demo's own name towards the database.
const APPLICATION: &str = "demo-application";

/// How many sessions the demo's own requests run in, so that refunds do race.
const SESSIONS: u32 = 12;

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
    let [listen, api, nats] = children::free_addresses()?;
    let broker = Broker::start(&work.path, nats).await?;
    let nats_url = broker.as_ref().map(|broker| broker.url.as_str());
    if nats_url.is_some() {
        db.demo_sink().await?;
    }
    let simulator = Simulator::start(&work.path, args.seed, args.faults).await?;
    let webhook_secret = format!("whsec_{}", BASE64.encode(rand::random::<[u8; 32]>()));
    let (database_url, base_url) = (driver_url.as_str(), simulator.base_url.as_str());
    let setting = Setting { database_url, base_url, nats_url, webhook_secret: &webhook_secret, listen, api };
    let mut daemon = Daemon::start(&work.path, &setting)?;
    println!(
        "{} payments, seed {}, {} % of the requests meet a fault; simulator at {}",
        args.flows,
        args.seed,
        args.faults * 100.0,
        simulator.base_url
    );
    let admin = SimAdmin::new(&simulator.base_url)?;
    admin.webhooks(&format!("http://{api}/webhooks/sim"), &[&webhook_secret]).await?;
    // The bank sends none.
    admin.script(Rule::new("dn_*", "webhook", Fault::Never)).await?;
    let subscriber = nats_url.map(Subscriber::start);
    if subscriber.is_none() {
        println!("no nats-server here (`make setup` installs one where it can): events are not published");
    }
    let run = Alphanumeric.sample_string(&mut rand::rng(), 6).to_lowercase();
    let (progress, after_sale) = (Progress::new(begun), AfterSale::new(args.seed, &run));
    let publishes = subscriber.is_some();
    let mut stage = Stage { db, admin, progress, begun, after_sale, publishes, first_flow_id: 0, created: 0 };
    stage.pay(args, &run, &mut daemon).await?;
    stage.converge(&mut daemon).await?;
    let heard = match subscriber {
        Some(subscriber) => Some(subscriber.finish().await?),
        None => None,
    };
    let verdict = stage.judge(heard).await;
    if args.keep {
        leave_running(work, &setting, [daemon.id(), simulator.id(), broker.as_ref().and_then(Broker::id)])?;
        daemon.keep();
        simulator.keep();
        if let Some(broker) = broker {
            broker.keep();
        }
    }
    verdict
}

async fn set_up(config: &Config) -> Result<Db, Error> {
    let mut session = Db::session(&config.database, APPLICATION).await?;
    let mut applied = 0;
    migrate::run(&mut session, |_| applied += 1).await?;
    drop(session);
    println!("database ready: {applied} migrations applied");
    let mut database = config.database.clone();
    database.max_connections = database.max_connections.max(SESSIONS);
    let db = Db::open(&database, APPLICATION)?;
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
    after_sale: AfterSale,
    publishes: bool,
    first_flow_id: i64,
    created: usize,
}

impl Stage {
    /// Creates the payments, and meanwhile kills the daemon and takes the wallet away.
    async fn pay(&mut self, args: &DemoArgs, run: &str, daemon: &mut Daemon) -> Result<(), Error> {
        let mut orders = Orders::new(args.seed, run);
        let total = args.flows as usize;
        let (mut killed, mut away, mut dead_since) = (false, false, None);
        while self.created < total {
            let set = orders.next_set(SET.min(total - self.created), clock::now());
            let flows = self.db.create_pay_flows(&set).await?;
            if self.first_flow_id == 0 {
                self.first_flow_id = flows.iter().copied().min().unwrap_or(0);
            }
            self.created += set.len();
            self.after_sale.pay(&flows);
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
            self.after_sale.come_back(&self.db).await?;
            let standing = self.db.demo_standing(self.first_flow_id).await?;
            self.progress.show(self.created, &standing, "");
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

    /// Waits until every payment has ended, and every refund, webhook and event has come to where it goes.
    async fn converge(&mut self, daemon: &mut Daemon) -> Result<(), Error> {
        let waited = clock::instant();
        loop {
            self.after_sale.come_back(&self.db).await?;
            let standing = self.db.demo_standing(self.first_flow_id).await?;
            let is_over = report::unfinished(&standing) == 0 && self.after_sale.is_over();
            let rest = if is_over { self.on_its_way().await? } else { String::new() };
            if is_over && rest.is_empty() {
                self.progress.done(self.created, &standing);
                return Ok(());
            }
            self.progress.show(self.created, &standing, &rest);
            if let Some(status) = daemon.ended() {
                return Err(Error::Broken(format!("the daemon ended by itself: {status}")));
            }
            if waited.elapsed() > CONVERGE {
                self.progress.done(self.created, &standing);
                self.tell_one(self.db.demo_unfinished(self.first_flow_id).await?, "A payment that has not ended")
                    .await?;
                let unfinished = report::unfinished(&standing);
                let rest = if rest.is_empty() { format!("{unfinished} payments") } else { rest };
                return Err(Error::Broken(format!("not at an end: {rest}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What is still under way once payments have ended, in words.
    async fn on_its_way(&self) -> Result<String, Error> {
        let sending = self.admin.webhook_count().await?.pending;
        let OnItsWay { refunds, webhooks, events } = self.db.demo_on_its_way(self.first_flow_id).await?;
        let events = if self.publishes { events } else { 0 };
        let rest = [
            (refunds, "refunds"),
            (i64::try_from(sending).unwrap_or(i64::MAX), "webhooks to receive"),
            (webhooks, "webhooks to apply"),
            (events, "events to publish"),
        ];
        let rest = rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        Ok(rest.collect::<Vec<_>>().join(", "))
    }

    async fn tell_one(&self, flow_id: Option<i64>, title: &str) -> Result<(), Error> {
        if let Some(flow_id) = flow_id {
            print!("\n{title}: flow {flow_id}\n{}", flow::readable(&self.db.explain(flow_id).await?));
        }
        Ok(())
    }
}

fn leave_running(work: &WorkDir, setting: &Setting, ids: [Option<u32>; 3]) -> Result<(), Error> {
    let pids: Vec<_> = ids.into_iter().flatten().map(|pid| pid.to_string()).collect();
    let file = work.path.join("pids");
    std::fs::write(&file, pids.join("\n") + "\n").map_err(Error::io(file.display().to_string()))?;
    println!(
        "\nLeft running: the simulator at {}/sim/effects, the daemon at http://{}/metrics with its API at http://{}{}",
        setting.base_url,
        setting.listen,
        setting.api,
        setting.nats_url.map_or_else(String::new, |url| format!(", NATS at {url}"))
    );
    println!("  look     paylatchd --config {}/paylatchd.toml doctor", work.path.display());
    println!("  end      kill {}", pids.join(" "));
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
