//! Everything that is answered with an error: RFC 9457 problem documents.
//!
//! Invariants: what an error of the database means is read from its SQLSTATE, never from its text; no answer shows a
//! statement, a secret or a payload; docs/http.md lists every kind, which a test compares.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{Class, Error};

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What every `type` begins with.
const TYPE: &str = "urn:problem-type:paylatch:";

/// What can be wrong with a request, or with answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It cannot be read.
    BadRequest,
    /// A POST that creates something came without an `Idempotency-Key`.
    KeyMissing,
    /// No token, or none that is valid.
    Unauthorized,
    /// A webhook whose signature does not hold.
    BadSignature,
    /// A server without tokens was asked under a name that is not this machine's own.
    Forbidden,
    /// There is no such thing, or it is another merchant's.
    NotFound,
    /// There is such a path, and not with this method.
    MethodNotAllowed,
    /// The body did not come in time.
    Timeout,
    /// Another request holds the same key or the same payment.
    Busy,
    /// Its state allows no refund.
    NotRefundable,
    /// More than is left to be refunded.
    OverLimit,
    /// `expected_refundable` is not what is refundable.
    PreconditionFailed,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// Fields or parameters are unknown, missing or out of range.
    Invalid,
    /// There is no such scene.
    UnknownScene,
    /// The key was used before, with another request.
    KeyReused,
    /// More requests than the token's rate allows.
    RateLimited,
    /// A bug of ours.
    Internal,
    /// More requests under way than allowed.
    Overloaded,
    /// The scene's channel does not answer at the moment.
    ChannelUnavailable,
    /// The scene takes no new payment.
    SceneClosed,
    /// The database does not answer, or not in time; or this server stops.
    Unavailable,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 23] = [
        Self::BadRequest,
        Self::KeyMissing,
        Self::Unauthorized,
        Self::BadSignature,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Timeout,
        Self::Busy,
        Self::NotRefundable,
        Self::OverLimit,
        Self::PreconditionFailed,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::UnknownScene,
        Self::KeyReused,
        Self::RateLimited,
        Self::Internal,
        Self::Overloaded,
        Self::ChannelUnavailable,
        Self::SceneClosed,
        Self::Unavailable,
    ];

    /// Status, last part of `type`, title, and after how many seconds trying again makes sense.
    const fn row(self) -> (u16, &'static str, &'static str, Option<u16>) {
        match self {
            Self::BadRequest => (400, "bad-request", "The request cannot be read", None),
            Self::KeyMissing => (400, "idempotency-key-missing", "Idempotency-Key is missing or malformed", None),
            Self::Unauthorized => (401, "unauthorized", "A valid bearer token is needed", None),
            Self::BadSignature => (401, "bad-signature", "The signature does not hold", None),
            Self::Forbidden => (403, "forbidden", "Without tokens only this machine is served", None),
            Self::NotFound => (404, "not-found", "There is no such thing", None),
            Self::MethodNotAllowed => (405, "method-not-allowed", "This path does not know the method", None),
            Self::Timeout => (408, "timeout", "The request did not come in time", None),
            Self::Busy => (409, "busy", "A request with the same key or payment is under way", Some(1)),
            Self::NotRefundable => (409, "not-refundable", "The payment's state allows no refund", None),
            Self::OverLimit => (409, "over-limit", "More than is left to be refunded", None),
            Self::PreconditionFailed => (412, "precondition-failed", "Another amount is refundable", None),
            Self::BodyTooLarge => (413, "body-too-large", "The body is too large", None),
            Self::UnsupportedMediaType => (415, "unsupported-media-type", "The body must be JSON", None),
            Self::Invalid => (422, "invalid", "Fields or parameters are wrong", None),
            Self::UnknownScene => (422, "unknown-scene", "There is no such scene", None),
            Self::KeyReused => (422, "idempotency-key-reused", "The key was used with another request", None),
            Self::RateLimited => (429, "rate-limited", "Too many requests", Some(1)),
            Self::Internal => (500, "internal", "A fault of the server", None),
            Self::Overloaded => (503, "overloaded", "Too many requests are under way", Some(1)),
            Self::ChannelUnavailable => (503, "channel-unavailable", "The payment channel does not answer", Some(5)),
            Self::SceneClosed => (503, "scene-closed", "The scene takes no new payment", Some(60)),
            Self::Unavailable => (503, "unavailable", "The service cannot answer at the moment", Some(1)),
        }
    }

    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The last part of `type`, which also names the outcome in logs.
    pub const fn slug(self) -> &'static str {
        self.row().1
    }

    /// The title, the same for every problem of the kind.
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    /// `type`: the problem's identity.
    pub fn uri(self) -> String {
        format!("{TYPE}{}", self.slug())
    }

    /// What a client may do: try the same again, after so many seconds.
    pub const fn retry_after_s(self) -> Option<u16> {
        self.row().3
    }
}

/// One field or parameter, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Its name.
    #[schema(example = "amount")]
    pub field: String,
    /// What is wrong, and what to give instead.
    #[schema(example = "give a whole number of minor units, at least 1")]
    pub detail: String,
}

