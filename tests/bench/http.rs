//! S9: everything over real loopback HTTP, three calls a flow (charge, execute the business, ask for the fact), against the
//! article's service making the same calls to a simulator of the same kind; and S2, where calls are free.

use std::time::{Duration, Instant};

use paylatch_tests::daemon::Setup;
use paylatch_tests::{Database, Simulator, eventually};
use serde_json::{Value, json};

use crate::external::{ARTICLE, External};
use crate::measure::{Figure, Series, Target};
use crate::{Args, life, say};

/// S2: the same lives by others, calls free.
pub async fn others(args: &Args, peers: &[External]) -> Vec<Figure> {
    let db = Database::fresh().await;
    life::prepare(&db).await;
    let (flows, batch) = (args.whole_sets(args.flows), args.batch);
    life::run(&db, args.whole_sets(flows / 10), batch, 1).await;
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    let mut versions = vec![String::new(); peers.len()];
    for round in 1..=args.rounds {
        ours.push(life::run(&db, flows, batch, 1).await.flows_per_second);
        for ((peer, rounds), version) in peers.iter().zip(&mut theirs).zip(&mut versions) {
            let outcome = peer.run(peer.flows, None).await;
            rounds.push(outcome.flows_per_second);
            *version = outcome.version;
            say(&format!(
                "others, round {round}/{}: {} {:.0} flows/s, paylatch {:.0}",
                args.rounds,
                peer.name,
                rounds[round - 1],
                ours[round - 1]
            ));
        }
    }
    let figure = |((peer, rounds), version): ((&External, Vec<f64>), String)| Figure {
        id: "S2",
        what: format!("whole lives, against {}", peer.name),
        unit: "flows/s",
        subject: Series::new("paylatch, whole life, real daemon", ours.clone()),
        baseline: Some(Series::new(format!("{} ({version})", peer.name), rounds)),
        target: Target::RatioAtLeast(if peer.name == ARTICLE.name { 10.0 } else { 5.0 }),
    };
    peers.iter().zip(theirs).zip(versions).map(figure).collect()
}

/// S9.
pub async fn figures(args: &Args) -> Vec<Figure> {
    let flows = args.whole_sets(args.flows / 2).max(1000);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        ours.push(run(flows).await);
        let simulator = Simulator::start().await;
        theirs.push(ARTICLE.run(1000, Some(&simulator.base_url())).await.flows_per_second);
        say(&format!(
            "http, round {round}/{}: {:.0} flows/s, article {:.0}",
            args.rounds,
            ours[round - 1],
            theirs[round - 1]
        ));
    }
    vec![Figure {
        id: "S9",
        what: "over HTTP to the simulator, three calls a flow".to_owned(),
        unit: "flows/s",
        subject: Series::new("paylatch, http adapters", ours),
        baseline: Some(Series::new("article, the same calls", theirs)),
        target: Target::RatioAtLeast(5.0),
    }]
}

async fn run(flows: i64) -> f64 {
    let (db, simulator) = (Database::fresh().await, Simulator::start().await);
    db.add_scenes().await;
    let mut daemon = Setup::of(&db)
        .log("warn")
        .driver("lease_ms = 30000")
        .driver("poll_min_ms = 2")
        .wallet("sim", &simulator.base_url(), "")
        .business("shop", &simulator.base_url(), "")
        .start()
        .await;
    let mut session = db.session_as("app").await;
    let began = Instant::now();
    for set in 0..flows / 200 {
        let requests: Vec<Value> = (0..200)
            .map(|n| json!({"scene": "shop", "user_id": (set * 200 + n).to_string(), "biz_key": format!("b{}", set * 200 + n), "amount": 1250, "currency": "USD"}))
            .collect();
        sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
    }
    eventually("every payment is done", Duration::from_secs(300), async || {
        let left: bool = db.value("select exists (select from paylatch.job)").await;
        (!left).then_some(())
    })
    .await;
    let seconds = began.elapsed().as_secs_f64();
    daemon.terminate().await;
    let done: i64 = db.value("select count(*) from paylatch.pay_flow where status = 'BIZ_SUCCESS'").await;
    assert_eq!(done, flows / 200 * 200, "every payment reached BIZ_SUCCESS");
    (flows / 200 * 200) as f64 / seconds
}
