//! S8: claims while somebody holds a snapshot, at 500 flows/s, against claims while nobody does.
//!
//! The load and the claims are this program's own: one session creates 25 payments every 50 ms, another claims, reports
//! and claims again, and every claim that finds work is timed. A third one has read once, REPEATABLE READ, and sits idle
//! in its transaction: an analyst's forgotten window. Both run at the same time, each in a database of its own, which is as
//! far as a snapshot reaches: whatever else this machine does meanwhile, it does to both.

use std::time::{Duration, Instant};

use paylatch_tests::Database;
use serde_json::{Value, json};

use crate::measure::{Figure, Series, Target, percentile};
use crate::{Args, life, say};

const EVERY: Duration = Duration::from_millis(50);
const AT_ONCE: usize = 25;

pub async fn figures(args: &Args) -> Vec<Figure> {
    let span = Duration::from_secs(if args.long { 600 } else { 60 });
    say(&format!("snapshot: {} s without one and with one held, side by side", span.as_secs()));
    let (free, held) = tokio::join!(tokio::spawn(run(span, false)), tokio::spawn(run(span, true)));
    let (free, held) = (free.unwrap(), held.unwrap());
    let (offered, span_s) = (AT_ONCE as f64 / EVERY.as_secs_f64(), span.as_secs_f64());
    let carried = |run: &Claims| vec![run.flows as f64 / span_s];
    let fifth = |claims: &[f64], n: usize| percentile(&claims[claims.len() * n / 5..claims.len() * (n + 1) / 5], 0.99);
    vec![
        Figure {
            id: "S8",
            what: format!("claims at 500 flows/s, 99th percentile over {} s", span.as_secs()),
            unit: "ms",
            subject: Series::new("a snapshot is held", vec![percentile(&held.ms, 0.99)]),
            baseline: Some(Series::new("none is", vec![percentile(&free.ms, 0.99)])),
            target: Target::RatioAtMost(2.0),
        },
        Figure {
            id: "S8",
            what: "the same, while it is held".to_owned(),
            unit: "ms",
            subject: Series::new("last fifth of the time", vec![fifth(&held.ms, 4)]),
            baseline: Some(Series::new("first fifth", vec![fifth(&held.ms, 0)])),
            target: Target::None,
        },
        Figure {
            id: "S8",
            what: format!("payments carried meanwhile, {offered:.0} offered"),
            unit: "flows/s",
            subject: Series::new("a snapshot is held", carried(&held)),
            baseline: Some(Series::new("none is", carried(&free))),
            target: Target::None,
        },
    ]
}

/// The claims that found work.
struct Claims {
    /// What each took, in their order.
    ms: Vec<f64>,
    /// What they found.
    flows: usize,
}

async fn run(span: Duration, hold: bool) -> Claims {
    let db = Database::fresh().await;
    life::prepare(&db).await;
    let mut holder = db.session().await;
    if hold {
        sqlx::raw_sql("begin isolation level repeatable read; select count(*) from paylatch.job")
            .execute(&mut holder)
            .await
            .unwrap();
    }
    let end = Instant::now() + span;
    let mut creator = db.session_as("app").await;
    let create = async {
        // Half a step apart, so that both do not always ask at once.
        let mut at = Instant::now() + if hold { EVERY / 2 } else { Duration::ZERO };
        tokio::time::sleep_until(at.into()).await;
        let mut users = 0;
        while Instant::now() < end {
            let requests: Vec<Value> = (0..AT_ONCE).map(|n| life::request(&format!("u{}", users + n))).collect();
            users += AT_ONCE;
            sqlx::query("select paylatch.create_pay_flows($1)")
                .bind(json!(requests))
                .execute(&mut creator)
                .await
                .unwrap();
            at += EVERY;
            tokio::time::sleep_until(at.into()).await;
        }
    };
    let mut driver = db.session_as("driver").await;
    let claim = async {
        let mut claims = Claims { ms: Vec::new(), flows: 0 };
        while Instant::now() < end {
            let began = Instant::now();
            let query =
                sqlx::query_as("select flow_id, lease_token, order_no from paylatch.claim_actions('bench', 200)");
            let claimed: Vec<(i64, i64, String)> = query.fetch_all(&mut driver).await.unwrap();
            if claimed.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            claims.ms.push(began.elapsed().as_secs_f64() * 1000.0);
            claims.flows += claimed.len();
            let evidence: Vec<Value> = claimed
                .iter()
                .map(|(flow_id, token, order_no)| {
                    json!({"flow_id": flow_id, "lease_token": token, "action": "CHARGE", "outcome": "SUCCEEDED", "waited_ms": 0,
                           "took_ms": 0, "request_id": "r", "order_no": order_no, "amount": 1250, "currency": "USD"})
                })
                .collect();
            sqlx::query("select from paylatch.report_evidence('bench', $1)")
                .bind(json!(evidence))
                .execute(&mut driver)
                .await
                .unwrap();
        }
        claims
    };
    let ((), claims) = tokio::join!(create, claim);
    claims
}
