//! S3: creating one payment a call, under an idempotency key, over 16 connections; both sides driven by pgbench.

use std::path::Path;
use std::process::Command;

use paylatch_tests::Database;
use paylatch_tests::cluster::bin_dir;

use crate::measure::{Figure, Series, Target};
use crate::{Args, floor, life, say};

const OURS: &str = "\\set u random(1, 9000000000000000)
select outcome from paylatch.create_pay_flow('bench', (:u)::text, 'bench', 1250, 'USD', idempotency_key => 'key-' || (:u)::text);
";

/// One statement for the rows that a creation leaves: order, flow, job, log row, two events, key.
const BARE: &str = "\\set u random(1, 9000000000000000)
with o as (
    insert into bare.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, version, attempt_count, created_at, updated_at)
    values (nextval('bare.order_id_seq'), 'default', 'bench', (:u)::text, 'bench', 'PROCESSING', 1, 1, now(), now()) returning order_id
), f as (
    insert into bare.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id, trade_order_no, biz_deadline, created_at, updated_at, log_hash)
    select nextval('bare.flow_id_seq'), order_id, 1, 1250, 'USD', 'bench', 'null', (:u)::text, 'bn_' || (:u)::text, now() + interval '15 minutes', now(), now(), '\\x00000000000000000000000000000000' from o returning flow_id
), j as (
    insert into bare.job (kind, ref_id, channel, lane, due_at) select 'flow', flow_id, 'null', 'new', now() from f
), l as (
    insert into bare.transition_log (kind, ref_id, version, at, to_status, source, actor, hash)
    select 'flow', flow_id, 0, now(), 'WAIT_PAY', 'API', 'bench', '\\x00000000000000000000000000000000' from f
), k as (
    insert into bare.idempotency_key (flow_id, created_at, merchant_id, operation, key, fingerprint)
    select flow_id, now(), 'default', 'create_pay_flow', 'key-' || (:u)::text, '\\x00000000000000000000000000000000' from f
)
insert into bare.outbox (at, flow_id, ref_id, version, type, order_from)
select now(), flow_id, flow_id, 0, 'flow.wait_pay', null from f union all select now(), flow_id, flow_id, 1, 'order.processing', 'PENDING' from f;
";

pub async fn figures(args: &Args) -> Vec<Figure> {
    let db = Database::fresh().await;
    floor::prepare(&db).await;
    life::prepare(&db).await;
    let folder = tempfile::tempdir().unwrap();
    let (ours, bare) = (folder.path().join("ours.sql"), folder.path().join("bare.sql"));
    std::fs::write(&ours, OURS).unwrap();
    std::fs::write(&bare, BARE).unwrap();
    pgbench(&db, &ours, 1);
    pgbench(&db, &bare, 1);
    floor::assert_same_rows(&db).await;
    let (mut us, mut them) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        us.push(pgbench(&db, &ours, 5));
        them.push(pgbench(&db, &bare, 5));
        say(&format!(
            "create, round {round}/{}: {:.0} calls/s, bare {:.0}",
            args.rounds,
            us[round - 1],
            them[round - 1]
        ));
    }
    vec![Figure {
        id: "S3",
        what: "create_pay_flow, one row a call, with key, 16 connections".to_owned(),
        unit: "calls/s",
        subject: Series::new("create_pay_flow", us),
        baseline: Some(Series::new("one INSERT statement for the same rows", them)),
        target: Target::RatioAtLeast(0.6),
    }]
}

/// Transactions a second.
fn pgbench(db: &Database, script: &Path, seconds: u32) -> f64 {
    let mut command = Command::new(bin_dir().join("pgbench"));
    command
        .args(["-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", &seconds.to_string(), "-f"])
        .arg(script)
        .arg(db.url());
    let output = command.output().expect("pgbench runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "pgbench: {}", String::from_utf8_lossy(&output.stderr));
    tps(&text).unwrap_or_else(|| panic!("pgbench says no tps: {text}"))
}

fn tps(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("tps = "))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn pgbench_s_figure_is_found() {
        let text = "scaling factor: 1\nlatency average = 3.4 ms\ntps = 4711.230000 (without initial connection time)\n";
        assert_eq!(super::tps(text), Some(4711.23));
        assert_eq!(super::tps("nothing"), None);
    }
}
