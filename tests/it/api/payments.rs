//! Beginning, reading, finding and cancelling payments over HTTP.

use paylatch_tests::api::{fresh_key, send};
use paylatch_tests::daemon::Setup;
use reqwest::Method;
use serde_json::json;

use super::{Served, topup};

#[tokio::test]
async fn a_payment_is_begun_and_read() {
    let served = Served::open("").await;
    let begun = served.client.post("/v1/payments", &topup("a"), &fresh_key()).await.expect(201);
    assert_eq!(begun.header("location"), Some(format!("/v1/payments/{}", begun.id()).as_str()));
    assert_eq!(begun.header("idempotent-replayed"), None);
    for (field, value) in [
        ("status", json!("PROCESSING")),
        ("outcome", json!("created")),
        ("merchant_id", json!("default")),
        ("scene", json!("topup")),
        ("user_id", json!("1086")),
        ("biz_key", json!("a")),
        ("amount", json!(1250)),
        ("currency", json!("USD")),
        ("attempt_no", json!(1)),
        ("charged_amount", json!(null)),
        ("refunded_amount", json!(0)),
        ("poll_after_ms", json!(1000)),
    ] {
        assert_eq!(begun.json[field], value, "{field}");
    }
    let mut seen = served.client.get(begun.header("location").unwrap()).await.expect(200).json;
    assert!(seen.get("outcome").is_none());
    seen["outcome"] = json!("created");
    assert_eq!(seen, begun.json);

    let order_no = begun.json["trade_order_no"].as_str().unwrap();
    for number in [order_no.to_owned(), format!("r_{order_no}")] {
        let found = served.client.get(&format!("/v1/payments?order_no={number}")).await.expect(200);
        assert_eq!(found.json["payments"][0]["id"], begun.json["id"], "{number}");
    }
    let none = served.client.get("/v1/payments?order_no=tp_1_zzzz").await.expect(200);
    assert_eq!(none.json, json!({"payments": []}));
    let order = served.client.get("/v1/orders?scene=topup&user_id=1086&biz_key=a").await.expect(200);
    assert_eq!((&order.json["status"], &order.json["live_payment_id"]), (&json!("PROCESSING"), &begun.json["id"]));
    assert_eq!(served.client.get("/v1/orders?scene=topup&user_id=1086&biz_key=b").await.problem(), "not-found");
}

#[tokio::test]
async fn a_target_under_way_or_paid_for_gives_its_payment_under_any_key() {
    let served = Served::open("").await;
    let flow_id = served.db.settled_flow("1", "paid").await;
    let paid = json!({"scene": "topup", "user_id": "1", "biz_key": "paid", "amount": 1500, "currency": "USD"});
    let reply = served.client.post("/v1/payments", &paid, &fresh_key()).await.expect(200);
    assert_eq!((reply.id(), &reply.json["outcome"]), (flow_id.to_string().as_str(), &json!("already_paid")));
    assert_eq!(reply.json["status"], "BIZ_SUCCESS");

    let id = served.begin(&served.client, "a").await;
    let twice = served.client.post("/v1/payments", &topup("a"), &fresh_key()).await.expect(200);
    assert_eq!((twice.id(), &twice.json["outcome"]), (id.as_str(), &json!("in_flight")));
    let mut dearer = topup("a");
    dearer["amount"] = json!(1251);
    let reply = served.client.post("/v1/payments", &dearer, &fresh_key()).await.expect(422);
    assert_eq!((reply.problem(), &reply.json["fields"]), ("idempotency-key-reused", &json!(["amount"])));
    assert_eq!(served.flows().await, 2);
}

#[tokio::test]
async fn a_cancelled_payment_that_was_never_sent_ends() {
    let served = Served::open("").await;
    let id = served.begin(&served.client, "a").await;
    for outcome in ["requested", "finished"] {
        let path = format!("/v1/payments/{id}/cancel");
        let reply = send(served.client.request(Method::POST, &path)).await.expect(200);
        assert_eq!((&reply.json["outcome"], &reply.json["status"]), (&json!(outcome), &json!("PAY_FAIL")));
        assert!(reply.json.get("poll_after_ms").is_none());
    }
}

