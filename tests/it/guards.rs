//! F22: what a superuser tries in psql is refused, under replica role too; what weakens a guard shows in verify().

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::{Database, database};

/// Attempts on a flow, with `FLOW` for its id.
const ON_ANY_FLOW: &[&str] = &[
    "update paylatch.pay_flow set amount = amount + 1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set currency = 'EUR', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set user_id = 'mallory', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set trade_order_no = 'sh_1_1', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set order_id = order_id + 1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set attempt_no = attempt_no + 1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set flow_id = flow_id + 1, version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set biz_deadline = biz_deadline + interval '1 hour', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set created_at = created_at - interval '1 hour', version = version + 1 where flow_id = FLOW",
    "update paylatch.pay_flow set version = version + 2 where flow_id = FLOW",
    "delete from paylatch.pay_flow where flow_id = FLOW",
    "delete from paylatch.pay_order where order_id = (select order_id from paylatch.pay_flow where flow_id = FLOW)",
    "update paylatch.pay_order set status = 'PAID', version = version + 1",
    "update paylatch.pay_order set refunded_amount = 1, version = version + 1",
    "delete from paylatch.transition_log where ref_id = FLOW",
    "update paylatch.transition_log set actor = 'mallory' where ref_id = FLOW",
    "truncate paylatch.pay_flow",
    "truncate paylatch.pay_order",
    "truncate paylatch.transition_log",
    "truncate paylatch.job",
    "truncate paylatch.refund",
];

const STATUSES: &[&str] = &["WAIT_PAY", "PAYING", "PAYED", "BIZ_SUCCESS", "REFUNDING", "REFUNDED", "PAY_FAIL"];

/// Runs each attempt in an ordinary session and under replica role; each must be refused as a guard's or a
/// constraint's doing.
async fn all_refused(db: &Database, flow_id: i64, attempts: impl IntoIterator<Item = String>) {
    let before = db.flow(flow_id).await;
    for attempt in attempts {
        let attempt = attempt.replace("FLOW", &flow_id.to_string());
        for mode in ["origin", "replica"] {
            let mut session = db.session().await;
            database::run(&mut session, &format!("set session_replication_role = {mode}")).await;
            let (code, message) = database::refused(&mut session, &attempt).await;
            assert!(code.starts_with("23") || code.starts_with("PL"), "{code} {message}: {attempt}");
        }
    }
    assert_eq!(db.flow(flow_id).await, before);
    assert_verified(db).await;
}

fn move_to(status: &str) -> String {
    format!("update paylatch.pay_flow set status = '{status}', version = version + 1 where flow_id = FLOW")
}

#[tokio::test]
async fn f22_a_final_flow_stays_what_it_is() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let moves = STATUSES.iter().filter(|s| **s != "BIZ_SUCCESS").map(|s| move_to(s));
    all_refused(&db, flow_id, moves.chain(ON_ANY_FLOW.iter().map(|s| (*s).to_owned()))).await;
}

#[tokio::test]
async fn f22_a_new_flow_takes_its_first_edge_or_none() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.create_flow("shop", "alice", "one").await;
    let moves = STATUSES.iter().filter(|s| !["WAIT_PAY", "PAYING"].contains(s)).map(|s| move_to(s));
    let on_job = ["delete from paylatch.job where ref_id = FLOW", "update paylatch.job set ref_id = ref_id + 1"];
    let more = ON_ANY_FLOW.iter().chain(&on_job).map(|s| (*s).to_owned());
    all_refused(&db, flow_id, moves.chain(more)).await;
}

#[tokio::test]
async fn f22_a_charged_flow_cannot_be_declared_unpaid() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.create_flow("shop", "alice", "one").await;
    let mut session = db.session().await;
    let handout = claim(&mut session, 1).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
    assert_eq!(db.flow(flow_id).await.status, "PAYED");
    let attempts = ["WAIT_PAY", "PAYING", "REFUNDED", "PAY_FAIL"].map(move_to);
    let charged = "update paylatch.pay_flow set charged_amount = 1, version = version + 1 where flow_id = FLOW";
    all_refused(&db, flow_id, attempts.into_iter().chain([charged.to_owned()])).await;
}

/// A legal hand-written step is a complete one: logged, with its job, its order and one version more.
#[tokio::test]
async fn f22_a_legal_hand_written_step_is_complete() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.create_flow("shop", "alice", "one").await;
    claim(&mut db.session().await, 1).await;
    let before = db.flow(flow_id).await;
    db.execute(&move_to("PAY_FAIL").replace("FLOW", &flow_id.to_string())).await;
    let after = db.flow(flow_id).await;
    assert_eq!((after.status.as_str(), after.version), ("PAY_FAIL", before.version + 1));
    let last = "select to_status from paylatch.transition_log where ref_id = $1 order by version desc limit 1";
    let logged: String = sqlx::query_scalar(last).bind(flow_id).fetch_one(db.pool()).await.unwrap();
    assert_eq!(logged, "PAY_FAIL");
    assert_eq!(db.value::<i64>("select count(*) from paylatch.job").await, 0);
    assert_eq!(db.value::<String>("select status::text from paylatch.pay_order").await, "PENDING");
    assert_verified(&db).await;
}

