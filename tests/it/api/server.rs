//! The server itself: health, unknown paths, what it binds to, how it ends.

use paylatch_tests::api::send;
use paylatch_tests::daemon::Setup;
use paylatch_tests::database::run;
use paylatch_tests::wait::{SOON, eventually};
use paylatch_tests::{ApiClient, Database};
use reqwest::Method;

use super::{Served, topup};

#[tokio::test]
async fn it_tells_its_health_beside_the_api() {
    let db = Database::fresh().await;
    let daemon = Setup::of(&db).serve_only("").start().await;
    for (path, content) in [("/healthz", "ok"), ("/readyz", "ready"), ("/metrics", "paylatch_database_up 1")] {
        let reply = daemon.client().get(path).await.expect(200);
        assert!(reply.text.contains(content), "{path}: {reply:?}");
    }
    let both = Setup::of(&db).name("both").null_wallet("sim").api("").start().await;
    both.client().get("/readyz").await.expect(200);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_document() {
    let db = Database::fresh().await;
    let daemon = Setup::of(&db).serve_only("").start().await;
    for (method, path, status, problem) in [
        (Method::GET, "/", 404, "not-found"),
        (Method::GET, "/v1/nothing", 404, "not-found"),
        (Method::POST, "/healthz", 405, "method-not-allowed"),
        (Method::DELETE, "/readyz", 405, "method-not-allowed"),
    ] {
        let reply = send(daemon.client().request(method, path)).await.expect(status);
        assert_eq!(reply.problem(), problem, "{path}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{path}");
    }
}

/// On SIGTERM: not ready at once, still taking connections for a while, and what is under way is answered.
#[tokio::test]
async fn it_drains() {
    let mut served = Served::open("unready_ms = 1500\nlock_timeout_ms = 20000").await;
    let mut holder = served.db.session().await;
    run(
        &mut holder,
        "begin; select paylatch.create_pay_flow(scene => 'topup', user_id => '1086', biz_key => 'a', amount => 1250,
                                               currency => 'USD', idempotency_key => 'held')",
    )
    .await;
    let client = served.client.clone();
    let under_way = tokio::spawn(async move { client.post("/v1/payments", &topup("a"), "held").await });
    let waits =
        "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())";
    eventually("the request waits", SOON, async || served.db.value::<bool>(waits).await.then_some(())).await;

    let client = served.client.clone();
    let draining = async {
        eventually("it says that it is not ready", SOON, async || {
            let fresh = ApiClient::new(client.address(), None);
            Some(fresh.get("/readyz").await).filter(|reply| reply.status == 503)
        })
        .await;
        client.get("/healthz").await.expect(200);
        drop(holder);
    };
    let (ended, ()) = tokio::join!(served.daemon.terminate(), draining);
    assert_eq!(ended.code(), Some(0), "{}", served.daemon.process().log());
    under_way.await.unwrap().expect(201);
    assert_eq!(served.flows().await, 1);
    assert!(tokio::net::TcpStream::connect(served.client.address()).await.is_err());
}

/// A request that outlives the grace is given up; what it began either committed or did not.
#[tokio::test]
async fn it_ends_after_its_grace() {
    let db = Database::fresh().await;
    db.add_scenes().await;
    let setup = Setup::of(&db).driver("shutdown_grace_ms = 100").serve_only("lock_timeout_ms = 20000");
    let mut daemon = setup.start().await;
    let mut holder = db.session().await;
    run(
        &mut holder,
        "begin; select paylatch.create_pay_flow(scene => 'topup', user_id => '1086', biz_key => 'a', amount => 1250,
                                               currency => 'USD', idempotency_key => 'held')",
    )
    .await;
    let client = daemon.client();
    let request = client.request(Method::POST, "/v1/payments").header("idempotency-key", "held").json(&topup("a"));
    let under_way = tokio::spawn(request.send());
    let waits =
        "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())";
    eventually("the request waits", SOON, async || db.value::<bool>(waits).await.then_some(())).await;
    assert_eq!(daemon.terminate().await.code(), Some(0), "{}", daemon.process().log());
    assert!(under_way.await.unwrap().is_err(), "its connection is closed");
}
