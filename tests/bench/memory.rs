//! S10: the daemon's memory while it holds 20,000 actions whose wallet does not answer.

use std::time::Duration;

use axum::Router;
use axum::routing::any;
use paylatch_tests::daemon::Setup;
use paylatch_tests::{Database, eventually};
use serde_json::{Value, json};

use crate::measure::{Figure, Series, Target};
use crate::{Args, say};

/// What the target is set for.
const WANTED: i64 = 20_000;
/// Files that daemon and wallet need besides a socket for each call.
const OTHER_FILES: u64 = 500;

pub async fn figures(args: &Args) -> Vec<Figure> {
    // A socket for each call, on both sides of the loopback; the daemon inherits the limit. Where it is too low, as many
    // as it allows are in flight, and what they take is scaled up: a little too much, since the daemon itself is, too.
    let files = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, hard) = nix::sys::resource::getrlimit(files).unwrap();
    let limit = hard.min(100_000);
    nix::sys::resource::setrlimit(files, limit, hard).unwrap();
    let in_flight = WANTED.min(limit.saturating_sub(OTHER_FILES) as i64 / 100 * 100);
    assert!(in_flight > 0, "a limit of {limit} open files is too low");
    let mut rounds = Vec::new();
    for round in 1..=args.rounds.min(3) {
        rounds.push(run(in_flight).await * WANTED as f64 / in_flight as f64);
        say(&format!("memory, round {round}: {:.0} MB", rounds[round - 1]));
    }
    vec![Figure {
        id: "S10",
        what: if in_flight == WANTED {
            format!("daemon's greatest memory, {WANTED} actions in flight")
        } else {
            format!(
                "daemon's greatest memory, {WANTED} actions in flight, scaled up from {in_flight} (limit of open files)"
            )
        },
        unit: "MB",
        subject: Series::new("paylatchd", rounds),
        baseline: None,
        target: Target::AtMost(200.0),
    }]
}

async fn run(in_flight: i64) -> f64 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silent = Router::new().fallback(any(|| async {
        tokio::time::sleep(Duration::from_secs(300)).await;
    }));
    let server = tokio::spawn(async move { axum::serve(listener, silent).await });
    let db = Database::fresh().await;
    db.execute(
        "insert into paylatch.channel (channel, call_timeout_ms) values ('sim', 120000);
         insert into paylatch.scene (scene, channel, order_prefix, business_mode) values ('topup', 'sim', 'tp', 'none');",
    )
    .await;
    let mut session = db.session_as("app").await;
    for set in 0..in_flight / 100 {
        let requests: Vec<Value> = (0..100)
            .map(|n| json!({"scene": "topup", "user_id": (set * 100 + n).to_string(), "biz_key": "b", "amount": 1250, "currency": "USD"}))
            .collect();
        sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
    }
    let mut daemon = Setup::of(&db)
        .log("error")
        .driver(&format!("max_in_flight = {in_flight}"))
        .driver("claim_batch = 500")
        .driver("lease_ms = 180000")
        .driver("shutdown_grace_ms = 100")
        .wallet("sim", &url, "call_timeout_ms = 120000\nconnect_timeout_ms = 30000")
        .start()
        .await;
    eventually("all actions are in flight", Duration::from_secs(120), async || {
        daemon.metrics().await.contains(&format!("paylatch_held_actions {in_flight}\n")).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let peak = daemon.process().peak_kib() as f64 / 1024.0;
    daemon.kill();
    server.abort();
    peak
}
