//! F20 for refunds: one key, one refund; and a login that acts for one merchant sees and refunds that merchant's only.

use std::sync::Arc;

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::{refused, run};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use sqlx::PgConnection;

async fn keyed(
    session: &mut PgConnection,
    flow_id: i64,
    amount: i64,
    key: &str,
) -> (String, Option<i64>, Option<String>) {
    let ask = "select outcome, refund_id, status from paylatch.request_refund($1, $2, 'why', idempotency_key => $3)";
    sqlx::query_as(ask).bind(flow_id).bind(amount).bind(key).fetch_one(session).await.unwrap_or_else(|e| panic!("{e}"))
}

#[tokio::test]
async fn f20_one_key_is_one_refund() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let other = db.settled_flow("alice", "two").await;
    let mut session = db.session().await;
    assert_eq!(keyed(&mut session, flow_id, 1501, "k").await.0, "over_limit");
    assert_eq!(
        keyed(&mut session, flow_id, 1000, "k").await,
        ("reserved".into(), Some(1), Some("PENDING".into())),
        "a key that made nothing is free"
    );
    for _ in 0..3 {
        assert_eq!(keyed(&mut session, flow_id, 1000, "k").await, ("replayed".into(), Some(1), Some("PENDING".into())));
    }
    assert_eq!(db.flow(flow_id).await.refunded_amount, 1000);
    for (call, fields) in [
        (format!("{flow_id}, 999, 'why'"), "amount"),
        (format!("{flow_id}, 1000, 'because'"), "reason"),
        (format!("{other}, 1000, 'why'"), "flow_id"),
        (format!("{other}, 1, 'because'"), "flow_id, amount, reason"),
    ] {
        let (code, message) =
            refused(&mut session, &format!("select paylatch.request_refund({call}, idempotency_key => 'k')")).await;
        assert_eq!(code, "PL001", "{message}");
        assert!(message.ends_with(fields), "{message}");
    }
    let create = "select paylatch.create_pay_flow('topup', 'a', 'b', 1, 'USD', idempotency_key => 'k')";
    assert_eq!(refused(&mut session, create).await.0, "PL001", "a key is for one operation");

    let handout = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[handout.evidence(Outcome::Failed)]).await;
    assert_eq!(keyed(&mut session, flow_id, 1000, "k").await.2.as_deref(), Some("FAILED"), "replayed as it stands now");
    assert_eq!(keyed(&mut session, flow_id, 1000, "k2").await.0, "reserved", "a new try is a new key");
    assert_verified(&db).await;
}

#[tokio::test]
async fn f20_twins_at_the_same_moment_make_one_refund() {
    let db = Arc::new(Database::fresh().await);
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let db = Arc::clone(&db);
        asking.spawn(async move { keyed(&mut db.session().await, flow_id, 100, "twin").await });
    }
    let answers = asking.join_all().await;
    assert_eq!(answers.iter().filter(|(outcome, ..)| outcome == "reserved").count(), 1, "{answers:?}");
    assert!(answers.iter().all(|(_, refund_id, _)| *refund_id == Some(1)), "{answers:?}");
    assert_eq!(db.flow(flow_id).await.refunded_amount, 100);
    assert_verified(&db).await;
}

/// Foreign payments are as if they did not exist, to read and to refund.
#[tokio::test]
async fn a_bound_login_refunds_its_own_merchant_only() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let flow_id = db.settled_flow("alice", "one").await; // of merchant 'default'
    db.ask_refund(flow_id, 100).await;
    db.execute("insert into paylatch.merchant_login (login, merchant_id) values ('test_app', 'another')").await;
    let mut app = db.session_as("app").await;
    for merchant in ["null", "'default'", "'another'"] {
        let ask = format!("select paylatch.request_refund({flow_id}, 1, 'why', merchant_id => {merchant})");
        assert_eq!(refused(&mut app, &ask).await.0, "PL008", "{merchant}");
        for read in [format!("get_refund(1, {merchant})"), format!("get_refunds({flow_id}, {merchant})")] {
            let seen: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from paylatch.{read}")))
                .fetch_one(&mut app)
                .await
                .unwrap();
            assert_eq!(seen, 0, "{read}");
        }
    }
    db.execute("update paylatch.merchant_login set merchant_id = 'default'").await;
    run(&mut app, &format!("select paylatch.request_refund({flow_id}, 1, 'why')")).await;
    assert_eq!(db.refunds(flow_id).await.len(), 2);
    assert_verified(&db).await;
}
