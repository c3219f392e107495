//! The whole life of a payment: created in sets by an application, carried to BIZ_SUCCESS by real daemons with an
//! in-process wallet that answers at once and business mode `none`. Guards, log, order, queue and outbox are on,
//! everything is durable.

use std::time::{Duration, Instant};

use paylatch_tests::daemon::Setup;
use paylatch_tests::{Daemon, Database, eventually};
use serde_json::{Value, json};

use crate::floor::{self, wal_since};
use crate::measure::{Figure, Series, Target};
use crate::{Args, cpu, say};

/// Connections of the floor; as many as the machine that the targets are set for has cores.
const FLOOR_CONNECTIONS: i64 = 2;

/// What one round gave.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    pub flows_per_second: f64,
    pub wal_bytes_per_flow: f64,
    /// Microseconds of processor time for each payment.
    pub server_us: f64,
    pub daemon_us: f64,
}

/// What is read before and after a round.
pub struct Meter {
    wal: String,
    postmaster: u32,
    server: f64,
    daemons: Vec<u32>,
    daemon: f64,
}

impl Meter {
    pub async fn start(db: &Database, daemons: &[u32]) -> Self {
        let backend: i32 = db.value("select pg_backend_pid()").await;
        let postmaster = cpu::parent(backend as u32);
        Self {
            wal: db.value("select pg_current_wal_lsn()::text").await,
            postmaster,
            server: cpu::seconds(&cpu::family(postmaster)),
            daemons: daemons.to_vec(),
            daemon: cpu::seconds(daemons),
        }
    }

    pub async fn stop(self, db: &Database, flows: i64, took: Duration) -> Life {
        let flows = flows as f64;
        Life {
            flows_per_second: flows / took.as_secs_f64(),
            wal_bytes_per_flow: wal_since(db, &self.wal).await / flows,
            server_us: (cpu::seconds(&cpu::family(self.postmaster)) - self.server) * 1e6 / flows,
            daemon_us: (cpu::seconds(&self.daemons) - self.daemon) * 1e6 / flows,
        }
    }
}

/// One channel that answers at once, one scene whose business is being charged.
pub async fn prepare(db: &Database) {
    db.execute(
        "insert into paylatch.channel (channel) values ('null');
         insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('bench', 'null', 'bn', 'none');",
    )
    .await;
}

/// A daemon with timings as they are by default.
pub fn setup(db: &Database, batch: i64) -> Setup {
    Setup::of(db)
        .null_wallet("null")
        .log("warn")
        .driver("lease_ms = 30000")
        .driver("poll_min_ms = 2")
        .driver("poll_max_ms = 250")
        .driver(&format!("claim_batch = {batch}"))
}

/// Takes payments through their whole life, created in sets, by so many daemons.
pub async fn run(db: &Database, flows: i64, batch: i64, daemons: usize) -> Life {
    let mut running: Vec<Daemon> = Vec::new();
    for n in 0..daemons {
        running.push(setup(db, batch).name(&format!("bench-{n}")).start().await);
    }
    let pids: Vec<u32> = running.iter_mut().map(|daemon| daemon.process().id()).collect();
    let done: i64 = db.value("select count(*) from paylatch.pay_order where status = 'PAID'").await;
    let meter = Meter::start(db, &pids).await;
    let began = Instant::now();
    create(db, done, flows, batch).await;
    eventually("every payment is done", Duration::from_secs(600), async || {
        let left: bool = db.value("select exists (select from paylatch.job)").await;
        (!left).then_some(())
    })
    .await;
    let life = meter.stop(db, flows, began.elapsed()).await;
    for daemon in &mut running {
        daemon.terminate().await;
    }
    let now_done: i64 = db.value("select count(*) from paylatch.pay_order where status = 'PAID'").await;
    assert_eq!(now_done - done, flows, "every payment of the round reached BIZ_SUCCESS");
    life
}

/// Creates payments in sets, one after the other, while the daemon is already at work.
async fn create(db: &Database, base: i64, flows: i64, batch: i64) {
    let mut session = db.session_as("app").await;
    for set in 0..flows / batch {
        let requests: Vec<Value> = (0..batch).map(|n| request(&(base + set * batch + n).to_string())).collect();
        let created = sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session);
        assert_eq!(created.await.unwrap().rows_affected(), batch as u64);
    }
}

/// One payment of 12.50.
pub fn request(user: &str) -> Value {
    json!({"scene": "bench", "user_id": user, "biz_key": "bench", "amount": 1250, "currency": "USD"})
}

