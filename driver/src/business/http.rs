//! The documented JSON business protocol over HTTP. `docs/wallet.openapi.yaml` describes it.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use paylatch_core::outcome::{Action, Outcome};
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::Business;
use crate::endpoint::{Endpoint, EndpointError, EndpointSettings, Reply, not_understood};
use crate::evidence::{Answer, Handout};

/// A business behind our HTTP protocol.
#[derive(Debug, Clone)]
pub struct HttpBusiness {
    endpoint: Endpoint,
}

#[derive(Serialize)]
struct ExecuteBody<'a> {
    order_no: &'a str,
    biz_key: &'a str,
    #[serde(with = "time::serde::rfc3339::option")]
    valid_until: Option<OffsetDateTime>,
    payload: Option<&'a serde_json::Value>,
}

#[derive(Serialize)]
struct CloseBody<'a> {
    order_no: &'a str,
    biz_key: &'a str,
}

/// `status` answers an act, `fact` a question.
#[derive(Debug, Default, Deserialize)]
struct BusinessReply {
    status: Option<String>,
    fact: Option<String>,
    owner: Option<String>,
    request_id: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

impl HttpBusiness {
    /// Opens the business; connects to nothing yet.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(settings: &EndpointSettings) -> Result<Self, EndpointError> {
        Ok(Self { endpoint: Endpoint::open(settings)? })
    }
}

impl Business for HttpBusiness {
    fn execute<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let Handout { order_no, biz_key, valid_until, payload, .. } = handout;
            let body = ExecuteBody { order_no, biz_key, valid_until: *valid_until, payload: payload.as_ref() };
            heard(Action::ExecuteBusiness, self.endpoint.post(&["business", "execute"], &body).await)
        }
        .boxed()
    }

    fn fact<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let query = [("biz_key", handout.biz_key.as_str()), ("order_no", handout.order_no.as_str())];
            heard(Action::QueryBusiness, self.endpoint.get(&["business", "facts"], &query).await)
        }
        .boxed()
    }

    fn close<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        async move {
            let body = CloseBody { order_no: &handout.order_no, biz_key: &handout.biz_key };
            heard(Action::CloseBusiness, self.endpoint.post(&["business", "close"], &body).await)
        }
        .boxed()
    }

    fn lead(&self) -> Duration {
        self.endpoint.lead()
    }
}

fn heard(action: Action, reply: Result<Reply<BusinessReply>, Answer>) -> Answer {
    match reply {
        Ok(Reply { status, body }) => classify(action, status, body).for_action(action),
        Err(answer) => answer,
    }
}

/// What an answer means. A fact that is not there has its own word, NOT_DONE; so a 404 means that the address is
/// wrong, and it is UNKNOWN like every other status outside 2xx.
fn classify(action: Action, status: StatusCode, reply: BusinessReply) -> Answer {
    if !status.is_success() {
        return not_understood(status);
    }
    let word = if action == Action::QueryBusiness { reply.fact } else { reply.status };
    let outcome = match word.as_deref() {
        Some("DONE") => Outcome::Done,
        Some("NOT_DONE") => Outcome::NotDone,
        Some("REJECTED") => Outcome::Rejected,
        Some("CONTRADICTORY") => Outcome::Contradictory,
        Some("CLOSED") => Outcome::Closed,
        _ => return Answer::unknown("no_status", "the body has no documented status"),
    };
    Answer {
        code: reply.code,
        message: reply.message,
        request_id: reply.request_id,
        owner: reply.owner,
        ..Answer::new(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_page_is_no_fact() {
        for action in [Action::ExecuteBusiness, Action::QueryBusiness, Action::CloseBusiness] {
            for status in [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::BAD_REQUEST] {
                let body = BusinessReply {
                    status: Some("NOT_DONE".into()),
                    fact: Some("NOT_DONE".into()),
                    ..BusinessReply::default()
                };
                assert_eq!(heard(action, Ok(Reply { status, body })).outcome, Outcome::Unknown);
            }
        }
    }

    #[test]
    fn an_act_is_answered_by_status_and_a_question_by_fact() {
        let body =
            || BusinessReply { status: Some("DONE".into()), owner: Some("sh_1_1".into()), ..BusinessReply::default() };
        let act = heard(Action::ExecuteBusiness, Ok(Reply { status: StatusCode::OK, body: body() }));
        assert_eq!((act.outcome, act.owner.as_deref()), (Outcome::Done, Some("sh_1_1")));
        let fact = heard(Action::QueryBusiness, Ok(Reply { status: StatusCode::OK, body: body() }));
        assert_eq!(fact.outcome, Outcome::Unknown);
    }
}
