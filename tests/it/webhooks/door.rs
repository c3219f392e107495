//! The door of the daemon: what it lets in, what it turns away, and what it never loses.

use std::time::Duration;

use futures::future::join_all;
use paylatch_tests::wait::{SOON, eventually};
use paylatch_tests::{Cluster, Daemon, Database};
use reqwest::{Client, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{door, key, now, send, setup};

const NOWHERE: &str = "http://127.0.0.1:9";

async fn started() -> (Database, Daemon) {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let daemon = setup(&db, NOWHERE, &[key(1)]).null_wallet("silent").start().await;
    (db, daemon)
}

async fn stored(db: &Database) -> i64 {
    db.value("select count(*) from paylatch.webhook_event").await
}

fn body(number: &str) -> String {
    format!(r#"{{"type": "charge.succeeded", "order_no": "{number}", "amount": 1500, "currency": "USD"}}"#)
}

#[tokio::test]
async fn f21_what_is_forged_is_refused_and_leaves_a_count() {
    let (db, daemon) = started().await;
    let (client, url) = (Client::new(), door(&daemon, "sim"));
    let body = body("tp_1_1");
    let forged = send(&client, &url, &key(2), "m1", now(), &body).await;
    assert_eq!(forged.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(forged.headers()["content-type"], "application/problem+json");
    let problem: Value = forged.json().await.unwrap();
    assert_eq!(problem["type"], "urn:problem-type:paylatch:bad-signature");

    let old = send(&client, &url, &key(1), "m1", now() - 301, &body).await;
    assert_eq!(old.status(), StatusCode::UNAUTHORIZED, "an old message, sent once more");
    let unsigned = client.post(&url).body(body.clone()).send().await.unwrap();
    assert_eq!(unsigned.status(), StatusCode::UNAUTHORIZED);
    // A signature of another body, and one over another message's name.
    for (signed_id, signed_body) in [("m1", "{}"), ("m2", body.as_str())] {
        let request = client.post(&url).header("webhook-id", "m1").header("webhook-timestamp", now());
        let signature = key(1).sign(signed_id, now(), signed_body.as_bytes());
        let answer = request.header("webhook-signature", signature).body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(stored(&db).await, 0);
    let counted = "paylatch_webhooks_total{channel=\"sim\",result=\"forged\"} 5";
    assert!(daemon.metrics().await.contains(counted), "{}", daemon.metrics().await);
}

#[tokio::test]
async fn f21_a_hundred_parallel_copies_apply_once() {
    let (db, daemon) = started().await;
    db.execute("update paylatch.channel set webhook_trust = 'evidence'").await;
    // Nobody can be reached, so whatever moves it is a webhook.
    let flow_id = db.create_flow("topup", "alice", "one").await;
    eventually("the charge is out or lost", SOON, async || (db.flow(flow_id).await.status == "PAYING").then_some(()))
        .await;
    let number = db.flow(flow_id).await.trade_order_no;
    let (client, url, signer, body) = (Client::new(), door(&daemon, "sim"), key(1), body(&number));
    let copies = (0..100).map(|_| send(&client, &url, &signer, "m1", now(), &body));
    let answers = join_all(copies).await;
    assert!(answers.iter().all(|answer| answer.status() == StatusCode::NO_CONTENT), "{answers:?}");
    let event = "select concat_ws(' ', count(*), sum(times_received), min(applied_as)) from paylatch.webhook_event";
    assert_eq!(db.value::<String>(event).await, "1 100 decided");
    let edges = "select count(*) from paylatch.transition_log where kind = 'flow' and source = 'WEBHOOK'";
    assert_eq!(db.value::<i64>(edges).await, 2, "to PAYED, to BIZ_SUCCESS");
    assert_eq!(db.flow(flow_id).await.status, "BIZ_SUCCESS");
    let metrics = daemon.metrics().await;
    assert!(
        metrics.contains("result=\"received\"} 1\n") && metrics.contains("result=\"duplicate\"} 99\n"),
        "{metrics}"
    );
    paylatch_tests::invariants::assert_verified(&db).await;
}

#[tokio::test]
async fn two_secrets_are_live_and_a_removed_one_is_not() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let daemon = setup(&db, NOWHERE, &[key(2), key(1)]).start().await;
    let client = Client::new();
    for (n, byte) in [1, 2].into_iter().enumerate() {
        let answer = send(&client, &door(&daemon, "sim"), &key(byte), &format!("m{n}"), now(), &body("tp_1_1")).await;
        assert_eq!(answer.status(), StatusCode::NO_CONTENT, "secret {byte}");
    }
    let keys = "select string_agg(key_index::text, ' ' order by event_id) from paylatch.webhook_event";
    assert_eq!(db.value::<String>(keys).await, "1 0");
    drop(daemon);
    let daemon = setup(&db, NOWHERE, &[key(2)]).start().await;
    let answer = send(&client, &door(&daemon, "sim"), &key(1), "m3", now(), &body("tp_1_1")).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    // The kept headers and body are enough to check an event again.
    let kept: (Value, Vec<u8>) =
        sqlx::query_as("select headers, body from paylatch.webhook_event where event_id = 'm0'")
            .fetch_one(db.pool())
            .await
            .unwrap();
    let at: i64 = kept.0["webhook-timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(kept.0["webhook-signature"], key(1).sign("m0", at, &kept.1));
}

#[tokio::test]
async fn f30_what_cannot_be_read_is_refused_and_nothing_is_stored() {
    let (db, daemon) = started().await;
    let (client, url) = (Client::new(), door(&daemon, "sim"));
    for channel in ["nowhere", "silent", "Sim", "%00", "a/b"] {
        let answer = send(&client, &door(&daemon, channel), &key(1), "m1", now(), "{}").await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{channel}");
    }
    for body in ["", "{", "[]", "null", "7", "{\"type\": 7}", "{\"order_no\": \"tp_1_1\"}", "{\"type\": \"\"}"] {
        let answer = send(&client, &url, &key(1), "m1", now(), body).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{body}");
    }
    let too_long = format!(r#"{{"type": "charge.succeeded", "event_id": "{}"}}"#, "e".repeat(201));
    assert_eq!(send(&client, &url, &key(1), "m1", now(), &too_long).await.status(), StatusCode::BAD_REQUEST);
    let huge = format!(r#"{{"type": "charge.succeeded", "filler": "{}"}}"#, "x".repeat(256 * 1024));
    assert_eq!(send(&client, &url, &key(1), "m1", now(), &huge).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let get = client.get(&url).send().await.unwrap();
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(stored(&db).await, 0);

    // What is odd and can be stored is stored: it is signed.
    let odd = "{\"type\": \"charge.succeeded\", \"order_no\": \"a\\u0000b\", \"amount\": 9223372036854775807}";
    assert_eq!(send(&client, &url, &key(1), "m2", now(), odd).await.status(), StatusCode::NO_CONTENT);
    let unknown = r#"{"type": "payout.paid"}"#;
    assert_eq!(send(&client, &url, &key(1), "m3", now(), unknown).await.status(), StatusCode::NO_CONTENT);
    let words = "select string_agg(applied_as, ' ' order by event_id) from paylatch.webhook_event";
    assert_eq!(db.value::<String>(words).await, "not_ours unknown_type");
}

/// Neither a body without an end nor one that never comes holds up the others.
#[tokio::test]
async fn f30_an_endless_and_a_slow_body_are_given_up() {
    let (db, daemon) = started().await;
    let address = daemon.api_address();
    let head = "POST /webhooks/sim HTTP/1.1\r\nhost: x\r\nwebhook-id: m\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AA\r\n";
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()).await.unwrap();

    let mut endless = TcpStream::connect(address).await.unwrap();
    endless.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    for _ in 0..17 {
        // It may hang up at any time after the limit.
        if endless.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    endless.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");

    let fine = send(&Client::new(), &door(&daemon, "sim"), &key(1), "m1", now(), &body("tp_1_1")).await;
    assert_eq!(fine.status(), StatusCode::NO_CONTENT, "while the slow one is still waited for");
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_eq!(stored(&db).await, 1);
}

/// What was not committed is not acknowledged.
#[tokio::test]
async fn while_the_database_is_down_the_wallet_is_asked_to_come_again() {
    let cluster = Cluster::private(&[]);
    let db = Database::clone_in(&cluster).await;
    db.add_scenes().await;
    let daemon = setup(&db, NOWHERE, &[key(1)]).start().await;
    let (client, url) = (Client::new(), door(&daemon, "sim"));
    cluster.crash();
    let answer = send(&client, &url, &key(1), "m1", now(), &body("tp_1_1")).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "1");
    cluster.restart();
    eventually("it is taken", Duration::from_secs(60), async || {
        let answer = send(&client, &url, &key(1), "m1", now(), &body("tp_1_1")).await;
        answer.status().is_success().then_some(())
    })
    .await;
    // The pool's sessions died with the server.
    let mut session = db.session().await;
    let events: i64 =
        sqlx::query_scalar("select count(*) from paylatch.webhook_event").fetch_one(&mut session).await.unwrap();
    assert_eq!(events, 1);
}

/// Those that arrive together go together: far fewer calls than events, and each is answered for itself.
#[tokio::test]
async fn what_arrives_together_is_stored_together() {
    let (db, daemon) = started().await;
    let (client, url, signer) = (Client::new(), door(&daemon, "sim"), key(1));
    let bodies: Vec<_> = (1..=400).map(|n| (format!("m{n}"), body(&format!("tp_1_{n}")))).collect();
    let answers = join_all(bodies.iter().map(|(id, body)| send(&client, &url, &signer, id, now(), body))).await;
    let refused = answers.iter().filter(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE).count();
    let taken = answers.iter().filter(|answer| answer.status() == StatusCode::NO_CONTENT).count();
    assert_eq!(taken + refused, 400, "{answers:?}");
    assert_eq!(stored(&db).await, i64::try_from(taken).unwrap(), "every answer tells the truth");
    let calls = "select count(distinct received_at) from paylatch.webhook_event";
    assert!(db.value::<i64>(calls).await * 2 < stored(&db).await, "{} calls", db.value::<i64>(calls).await);
}
