//! Refunds over HTTP; F18 above all.

use futures::future::join_all;
use paylatch_tests::api::{fresh_key, send};
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{ApiClient, Stage, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use super::Served;

fn refund(amount: i64) -> Value {
    json!({"amount": amount, "reason": "arrived broken"})
}

async fn ask(client: &ApiClient, flow_id: i64, body: &Value) -> paylatch_tests::api::Reply {
    client.post(&format!("/v1/payments/{flow_id}/refunds"), body, &fresh_key()).await
}

/// F18: 50 concurrent refunds of 60 on 100, one accepted, every time.
#[tokio::test]
async fn fifty_racing_refunds_reserve_once() {
    let served = Served::open("rate_per_second = 100000").await;
    for round in 0..5 {
        let flow_id = served.db.settled_flow("1", &format!("f18-{round}")).await; // 1500 cents
        let replies = join_all((0..50).map(|_| async { ask(&served.client, flow_id, &refund(900)).await })).await;
        let (accepted, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 202);
        assert_eq!((accepted.len(), refused.len()), (1, 49), "round {round}");
        for reply in refused {
            assert_eq!(
                (reply.status.as_u16(), reply.problem(), &reply.json["refundable"]),
                (409, "over-limit", &json!(600))
            );
        }
        let held = format!("select refunded_amount from paylatch.pay_flow where flow_id = {flow_id}");
        assert_eq!(served.db.value::<i64>(&held).await, 900);
    }
    assert_eq!(served.db.value::<i64>("select count(*) from paylatch.verify() where not ok").await, 0);
}

#[tokio::test]
async fn a_refund_is_asked_for_read_and_replayed() {
    let served = Served::open("").await;
    let flow_id = served.db.settled_flow("1", "a").await;
    let path = format!("/v1/payments/{flow_id}/refunds");
    let mut body = refund(500);
    body["expected_refundable"] = json!(1500);
    body["requested_by"] = json!("desk 4");
    let asked = served.client.post(&path, &body, "r1").await.expect(202);
    assert_eq!(asked.header("location"), Some(format!("/v1/refunds/{}", asked.id()).as_str()));
    for (field, value) in [
        ("status", json!("PENDING")),
        ("outcome", json!("reserved")),
        ("kind", json!("AFTER_SALE")),
        ("payment_id", json!(flow_id.to_string())),
        ("amount", json!(500)),
        ("currency", json!("USD")),
        ("reason", json!("arrived broken")),
        ("requested_by", json!("desk 4")),
        ("needs_review", json!(false)),
    ] {
        assert_eq!(asked.json[field], value, "{field}");
    }
    let seen = served.client.get(&format!("/v1/refunds/{}", asked.id())).await.expect(200);
    assert_eq!(seen.json["refund_order_no"], asked.json["refund_order_no"]);
    let all = served.client.get(&path).await.expect(200);
    assert_eq!(all.json["refunds"], json!([seen.json]));
    let replay = served.client.post(&path, &body, "r1").await.expect(200);
    assert_eq!((replay.id(), replay.header("idempotent-replayed")), (asked.id(), Some("true")));

    body["amount"] = json!(501);
    let other = served.client.post(&path, &body, "r1").await.expect(422);
    assert_eq!((other.problem(), &other.json["fields"]), ("idempotency-key-reused", &json!(["amount"])));
    let stale = served.client.post(&path, &body, "r2").await.expect(412);
    assert_eq!((stale.problem(), &stale.json["refundable"]), ("precondition-failed", &json!(1000)));
    // A key of another operation is another request's too.
    served.client.post("/v1/payments", &super::topup("b"), "p1").await.expect(201);
    assert_eq!(served.client.post(&path, &refund(1), "p1").await.expect(422).json["fields"], json!(["operation"]));
}

#[tokio::test]
async fn what_cannot_be_refunded_is_refused_by_what_it_is() {
    let served = Served::open("").await;
    let unpaid = served.begin(&served.client, "a").await.parse().unwrap();
    assert_eq!(ask(&served.client, unpaid, &refund(1)).await.expect(409).problem(), "not-refundable");
    let flow_id = served.db.settled_flow("1", "b").await;
    assert_eq!(ask(&served.client, flow_id, &refund(1501)).await.expect(409).problem(), "over-limit");
    assert_eq!(ask(&served.client, 4242, &refund(1)).await.expect(404).problem(), "not-found");
    for (body, field) in [
        (json!({"amount": 0, "reason": "x"}), "amount"),
        (json!({"amount": 1.5, "reason": "x"}), "amount"),
        (json!({"amount": 1}), "reason"),
        (json!({"amount": 1, "reason": " "}), "reason"),
        (json!({"amount": 1, "reason": "x", "expected_refundable": -1}), "expected_refundable"),
        (json!({"amount": 1, "reason": "x", "why": "x"}), "why"),
    ] {
        let reply = ask(&served.client, flow_id, &body).await.expect(422);
        assert_eq!((reply.problem(), &reply.json["errors"][0]["field"]), ("invalid", &json!(field)), "{reply:?}");
    }
    assert_eq!(served.client.get(&format!("/v1/payments/{flow_id}/refunds")).await.json, json!({"refunds": []}));
}

#[tokio::test]
async fn no_token_sees_another_merchants_refund() {
    let served = Served::open("").await;
    let flow_id = served.db.settled_flow("1", "a").await;
    let id = ask(&served.client, flow_id, &refund(1)).await.expect(202).id().to_owned();
    let (own, foreign) = (served.client_of("default"), served.client_of("theirs"));
    own.get(&format!("/v1/refunds/{id}")).await.expect(200);
    for path in [format!("/v1/refunds/{id}"), format!("/v1/payments/{flow_id}/refunds")] {
        let missing = foreign.get(&path.replace(&id, "4242").replace(&flow_id.to_string(), "4242")).await.expect(404);
        assert_eq!(foreign.get(&path).await.expect(404).json, missing.json, "{path}");
    }
    assert_eq!(ask(&foreign, flow_id, &refund(1)).await.expect(404).problem(), "not-found");
}

#[tokio::test]
async fn a_refund_is_carried_out_while_the_client_waits() {
    let stage = Stage::set().await;
    let daemon = stage.setup().api("").start().await;
    let client = daemon.client();
    let body = json!({"scene": "topup", "user_id": "1", "biz_key": "a", "amount": 1500, "currency": "USD"});
    let pay = client.request(Method::POST, "/v1/payments").header("idempotency-key", "p").header("prefer", "wait=30");
    let payment = send(pay.json(&body)).await.expect(201);
    assert_eq!(payment.json["status"], "BIZ_SUCCESS");
    let path = format!("/v1/payments/{}/refunds", payment.id());
    let ask = client.request(Method::POST, &path).header("idempotency-key", "r").header("prefer", "wait=30");
    let refund = send(ask.json(&refund(600))).await.expect(202);
    assert_eq!((&refund.json["status"], refund.header("preference-applied")), (&json!("SUCCEEDED"), Some("wait=30")));
    eventually("the order says so", PATIENCE, async || {
        let order = client.get("/v1/orders?scene=topup&user_id=1&biz_key=a").await.expect(200);
        (order.json["status"] == "REFUNDED" && order.json["refunded_amount"] == 600).then_some(())
    })
    .await;
    stage.assert_rules().await;
}
