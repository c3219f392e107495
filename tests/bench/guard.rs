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
    let (mut ours, mut bare, mut rows): (Vec<Cost>, Vec<Cost>, Vec<Cost>) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = args.rounds as i64 * 10;
    for round in 0..=rounds {
        let requests: Vec<Value> = (0..SET).map(|n| life::request(&format!("s5-{round}-{n}"))).collect();
        sqlx::query("select paylatch.create_pay_flows($1)").bind(json!(requests)).execute(&mut session).await.unwrap();
        // Two sets, so that neither update finds pages that the other has just changed.
        for set in [2 * round, 2 * round + 1] {
            let create = sqlx::query("select bare.create_set('bench', $1, $2)").bind(set * SET).bind(SET as i32);
            create.execute(&mut session).await.unwrap();
        }
        // As the commands do, so that no job is put into another place of the queue by it.
        run(&mut session, "set paylatch.source = 'DRIVER'").await;
        let newest = |schema: &str, behind: i64| {
            format!("(select flow_id from {schema}.pay_flow order by flow_id desc limit {SET} offset {behind})")
        };
        let update = |schema: &str| format!("update {schema}.pay_flow {CHANGE} where flow_id in {}", newest(schema, 0));
        let us = timed(&mut session, &update("paylatch")).await;
        let them = timed(&mut session, &update("bare")).await;
        // No event: a change that leaves the status as it is makes none.
        let log = format!(
            "with changed as (update bare.pay_flow {CHANGE} where flow_id in {} returning flow_id, version)
             insert into bare.transition_log (kind, ref_id, version, at, from_status, to_status, source, actor, hash)
             select 'flow', flow_id, version, now(), 'WAIT_PAY', 'WAIT_PAY', 'DRIVER', 'bench', '\\x00000000000000000000000000000000'::bytea from changed",
            newest("bare", SET)
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
    let (with, without, by_hand) =
        ("update paylatch.pay_flow", "the same update, no trigger", "update and log row by one statement");
    let figure = |what: String, unit, baseline: &str, others: &[Cost], of: fn(&Cost) -> f64, target| Figure {
        id: "S5",
        what,
        unit,
        subject: Series::new(with, ours.iter().map(of).collect()),
        baseline: Some(Series::new(baseline, others.iter().map(of).collect())),
        target,
    };
    vec![
        figure(
            format!("update with guards and log, sets of {SET}"),
            "us/row",
            without,
            &bare,
            |cost| cost.us,
            Target::RatioAtMost(1.5),
        ),
        figure("the same, write-ahead log".to_owned(), "bytes/row", without, &bare, |cost| cost.wal, Target::None),
        figure(
            "the same, against SQL that writes the log row too".to_owned(),
            "us/row",
            by_hand,
            &rows,
            |cost| cost.us,
            Target::None,
        ),
        figure("its write-ahead log".to_owned(), "bytes/row", by_hand, &rows, |cost| cost.wal, Target::None),
    ]
}

/// What a row costs, committed.
#[derive(Debug, Clone, Copy)]
struct Cost {
    us: f64,
    wal: f64,
}

async fn timed(session: &mut PgConnection, sql: &str) -> Cost {
    let position: String =
        sqlx::query_scalar("select pg_current_wal_insert_lsn()::text").fetch_one(&mut *session).await.unwrap();
    let began = Instant::now();
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(&mut *session)
        .await
        .unwrap_or_else(|e| panic!("{sql}\n{e}"));
    let us = began.elapsed().as_secs_f64() * 1e6 / SET as f64;
    assert_eq!(done.rows_affected(), SET as u64);
    let written: f64 = sqlx::query_scalar("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::float8")
        .bind(position)
        .fetch_one(session)
        .await
        .unwrap();
    Cost { us, wal: written / SET as f64 }
}

async fn run(session: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap();
}
