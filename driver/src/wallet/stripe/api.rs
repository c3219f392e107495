//! Stripe on the wire: one request, form-encoded, and what of the answer we read.
//!
//! Whatever means the same for every request is classed here: who we are not (401, 403), too much (429), too soon
//! (409), Stripe's own trouble (5xx, 424) and everything that is not Stripe speaking. What is left is an object, or a
//! refusal that the caller must judge.
//!
//! Stripe keeps the first answer to an idempotency key and repeats it, a day long, whatever has happened since. So an
//! object carries whether it is such a [`Said::replayed`] one: its id is then worth something, its state nothing.

use std::collections::HashMap;

use paylatch_core::outcome::Outcome;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::endpoint::{BODY_LIMIT, Endpoint, EndpointError, EndpointSettings, Heard, not_understood, unreadable_body};
use crate::evidence::Answer;

/// The version of Stripe's API that this adapter was written for; sent with each request, so that the account's own
/// default does not matter.
pub(super) const VERSION: &str = "2025-09-30.clover";
/// Objects a page of a list, the most that Stripe gives.
const PAGE: &str = "100";
/// Pages of a list that are read before it counts as endless.
const PAGES_LIMIT: usize = 50;
/// Most bytes of a page.
const PAGE_LIMIT: usize = 2 * 1024 * 1024;

/// Form fields, in order: `("metadata[order_no]", "sh_1_1")`.
pub(super) type Fields = Vec<(String, String)>;

/// What was said of one object.
#[derive(Debug)]
pub(super) struct Said<T> {
    /// The object, or why there is none.
    pub(super) what: Result<T, Refusal>,
    /// It is the stored answer to an earlier request with the same key.
    pub(super) replayed: bool,
}

/// A refusal (400, 402 or 404) as Stripe explains it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(skip)]
    pub(super) status: u16,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
    decline_code: Option<String>,
    message: Option<String>,
    /// The intent that it is about, where there is one.
    pub(super) payment_intent: Option<Intent>,
}

impl Refusal {
    /// The same key came with other parameters before.
    pub(super) fn is_conflict(&self) -> bool {
        self.kind.as_deref() == Some("idempotency_error")
    }

    /// Why, as the evidence says it: the issuer's word before Stripe's.
    pub(super) fn why(&self) -> Why {
        let code = self.decline_code.clone().or_else(|| self.code.clone()).or_else(|| self.kind.clone());
        Why { code: code.unwrap_or_else(|| format!("http_{}", self.status)), message: shown(self.message.as_deref()) }
    }
}

/// A code and a few words.
#[derive(Debug, Clone)]
pub(super) struct Why {
    pub(super) code: String,
    pub(super) message: Option<String>,
}

impl Why {
    /// An answer of this class.
    pub(super) fn answer(self, outcome: Outcome) -> Answer {
        Answer { code: Some(self.code), message: self.message, ..Answer::new(outcome) }
    }
}

/// A PaymentIntent, as far as we read it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Intent {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) amount: i64,
    pub(super) amount_received: Option<i64>,
    pub(super) currency: String,
    #[serde(default)]
    pub(super) metadata: HashMap<String, String>,
    last_payment_error: Option<PaymentError>,
}

#[derive(Debug, Clone, Deserialize)]
struct PaymentError {
    code: Option<String>,
    decline_code: Option<String>,
    message: Option<String>,
}

impl Intent {
    /// Why the last attempt to pay failed, if one did.
    pub(super) fn why(&self) -> Option<Why> {
        let error = self.last_payment_error.as_ref()?;
        let code = error.decline_code.clone().or_else(|| error.code.clone());
        Some(Why { code: code.unwrap_or_else(|| "declined".to_owned()), message: shown(error.message.as_deref()) })
    }
}

/// A Refund, as far as we read it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refund {
    pub(super) id: String,
    pub(super) status: Option<String>,
    pub(super) amount: i64,
    pub(super) currency: String,
    #[serde(default)]
    pub(super) metadata: HashMap<String, String>,
    pub(super) failure_reason: Option<String>,
    pub(super) pending_reason: Option<String>,
    pub(super) payment_intent: Option<String>,
    pub(super) charge: Option<String>,
}

/// What stands in lists.
pub(super) trait Listed: DeserializeOwned {
    /// Where its list is.
    const PATH: &str;
    /// Its id, from which the next page goes on.
    fn id(&self) -> &str;
    /// What of ours it carries.
    fn metadata(&self) -> &HashMap<String, String>;
}

impl Listed for Intent {
    const PATH: &str = "payment_intents";
    fn id(&self) -> &str {
        &self.id
    }
    fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }
}

impl Listed for Refund {
    const PATH: &str = "refunds";
    fn id(&self) -> &str {
        &self.id
    }
    fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }
}

#[derive(Deserialize)]
struct Page<T> {
    data: Vec<T>,
    has_more: bool,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: Refusal,
}

/// Stripe, under one account.
#[derive(Debug, Clone)]
pub(super) struct Api {
    endpoint: Endpoint,
}

