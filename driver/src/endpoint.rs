//! One HTTP endpoint of a counterparty: one request goes out once, and what comes back has an outcome class.
//!
//! Invariant: nothing here sends a request a second time. The client follows no redirect, uses no proxy and has no
//! retry policy. One thing looks like a retry and is none: when a kept-alive connection turns out to be closed before
//! a request was taken off the client's queue, hyper hands the request back unsent and it goes out on another
//! connection. Once hyper has begun to write it, a lost connection is an error here, and the answer is UNKNOWN.
//!
//! Memory is bounded: no more than [`BODY_LIMIT`] bytes of an answer are read, or what its reader says.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::evidence::Answer;

/// Most bytes of an answer's body that are read; a longer one is not understood.
pub const BODY_LIMIT: usize = 64 * 1024;

/// Where a counterparty is and how long it may take.
#[derive(Clone)]
pub struct EndpointSettings {
    /// `http://` or `https://`, with an optional path below which the protocol lives.
    pub base_url: String,
    /// For name resolution, TCP and TLS together. Until it is over, nothing was sent.
    pub connect_timeout: Duration,
    /// For the whole call, connecting included.
    pub call_timeout: Duration,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
}

/// Leaves out the token.
impl fmt::Debug for EndpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSettings")
            .field("base_url", &self.base_url)
            .field("connect_timeout", &self.connect_timeout)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The adapter needs a `base_url` and the configuration gives none.
    #[error("base_url is missing")]
    NoBaseUrl,
    /// The `base_url` cannot be used.
    #[error("base_url {0}")]
    BadBaseUrl(&'static str),
    /// The token holds characters that no header may hold.
    #[error("the token cannot be sent in a header")]
    BadToken,
    /// A webhook secret is not what the channel's scheme asks for.
    #[error("webhook_secrets: each must be whsec_ and the base64 of 24 to 64 random bytes")]
    BadWebhookSecret,
    /// A webhook secret is not what Stripe's scheme asks for.
    #[error("webhook_secrets: each must be the signing secret of a webhook endpoint at Stripe, whsec_...")]
    BadStripeSecret,
    /// The HTTP client could not be set up, which means its TLS.
    #[error("the HTTP client cannot be set up")]
    Client(#[source] reqwest::Error),
}

/// What came back, as it came: an answer's head was heard; its body may have been lost on the way.
#[derive(Debug)]
pub struct Heard {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, or why there is none: UNKNOWN in any case.
    pub body: Result<Vec<u8>, Answer>,
}

/// An opened endpoint; cheap to clone, its connections are shared.
#[derive(Debug, Clone)]
pub struct Endpoint {
    client: Client,
    base: Url,
    connect_timeout: Duration,
    call_timeout: Duration,
}

/// An answer that was heard in full and read as JSON: a 2xx, or a 4xx other than 429.
#[derive(Debug)]
pub struct Reply<T> {
    /// The HTTP status.
    pub status: StatusCode,
    /// The body.
    pub body: T,
}

impl Endpoint {
    /// Opens the endpoint; connects to nothing yet.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(settings: &EndpointSettings) -> Result<Self, EndpointError> {
        let base = base_url(&settings.base_url)?;
        install_crypto();
        let mut builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .tcp_nodelay(true)
            .connect_timeout(settings.connect_timeout)
            .timeout(settings.call_timeout)
            .default_headers(authorization(settings.token.as_deref())?);
        if base.scheme() == "http" {
            // No certificate is ever looked at, so none need to be installed on the machine.
            builder = builder.tls_certs_only(Vec::new());
        }
        let client = builder.build().map_err(EndpointError::Client)?;
        Ok(Self { client, base, connect_timeout: settings.connect_timeout, call_timeout: settings.call_timeout })
    }

    /// The longest time between a call's start and the moment its request leaves.
    pub const fn lead(&self) -> Duration {
        self.connect_timeout
    }

    /// Asks.
    ///
    /// # Errors
    /// The answer's class, where no readable answer came.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Reply<T>, Answer> {
        self.send(self.request(Method::GET, path).query(query)).await
    }

    /// Tells.
    ///
    /// # Errors
    /// The answer's class, where no readable answer came.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &(impl Serialize + Sync),
    ) -> Result<Reply<T>, Answer> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// A request that is not sent yet.
    pub fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        self.client.request(method, url)
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Reply<T>, Answer> {
        let Heard { status, body, .. } = self.exchange(request, BODY_LIMIT).await?;
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Answer::unavailable("rate_limited", "HTTP 429"));
        }
        if !status.is_success() && !status.is_client_error() {
            return Err(not_understood(status));
        }
        match serde_json::from_slice(&body?) {
            Ok(body) => Ok(Reply { status, body }),
            Err(_) if status.is_success() => Err(unreadable_body()),
            Err(_) => Err(not_understood(status)),
        }
    }

    /// Sends a request once and hears what comes back, at most `limit` bytes of it.
    ///
    /// # Errors
    /// The answer's class, where not even a status came.
    pub async fn exchange(&self, request: RequestBuilder, limit: usize) -> Result<Heard, Answer> {
        let response = request.send().await.map_err(|error| self.no_answer(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Heard { status, headers, body: self.read(response, limit).await })
    }

    /// The body, if it ends within the limit.
    async fn read(&self, mut response: Response, limit: usize) -> Result<Vec<u8>, Answer> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.no_answer(&error))? {
            if body.len() + chunk.len() > limit {
                return Err(Answer::unknown("body_too_large", format!("the body exceeds {limit} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Only a failure to connect proves that nothing was sent; a connect that takes too long is one.
    fn no_answer(&self, error: &reqwest::Error) -> Answer {
        if error.is_connect() {
            Answer::unavailable("not_connected", format!("no connection: {}", root_cause(error)))
        } else if error.is_timeout() {
            Answer::unknown("timeout", format!("no answer within {} ms", self.call_timeout.as_millis()))
        } else if error.is_builder() {
            Answer::unavailable("not_built", "the request could not be built")
        } else {
            Answer::unknown("connection_lost", format!("no whole answer: {}", root_cause(error)))
        }
    }
}

/// Chooses the process's TLS implementation, once. Building any HTTP client before panics.
pub fn install_crypto() {
    // Refused when one is installed already, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// An answer of the right status that cannot be read.
pub fn unreadable_body() -> Answer {
    Answer::unknown("unreadable_body", "the body is not as documented")
}

/// An HTTP status that is documented for nothing.
pub fn not_understood(status: StatusCode) -> Answer {
    Answer::unknown(format!("http_{}", status.as_u16()), format!("HTTP {}", status.as_u16()))
}

fn base_url(text: &str) -> Result<Url, EndpointError> {
    let url = Url::parse(text).map_err(|_| EndpointError::BadBaseUrl("is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
        return Err(EndpointError::BadBaseUrl("must start with http:// or https://"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(EndpointError::BadBaseUrl("must have neither query nor fragment"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EndpointError::BadBaseUrl("must hold no credentials; use the token"));
    }
    Ok(url)
}

fn authorization(token: Option<&str>) -> Result<HeaderMap, EndpointError> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| EndpointError::BadToken)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// The innermost reason, which names no URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause.and_then(|e| e.source()) {
        cause = Some(inner);
    }
    cause.map_or_else(|| "no reason given".to_owned(), ToString::to_string)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn settings(base_url: &str, token: Option<&str>) -> EndpointSettings {
        EndpointSettings {
            base_url: base_url.into(),
            connect_timeout: Duration::from_secs(1),
            call_timeout: Duration::from_secs(2),
            token: token.map(Into::into),
        }
    }

    #[test]
    fn refuses_what_it_could_not_use() {
        for bad in ["", "wallet", "ftp://w/", "mailto:a@b", "http://w/?a=1", "http://w/#f", "http://u:p@w/"] {
            assert!(Endpoint::open(&settings(bad, None)).is_err(), "{bad}");
        }
        assert!(matches!(Endpoint::open(&settings("http://w", Some("two\nlines"))), Err(EndpointError::BadToken)));
    }

    #[test]
    fn a_path_is_appended_and_escaped() {
        for base in ["http://w:1/base", "http://w:1/base/"] {
            let endpoint = Endpoint::open(&settings(base, None)).unwrap();
            let request = endpoint.request(Method::GET, &["charges", "a/../b?c"]).build().unwrap();
            assert_eq!(request.url().as_str(), "http://w:1/base/charges/a%2F..%2Fb%3Fc");
        }
    }

    #[test]
    fn a_token_is_shown_nowhere() {
        let settings = settings("http://w", Some("hunter2"));
        let endpoint = Endpoint::open(&settings).unwrap();
        assert!(!format!("{settings:?} {endpoint:?}").contains("hunter2"));
    }
}
