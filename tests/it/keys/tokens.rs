//! Tokens of the HTTP API, as the database keeps them: by digest, made and revoked, nothing else.

use paylatch_tests::{Database, database};
use sqlx::Row;

const DIGEST: &str = "sha256('token-1')";

#[tokio::test]
async fn a_token_speaks_for_one_merchant_until_it_is_revoked() {
    let db = Database::fresh().await;
    let mut operator = db.session_as("operator").await;
    let mut driver = db.session_as("driver").await;
    let open = "select paylatch.api_is_open()";
    assert!(sqlx::query_scalar::<_, bool>(open).fetch_one(&mut driver).await.unwrap());
    let create = format!("select paylatch.create_api_token('acme', 'shop', {DIGEST}, 50)");
    let id: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(create.clone())).fetch_one(&mut operator).await.unwrap();
    assert!(!sqlx::query_scalar::<_, bool>(open).fetch_one(&mut driver).await.unwrap());

    let who = |token: &str| format!("select * from paylatch.authenticate(sha256('{token}'))");
    let row = sqlx::raw_sql(sqlx::AssertSqlSafe(who("token-1"))).fetch_one(&mut driver).await.unwrap();
    assert_eq!((row.get::<i64, _>(0), row.get::<String, _>(1), row.get::<i32, _>(3)), (id, "acme".to_owned(), 50));
    assert!(sqlx::raw_sql(sqlx::AssertSqlSafe(who("token-2"))).fetch_all(&mut driver).await.unwrap().is_empty());

    assert_eq!(database::refused(&mut operator, &create).await.0, "PL004", "the same token again");
    for bad in [
        "'', 'n', sha256('x')",
        "'m', '', sha256('x')",
        "'m', 'n', '\\x00'",
        "'m', 'n', sha256('x'), 0",
        "null, null, null",
    ] {
        let create = format!("select paylatch.create_api_token({bad})");
        assert_eq!(database::refused(&mut operator, &create).await.0, "PL004", "{bad}");
    }

    let revoke = format!("select paylatch.revoke_api_token({id})");
    for revoked in [true, false] {
        let said: bool =
            sqlx::query_scalar(sqlx::AssertSqlSafe(revoke.clone())).fetch_one(&mut operator).await.unwrap();
        assert_eq!(said, revoked);
    }
    assert!(sqlx::raw_sql(sqlx::AssertSqlSafe(who("token-1"))).fetch_all(&mut driver).await.unwrap().is_empty());
    assert!(!sqlx::query_scalar::<_, bool>(open).fetch_one(&mut driver).await.unwrap(), "revoked is not: never made");
    let listed = sqlx::raw_sql("select * from paylatch.api_tokens()").fetch_all(&mut operator).await.unwrap();
    assert_eq!((listed.len(), listed[0].get::<String, _>("revoked_by")), (1, "test_operator".to_owned()));
    assert!(listed[0].try_get::<Vec<u8>, _>("digest").is_err());
}

#[tokio::test]
async fn tokens_are_never_changed_and_digests_never_shown() {
    let db = Database::fresh().await;
    db.execute(&format!("select paylatch.create_api_token('acme', 'shop', {DIGEST})")).await;
    let mut session = db.session().await;
    for mode in ["origin", "replica"] {
        database::run(&mut session, &format!("set session_replication_role = {mode}")).await;
        for attempt in [
            "delete from paylatch.api_token",
            "truncate paylatch.api_token",
            "update paylatch.api_token set merchant_id = 'zeta'",
            "update paylatch.api_token set merchant_id = 'zeta', revoked_at = now()",
            "update paylatch.api_token set digest = sha256('mine')",
            "update paylatch.api_token set rate_per_second = null",
        ] {
            assert_eq!(database::refused(&mut session, attempt).await.0, "23514", "{mode}: {attempt}");
        }
    }
    database::run(&mut session, "update paylatch.api_token set revoked_at = now()").await;
    assert_eq!(database::refused(&mut session, "update paylatch.api_token set revoked_at = null").await.0, "23514");

    let mut auditor = db.session_as("auditor").await;
    database::run(&mut auditor, "select token_id, merchant_id, revoked_at from paylatch.api_token").await;
    assert_eq!(database::refused(&mut auditor, "select digest from paylatch.api_token").await.0, "42501");
    assert_eq!(database::refused(&mut auditor, "select * from paylatch.api_token").await.0, "42501");
}
