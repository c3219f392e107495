//! Tokens: who may ask, for whom, how much; and that nobody sees another merchant's payments.

use std::time::Duration;

use paylatch_tests::api::{Reply, fresh_key, send};
use paylatch_tests::cluster::output;
use paylatch_tests::daemon::{Setup, free_address};
use paylatch_tests::process::{Process, paylatchd};
use paylatch_tests::wait::{SOON, eventually};
use paylatch_tests::{ApiClient, Database};
use reqwest::Method;
use serde_json::json;

use super::{Served, token, token_command, topup};

#[tokio::test]
async fn the_first_token_ends_the_time_without() {
    let served = Served::open("").await;
    served.begin(&served.client, "before").await;
    let client = served.client_of("shop-1");
    eventually("a request without a token is refused", SOON, async || {
        (served.client.get("/v1/payments?order_no=x").await.status == 401).then_some(())
    })
    .await;
    let refused = served.client.get("/v1/payments/1").await.expect(401);
    assert_eq!(
        (refused.problem(), refused.header("www-authenticate")),
        ("unauthorized", Some("Bearer realm=\"paylatch\""))
    );
    let payment = client.post("/v1/payments", &topup("a"), &fresh_key()).await.expect(201);
    assert_eq!(payment.json["merchant_id"], "shop-1");
    for bad in ["", "x", "paylatch_", &format!("paylatch_{}", "a".repeat(46))] {
        assert_eq!(
            served.client.with_token(Some(bad)).get("/v1/payments/1").await.expect(401).problem(),
            "unauthorized"
        );
    }
}