/// An error, on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    kind: Kind,
    retry_after_s: Option<u16>,
    detail: Option<String>,
    errors: Vec<FieldError>,
    fields: Vec<String>,
    refundable: Option<i64>,
}

/// An error, as RFC 9457 has it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Document {
    /// Which kind of problem it is: `urn:problem-type:paylatch:` and its name.
    #[serde(rename = "type")]
    #[schema(example = "urn:problem-type:paylatch:invalid", pattern = "^urn:problem-type:paylatch:[a-z-]+$")]
    kind: String,
    /// The kind in words, always the same.
    #[schema(example = "Fields or parameters are wrong")]
    title: &'static str,
    /// The HTTP status.
    #[schema(example = 422, minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong this time, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
    /// `invalid`: each wrong field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// `idempotency-key-reused`: what differs from the request that used the key first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    fields: Vec<String>,
    /// `over-limit`, `precondition-failed`: what can be refunded now, in minor units.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0)]
    refundable: Option<i64>,
}

impl Problem {
    /// A problem of this kind, and nothing more to say.
    pub const fn new(kind: Kind) -> Self {
        let retry_after_s = kind.retry_after_s();
        Self { kind, retry_after_s, detail: None, errors: Vec::new(), fields: Vec::new(), refundable: None }
    }

    /// With words on this occurrence.
    pub fn says(kind: Kind, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..Self::new(kind) }
    }

    /// Fields or parameters that are wrong.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        Self { errors, ..Self::new(Kind::Invalid) }
    }

    /// Which kind it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The fields that are wrong.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// After how many seconds to try again, instead of what the kind says.
    pub const fn retry_after(mut self, seconds: u16) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// What can be refunded now.
    pub const fn with_refundable(mut self, refundable: Option<i64>) -> Self {
        self.refundable = refundable;
        self
    }

    fn document(self) -> Document {
        let (kind, title, status) = (self.kind.uri(), self.kind.title(), self.kind.status().as_u16());
        let Self { detail, errors, fields, refundable, .. } = self;
        Document { kind, title, status, detail, errors, fields, refundable }
    }
}

impl From<Error> for Problem {
    /// By SQLSTATE alone. What the database says of a refused argument is said on; anything else is for the log.
    fn from(error: Error) -> Self {
        let said = error.refusal().unwrap_or_default();
        match error.sqlstate().as_deref() {
            Some("PL001") => Self { fields: said.fields, detail: Some(said.message), ..Self::new(Kind::KeyReused) },
            Some("PL004") => Self {
                errors: said
                    .field
                    .map(|field| FieldError { field, detail: said.message.clone() })
                    .into_iter()
                    .collect(),
                detail: Some(said.message),
                ..Self::new(Kind::Invalid)
            },
            Some("PL005") => Self::says(Kind::UnknownScene, said.message),
            Some("PL008") => Self::new(Kind::NotFound),
            Some("55P03") => Self::new(Kind::Busy),
            // A value that no column can hold (a number too large, a character that text has no room for), or a nesting
            // that is too deep.
            Some(code) if matches!(code.get(..2), Some("22" | "54")) && error.advice().is_none() => Self::says(
                Kind::Invalid,
                "a value cannot be stored: too large, too deep, or with a forbidden character",
            ),
            _ => Self::of_server(&error),
        }
    }
}

impl Problem {
    fn of_server(error: &Error) -> Self {
        match (error.class(), error.advice()) {
            (Class::Retry | Class::Conflict, _) => {
                tracing::warn!(%error, "a request could not be answered");
                Self::new(Kind::Unavailable)
            }
            (_, Some(advice)) => {
                tracing::error!(%error, advice, "the database is not set up for this");
                Self::new(Kind::Unavailable)
            }
            _ => {
                tracing::error!(%error, "a request met a bug");
                Self::new(Kind::Internal)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (kind, retry_after_s) = (self.kind, self.retry_after_s);
        let body = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response = (kind.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if let Some(seconds) = retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"paylatch\""));
        }
        response.extensions_mut().insert(kind);
        response
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_distinct_and_errors() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            assert!(kind.status().is_client_error() || kind.status().is_server_error(), "{kind:?}");
            // A client that is told to come again is told when.
            assert!(kind.status().as_u16() != 503 || kind.retry_after_s().is_some(), "{kind:?}");
        }
    }

    #[test]
    fn a_document_holds_what_applies_and_nothing_else() {
        let problem = Problem::invalid(vec![FieldError { field: "amount".into(), detail: "no".into() }]);
        assert_eq!(
            serde_json::to_value(problem.document()).unwrap(),
            serde_json::json!({
                "type": "urn:problem-type:paylatch:invalid", "title": "Fields or parameters are wrong", "status": 422,
                "errors": [{"field": "amount", "detail": "no"}]
            })
        );
    }

    #[test]
    fn a_silent_database_is_no_fault_of_the_client() {
        let silent = Error::Silent { command: "create_pay_flow", within: std::time::Duration::from_secs(1) };
        let response = Problem::from(silent).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
