//! F30 at the API's door: malformed, huge, slow and hostile input. A clear answer, nothing begun, memory bounded.

use paylatch_tests::api::{fresh_key, send};
use paylatch_tests::wait::{SOON, eventually};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Served, topup};

/// Sends bytes as they are and returns what came back until the server closed, or so much that it is enough.
async fn raw(served: &Served, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(served.client.address()).await.unwrap();
    // A server that has heard enough may close before all is sent.
    let _ = stream.write_all(bytes).await;
    answer(&mut stream).await
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = async {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            text.extend_from_slice(&chunk[..count]);
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the server answers and closes");
    String::from_utf8_lossy(&text).into_owned()
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/payments HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\ncontent-type: application/json\r\n{headers}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn bodies_that_are_no_request_are_refused_by_what_they_are() {
    let served = Served::open("").await;
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let with_payload = |payload: &str| {
        let body = topup("a").to_string();
        format!("{},\"payload\":{payload}}}", body.trim_end_matches('}'))
    };
    let cases: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("nothing", b"".to_vec(), 400, "bad-request"),
        ("half", b"{\"scene\":".to_vec(), 400, "bad-request"),
        ("an array", b"[]".to_vec(), 400, "bad-request"),
        ("a field twice", b"{\"scene\":\"a\",\"scene\":\"b\"}".to_vec(), 400, "bad-request"),
        ("invalid UTF-8", b"{\"scene\":\"\xff\xfe\"}".to_vec(), 400, "bad-request"),
        ("a lone surrogate", topup("a").to_string().replace("topup", "\\ud800").into_bytes(), 422, "invalid"),
        ("deep", deep(30_000).into_bytes(), 400, "bad-request"),
        ("deep in a field", format!("{{\"scene\":{}}}", deep(30_000)).into_bytes(), 422, "invalid"),
        ("deep in the payload", with_payload(&format!("{{\"a\":{}}}", deep(4000))).into_bytes(), 422, "invalid"),
        ("NUL", topup("a").to_string().replace("1086", "\\u0000").into_bytes(), 422, "invalid"),
        ("NUL in the payload", with_payload("{\"a\":\"\\u0000\"}").into_bytes(), 422, "invalid"),
        ("a number too large", with_payload("{\"a\":1e400}").into_bytes(), 422, "invalid"),
        ("a number too small", with_payload("{\"a\":1e-400000}").into_bytes(), 422, "invalid"),
        (
            "a payload too large",
            with_payload(&format!("{{\"a\":\"{}\"}}", "x".repeat(9000))).into_bytes(),
            422,
            "invalid",
        ),
        ("too large", format!("{{\"scene\":\"{}\"}}", "x".repeat(70_000)).into_bytes(), 413, "body-too-large"),
    ];
    for (name, body, status, problem) in cases {
        let request = served.client.request(Method::POST, "/v1/payments").header("content-type", "application/json");
        let reply = send(request.header("idempotency-key", fresh_key()).body(body)).await;
        assert_eq!(reply.status.as_u16(), status, "{name}: {reply:?}");
        assert_eq!(reply.problem(), problem, "{name}: {reply:?}");
        // Whoever is answered before all was read is told that the connection ends.
        assert_eq!(reply.header("connection"), (status == 413).then_some("close"), "{name}");
    }
    for (media_type, status) in
        [("", 415), ("text/plain", 415), ("application/jsonx", 415), ("Application/JSON; charset=utf-8", 422)]
    {
        let request = served.client.request(Method::POST, "/v1/payments").header("content-type", media_type);
        send(request.header("idempotency-key", "k").body("{}")).await.expect(status);
    }
    for query in ["", "?order_no=", "?order_no=a&order_no=b", "?order_no=a&x=1", "?order_no=%00", "?order_no=%ff"] {
        let reply = served.client.get(&format!("/v1/payments{query}")).await;
        assert!([400, 422].contains(&reply.status.as_u16()) || query.contains("%ff"), "{query}: {reply:?}");
    }
    assert_eq!(served.flows().await, 0);
}

#[tokio::test]
async fn requests_that_are_no_http_end_their_connection() {
    let served = Served::open("").await;
    let long = "x".repeat(100_000);
    for (bytes, status) in [
        (b"\x16\x03\x01\x02\x00 hello\r\n\r\n".to_vec(), "HTTP/1.1 400"),
        (b"GET / HTTP/9.9\r\n\r\n".to_vec(), "HTTP/1.1 400"),
        (post("content-length: abc\r\n", ""), "HTTP/1.1 400"),
        (post("content-length: 5\r\ncontent-length: 6\r\n", "{}"), "HTTP/1.1 400"),
        (post("content-length: 999999999999\r\n", ""), "HTTP/1.1 413"),
        (post(&format!("x-long: {long}\r\n"), ""), "HTTP/1.1 431"),
        (post(&"x: y\r\n".repeat(200), ""), "HTTP/1.1 431"),
        (format!("GET /{long} HTTP/1.1\r\n\r\n").into_bytes(), "HTTP/1.1 431"),
        (
            post("transfer-encoding: chunked\r\n", &format!("{:x}\r\n{}\r\n", 70_000, "x".repeat(70_000))),
            "HTTP/1.1 413",
        ),
        (post("transfer-encoding: chunked\r\n", "zz\r\n"), "HTTP/1.1 400"),
    ] {
        let shown = String::from_utf8_lossy(&bytes).chars().take(200).collect::<String>();
        let said = raw(&served, &bytes).await;
        // A server that has heard enough may reset the connection, and its answer be lost with it.
        assert!(said.starts_with(status) || said.is_empty(), "{shown}\n{said}");
    }
    served.client.get("/healthz").await.expect(200);
    assert_eq!(served.flows().await, 0);
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_are_not_waited_for() {
    let served = Served::open("header_timeout_ms = 300\nbody_timeout_ms = 300\nmax_connections = 20").await;
    // As many as there are seats: were one of them waited for, nobody else would be served.
    let mut heads = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(served.client.address()).await.unwrap();
        stream.write_all(b"POST /v1/payments HTTP/1.1\r\nhost: loc").await.unwrap();
        heads.push(stream);
    }
    served.client.get("/healthz").await.expect(200);
    for stream in &mut heads {
        let said = answer(stream).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 408"), "{said}");
    }
    let mut slow = TcpStream::connect(served.client.address()).await.unwrap();
    slow.write_all(&post("content-length: 100\r\n", "{\"scene\":")).await.unwrap();
    let said = answer(&mut slow).await;
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("urn:problem-type:paylatch:timeout"), "{said}");
    let mut broken = TcpStream::connect(served.client.address()).await.unwrap();
    broken.write_all(&post("content-length: 100\r\n", "{\"scene\":")).await.unwrap();
    drop(broken);
    served.client.get("/healthz").await.expect(200);
    assert_eq!(served.flows().await, 0);
}

