//! S7: what a long past costs: claims and scans beside millions of finished payments, against none.

use std::time::Instant;

use paylatch_tests::Database;
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::measure::{Figure, Series, Target};
use crate::{Args, life, say};

const SET: i64 = 200;

pub async fn figures(args: &Args) -> Vec<Figure> {
    let finished = if args.long { 5_000_000 } else { 500_000 };
    let (empty, full) = (Database::fresh().await, Database::fresh().await);
    for db in [&empty, &full] {
        life::prepare(db).await;
    }
    fill(&full, finished).await;
    for db in [&empty, &full] {
        db.execute("vacuum analyze").await;
    }
    say(&format!("history: {finished} finished flows are there"));
    let (mut claims, mut claims_empty, mut scans, mut scans_empty) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut one, mut other) = (full.session().await, empty.session().await);
    for round in 0..=args.rounds * 10 {
        let (us, them) = (claim(&mut one, round).await, claim(&mut other, round).await);
        if round > 0 {
            claims.push(us);
            claims_empty.push(them);
        }
    }
    for db in [&full, &empty] {
        unfinished(db, 1000).await;
    }
    // The first rounds of a database look at all of it, the first one of a day as well.
    const FIRST: usize = 3;
    for round in 0..FIRST + args.rounds {
        let (us, them) = (scan(&mut one, round).await, scan(&mut other, round).await);
        if round >= FIRST {
            scans.push(us);
            scans_empty.push(them);
        }
    }
    vec![
        Figure {
            id: "S7",
            what: format!("a claim of {SET} beside {finished} finished flows"),
            unit: "ms",
            subject: Series::new("with them", claims),
            baseline: Some(Series::new("without", claims_empty)),
            target: Target::RatioAtMost(1.2),
        },
        Figure {
            id: "S7",
            what: format!("scan(), 1000 unfinished, beside {finished} finished flows"),
            unit: "ms",
            subject: Series::new("with them", scans.clone()),
            baseline: Some(Series::new("without", scans_empty)),
            target: Target::RatioAtMost(1.2),
        },
        Figure {
            id: "S7",
            what: "the same scan".to_owned(),
            unit: "ms",
            subject: Series::new("with them", scans),
            baseline: None,
            target: Target::AtMost(50.0),
        },
    ]
}

/// Finished flows with their orders and log rows, the triggers off: in a database that only this figure uses.
async fn fill(db: &Database, flows: i64) {
    let tables = ["pay_order", "pay_flow", "transition_log"];
    for table in tables {
        db.execute(&format!("alter table paylatch.{table} disable trigger user")).await;
    }
    for from in (0..flows).step_by(100_000) {
        let to = (from + 100_000).min(flows);
        db.execute(&format!(
            "insert into paylatch.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, version, attempt_count, paid_flow_id)
             select nextval('paylatch.order_id_seq'), 'default', 'bench', 'old' || n, 'bench', 'PAID', 2, 1, n
             from generate_series({from} + 1, {to}) n;
             insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id, trade_order_no, biz_deadline,
                                            version, charged_amount, status, log_hash)
             select nextval('paylatch.flow_id_seq'), n, 1, 1250, 'USD', 'bench', 'null', 'old' || n, 'bn_old_' || n, now(), 3, 1250, 'BIZ_SUCCESS',
                    '\\x00000000000000000000000000000000'
             from generate_series({from} + 1, {to}) n;
             insert into paylatch.transition_log (kind, ref_id, version, at, to_status, source, actor, hash)
             select 'flow', n, v, now(), 'BIZ_SUCCESS', 'DRIVER', 'bench', '\\x00000000000000000000000000000000'
             from generate_series({from} + 1, {to}) n, generate_series(0, 3) v"
        ))
        .await;
        if (to / 100_000) % 5 == 0 {
            say(&format!("history: {to}/{flows}"));
        }
    }
    // As migrations leave them: every trigger of ours is ALWAYS, those of foreign keys are not ours.
    db.execute(
        "do $$ declare v record; begin
             for v in select tgrelid::regclass as name, tgname from pg_trigger
                      where not tgisinternal and tgparentid = 0
                        and tgrelid in ('paylatch.pay_order'::regclass, 'paylatch.pay_flow'::regclass, 'paylatch.transition_log'::regclass) loop
                 execute format('alter table %s enable always trigger %I', v.name, v.tgname);
             end loop;
         end $$",
    )
    .await;
    let altered: i64 =
        db.value("select count(*) from pg_trigger where not tgisinternal and tgenabled <> 'A' and tgrelid::regclass::text like 'paylatch.%'").await;
    assert_eq!(altered, 0, "every guard is on again");
}

async fn claim(session: &mut PgConnection, round: usize) -> f64 {
    let requests: Vec<Value> = (0..SET).map(|n| life::request(&format!("s7-{round}-{n}"))).collect();
    sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut *session).await.unwrap();
    let began = Instant::now();
    let query = sqlx::query_as("select flow_id, lease_token, order_no from paylatch.claim_actions('bench', $1)");
    let claimed: Vec<(i64, i64, String)> = query.bind(SET as i32).fetch_all(&mut *session).await.unwrap();
    let took = began.elapsed().as_secs_f64() * 1000.0;
    assert_eq!(claimed.len(), SET as usize);
    let evidence: Vec<Value> = claimed
        .iter()
        .map(|(flow_id, token, order_no)| {
            json!({"flow_id": flow_id, "lease_token": token, "action": "CHARGE", "outcome": "SUCCEEDED", "waited_ms": 0, "took_ms": 0,
                   "request_id": "r", "order_no": order_no, "amount": 1250, "currency": "USD"})
        })
        .collect();
    sqlx::query("select from paylatch.report_evidence('bench', $1)")
        .bind(json!(evidence))
        .execute(&mut *session)
        .await
        .unwrap();
    took
}

/// Payments whose charge is under way.
async fn unfinished(db: &Database, flows: i64) {
    let mut session = db.session().await;
    let requests: Vec<Value> = (0..flows).map(|n| life::request(&format!("s7-open-{n}"))).collect();
    sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
    sqlx::query("select from paylatch.claim_actions('bench', $1)")
        .bind(flows as i32)
        .execute(&mut session)
        .await
        .unwrap();
}

/// One round of the scanner. The ones before it are moved back as if minutes had passed: a round looks at what was created
/// since the round before last, and at everything until there are two.
async fn scan(session: &mut PgConnection, round: usize) -> f64 {
    let began = Instant::now();
    sqlx::query("select paylatch.scan()").execute(&mut *session).await.unwrap();
    let took = began.elapsed().as_secs_f64() * 1000.0;
    sqlx::query(
        "update paylatch.task_run set period_at = period_at - make_interval(mins => 1000 - $1)
         where task = 'scan' and period_at = (select max(period_at) from paylatch.task_run where task = 'scan')",
    )
    .bind(round as i32)
    .execute(&mut *session)
    .await
    .unwrap();
    took
}
