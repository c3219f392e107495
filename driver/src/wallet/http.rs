//! The documented JSON protocol over HTTP, for wrapping any in-house wallet. `docs/wallet.openapi.yaml` describes it.
//!
//! How an answer is classed stands in [`classify`] and nowhere else. What it does not list is UNKNOWN.

use std::time::Duration;

use axum::http::HeaderMap;
use futures::future::{BoxFuture, FutureExt};
use paylatch_core::outcome::{Action, Outcome};
use paylatch_core::signature::Key;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::webhook::{standard_keys, verify_standard};
use super::{Capabilities, Wallet, WebhookError, WebhookEvent};
use crate::config::Secret;
use crate::endpoint::{Endpoint, EndpointError, EndpointSettings, Reply, not_understood};
use crate::evidence::{Answer, Handout};

/// A wallet behind our HTTP protocol.
#[derive(Debug, Clone)]
pub struct HttpWallet {
    endpoint: Endpoint,
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct ChargeBody<'a> {
    order_no: &'a str,
    amount: i64,
    currency: &'a str,
    user_id: &'a str,
    payload: Option<&'a serde_json::Value>,
}

#[derive(Serialize)]
struct RefundBody<'a> {
    refund_no: &'a str,
    order_no: &'a str,
    amount: i64,
    currency: &'a str,
}

#[derive(Serialize)]
struct Nothing {}

/// Every field may be missing: what a wallet left out is for the database to judge. A field of another type makes the
/// whole body unreadable.
#[derive(Debug, Default, Deserialize)]
struct WalletReply {
    status: Option<String>,
    order_no: Option<String>,
    refund_no: Option<String>,
    amount: Option<i64>,
    currency: Option<String>,
    request_id: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

impl HttpWallet {
    /// Opens the wallet; connects to nothing yet.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(settings: &EndpointSettings, webhook_secrets: &[Secret]) -> Result<Self, EndpointError> {
        Ok(Self { endpoint: Endpoint::open(settings)?, keys: standard_keys(webhook_secrets)? })
    }

    async fn post_refund(&self, handout: &Handout) -> Answer {
        let Some(refund_no) = handout.refund_no.as_deref() else { return no_refund_no() };
        let Handout { order_no, amount, currency, .. } = handout;
        let body = RefundBody { refund_no, order_no, amount: *amount, currency };
        heard(Action::Refund, refund_no, self.endpoint.post(&["refunds"], &body).await)
    }

    async fn get_refund(&self, handout: &Handout) -> Answer {
        let Some(refund_no) = handout.refund_no.as_deref() else { return no_refund_no() };
        heard(Action::QueryRefund, refund_no, self.endpoint.get(&["refunds", refund_no], &[]).await)
    }
}

impl Wallet for HttpWallet {
    fn charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let Handout { order_no, amount, currency, user_id, payload, .. } = handout;
            let body = ChargeBody { order_no, amount: *amount, currency, user_id, payload: payload.as_ref() };
            heard(Action::Charge, order_no, self.endpoint.post(&["charges"], &body).await)
        }
        .boxed()
    }

    fn query_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let order_no = &handout.order_no;
            heard(Action::QueryCharge, order_no, self.endpoint.get(&["charges", order_no], &[]).await)
        }
        .boxed()
    }

    fn close_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let order_no = &handout.order_no;
            let reply = self.endpoint.post(&["charges", order_no, "close"], &Nothing {}).await;
            heard(Action::CloseCharge, order_no, reply)
        }
        .boxed()
    }

    fn refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.post_refund(handout).boxed()
    }

    fn query_refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.get_refund(handout).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { close_charge: true, webhooks: !self.keys.is_empty() }
    }

    fn lead(&self) -> Duration {
        self.endpoint.lead()
    }

    fn verify_webhook(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<WebhookEvent, WebhookError> {
        verify_standard(&self.keys, headers, body, now)
    }
}

fn no_refund_no() -> Answer {
    Answer::unavailable("no_refund_no", "the handout names no refund")
}

fn heard(action: Action, number: &str, reply: Result<Reply<WalletReply>, Answer>) -> Answer {
    match reply {
        Ok(Reply { status, body }) => classify(action, number, status, body).for_action(action),
        Err(answer) => answer,
    }
}