#[tokio::test]
async fn more_requests_than_there_is_room_for_are_sent_away_at_once() {
    let served = Served::open("max_requests = 2\nlock_timeout_ms = 20000").await;
    let mut holder = served.db.session().await;
    paylatch_tests::database::run(
        &mut holder,
        "begin; select paylatch.create_pay_flow(scene => 'topup', user_id => '1086', biz_key => 'a', amount => 1250,
                                               currency => 'USD', idempotency_key => 'held')",
    )
    .await;
    let blocked: Vec<_> = (0..2)
        .map(|_| {
            let client = served.client.clone();
            tokio::spawn(async move { client.post("/v1/payments", &topup("a"), "held").await })
        })
        .collect();
    let both =
        "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    eventually("both wait", SOON, async || served.db.value::<bool>(both).await.then_some(())).await;
    let refused = served.client.get("/v1/payments/1").await.expect(503);
    assert_eq!((refused.problem(), refused.header("retry-after")), ("overloaded", Some("1")));
    served.client.get("/healthz").await.expect(200);
    drop(holder);
    let mut statuses = Vec::new();
    for task in blocked {
        statuses.push(task.await.unwrap().status.as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
}

#[tokio::test]
async fn memory_stays_bounded_under_a_flood_of_large_requests() {
    let mut served = Served::open("rate_per_second = 100000\nmax_requests = 50").await;
    let body = json!({"scene": "x".repeat(60_000)}).to_string();
    for _ in 0..20 {
        let flood = (0..100).map(|_| {
            let request =
                served.client.request(Method::POST, "/v1/payments").header("content-type", "application/json");
            send(request.header("idempotency-key", "k").body(body.clone()))
        });
        for reply in futures::future::join_all(flood).await {
            assert!([422, 503].contains(&reply.status.as_u16()), "{reply:?}");
        }
    }
    let peak_kib = served.daemon.process().peak_kib();
    assert!(peak_kib < 200 * 1024, "{peak_kib} KiB");
}
