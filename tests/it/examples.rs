//! README's Rust example. A test in docs.rs compares the two; this one runs it.

use paylatch_tests::Database;

// README shows this.
use sqlx::PgPool;

/// Asks for a payment. Calling it again, from anywhere, gives the same attempt: an order has at most one.
async fn pay(pool: &PgPool, user_id: &str, item: &str, cents: i64) -> sqlx::Result<(i64, String)> {
    sqlx::query_as(
        "select flow_id, client_status
         from paylatch.create_pay_flow(scene => 'shop', user_id => $1, biz_key => $2, amount => $3, currency => 'USD')",
    )
    .bind(user_id)
    .bind(item)
    .bind(cents)
    .fetch_one(pool)
    .await
}

/// What the customer is shown: PROCESSING, MANUAL_REVIEW, BIZ_SUCCESS, PAY_FAIL or REFUNDED.
async fn shown(pool: &PgPool, flow_id: i64) -> sqlx::Result<String> {
    sqlx::query_scalar("select client_status from paylatch.get_pay_flow($1)").bind(flow_id).fetch_one(pool).await
}
// README ends.

#[tokio::test]
async fn an_application_pays_and_watches() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let app = PgPool::connect(&db.url_as("app")).await.unwrap();
    let (flow_id, status) = pay(&app, "alice", "book-1", 1500).await.unwrap();
    assert_eq!(status, "PROCESSING");
    assert_eq!(pay(&app, "alice", "book-1", 1500).await.unwrap(), (flow_id, status));
    assert_eq!(shown(&app, flow_id).await.unwrap(), "PROCESSING");
}