#[tokio::test]
async fn a_revoked_token_stops_within_seconds() {
    let served = Served::of("shop-1", "").await;
    let id = served.begin(&served.client, "a").await;
    let list = output(&mut token_command(&served.db, &["list"]));
    assert!(list.contains("shop-1") && list.contains("test") && !list.contains("paylatch_"), "{list}");
    output(&mut token_command(&served.db, &["revoke", "1"]));
    let began = paylatchd::clock::instant();
    eventually("the revoked token is refused", SOON, async || {
        (served.client.get(&format!("/v1/payments/{id}")).await.status == 401).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    let again = token_command(&served.db, &["revoke", "1"]).output().unwrap();
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("no live token 1"));
    let list = output(&mut token_command(&served.db, &["list"]));
    assert!(list.contains("revoked"), "{list}");
}

/// Every route under /v1: to a foreign token, another merchant's payment is exactly as one that never was.
#[tokio::test]
async fn no_token_sees_or_touches_another_merchants_payments() {
    let served = Served::of("mine", "").await;
    let (mine, theirs) = (&served.client, served.client_of("theirs"));
    let id = served.begin(mine, "a").await;
    let order_no = mine.get(&format!("/v1/payments/{id}")).await.json["trade_order_no"].as_str().unwrap().to_owned();
    let refund = json!({"amount": 1, "reason": "mine now"});
    let ask = async |client: &ApiClient, id: &str, order_no: &str| {
        vec![
            client.get(&format!("/v1/payments/{id}")).await,
            client.get(&format!("/v1/payments/{id}/refunds")).await,
            client.post(&format!("/v1/payments/{id}/refunds"), &refund, &fresh_key()).await,
            send(client.request(Method::POST, &format!("/v1/payments/{id}/cancel"))).await,
            client.get(&format!("/v1/payments?order_no={order_no}")).await,
            client.get("/v1/orders?scene=topup&user_id=1086&biz_key=a").await,
            send(client.request(Method::GET, &format!("/v1/payments/{id}")).header("prefer", "wait=1")).await,
        ]
    };
    let foreign = ask(&theirs, &id, &order_no).await;
    let missing = ask(&theirs, "4242", "tp_u6_zzz").await;
    for (foreign, missing) in foreign.iter().zip(&missing) {
        assert_eq!((foreign.status, &foreign.json), (missing.status, &missing.json));
        assert!(foreign.status == 404 || foreign.json == json!({"payments": []}), "{foreign:?}");
    }
    assert_eq!(mine.get(&format!("/v1/payments/{id}")).await.expect(200).json["status"], "PROCESSING");
    // The same key and the same target are another merchant's own.
    let theirs_own = theirs.post("/v1/payments", &topup("a"), "shared-key").await.expect(201);
    let own = mine.post("/v1/payments", &topup("b"), "shared-key").await.expect(201);
    assert_ne!(theirs_own.id(), own.id());
}

#[tokio::test]
async fn a_token_has_its_rate_and_is_told_of_it() {
    let served = Served::open("rate_burst_seconds = 3").await;
    let slow = served.client.with_token(Some(&token(&served.db, "slow", &["--rate", "1"])));
    let quick = served.client_of("quick");
    let reply = slow.get("/v1/payments/1").await.expect(404);
    assert_eq!(reply.header("ratelimit-policy"), Some("\"token\";q=3;w=3"));
    assert_eq!(reply.header("ratelimit"), Some("\"token\";r=2;t=0"));
    let refused = until_refused(&[&slow]).await;
    assert_eq!((refused.problem(), refused.header("retry-after")), ("rate-limited", Some("1")));
    quick.get("/v1/payments/1").await.expect(404);
    eventually("its rate comes back", SOON, async || (slow.get("/v1/payments/1").await.status == 404).then_some(()))
        .await;
}

#[tokio::test]
async fn tokens_without_a_rate_of_their_own_share_their_merchant_s() {
    let served = Served::open("rate_per_second = 1\nrate_burst_seconds = 3").await;
    let client = |merchant, args: &[&str]| served.client.with_token(Some(&token(&served.db, merchant, args)));
    let (one, other) = (client("busy", &[]), client("busy", &[]));
    let (own, stranger) = (client("busy", &["--rate", "1"]), client("calm", &[]));
    let refused = until_refused(&[&one, &other]).await;
    assert_eq!(refused.json["detail"], "this merchant may send 1 requests a second, 3 at once");
    assert_eq!(refused.header("ratelimit-policy"), Some("\"merchant\";q=3;w=3"));
    own.get("/v1/payments/1").await.expect(404);
    stranger.get("/v1/payments/1").await.expect(404);
}

/// Asks in turns until one is refused. A rate of one a second lets through few more than its burst, however slow the
/// machine is.
async fn until_refused(clients: &[&ApiClient]) -> Reply {
    for client in clients.iter().cycle().take(200) {
        let reply = client.get("/v1/payments/1").await;
        if reply.status == 429 {
            return reply;
        }
        assert_eq!(reply.status, 404, "{reply:?}");
    }
    panic!("200 requests were let through")
}

/// Without tokens only loopback is served, and only under its own name: a page in a browser may reach it by another.
#[tokio::test]
async fn without_tokens_only_this_machine_is_served() {
    let served = Served::open("").await;
    let by_name = served.client.request(Method::GET, "/v1/payments/1").header("host", "evil.example");
    let refused = send(by_name).await.expect(403);
    assert_eq!(refused.problem(), "forbidden");
    assert!(refused.json["detail"].as_str().unwrap().contains("paylatchd token create"));
    let form = served.client.request(Method::POST, "/v1/payments").header("content-type", "text/plain");
    assert_eq!(
        send(form.header("idempotency-key", "k").body("{}")).await.expect(415).problem(),
        "unsupported-media-type"
    );

    let mut elsewhere = free_address();
    elsewhere.set_ip([0, 0, 0, 0].into());
    let dir = tempfile::TempDir::new().unwrap();
    let start = |db: &Database| {
        let mut command = std::process::Command::new(paylatchd());
        command.args(["serve", "--database-url", &db.url_as("driver")]).env("PAYLATCH_HTTP_LISTEN", "off");
        command.env("PAYLATCH_API_LISTEN", elsewhere.to_string()).env("PAYLATCH_API_UNREADY_MS", "0");
        Process::spawn("elsewhere", &mut command, &dir.path().join("log"))
    };
    let mut process = start(&served.db);
    eventually("it refuses to start", SOON, async || (!process.is_running()).then_some(())).await;
    let says = process.log();
    assert!(says.contains("no token was ever made") && says.contains("paylatchd token create"), "{says}");

    let token = token(&served.db, "shop-1", &[]);
    let _process = start(&served.db);
    let client = ApiClient::new(([127, 0, 0, 1], elsewhere.port()).into(), Some(&token));
    eventually("it serves", SOON, async || tokio::net::TcpStream::connect(client.address()).await.ok()).await;
    client.post("/v1/payments", &topup("a"), "k").await.expect(201);
    client.with_token(None).get("/v1/payments/1").await.expect(401);
    assert_eq!(client.get("/metrics").await.expect(404).problem(), "not-found");
}

#[tokio::test]
async fn no_secret_reaches_log_or_metrics() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let token = token(&db, "shop-1", &[]);
    let mut daemon = Setup::of(&db).log("debug").serve_only("").start().await;
    let client = daemon.client().with_token(Some(&token));
    let mut body = topup("a");
    body["user_id"] = json!("hush-user");
    body["payload"] = json!({"note": "hush-payload"});
    client.post("/v1/payments", &body, "hush-key").await.expect(201);
    client.with_token(Some(&format!("{token}x"))).get("/v1/payments/1").await.expect(401);
    let metrics = client.get("/metrics").await.expect(200).text;
    assert!(
        metrics.contains("paylatch_http_requests_total{method=\"POST\",route=\"/v1/payments\",status=\"201\"} 1"),
        "{metrics}"
    );
    let log = daemon.process().log();
    assert!(
        log.contains("outcome=\"created\"") && log.contains("flow_id=1") && log.contains("merchant_id=\"shop-1\""),
        "{log}"
    );
    for secret in [&token[9..], "hush-payload", "hush-key", "hush-user"] {
        assert!(!log.contains(secret), "{secret} in the log:\n{log}");
        assert!(!metrics.contains(secret), "{secret} in the metrics");
    }
    let digests: i64 = db.value("select count(*) from paylatch.api_token where digest is not null").await;
    assert_eq!(digests, 1);
}
