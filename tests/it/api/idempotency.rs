//! F20 over HTTP: one key is one request, whatever runs beside it.

use futures::future::join_all;
use paylatch_tests::api::{fresh_key, send};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Served, topup};

#[tokio::test]
async fn a_replay_gives_the_stored_payment_and_its_present_state() {
    let served = Served::open("").await;
    let key = fresh_key();
    let first = served.client.post("/v1/payments", &topup("a"), &key).await.expect(201);
    send(served.client.request(Method::POST, &format!("/v1/payments/{}/cancel", first.id()))).await.expect(200);
    let again = served.client.post("/v1/payments", &topup("a"), &key).await.expect(200);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!((again.id(), &again.json["outcome"]), (first.id(), &json!("replayed")));
    assert_eq!(again.json["status"], "PAY_FAIL");
    assert_eq!(served.flows().await, 1);
}

#[tokio::test]
async fn another_body_or_operation_under_the_same_key_is_refused_by_field() {
    let served = Served::open("").await;
    let key = fresh_key();
    let id = served.client.post("/v1/payments", &topup("a"), &key).await.expect(201).id().to_owned();
    let mut other = topup("b");
    other["amount"] = json!(1);
    let reply = served.client.post("/v1/payments", &other, &key).await.expect(422);
    assert_eq!((reply.problem(), &reply.json["fields"]), ("idempotency-key-reused", &json!(["biz_key", "amount"])));
    assert_eq!(served.flows().await, 1);
    let _ = id;
    for key in ["", " ", "with space", &"k".repeat(256), "\u{e9}"] {
        let request = served.client.request(Method::POST, "/v1/payments").json(&topup("c"));
        let request = if key.is_empty() { request } else { request.header("idempotency-key", key.as_bytes()) };
        assert_eq!(send(request).await.expect(400).problem(), "idempotency-key-missing", "{key:?}");
    }
    assert_eq!(served.flows().await, 1);
}

#[tokio::test]
async fn concurrent_twins_are_one_payment() {
    let served = Served::open("").await;
    for round in 0..5 {
        let key = fresh_key();
        let body = topup(&format!("twin-{round}"));
        let replies = join_all((0..20).map(|_| served.client.post("/v1/payments", &body, &key))).await;
        let created = replies.iter().filter(|reply| reply.status == 201).count();
        assert_eq!(created, 1, "{replies:#?}");
        assert!(replies.iter().all(|reply| reply.status == 200 || reply.status == 201), "{replies:#?}");
        assert!(replies.iter().all(|reply| reply.id() == replies[0].id()));
    }
    assert_eq!(served.flows().await, 5);
}

/// A twin whose holder does not end gets an answer in time; once the holder died, the next one goes through.
#[tokio::test]
async fn a_twin_that_cannot_be_answered_in_time_is_told_to_come_again() {
    let served = Served::open("lock_timeout_ms = 200").await;
    let mut holder = served.db.session().await;
    paylatch_tests::database::run(
        &mut holder,
        "begin; select paylatch.create_pay_flow(scene => 'topup', user_id => '1086', biz_key => 'a', amount => 1250,
                                               currency => 'USD', idempotency_key => 'held')",
    )
    .await;
    let reply = served.client.post("/v1/payments", &topup("a"), "held").await.expect(409);
    assert_eq!((reply.problem(), reply.header("retry-after")), ("busy", Some("1")));
    drop(holder);
    paylatch_tests::eventually("the holder's lock is gone", paylatch_tests::wait::SOON, async || {
        (served.client.post("/v1/payments", &topup("a"), "held").await.status == 201).then_some(())
    })
    .await;
    assert_eq!(served.flows().await, 1);
}

#[tokio::test]
async fn a_thousand_shuffled_replays_make_no_new_payment() {
    let served = Served::open("rate_per_second = 100000").await;
    let mut random = rand::rngs::StdRng::seed_from_u64(20);
    let fields = |biz_key: &str| {
        let mut body = topup(biz_key);
        body["payload"] = json!({"note": "x", "lines": [1, 2, 3], "to": {"city": "Hue", "zip": "49"}});
        body
    };
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(
            served
                .client
                .post("/v1/payments", &fields(&format!("b{n}")), &format!("k{n}"))
                .await
                .expect(201)
                .id()
                .to_owned(),
        );
    }
    for batch in 0..50 {
        let bodies: Vec<_> = (0..20).map(|n| (n, shuffled(&fields(&format!("b{n}")), &mut random))).collect();
        let replies = join_all(bodies.iter().map(|(n, body)| {
            let request =
                served.client.request(Method::POST, "/v1/payments").header("content-type", "application/json");
            send(request.header("idempotency-key", format!("k{n}")).body(body.clone()))
        }))
        .await;
        for (n, reply) in replies.into_iter().enumerate() {
            let reply = reply.expect(200);
            assert_eq!((reply.id(), reply.header("idempotent-replayed")), (ids[n].as_str(), Some("true")), "{batch}");
        }
    }
    assert_eq!(served.flows().await, 20);
    let broken: i64 = served.db.value("select count(*) from paylatch.verify() where not ok").await;
    assert_eq!(broken, 0);
}

/// The same JSON with its fields in another order and white space between.
fn shuffled(value: &Value, random: &mut impl rand::Rng) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.shuffle(random);
            let fields: Vec<_> =
                fields.into_iter().map(|(k, v)| format!("{} :\n {}", json!(k), shuffled(v, random))).collect();
            format!("{{ {} }}", fields.join(" ,\t"))
        }
        Value::Array(values) => {
            format!("[ {} ]", values.iter().map(|v| shuffled(v, random)).collect::<Vec<_>>().join(" , "))
        }
        other => other.to_string(),
    }
}
