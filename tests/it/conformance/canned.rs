//! Answers that no well-formed server gives, from a socket that reads requests and writes what it was told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::daemon::free_address;
use paylatch_tests::proxy::read_request;
use paylatchd::evidence::Answer;
use paylatchd::wallet::{HttpWallet, carry_out};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{HASTY, PATIENT, Payment, settings};

/// What the socket does with one request.
#[derive(Clone)]
pub(super) enum Act {
    /// Writes this and keeps the connection.
    Say(String),
    /// Writes this and closes the connection.
    SayAndClose(String),
    /// Writes the first text, then the second again and again.
    SayForever(String, String),
    /// Writes nothing and keeps the connection.
    Silence,
}

pub(super) struct Canned {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    /// Meets the n-th request with the n-th act; after the last, connections are closed unread.
    pub(super) async fn start(acts: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind to loopback");
        let address = listener.local_addr().expect("its address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        tokio::spawn(async move {
            let mut acts = acts.into_iter();
            while let Ok((mut stream, _)) = listener.accept().await {
                while let Some(request) = read_request(&mut stream).await {
                    log.lock().expect("nobody panics here").push(request);
                    match acts.next() {
                        Some(Act::Say(text)) => drop(stream.write_all(text.as_bytes()).await),
                        Some(Act::SayAndClose(text)) => {
                            drop(stream.write_all(text.as_bytes()).await);
                            break;
                        }
                        Some(Act::SayForever(head, text)) => {
                            drop(stream.write_all(head.as_bytes()).await);
                            while stream.write_all(text.as_bytes()).await.is_ok() {}
                        }
                        Some(Act::Silence) => {}
                        None => break,
                    }
                }
            }
        });
        Self { address, heard }
    }

    fn wallet(&self) -> HttpWallet {
        HttpWallet::open(&settings(&self.base_url(), PATIENT), &[]).expect("the wallet opens")
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}/base", self.address)
    }

    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("nobody panics here").clone()
    }
}

pub(super) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

const CHARGED: &str = r#"{"order_no":"sh_1_1","status":"SUCCEEDED","amount":1234,"currency":"CNY"}"#;

async fn charge(wallet: &HttpWallet) -> Answer {
    carry_out(wallet, &Payment::nth(1).handout(Action::Charge)).await
}

async fn charge_met_by(act: Act) -> Answer {
    charge(&Canned::start(vec![act]).await.wallet()).await
}

