//! S6: from asking for a payment to BIZ_SUCCESS, under an open load.
//!
//! A payment begins when its client reads the clock, just before it calls create_pay_flow(), and ends with the commit of
//! its last log row: `pg_xact_commit_timestamp` of that row, which PostgreSQL takes just before it flushes the commit, so
//! one flush (0.1 ms here) is missing. Both clocks are this machine's. Clients do not wait for each other: a payment that is
//! due is asked for, however slow the ones before it are. Their connections and the daemon's are in use already, as
//! those of a pool are: the first call in a session compiles what it runs, and takes ten times as long.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use paylatch_tests::{Database, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgExecutor, PgPool};

use crate::measure::{Figure, Series, Target, percentile};
use crate::{Args, life, say};

/// What one load gave, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    pub offered: f64,
    pub p50: f64,
    pub p99: f64,
}

pub async fn figures(args: &Args) -> Vec<Figure> {
    let db = Database::fresh().await;
    life::prepare(&db).await;
    load(&db, 50.0, Duration::from_secs(3), "warm").await;
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        let latency = load(&db, 50.0, Duration::from_secs(10), &format!("r{round}")).await;
        say(&format!(
            "latency at 50 flows/s, round {round}/{}: p50 {:.1} ms, p99 {:.1} ms",
            args.rounds, latency.p50, latency.p99
        ));
        p50.push(latency.p50);
        p99.push(latency.p99);
    }
    let figure = |what: &str, rounds, most| Figure {
        id: "S6",
        what: format!("create to BIZ_SUCCESS at 50 flows/s, {what}"),
        unit: "ms",
        subject: Series::new("paylatch, one daemon", rounds),
        baseline: None,
        target: Target::AtMost(most),
    };
    vec![figure("median", p50, 10.0), figure("99th percentile", p99, 40.0)]
}

/// Latency at rising loads, until the machine no longer keeps up.
pub async fn sweep() -> Vec<Latency> {
    let db = Database::fresh().await;
    life::prepare(&db).await;
    let mut points = Vec::new();
    for offered in [10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1200.0, 1600.0, 2000.0] {
        let latency = load(&db, offered, Duration::from_secs(5), &format!("s{offered}")).await;
        say(&format!("latency at {offered} flows/s: p50 {:.1} ms, p99 {:.1} ms", latency.p50, latency.p99));
        points.push(latency);
        if latency.p50 > 1000.0 {
            break;
        }
    }
    points
}

/// Connections of the clients.
const CLIENTS: u32 = 16;

async fn load(db: &Database, per_second: f64, span: Duration, tag: &str) -> Latency {
    let mut daemon = life::setup(db, 200).start().await;
    let pool = PgPoolOptions::new().max_connections(CLIENTS).connect(&db.url_as("app")).await.unwrap();
    warm(db, &pool, tag).await;
    let count = (per_second * span.as_secs_f64()) as usize;
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..count {
        tokio::time::sleep_until((began + Duration::from_secs_f64(n as f64 / per_second)).into()).await;
        let (pool, user) = (pool.clone(), format!("{tag}-{n}"));
        clients.spawn(async move {
            #[allow(clippy::disallowed_methods, reason = "it is compared with the server's clock, on one machine")]
            let asked = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
            (create(&pool, &user).await, asked)
        });
    }
    let asked: HashMap<i64, f64> = clients.join_all().await.into_iter().collect();
    all_done(db).await;
    daemon.terminate().await;
    let ended: Vec<(i64, f64)> = sqlx::query_as(
        "select ref_id, extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from paylatch.transition_log
         where kind = 'flow' and to_status = 'BIZ_SUCCESS' and ref_id = any ($1)",
    )
    .bind(asked.keys().copied().collect::<Vec<_>>())
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert_eq!(ended.len(), count, "every payment reached BIZ_SUCCESS");
    let took: Vec<f64> = ended.iter().map(|(flow_id, at)| (at - asked[flow_id]) * 1000.0).collect();
    Latency { offered: per_second, p50: percentile(&took, 0.5), p99: percentile(&took, 0.99) }
}

async fn create(client: impl PgExecutor<'_>, user: &str) -> i64 {
    let created = sqlx::query_scalar("select flow_id from paylatch.create_pay_flow('bench', $1, 'bench', 1250, 'USD')");
    created.bind(user).fetch_one(client).await.unwrap()
}

/// Some payments over every connection.
async fn warm(db: &Database, pool: &PgPool, tag: &str) {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(pool.acquire().await.unwrap());
    }
    for turn in 0..10 {
        for (n, client) in clients.iter_mut().enumerate() {
            create(&mut **client, &format!("{tag}-warm-{turn}-{n}")).await;
        }
        all_done(db).await;
    }
}

async fn all_done(db: &Database) {
    eventually("every payment is done", Duration::from_secs(120), async || {
        let left: bool = db.value("select exists (select from paylatch.job)").await;
        (!left).then_some(())
    })
    .await;
}