/// Ways to take a guard's strength and keep its name.
const WEAKENED: &[&str] = &[
    "alter table paylatch.pay_flow disable trigger all",
    "create or replace trigger t10_guard before insert on paylatch.pay_flow
         for each row execute function paylatch.guard_flow()",
    "drop trigger t10_guard on paylatch.pay_flow;
     create trigger t10_guard before insert or update or delete on paylatch.pay_flow
         for each row when (false) execute function paylatch.guard_flow();
     alter table paylatch.pay_flow enable always trigger t10_guard",
    "drop trigger t12_guard_identity on paylatch.job;
     create trigger t12_guard_identity before update of due_at on paylatch.job
         for each row execute function paylatch.refuse_direct();
     alter table paylatch.job enable always trigger t12_guard_identity",
    "create function public.nothing() returns trigger language plpgsql as 'begin return new; end';
     drop trigger t10_guard on paylatch.refund;
     create trigger t10_guard before insert or update or delete on paylatch.refund
         for each row execute function public.nothing();
     alter table paylatch.refund enable always trigger t10_guard",
    "create or replace function paylatch.refuse_truncate() returns trigger language plpgsql as 'begin return null; end'",
    "create or replace function paylatch.guard_flow() returns trigger language plpgsql as 'begin return new; end'",
    "alter table paylatch.pay_flow drop constraint refund_within_charge",
    "alter table paylatch.pay_flow drop constraint refund_within_charge, add constraint refund_within_charge check (true)",
    "alter table paylatch.pay_flow drop constraint charged_in_full,
         add constraint charged_in_full check (charged_amount = amount or charged_amount is null) not valid",
    "alter table paylatch.pay_flow drop constraint attempts_are_numbered",
    "alter table paylatch.pay_order drop constraint one_order_per_target",
    "alter domain paylatch.amount drop constraint amount_positive",
    "alter domain paylatch.flow_status drop constraint flow_status_known;
     alter domain paylatch.flow_status add constraint flow_status_known check (true)",
    "grant update on paylatch.pay_flow to paylatch_driver",
    "grant delete on paylatch.job to public",
];

/// A superuser can always take a guard away; verify() must not stay silent about it.
#[tokio::test]
async fn f22_verify_names_what_weakens_a_guard() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.settled_flow("alice", "one").await;
    assert_verified(&db).await;
    let guards: Vec<(String, String)> = sqlx::query_as(
        "select tgrelid::regclass::text, tgname::text from pg_trigger
         where not tgisinternal and tgparentid = 0 and tgrelid in ('paylatch.pay_flow'::regclass,
               'paylatch.pay_order'::regclass, 'paylatch.refund'::regclass, 'paylatch.job'::regclass,
               'paylatch.transition_log'::regclass)",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(guards.len() >= 21, "{guards:?}");
    let mut sabotages: Vec<String> = WEAKENED.iter().map(|sabotage| (*sabotage).to_owned()).collect();
    for (table, trigger) in guards {
        let weakened = ["disable", "enable", "enable replica"];
        sabotages.extend(weakened.map(|mode| format!("alter table {table} {mode} trigger {trigger}")));
        sabotages.push(format!("drop trigger {trigger} on {table}"));
    }
    let mut session = db.session().await;
    for sabotage in sabotages {
        database::run(&mut session, "begin").await;
        database::run(&mut session, &sabotage).await;
        let broken: Vec<(i32, String)> = sqlx::query_as("select rule, name from paylatch.verify() where not ok")
            .fetch_all(&mut session)
            .await
            .unwrap();
        assert!(!broken.is_empty(), "verify() is silent about: {sabotage}");
        database::run(&mut session, "rollback").await;
    }
    assert_verified(&db).await;
}

/// Rows that were bent while the guards were away are named rule by rule.
#[tokio::test]
async fn f22_verify_finds_rows_bent_behind_the_guards() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let unfinished = db.create_flow("shop", "bob", "two").await;
    let unguarded = |sql: &str| {
        format!("alter table paylatch.pay_flow disable trigger all; alter table paylatch.job disable trigger all;
         alter table paylatch.transition_log disable trigger all; {sql};
         do $$ declare t record; begin
             for t in select tgrelid::regclass as name, tgname from pg_trigger where not tgisinternal and tgparentid = 0
                      and tgrelid in ('paylatch.pay_flow'::regclass, 'paylatch.job'::regclass, 'paylatch.transition_log'::regclass) loop
                 execute format('alter table %s enable always trigger %I', t.name, t.tgname);
             end loop; end $$")
    };
    for (rule, bend) in [
        (4, format!("update paylatch.pay_flow set status = 'REFUNDED' where flow_id = {flow_id}")),
        (6, format!("delete from paylatch.job where ref_id = {unfinished}")),
        (9, format!("update paylatch.transition_log set actor = 'mallory' where ref_id = {flow_id}")),
        (9, format!("delete from paylatch.transition_log where ref_id = {flow_id} and version = 1")),
    ] {
        let mut session = db.session().await;
        database::run(&mut session, "begin").await;
        database::run(&mut session, &unguarded(&bend)).await;
        let broken: Vec<i32> = sqlx::query_scalar("select rule from paylatch.verify() where not ok")
            .fetch_all(&mut session)
            .await
            .unwrap();
        assert!(broken.contains(&rule), "verify() names {broken:?}, not rule {rule}, after: {bend}");
        database::run(&mut session, "rollback").await;
    }
}
