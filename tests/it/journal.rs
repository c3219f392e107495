//! Log and outbox are written past the executor, many rows at once: what their tables declare holds all the same.

use paylatch_tests::Database;
use paylatch_tests::invariants::assert_verified;

#[tokio::test]
async fn a_trigger_that_somebody_adds_fires_for_every_row() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute(
        "create table public.seen (relation text, ref_id bigint, version bigint);
         create function public.note() returns trigger language plpgsql security definer as
             $$ begin insert into public.seen values (tg_table_name, new.ref_id, new.version); return new; end $$;
         create trigger audit before insert on paylatch.transition_log for each row execute function public.note();
         create trigger audit after insert on paylatch.outbox for each row execute function public.note();",
    )
    .await;
    db.settled_flow("alice", "one").await;
    for (table, rows) in [("transition_log", 4), ("outbox", 6)] {
        let written: i64 = db.value(&format!("select count(*) from paylatch.{table}")).await;
        let seen: i64 = db.value(&format!("select count(*) from public.seen where relation like '{table}%'")).await;
        assert_eq!((written, seen), (rows, rows), "{table}");
    }
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_constraint_that_somebody_adds_refuses_the_change() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow = db.create_flow("topup", "alice", "one").await;
    db.execute("alter table paylatch.transition_log add constraint never check (to_status <> 'PAYING')").await;
    let (code, says) = db
        .refused(&format!(
            "update paylatch.pay_flow set status = 'PAYING', version = version + 1 where flow_id = {flow}"
        ))
        .await;
    assert_eq!(code, "23514");
    assert!(says.contains("never"), "{says}");
    assert_eq!(db.flow(flow).await.status, "WAIT_PAY");
    assert_verified(&db).await;
}

#[tokio::test]
async fn rows_of_a_time_without_a_partition_lie_in_the_net() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let mut session = db.session().await;
    // Longer than months and days are made ahead.
    for sql in
        ["set paylatch.clock_offset_ms = 2147483647", "select paylatch.create_pay_flow('topup', 'bob', 'k', 5, 'USD')"]
    {
        paylatch_tests::database::run(&mut session, sql).await;
    }
    let lies_in: Vec<String> =
        db.value("select array_agg(distinct tableoid::regclass::text) from paylatch.outbox").await;
    assert_eq!(lies_in, ["paylatch.outbox_other"]);
    assert_eq!(db.value::<i64>("select count(*) from paylatch.outbox").await, 2);
}

#[tokio::test]
async fn an_order_begins_with_an_attempt_of_its_own_or_as_pending() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let begin = |source: &str, live: &str| {
        format!(
            "set paylatch.source = '{source}';
             insert into paylatch.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, version, live_flow_id, attempt_count)
             values (77, 'default', 'topup', 'alice', 'k', 'PROCESSING', 1, {live}, 1)"
        )
    };
    assert_eq!(db.refused(&begin("", "1")).await.0, "23514", "by hand");
    assert_eq!(db.refused(&begin("API", "null")).await.0, "23514", "without an attempt");
    // An order in the charge of one attempt takes no other.
    db.execute(&format!("{}; reset paylatch.source", begin("API", "1"))).await;
    let (code, says) = db
        .refused(
            "insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id, trade_order_no, biz_deadline)
             values (2, 77, 1, 5, 'USD', 'topup', 'sim', 'alice', paylatch.trade_order_no('tp', 'alice', 2), now() + interval '1 hour')",
        )
        .await;
    assert_eq!((code.as_str(), says.contains("rule 5")), ("23514", true), "{says}");
}
