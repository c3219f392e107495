//! S10: the daemon's memory while it holds 20,000 actions whose wallet does not answer.

use std::time::Duration;

use axum::Router;
use axum::routing::any;
use paylatch_tests::daemon::Setup;
use paylatch_tests::{Database, eventually};
use serde_json::{Value, json};

use crate::measure::{Figure, Series, Target};
use crate::{Args, say};

const IN_FLIGHT: i64 = 20_000;

pub async fn figures(args: &Args) -> Vec<Figure> {
    // A socket for each call, on both sides of the loopback; the daemon inherits the limit.
    let files = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, hard) = nix::sys::resource::getrlimit(files).unwrap();
    nix::sys::resource::setrlimit(files, hard.min(100_000), hard).unwrap();
    let mut rounds = Vec::new();
    for round in 1..=args.rounds.min(3) {
        rounds.push(run().await);
        say(&format!("memory, round {round}: {:.0} MB", rounds[round - 1]));
    }
    vec![Figure {
        id: "S10",
        what: format!("daemon's greatest memory, {IN_FLIGHT} actions in flight"),
        unit: "MB",
        subject: Series::new("paylatchd", rounds),
        baseline: None,
        target: Target::AtMost(200.0),
    }]
}

async fn run() -> f64 {
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
    for set in 0..IN_FLIGHT / 1000 {
        let requests: Vec<Value> = (0..1000)
            .map(|n| json!({"scene": "topup", "user_id": (set * 1000 + n).to_string(), "biz_key": "b", "amount": 1250, "currency": "USD"}))
            .collect();
        sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
    }
    let mut daemon = Setup::of(&db)
        .log("error")
        .driver(&format!("max_in_flight = {IN_FLIGHT}"))
        .driver("claim_batch = 500")
        .driver("lease_ms = 180000")
        .driver("shutdown_grace_ms = 100")
        .wallet("sim", &url, "call_timeout_ms = 120000\nconnect_timeout_ms = 30000")
        .start()
        .await;
    eventually("all actions are in flight", Duration::from_secs(120), async || {
        let metrics = daemon.metrics().await;
        metrics.lines().any(|line| line.ends_with(&format!(" {IN_FLIGHT}")) && line.contains("in_flight")).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let peak = daemon.process().peak_kib() as f64 / 1024.0;
    daemon.kill();
    server.abort();
    peak
}
