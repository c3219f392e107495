//! A merchant's server: a real HTTP server that checks signatures and answers as it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use paylatch_core::signature::{Key, verify};
use paylatchd::clock;
use serde_json::Value;
use tokio::net::TcpListener;

/// One message that arrived.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: String,
    pub envelope: Value,
    /// Which of the receiver's secrets made the signature, if any.
    pub signed_by: Option<usize>,
    /// How many signatures it bore.
    pub signatures: usize,
}

#[derive(Default)]
struct Inner {
    secrets: Vec<Key>,
    received: Vec<Message>,
    /// Answers to come; 200 when there are none. None: hang.
    answers: VecDeque<Option<u16>>,
}

#[derive(Clone, Default)]
pub struct Receiver {
    inner: Arc<Mutex<Inner>>,
    pub url: String,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let receiver = Self { inner: Arc::default(), url };
        let inner = Arc::clone(&receiver.inner);
        let hook = move |headers: HeaderMap, body: Bytes| {
            let inner = Arc::clone(&inner);
            async move {
                let answer = receive(&inner, &headers, &body);
                if answer.is_none() {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                StatusCode::from_u16(answer.unwrap_or(200)).unwrap()
            }
        };
        let app = Router::new().route("/hook", post(hook));
        tokio::spawn(async move { axum::serve(listener, app).await });
        receiver
    }

    /// The secrets it knows, in this order.
    pub fn knows(&self, secrets: &[&str]) {
        self.inner.lock().unwrap().secrets = secrets.iter().map(|secret| Key::parse(secret).unwrap()).collect();
    }

    /// What it answers next; None: nothing, for a minute.
    pub fn answers(&self, answers: &[Option<u16>]) {
        self.inner.lock().unwrap().answers.extend(answers);
    }

    pub fn received(&self) -> Vec<Message> {
        self.inner.lock().unwrap().received.clone()
    }
}

fn receive(inner: &Mutex<Inner>, headers: &HeaderMap, body: &[u8]) -> Option<u16> {
    let mut inner = inner.lock().unwrap();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, signature) = (header("webhook-id"), header("webhook-signature"));
    let at = header("webhook-timestamp").parse().unwrap_or(0);
    let signed_by = verify(&inner.secrets, id, at, body, signature, clock::now().unix_timestamp()).ok();
    let message = Message {
        id: id.to_owned(),
        envelope: serde_json::from_slice(body).unwrap(),
        signed_by,
        signatures: signature.split(' ').count(),
    };
    inner.received.push(message);
    inner.answers.pop_front().unwrap_or(Some(200))
}