/// S1 and S4, the processor time behind them, and the floor over single rows.
pub async fn figures(args: &Args) -> Vec<Figure> {
    let db = Database::fresh().await;
    floor::prepare(&db).await;
    prepare(&db).await;
    let (flows, batch) = (args.whole_sets(args.flows), args.batch);
    run(&db, args.whole_sets(flows / 10), batch, 1).await;
    floor::run(&db, args.whole_sets(flows / 10), batch, FLOOR_CONNECTIONS).await;
    floor::assert_same_rows(&db).await;
    let (mut ours, mut floors, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        ours.push(run(&db, flows, batch, 1).await);
        floors.push(floor::run(&db, flows, batch, FLOOR_CONNECTIONS).await);
        rows.push(floor::run(&db, flows / 10, 1, 16).await);
        say(&format!(
            "life, round {round}/{}: {:.0} flows/s, floor {:.0}",
            args.rounds,
            ours[round - 1].flows_per_second,
            floors[round - 1].flows_per_second
        ));
    }
    let series = |name: &str, lives: &[Life], of: fn(&Life) -> f64| Series::new(name, lives.iter().map(of).collect());
    let (us, floor) = ("paylatch, whole life, real daemon", "bare SQL in sets, 2 connections");
    vec![
        Figure {
            id: "S1",
            what: format!("whole lives, in sets of {batch}"),
            unit: "flows/s",
            subject: series(us, &ours, |life| life.flows_per_second),
            baseline: Some(series(floor, &floors, |life| life.flows_per_second)),
            target: Target::RatioAtLeast(0.6),
        },
        Figure {
            id: "S4",
            what: "write-ahead log".to_owned(),
            unit: "bytes/flow",
            subject: series(us, &ours, |life| life.wal_bytes_per_flow),
            baseline: Some(series(floor, &floors, |life| life.wal_bytes_per_flow)),
            target: Target::RatioAtMost(1.3),
        },
        Figure {
            id: "S1",
            what: "processor time inside PostgreSQL".to_owned(),
            unit: "us/flow",
            subject: series(us, &ours, |life| life.server_us),
            baseline: Some(series(floor, &floors, |life| life.server_us)),
            target: Target::None,
        },
        Figure {
            id: "S1",
            what: "processor time of the daemon".to_owned(),
            unit: "us/flow",
            subject: series("paylatchd", &ours, |life| life.daemon_us),
            baseline: None,
            target: Target::None,
        },
        Figure {
            id: "S2",
            what: "against bare SQL, one row a statement".to_owned(),
            unit: "flows/s",
            subject: series(us, &ours, |life| life.flows_per_second),
            baseline: Some(series("bare SQL, one statement a step, 16 connections", &rows, |life| {
                life.flows_per_second
            })),
            target: Target::None,
        },
    ]
}

/// S11: two daemons on one database.
pub async fn two_daemons(args: &Args) -> Vec<Figure> {
    let db = Database::fresh().await;
    prepare(&db).await;
    let (flows, batch) = (args.whole_sets(args.flows), args.batch);
    run(&db, args.whole_sets(flows / 10), batch, 1).await;
    let (mut two, mut one) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        two.push(run(&db, flows, batch, 2).await.flows_per_second);
        one.push(run(&db, flows, batch, 1).await.flows_per_second);
        say(&format!("daemons, round {round}/{}: two {:.0}, one {:.0}", args.rounds, two[round - 1], one[round - 1]));
    }
    let deadlocks: i64 = db.value("select deadlocks from pg_stat_database where datname = current_database()").await;
    vec![
        Figure {
            id: "S11",
            what: "two daemons on one database".to_owned(),
            unit: "flows/s",
            subject: Series::new("two daemons", two),
            baseline: Some(Series::new("one daemon", one)),
            target: Target::RatioAtLeast(1.0),
        },
        Figure {
            id: "S11",
            what: "deadlocks meanwhile".to_owned(),
            unit: "",
            subject: Series::new("two daemons", vec![deadlocks as f64]),
            baseline: None,
            target: Target::AtMost(0.0),
        },
    ]
}

/// Throughput by size of set: `(size, paylatch, floor)`.
pub async fn sweep(args: &Args) -> Vec<(f64, f64, f64)> {
    let db = Database::fresh().await;
    floor::prepare(&db).await;
    prepare(&db).await;
    let mut points = Vec::new();
    for batch in [1, 5, 20, 50, 100, 200, 500, 1000] {
        let flows = (batch * 60).clamp(600, args.flows.max(1000));
        let flows = flows / batch * batch;
        let ours = run(&db, flows, batch, 1).await.flows_per_second;
        let floor = floor::run(&db, flows, batch, FLOOR_CONNECTIONS).await.flows_per_second;
        say(&format!("sets of {batch}: {ours:.0} flows/s, floor {floor:.0}"));
        points.push((batch as f64, ours, floor));
    }
    points
}
