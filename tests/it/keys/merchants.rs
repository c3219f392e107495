//! A login that acts for one merchant: what is another's does not exist for it, by any command.

use paylatch_tests::invariants::assert_verified;
use paylatch_tests::{Database, database};
use serde_json::json;
use sqlx::{PgConnection, Row};

use super::{ask, ask_all, flows, refused, request};

/// A database in which `test_app` acts for `acme` only, with a flow of `acme` and one of `zeta`.
async fn bound() -> (Database, i64, i64) {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute("insert into paylatch.merchant_login values ('test_app', 'acme')").await;
    let mut trusted = db.session().await;
    let acme = ask(&mut trusted, &request("k", json!({"merchant_id": "acme"}))).await.unwrap();
    let zeta = ask(&mut trusted, &request("k", json!({"merchant_id": "zeta"}))).await.unwrap();
    assert_eq!((acme.outcome.as_str(), zeta.outcome.as_str()), ("created", "created"), "keys are each merchant's own");
    (db, acme.flow_id.unwrap(), zeta.flow_id.unwrap())
}

async fn rows(session: &mut PgConnection, sql: String) -> usize {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(session).await.unwrap().len()
}

#[tokio::test]
async fn a_bound_login_reads_its_own_merchants_rows_only() {
    let (db, acme, zeta) = bound().await;
    let mut app = db.session_as("app").await;
    let number = |flow: i64| format!("(select trade_order_no from paylatch.pay_flow where flow_id = {flow})");
    let acme_no: String = db.value(&format!("select {}", number(acme))).await;
    let zeta_no: String = db.value(&format!("select {}", number(zeta))).await;
    for (call, found) in [
        (format!("get_pay_flow({acme})"), 1),
        (format!("get_pay_flow({acme}, 'acme')"), 1),
        (format!("get_pay_flow({acme}, 'zeta')"), 0),
        (format!("get_pay_flow({zeta})"), 0),
        (format!("get_pay_flow({zeta}, 'zeta')"), 0),
        (format!("find_pay_flow('{acme_no}')"), 1),
        (format!("find_pay_flow('r_{acme_no}')"), 1),
        (format!("find_pay_flow('{zeta_no}')"), 0),
        (format!("find_pay_flow('r_{zeta_no}', 'zeta')"), 0),
        ("get_pay_order('topup', 'alice', 'one')".to_owned(), 1),
        ("get_pay_order('topup', 'alice', 'one', 'zeta')".to_owned(), 0),
    ] {
        assert_eq!(rows(&mut app, format!("select * from paylatch.{call}")).await, found, "{call}");
    }
    let own: i64 = sqlx::query("select live_flow_id from paylatch.get_pay_order('topup', 'alice', 'one')")
        .fetch_one(&mut app)
        .await
        .unwrap()
        .get(0);
    assert_eq!(own, acme);
}

/// The refusal is to the letter that of a flow that does not exist.
#[tokio::test]
async fn a_bound_login_moves_nothing_of_another_merchant() {
    let (db, acme, zeta) = bound().await;
    let mut app = db.session_as("app").await;
    let unknown = 4711;
    for call in ["cancel_pay_flow(FLOW)", "cancel_pay_flow(FLOW, 'zeta')", "explain(FLOW)"] {
        let attempt = |flow: i64| format!("select * from paylatch.{}", call.replace("FLOW", &flow.to_string()));
        let (code, foreign) = database::refused(&mut app, &attempt(zeta)).await;
        let (_, missing) = database::refused(&mut app, &attempt(unknown)).await;
        assert_eq!(
            (code.as_str(), foreign.replace(&zeta.to_string(), "N")),
            ("PL008", missing.replace("4711", "N")),
            "{call}"
        );
    }
    let (code, _) = database::refused(&mut app, &format!("select paylatch.cancel_pay_flow({acme}, 'zeta')")).await;
    assert_eq!(code, "PL008");
    for flow in [zeta, unknown] {
        let woken: bool =
            sqlx::query_scalar("select paylatch.advance($1)").bind(flow).fetch_one(&mut app).await.unwrap();
        assert!(!woken);
    }
    assert!(sqlx::query_scalar::<_, bool>("select paylatch.advance($1)").bind(acme).fetch_one(&mut app).await.unwrap());
    assert!(rows(&mut app, format!("select * from paylatch.explain({acme})")).await > 3);
    assert_eq!(db.flow(zeta).await.version, 0);
    assert_eq!(rows(&mut app, format!("select paylatch.cancel_pay_flow({acme})")).await, 1);
    assert_eq!(db.flow(acme).await.status, "PAY_FAIL");
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_bound_login_creates_for_its_own_merchant_only() {
    let (db, acme, _) = bound().await;
    let mut app = db.session_as("app").await;
    let own = ask(&mut app, &request("k", json!({}))).await.unwrap();
    assert_eq!((own.outcome.as_str(), own.flow_id), ("replayed", Some(acme)), "null is its own");
    let foreign = request("k", json!({"merchant_id": "zeta"}));
    assert_eq!(ask(&mut app, &foreign).await, Err(refused("PL004", &[])));
    assert_eq!(
        ask_all(&mut app, &[request("n", json!({"user_id": "bob"})), foreign]).await,
        Err(refused("PL004", &[]))
    );
    let made = ask_all(&mut app, &[request("n", json!({"user_id": "bob"}))]).await.unwrap();
    let merchant: String =
        db.value(&format!("select merchant_id from paylatch.get_pay_flow({})", made[0].flow_id.unwrap())).await;
    assert_eq!(merchant, "acme");
    assert_eq!(flows(&db).await, 3);
}

#[tokio::test]
async fn an_unbound_login_names_any_merchant_or_none() {
    let (db, acme, zeta) = bound().await;
    let mut driver = db.session_as("driver").await;
    for (call, found) in [
        (format!("get_pay_flow({acme})"), 1),
        (format!("get_pay_flow({zeta})"), 1),
        (format!("get_pay_flow({zeta}, 'zeta')"), 1),
        (format!("get_pay_flow({zeta}, 'acme')"), 0),
        ("get_pay_order('topup', 'alice', 'one', 'zeta')".to_owned(), 1),
        ("get_pay_order('topup', 'alice', 'one')".to_owned(), 0), // the merchant named default
    ] {
        assert_eq!(rows(&mut driver, format!("select * from paylatch.{call}")).await, found, "{call}");
    }
    let (code, _) = database::refused(&mut driver, &format!("select paylatch.cancel_pay_flow({zeta}, 'acme')")).await;
    assert_eq!(code, "PL008");
    let made = ask(&mut driver, &request("d", json!({}))).await.unwrap();
    let merchant: String =
        db.value(&format!("select merchant_id from paylatch.get_pay_flow({})", made.flow_id.unwrap())).await;
    assert_eq!(merchant, "default");
}