impl Api {
    pub(super) fn open(settings: &EndpointSettings) -> Result<Self, EndpointError> {
        Ok(Self { endpoint: Endpoint::open(settings)? })
    }

    /// Creates an object under an idempotency key.
    pub(super) async fn create<T: Listed>(&self, key: &str, fields: &Fields) -> Result<Said<T>, Answer> {
        let request = self.request(Method::POST, &[T::PATH]).header("idempotency-key", key).form(fields);
        self.say(request).await
    }

    /// An object as it is now.
    pub(super) async fn fetch<T: Listed>(&self, id: &str) -> Result<Said<T>, Answer> {
        self.say(self.request(Method::GET, &[T::PATH, id])).await
    }

    /// Cancels an intent. Twice does no harm, so it needs no key.
    pub(super) async fn cancel(&self, id: &str) -> Result<Said<Intent>, Answer> {
        let nothing: [(&str, &str); 0] = [];
        self.say(self.request(Method::POST, &[Intent::PATH, id, "cancel"]).form(&nothing)).await
    }

    /// All objects of a list whose metadata says so. Lists, unlike Stripe's search, show what was just written; an
    /// empty one that was read to its end therefore proves that there is none. One that does not end is UNKNOWN.
    pub(super) async fn find<T: Listed>(&self, query: &Fields, key: &str, value: &str) -> Result<Vec<T>, Answer> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_LIMIT {
            let mut request = self.request(Method::GET, &[T::PATH]).query(&[("limit", PAGE)]).query(query);
            if let Some(id) = &after {
                request = request.query(&[("starting_after", id)]);
            }
            let page: Said<Page<T>> = self.hear(request, PAGE_LIMIT).await?;
            let Page { data, has_more } = page.what.map_err(|refusal| refusal.why().answer(Outcome::Unknown))?;
            after = data.last().map(|last| last.id().to_owned());
            found.extend(data.into_iter().filter(|one| one.metadata().get(key).is_some_and(|said| said == value)));
            if !has_more {
                return Ok(found);
            }
            if after.is_none() {
                break;
            }
        }
        let read = PAGES_LIMIT * 100;
        Err(Answer::unknown("list_too_long", format!("not among the last {read} objects, and there are more")))
    }

    /// Whether the key is taken, without doing anything.
    pub(super) async fn probe(&self) -> Result<(), Answer> {
        let request = self.request(Method::GET, &[Intent::PATH]).query(&[("limit", "1")]);
        let page: Said<Page<Intent>> = self.hear(request, BODY_LIMIT).await?;
        page.what.map(drop).map_err(|refusal| refusal.why().answer(Outcome::Unknown))
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let path: Vec<&str> = std::iter::once("v1").chain(path.iter().copied()).collect();
        self.endpoint.request(method, &path).header("stripe-version", VERSION)
    }

    async fn say<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Said<T>, Answer> {
        self.hear(request, BODY_LIMIT).await
    }

    async fn hear<T: DeserializeOwned>(&self, request: RequestBuilder, limit: usize) -> Result<Said<T>, Answer> {
        let heard = self.endpoint.exchange(request, limit).await?;
        let replayed = heard.headers.get("idempotent-replayed").is_some_and(|value| value == "true");
        Ok(Said { what: read(heard)?, replayed })
    }
}

/// What an answer is: an object, a refusal to be judged, or a class that holds for every request.
#[allow(clippy::result_large_err)] // an Answer is what a call ends in, once; its size costs nothing
fn read<T: DeserializeOwned>(Heard { status, body, .. }: Heard) -> Result<Result<T, Refusal>, Answer> {
    if status.is_success() {
        return serde_json::from_slice(&body?).map(Ok).map_err(|_| unreadable_body());
    }
    if status == StatusCode::TOO_MANY_REQUESTS && body.is_err() {
        return Err(Answer::unavailable("rate_limited", "HTTP 429"));
    }
    if !status.is_client_error() {
        return Err(not_understood(status));
    }
    let error = serde_json::from_slice::<ErrorBody>(&body?).map(|body| body.error).ok();
    judge(status.as_u16(), error).map(Err)
}

/// Codes of our own set-up, not of one payment: refused before anything was done, and to be mended.
const MISCONFIGURED: [&str; 7] = [
    "account_invalid",
    "api_key_expired",
    "livemode_mismatch",
    "platform_api_key_expired",
    "secret_key_required",
    "testmode_charges_only",
    "tls_version_unsupported",
];

/// A 4xx: the refusal, if it must be judged by who asked.
#[allow(clippy::result_large_err)] // as above
fn judge(status: u16, error: Option<Refusal>) -> Result<Refusal, Answer> {
    // Without Stripe's own words it may come from anyone on the way; only 429 says the same whoever says it.
    let Some(error) = error else {
        return Err(match status {
            429 => Answer::unavailable("rate_limited", "HTTP 429"),
            _ => Answer::unknown(format!("http_{status}"), format!("HTTP {status}")),
        });
    };
    let code = error.code.as_deref().unwrap_or_default();
    match status {
        // What Stripe says here may quote the key.
        401 => Err(Answer::unavailable("stripe_key_refused", "Stripe does not accept the secret key")),
        403 => Err(Answer::unavailable("stripe_key_not_allowed", "the secret key may not do this at Stripe")),
        _ if MISCONFIGURED.contains(&code) => Err(error.why().answer(Outcome::Unavailable)),
        // Somebody else holds the object for a moment; whether our request had begun is not said.
        429 if code == "lock_timeout" => Err(error.why().answer(Outcome::Unknown)),
        429 => Err(error.why().answer(Outcome::Unavailable)),
        400 | 402 | 404 if code != "idempotency_key_in_use" && is_refusal(&error) => Ok(Refusal { status, ..error }),
        // 409: another request with this key is under way. 424, or an api_error: trouble on Stripe's side.
        _ => Err(error.why().answer(Outcome::Unknown)),
    }
}