#[tokio::test]
async fn what_is_missing_is_not_found() {
    let served = Served::open("").await;
    for id in ["1", "999999999", "0", "-1", "x", "1.0", "99999999999999999999", "%00", "%ff", "1%2F2"] {
        let path = format!("/v1/payments/{id}");
        assert_eq!(served.client.get(&path).await.problem(), "not-found", "{id}");
        assert_eq!(served.client.get(&format!("/v1/refunds/{id}")).await.problem(), "not-found", "{id}");
        let cancel = served.client.request(Method::POST, &format!("{path}/cancel"));
        assert_eq!(send(cancel).await.problem(), "not-found", "{id}");
    }
}

#[tokio::test]
async fn a_wrong_request_names_every_wrong_field() {
    let served = Served::open("").await;
    let refused = async |body: serde_json::Value| {
        let reply = served.client.post("/v1/payments", &body, &fresh_key()).await.expect(422);
        let errors = reply.json["errors"].as_array().cloned().unwrap_or_default();
        let fields = errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        (reply.problem().to_owned(), fields)
    };
    let with = |field: &str, value: serde_json::Value| {
        let mut body = topup("a");
        body[field] = value;
        body
    };
    let invalid = |fields: &[&str]| ("invalid".to_owned(), fields.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>());
    // Found before the database is asked, all at once ...
    assert_eq!(refused(json!({})).await, invalid(&["scene", "user_id", "biz_key", "amount", "currency"]));
    assert_eq!(
        refused(json!({"scene": 1, "user_id": "", "biz_key": "a", "amount": 1.5, "currency": "USD", "color": 1})).await,
        invalid(&["scene", "user_id", "amount", "color"])
    );
    for amount in [json!(0), json!(-1), json!("1"), json!(1.0), json!(9_007_199_254_740_992_i64), json!(null)] {
        assert_eq!(refused(with("amount", amount)).await, invalid(&["amount"]));
    }
    assert_eq!(refused(with("payload", json!([1]))).await, invalid(&["payload"]));
    assert_eq!(refused(with("biz_deadline", json!("tomorrow"))).await, invalid(&["biz_deadline"]));
    // ... and what only the database knows.
    assert_eq!(refused(with("currency", json!("XXY"))).await, invalid(&["currency"]));
    assert_eq!(refused(with("biz_deadline", json!("2020-01-01T00:00:00Z"))).await, invalid(&["biz_deadline"]));
    assert_eq!(refused(with("scene", json!("nowhere"))).await.0, "unknown-scene");
    assert_eq!(served.flows().await, 0);
}

#[tokio::test]
async fn a_closed_scene_and_an_open_breaker_send_clients_away_but_not_replays() {
    let served = Served::open("").await;
    let key = fresh_key();
    served.client.post("/v1/payments", &topup("before"), &key).await.expect(201);
    served.db.execute("update paylatch.scene set entry_open = false where scene = 'topup'").await;
    let reply = served.client.post("/v1/payments", &topup("a"), &fresh_key()).await.expect(503);
    assert_eq!((reply.problem(), reply.header("retry-after")), ("scene-closed", Some("60")));
    served.db.execute("update paylatch.scene set entry_open = true where scene = 'topup'").await;

    // The breaker's span is on the database's clock; it has 7 of its 10 seconds left.
    let open = "update paylatch.channel_state set breaker = 'open', moved_at = paylatch.clock() - interval '3 s'";
    served.db.execute(open).await;
    let reply = served.client.post("/v1/payments", &topup("b"), &fresh_key()).await.expect(503);
    assert_eq!(reply.problem(), "channel-unavailable");
    let seconds: u32 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=7).contains(&seconds), "{seconds}");
    let replay = served.client.post("/v1/payments", &topup("before"), &key).await.expect(200);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));

    // Once its time is over somebody has to try, or it would stay open for ever.
    served.db.execute("update paylatch.channel_state set moved_at = paylatch.clock() - interval '11 s'").await;
    served.client.post("/v1/payments", &topup("b"), &fresh_key()).await.expect(201);
}

/// The same through PgBouncer's kind of pooling: no session settings, no prepared statement outlives a transaction.
#[tokio::test]
async fn it_works_without_sessions_of_its_own() {
    let served = Served::open("").await;
    let pooled = Setup::of(&served.db).name("pooled").database("transaction_pooling = true").serve_only("");
    let daemon = pooled.start().await;
    let reply = daemon.client().post("/v1/payments", &topup("a"), "k").await.expect(201);
    assert_eq!(served.client.get(&format!("/v1/payments/{}", reply.id())).await.expect(200).json["biz_key"], "a");
}