/// What an answer means.
fn classify(action: Action, number: &str, status: StatusCode, reply: WalletReply) -> Answer {
    let is_refund = matches!(action, Action::Refund | Action::QueryRefund);
    let word = reply.status.as_deref();
    let (outcome, code) = match status.as_u16() {
        200..=299 => match word {
            Some("SUCCEEDED") => (Outcome::Succeeded, None),
            Some("FAILED") => (Outcome::Failed, None),
            Some("PROCESSING") => (Outcome::Processing, None),
            Some("CLOSED") if action == Action::CloseCharge => (Outcome::Closed, None),
            Some("CLOSED") if !is_refund => (Outcome::Failed, Some("closed")),
            _ => return Answer::unknown("no_status", "the body has no documented status"),
        },
        404 => (Outcome::NotFound, None),
        409 if matches!(reply.code.as_deref(), Some("in_progress" | "already_exists")) => (Outcome::Processing, None),
        409 => (Outcome::Conflict, None),
        400 | 402 | 422 if word == Some("FAILED") => (Outcome::Failed, None),
        _ => return not_understood(status),
    };
    let echoed = if is_refund { reply.refund_no } else { reply.order_no };
    if is_denial(outcome) && echoed.as_deref().is_some_and(|echoed| echoed != number) {
        return Answer::unknown("wrong_number", format!("{outcome} is said of another number"));
    }
    Answer {
        outcome,
        code: code.map(str::to_owned).or(reply.code),
        message: reply.message,
        request_id: reply.request_id,
        order_no: echoed,
        amount: reply.amount,
        currency: reply.currency,
        owner: None,
    }
}

/// Outcomes after which money may be given up. Said of another number they prove nothing about ours; the database
/// compares echoes only where money was taken.
fn is_denial(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Failed | Outcome::Closed | Outcome::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(action: Action, status: u16, word: Option<&str>, code: Option<&str>) -> Outcome {
        let reply = WalletReply { status: word.map(Into::into), code: code.map(Into::into), ..WalletReply::default() };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
        heard(action, "sh_1_1", Ok(Reply { status, body: reply })).outcome
    }

    #[test]
    fn nothing_but_a_documented_refusal_is_a_failure() {
        for status in 200..=499 {
            for word in [None, Some("FAILED"), Some("failed"), Some("DECLINED"), Some("CLOSED")] {
                for action in [Action::Charge, Action::QueryCharge, Action::Refund, Action::QueryRefund] {
                    let is_refund = matches!(action, Action::Refund | Action::QueryRefund);
                    let refused = match status {
                        200..=299 => word == Some("FAILED") || (word == Some("CLOSED") && !is_refund),
                        400 | 402 | 422 => word == Some("FAILED"),
                        _ => false,
                    };
                    let outcome = class(action, status, word, None);
                    assert_eq!(outcome == Outcome::Failed, refused, "{action} {status} {word:?}");
                }
            }
        }
    }

    #[test]
    fn in_progress_is_no_conflict() {
        assert_eq!(class(Action::Charge, 409, None, Some("in_progress")), Outcome::Processing);
        assert_eq!(class(Action::Refund, 409, None, Some("already_exists")), Outcome::Processing);
        assert_eq!(class(Action::Charge, 409, None, Some("other_amount")), Outcome::Conflict);
        assert_eq!(class(Action::QueryCharge, 409, None, None), Outcome::Unknown, "a question cannot conflict");
    }

    #[test]
    fn not_found_answers_questions_only() {
        assert_eq!(class(Action::QueryCharge, 404, None, None), Outcome::NotFound);
        assert_eq!(class(Action::QueryRefund, 404, None, None), Outcome::NotFound);
        assert_eq!(class(Action::Charge, 404, None, None), Outcome::Unknown);
        assert_eq!(class(Action::CloseCharge, 404, None, None), Outcome::Unknown);
    }

    #[test]
    fn a_denial_of_another_number_is_unknown_and_a_success_is_passed_on() {
        for (word, expected) in [("FAILED", Outcome::Unknown), ("SUCCEEDED", Outcome::Succeeded)] {
            let reply =
                WalletReply { status: Some(word.into()), order_no: Some("sh_1_2".into()), ..WalletReply::default() };
            let reply = Ok(Reply { status: StatusCode::OK, body: reply });
            assert_eq!(heard(Action::QueryCharge, "sh_1_1", reply).outcome, expected);
        }
    }
}
