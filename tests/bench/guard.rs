//! S5: what guards and log add to an update, row by row in sets of 200.

use std::time::Instant;

use paylatch_tests::Database;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::measure::{Figure, Series, Target};
use crate::{Args, floor, life, say};

const SET: i64 = 200;

/// A legal change of every row: one version more, one try more.
const CHANGE: &str = "set version = version + 1, retry_count = retry_count + 1, updated_at = clock_timestamp()";

pub async fn figures(args: &Args) -> Vec<Figure> {
    let db = Database::fresh().await;
    floor::prepare(&db).await;
    life::prepare(&db).await;
    let mut session = db.session().await;
    let (mut ours, mut bare, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = args.rounds as i64 * 10;
    for round in 0..=rounds {
        let requests: Vec<Value> = (0..SET).map(|n| life::request(&format!("s5-{round}-{n}"))).collect();
        sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
        sqlx::query("select bare.create_set('bench', $1, $2)")
            .bind(round * SET)
            .bind(SET as i32)
            .execute(&mut session)
            .await
            .unwrap();
        // As the commands do, so that no job is put into another place of the queue by it.
        run(&mut session, "set paylatch.source = 'DRIVER'").await;
        let newest =
            |schema: &str| format!("(select flow_id from {schema}.pay_flow order by flow_id desc limit {SET})");
        let us =
            timed(&mut session, &format!("update paylatch.pay_flow {CHANGE} where flow_id in {}", newest("paylatch")))
                .await;
        let them =
            timed(&mut session, &format!("update bare.pay_flow {CHANGE} where flow_id in {}", newest("bare"))).await;
        let log = format!(
            "with changed as (update bare.pay_flow {CHANGE} where flow_id in {} returning flow_id, version),
             logged as (insert into bare.transition_log (kind, ref_id, version, at, from_status, to_status, source, actor, hash)
                        select 'flow', flow_id, version, now(), 'WAIT_PAY', 'WAIT_PAY', 'DRIVER', 'bench', '\\x00000000000000000000000000000000'::bytea from changed)
             insert into bare.outbox (at, flow_id, ref_id, version, type) select now(), flow_id, flow_id, version, 'flow.paying' from changed",
            newest("bare")
        );
        let with_rows = timed(&mut session, &log).await;
        run(&mut session, "reset paylatch.source").await;
        if round > 0 {
            ours.push(us);
            bare.push(them);
            rows.push(with_rows);
        }
    }
    say(&format!("guards: {} sets of {SET}", rounds));
    let us = || Series::new("update paylatch.pay_flow", ours.clone());
    vec![
        Figure {
            id: "S5",
            what: format!("update with guards and log, sets of {SET}"),
            unit: "us/row",
            subject: us(),
            baseline: Some(Series::new("the same update, no trigger", bare)),
            target: Target::RatioAtMost(1.5),
        },
        Figure {
            id: "S5",
            what: "the same, against SQL that writes log row and event too".to_owned(),
            unit: "us/row",
            subject: us(),
            baseline: Some(Series::new("update, log row and event by one statement", rows)),
            target: Target::None,
        },
    ]
}

/// Microseconds a row, committed.
async fn timed(session: &mut PgConnection, sql: &str) -> f64 {
    let began = Instant::now();
    let done =
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap_or_else(|e| panic!("{sql}\n{e}"));
    assert_eq!(done.rows_affected(), SET as u64);
    began.elapsed().as_secs_f64() * 1e6 / SET as f64
}

async fn run(session: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap();
}