#[tokio::test]
async fn the_request_is_as_documented() {
    let canned = Canned::start(vec![Act::Say(ok(CHARGED))]).await;
    assert_eq!(charge(&canned.wallet()).await.outcome, Outcome::Succeeded);
    let heard = canned.heard();
    let (head, body) = heard[0].split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("POST /base/charges HTTP/1.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("authorization: bearer conformance"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let expected = serde_json::json!({
        "order_no": "sh_1_1", "amount": 1234, "currency": "CNY", "user_id": "1", "payload": {"sku": 7}
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let base_url = format!("http://{}", free_address());
    let wallet = HttpWallet::open(&settings(&base_url, PATIENT), &[]).expect("the wallet opens");
    let answer = charge(&wallet).await;
    assert_eq!(answer.outcome, Outcome::Unavailable, "{answer:?}");
}

#[tokio::test]
async fn an_unknown_host_is_unavailable() {
    let wallet = HttpWallet::open(&settings("http://wallet.invalid", PATIENT), &[]).expect("the wallet opens");
    let answer = charge(&wallet).await;
    assert_eq!(answer.outcome, Outcome::Unavailable, "{answer:?}");
}

/// A kept-alive connection that dies under a request: the request was written, so it must not go out again.
#[tokio::test]
async fn a_request_on_a_dying_connection_is_unknown_and_not_resent() {
    let canned =
        Canned::start(vec![Act::Say(ok(CHARGED)), Act::SayAndClose(String::new()), Act::Say(ok(CHARGED))]).await;
    let wallet = canned.wallet();
    assert_eq!(charge(&wallet).await.outcome, Outcome::Succeeded);
    let answer = charge(&wallet).await;
    assert_eq!(answer.outcome, Outcome::Unknown, "{answer:?}");
    assert_eq!(canned.heard().len(), 2);
    assert_eq!(charge(&wallet).await.outcome, Outcome::Succeeded);
    assert_eq!(canned.heard().len(), 3);
}

/// The same when it died between two requests. Whether the client notices before it writes is a race that either end
/// may win: the request goes out on a new connection or counts as lost, but nothing is ever heard twice.
#[tokio::test]
async fn a_connection_closed_while_idle_never_doubles_a_request() {
    for _ in 0..50 {
        let canned = Canned::start(vec![Act::SayAndClose(ok(CHARGED)), Act::Say(ok(CHARGED))]).await;
        let wallet = canned.wallet();
        assert_eq!(charge(&wallet).await.outcome, Outcome::Succeeded);
        let second = charge(&wallet).await.outcome;
        assert!(matches!(second, Outcome::Succeeded | Outcome::Unknown), "{second}");
        let heard = canned.heard().len();
        assert!(heard <= 2, "{heard}");
        assert!(second == Outcome::Unknown || heard == 2);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let canned = Canned::start(vec![Act::Say(String::new()); 2]).await;
    let target = format!("{}/elsewhere", canned.base_url());
    for status in [301, 302, 303, 307, 308] {
        let redirect = format!("HTTP/1.1 {status} Moved\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
        let answer = charge_met_by(Act::Say(redirect)).await;
        assert_eq!(answer.outcome, Outcome::Unknown, "{answer:?}");
    }
    assert!(canned.heard().is_empty());
}

#[tokio::test]
async fn what_is_no_whole_answer_is_unknown() {
    for text in [
        String::new(),
        "HTTP/1.1 200".to_owned(),
        "SSH-2.0-OpenSSH_9.6\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"status\":\"SUCCEEDED\"}".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"sta\r\n".to_owned(),
        ok(""),
        ok("null"),
        ok("[]"),
        ok("{}"),
        ok("\"SUCCEEDED\""),
        ok(r#"{"status":"succeeded"}"#),
        ok(r#"{"status":"SUCCEEDED","amount":"1234"}"#),
        ok(r#"{"status":"SUCCEEDED","amount":12.34}"#),
        ok(r#"{"status":"SUCCEEDED","amount":1e99}"#),
        ok(r#"{"status":"SUCCEEDED","status":"FAILED"}"#),
        ok(&"[".repeat(10_000)),
    ] {
        let answer = charge_met_by(Act::SayAndClose(text.clone())).await;
        assert_eq!(answer.outcome, Outcome::Unknown, "{text:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_given_up() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let answer = charge_met_by(Act::SayForever(head, chunk)).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unknown, Some("body_too_large")));
    let answer = charge_met_by(Act::SayForever("HTTP/1.1 200 OK\r\n".to_owned(), "x: y\r\n".to_owned())).await;
    assert_eq!(answer.outcome, Outcome::Unknown, "{answer:?}");
}

#[tokio::test]
async fn silence_is_unknown_once_the_time_is_up() {
    let canned = Canned::start(vec![Act::Silence]).await;
    let wallet = HttpWallet::open(&settings(&canned.base_url(), HASTY), &[]).expect("the wallet opens");
    let answer = charge(&wallet).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::Unknown, Some("timeout")));
    assert_eq!(canned.heard().len(), 1);
}

#[tokio::test]
async fn a_denial_about_another_number_is_unknown() {
    let other = r#"{"order_no":"sh_1_2","status":"FAILED"}"#;
    let answer = charge_met_by(Act::Say(ok(other))).await;
    assert_eq!(answer.outcome, Outcome::Unknown, "{answer:?}");
}
