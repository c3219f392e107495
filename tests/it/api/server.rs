//! The server itself: health, unknown paths, what it binds to, how it ends.

use paylatch_tests::Database;
use paylatch_tests::api::send;
use paylatch_tests::daemon::Setup;
use reqwest::Method;

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
