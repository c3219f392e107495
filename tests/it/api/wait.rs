//! `Prefer: wait`: a server that only serves finishes payments, so nothing here comes through the queue.

use paylatch_tests::api::{Reply, fresh_key, send};
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{ApiClient, Daemon, Stage, eventually};
use paylatchd::simulate::{Fault, Rule};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

fn request(scene: &str, biz_key: &str) -> Value {
    json!({"scene": scene, "user_id": biz_key, "biz_key": biz_key, "amount": 1500, "currency": "USD"})
}

fn waiting(client: &ApiClient, scene: &str, biz_key: &str, wait_s: u32) -> RequestBuilder {
    let request_body = request(scene, biz_key);
    let request = client.request(Method::POST, "/v1/payments").json(&request_body);
    request.header("idempotency-key", fresh_key()).header("prefer", format!("wait={wait_s}"))
}

async fn serving(stage: &Stage, api: &str) -> (Daemon, ApiClient) {
    let daemon = stage.setup().name("serving").serve_only(api).start().await;
    let client = daemon.client();
    (daemon, client)
}

async fn charge_count(stage: &Stage, reply: &Reply) -> u64 {
    u64::from(stage.sim.effects().await.charge_count(reply.json["trade_order_no"].as_str().unwrap()))
}

#[tokio::test]
async fn a_server_without_a_worker_finishes_what_is_waited_for() {
    let stage = Stage::set().await;
    let (_daemon, client) = serving(&stage, "").await;
    for scene in ["topup", "shop", "streak"] {
        let reply = send(waiting(&client, scene, scene, 30)).await.expect(201);
        assert_eq!(reply.json["status"], "BIZ_SUCCESS", "{reply:?}");
        assert_eq!(
            (&reply.json["charged_amount"], reply.header("preference-applied")),
            (&json!(1500), Some("wait=30"))
        );
        assert_eq!(charge_count(&stage, &reply).await, 1);
    }
    // Without the preference nothing is carried out here.
    let left = client.post("/v1/payments", &request("topup", "left"), &fresh_key()).await.expect(201);
    assert_eq!((&left.json["status"], left.header("preference-applied")), (&json!("PROCESSING"), None));
    // A later look may wait for it just as well.
    let path = format!("/v1/payments/{}", left.id());
    let reply = send(client.request(Method::GET, &path).header("prefer", "wait=30")).await.expect(200);
    assert_eq!(reply.json["status"], "BIZ_SUCCESS");
    stage.assert_rules().await;
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_while_the_client_waits() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::DropAfter).times(1)).await;
    let (_daemon, client) = serving(&stage, "").await;
    let reply = send(waiting(&client, "topup", "lost", 30)).await.expect(201);
    assert_eq!(reply.json["status"], "BIZ_SUCCESS", "{reply:?}");
    assert_eq!(charge_count(&stage, &reply).await, 1);
    stage.assert_rules().await;
}

#[tokio::test]
async fn waiting_ends_with_the_time_that_was_granted() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::Processing).arg(1_000_000)).await;
    let (_daemon, client) = serving(&stage, "max_wait_ms = 1000").await;
    let reply = send(waiting(&client, "topup", "slow", 600)).await.expect(201);
    assert_eq!((&reply.json["status"], reply.header("preference-applied")), (&json!("PROCESSING"), Some("wait=1")));
    assert_eq!(reply.json["poll_after_ms"], 1000);

    let (_full, client) = serving(&stage, "max_waiting = 0").await;
    let reply = send(waiting(&client, "topup", "full", 600)).await.expect(201);
    assert_eq!((&reply.json["status"], reply.header("preference-applied")), (&json!("PROCESSING"), None));
}

/// Whoever else works on the payment, the wallet is charged once.
#[tokio::test]
async fn waiting_beside_a_worker_charges_once() {
    let stage = Stage::set().await;
    let daemon = stage.setup().name("both").api("").start().await;
    let client = daemon.client();
    let requests = (0..20).map(|n| send(waiting(&client, "shop", &format!("b{n}"), 30)));
    for reply in futures::future::join_all(requests).await {
        assert_eq!(reply.json["status"], "BIZ_SUCCESS", "{reply:?}");
    }
    let effects = stage.assert_rules().await;
    assert!(effects.charges.values().all(|charge| charge.count == 1));
    assert_eq!((effects.charges.len(), effects.business.len()), (20, 20));
}

#[tokio::test]
async fn a_client_that_leaves_harms_nothing() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::Slow).arg(500)).await;
    let (mut daemon, client) = serving(&stage, "").await;
    let leaving = tokio::spawn(send(waiting(&client, "topup", "gone", 30)));
    stage.becomes_true("select count(*) = 1 from paylatch.job where lease_holder = 'serving'").await;
    leaving.abort();
    stage.becomes_true("select count(*) = 1 from paylatch.pay_flow where status = 'BIZ_SUCCESS'").await;
    eventually("the log says that the client left", PATIENCE, async || {
        daemon.process().log().contains("the client left").then_some(())
    })
    .await;
    assert_eq!(stage.assert_rules().await.charges.len(), 1);
}

/// The wish to stop ends the waiting at once; the call under way is finished and reported, and nobody holds a lease.
#[tokio::test]
async fn a_stop_ends_every_wait_and_loses_nothing() {
    let stage = Stage::set().await;
    stage.script(Rule::new("*", "charge", Fault::Slow).arg(700)).await;
    let (mut daemon, client) = serving(&stage, "").await;
    let waits = tokio::spawn(send(waiting(&client, "shop", "stopped", 600)));
    stage.becomes_true("select count(*) = 1 from paylatch.job where lease_holder = 'serving'").await;
    assert_eq!(daemon.terminate().await.code(), Some(0), "{}", daemon.process().log());
    let reply = waits.await.unwrap().expect(201);
    assert_eq!(reply.json["status"], "PROCESSING");
    let leased = "select count(*) from paylatch.job where lease_token is not null";
    assert_eq!(stage.db.value::<i64>(leased).await, 0);
    assert_eq!(stage.db.value::<String>("select status::text from paylatch.pay_flow").await, "PAYED");
    stage.clear_script().await;
    let next = stage.daemon().await;
    stage.converged(PATIENCE).await;
    drop(next);
    let effects = stage.assert_rules().await;
    assert!(effects.charges.values().all(|charge| charge.count == 1));
}
