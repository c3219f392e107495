//! A client of the HTTP API, as a merchant's program would have one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use paylatchd::endpoint::install_crypto;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

/// A client with or without a token.
#[derive(Clone)]
pub struct ApiClient {
    http: reqwest::Client,
    address: SocketAddr,
    token: Option<String>,
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body: JSON, or null where it is none.
    pub json: Value,
    /// Its body as text.
    pub text: String,
}

impl Reply {
    /// A header's value, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("an ASCII header"))
    }

    /// The last part of a problem's `type`; panics on anything else.
    pub fn problem(&self) -> &str {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.json["status"], self.status.as_u16(), "{self:?}");
        self.json["type"].as_str().and_then(|kind| kind.strip_prefix("urn:problem-type:paylatch:")).expect("a problem")
    }

    /// The `id` of a payment or refund.
    pub fn id(&self) -> &str {
        self.json["id"].as_str().unwrap_or_else(|| panic!("no id: {self:?}"))
    }

    /// Panics unless the status is `status`.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self
    }
}

impl ApiClient {
    /// For the server at `address`, with a token if there is one.
    pub fn new(address: SocketAddr, token: Option<&str>) -> Self {
        install_crypto();
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { http, address, token: token.map(str::to_owned) }
    }

    /// The same, with another token or none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// Where the server is.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// A path's whole URL.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A request that is not sent yet.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, self.url(path));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Reply {
        send(self.request(Method::GET, path)).await
    }

    /// POST of a JSON body with these headers.
    pub async fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Reply {
        send(self.request(Method::POST, path).headers(map(headers)).json(body)).await
    }

    /// POST of a JSON body under an idempotency key.
    pub async fn post(&self, path: &str, body: &Value, key: &str) -> Reply {
        self.post_with(path, body, &[("idempotency-key", key)]).await
    }
}

/// Sends a request and reads its answer whole; there must be one.
pub async fn send(request: RequestBuilder) -> Reply {
    let answer = request.send().await.unwrap_or_else(|e| panic!("no answer: {e:?}"));
    let (status, headers) = (answer.status(), answer.headers().clone());
    let text = answer.text().await.expect("a whole answer");
    Reply { status, headers, json: serde_json::from_str(&text).unwrap_or_default(), text }
}

/// A key that no other request of this process has.
pub fn fresh_key() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("key-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn map(headers: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).expect("a header's name"), HeaderValue::try_from(*value).expect("its value"))
    };
    headers.iter().map(header).collect()
}
