//! How an answer leaves: whole, or spoilt by the fault that the request met.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Map, Value, json};

use super::connection::Cut;
use super::fault::{Fault, Plan};

/// An answer before any fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The JSON body.
    pub body: Map<String, Value>,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// An answer that consists of a status and a code.
pub fn refusal(status: StatusCode, code: &str) -> Reply {
    let mut body = Map::new();
    body.insert("code".to_owned(), json!(code));
    Reply { status, body }
}

/// The answer to a request whose fault prevents any effect.
pub fn without_effect(plan: Plan, cut: &Cut) -> Option<Response> {
    let reply = match plan.fault {
        Fault::DropBefore => return Some(cut_off(cut)),
        Fault::Status => {
            let status = u16::try_from(plan.arg).ok().and_then(|code| StatusCode::from_u16(code).ok());
            return Some(status.unwrap_or(StatusCode::IM_A_TEAPOT).into_response());
        }
        Fault::ErrorBefore => refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        Fault::Conflict => refusal(StatusCode::CONFLICT, "conflict"),
        Fault::TooMany => refusal(StatusCode::TOO_MANY_REQUESTS, "too_many"),
        Fault::NotFound => refusal(StatusCode::NOT_FOUND, "not_found"),
        _ => return None,
    };
    Some(reply.into_response())
}

/// The answer to a request that had its effect.
pub fn after_effect(plan: Plan, cut: &Cut, reply: Reply) -> Response {
    let status = reply.status;
    match plan.fault {
        Fault::DropAfter | Fault::LateEffect => cut_off(cut),
        Fault::ErrorAfter => refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal").into_response(),
        Fault::Garbage => (status, "<html>\u{0}{\"status\":\"SUCCEEDED\"").into_response(),
        Fault::Trickle => trickled(status, text(reply), Duration::from_millis(plan.arg)),
        Fault::Truncate => truncated(status, text(reply)),
        Fault::Oversized => oversized(reply, plan.arg),
        Fault::WrongAmount => altered(reply, "amount", |amount| json!(amount.as_i64().unwrap_or(0) + 1)),
        Fault::WrongCurrency => {
            altered(reply, "currency", |held| json!(if held.as_str() == Some("XTS") { "XXX" } else { "XTS" }))
        }
        Fault::WrongNumber => {
            let key = if reply.body.contains_key("refund_no") { "refund_no" } else { "order_no" };
            altered(reply, key, |_| json!("other_number_0"))
        }
        Fault::NoOwner => altered(reply, "owner", |_| Value::Null),
        Fault::OtherOwner => altered(reply, "owner", |_| json!("other_owner_0")),
        _ => reply.into_response(),
    }
}

/// What the simulator answers when its own ledger fails: nothing took effect, and nobody can know.
pub fn ledger_failed(error: &io::Error) -> Response {
    tracing::error!(%error, "the ledger cannot be written");
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "ledger").into_response()
}

fn cut_off(cut: &Cut) -> Response {
    cut.now();
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

/// Changes what is there; a missing or null field stays as it is.
fn altered(mut reply: Reply, key: &str, change: impl FnOnce(&Value) -> Value) -> Response {
    if let Some(value) = reply.body.get_mut(key).filter(|value| !value.is_null()) {
        *value = change(value);
    }
    reply.into_response()
}

fn text(reply: Reply) -> Bytes {
    Value::Object(reply.body).to_string().into()
}

/// A body that is announced in full.
fn announced(status: StatusCode, length: usize, body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (status, headers, body).into_response()
}

fn trickled(status: StatusCode, text: Bytes, pause: Duration) -> Response {
    let length = text.len();
    let bytes = stream::unfold(text, move |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        tokio::time::sleep(pause).await;
        let byte = rest.split_to(1);
        Some((Ok::<_, Infallible>(byte), rest))
    });
    announced(status, length, Body::from_stream(bytes))
}

/// Half of the body, then an end. The pause in between lets the half out: an error right behind it would take the
/// buffered bytes along, and the client would see a plain cut.
fn truncated(status: StatusCode, text: Bytes) -> Response {
    let length = text.len();
    let half = text.slice(..length / 2);
    let parts = stream::unfold(Some(half), |half| async move {
        match half {
            Some(half) if !half.is_empty() => Some((Ok(half), Some(Bytes::new()))),
            Some(_) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Err(io::Error::from(io::ErrorKind::UnexpectedEof)), None))
            }
            None => None,
        }
    });
    announced(status, length, Body::from_stream(parts))
}

fn oversized(mut reply: Reply, length: u64) -> Response {
    const MOST: u64 = 16 * 1024 * 1024;
    let filler = "x".repeat(usize::try_from(length.min(MOST)).unwrap_or(0));
    reply.body.insert("filler".to_owned(), json!(filler));
    reply.into_response()
}