fn is_refusal(error: &Refusal) -> bool {
    matches!(error.kind.as_deref(), Some("invalid_request_error" | "card_error" | "idempotency_error"))
}

/// A message of Stripe's without anything that opens a door.
pub(super) fn shown(message: Option<&str>) -> Option<String> {
    const DOORS: [&str; 5] = ["sk_", "rk_", "pk_", "whsec_", "_secret_"];
    let hide = |word: &str| if DOORS.iter().any(|door| word.contains(door)) { "(hidden)".into() } else { word.into() };
    Some(message?.split(' ').map(hide).collect::<Vec<String>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16, body: &str) -> Result<Result<Intent, Refusal>, Outcome> {
        let status = StatusCode::from_u16(status).unwrap_or_default();
        let heard = Heard { status, headers: reqwest::header::HeaderMap::new(), body: Ok(body.as_bytes().to_vec()) };
        read(heard).map_err(|answer| answer.outcome)
    }

    fn error(kind: &str, code: &str) -> String {
        serde_json::json!({"error": {"type": kind, "code": code, "message": "m"}}).to_string()
    }

    #[test]
    fn only_a_refusal_in_stripes_own_words_is_one() {
        for status in 300..=599 {
            for (kind, code) in [
                ("invalid_request_error", "parameter_invalid"),
                ("card_error", "card_declined"),
                ("idempotency_error", ""),
                ("idempotency_error", "idempotency_key_in_use"),
                ("api_error", ""),
                ("invalid_request_error", "api_key_expired"),
                ("something_new", ""),
            ] {
                let refused = matches!(status, 400 | 402 | 404)
                    && !matches!(kind, "api_error" | "something_new")
                    && !matches!(code, "idempotency_key_in_use" | "api_key_expired");
                let said = class(status, &error(kind, code));
                assert_eq!(matches!(said, Ok(Err(_))), refused, "{status} {kind} {code}");
                assert!(!matches!(said, Ok(Ok(_))), "{status} {kind} {code}");
            }
        }
    }

    #[test]
    fn what_holds_for_every_request() {
        let ask = |status, kind, code| class(status, &error(kind, code)).err();
        let request = "invalid_request_error";
        assert_eq!(ask(401, request, ""), Some(Outcome::Unavailable));
        assert_eq!(ask(403, request, "more_permissions_required"), Some(Outcome::Unavailable));
        assert_eq!(ask(400, request, "testmode_charges_only"), Some(Outcome::Unavailable));
        assert_eq!(ask(429, request, "rate_limit"), Some(Outcome::Unavailable));
        assert_eq!(ask(429, request, "lock_timeout"), Some(Outcome::Unknown));
        assert_eq!(ask(409, "idempotency_error", "idempotency_key_in_use"), Some(Outcome::Unknown));
        assert_eq!(ask(409, request, "lock_timeout"), Some(Outcome::Unknown));
        assert_eq!(ask(424, "api_error", ""), Some(Outcome::Unknown));
        assert_eq!(ask(500, "api_error", ""), Some(Outcome::Unknown));
        assert_eq!(ask(502, request, "parameter_invalid"), Some(Outcome::Unknown));
    }

    #[test]
    fn whoever_is_not_stripe_proves_nothing() {
        for body in ["", "{}", "[]", "<html>", "{\"error\": \"no\"}", "{\"error\": []}"] {
            for status in [200, 204, 302, 400, 401, 402, 403, 404, 409, 418, 500, 503] {
                assert!(matches!(class(status, body), Err(Outcome::Unknown)), "{status} {body}");
            }
            assert!(matches!(class(429, body), Err(Outcome::Unavailable)), "429 {body}");
        }
    }

    #[test]
    fn the_issuers_word_comes_first() {
        let refusal = Refusal {
            code: Some("card_declined".into()),
            decline_code: Some("insufficient_funds".into()),
            ..Refusal::default()
        };
        assert_eq!(refusal.why().code, "insufficient_funds");
        assert_eq!(Refusal { status: 404, ..Refusal::default() }.why().code, "http_404");
    }

    #[test]
    fn a_message_opens_no_door() {
        let said = "Invalid API Key provided: sk_live_abc; see pi_1_secret_2 and whsec_3";
        let shown = shown(Some(said)).unwrap_or_default();
        assert_eq!(shown, "Invalid API Key provided: (hidden) see (hidden) and (hidden)");
    }
}
