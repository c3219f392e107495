//! `/v1/payments/{id}/refunds` and `/v1/refunds`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::Api;
use super::auth::Identity;
use super::input::{self, Fields};
use super::limits::Place;
use super::model::{Refund, RefundRequest, Refunds};
use super::observe::Told;
use super::payments::{Id, REPLAYED, fields, too_old};
use super::problem::{Kind, Problem};
use super::wait::{self, Awaited};
use crate::db::{RefundAsked, RefundRow, RefundWish};
use crate::error::Error;

impl Awaited for RefundRow {
    fn is_settled(&self) -> bool {
        self.status != "PENDING" || self.frozen_reason.is_some()
    }

    /// Refunds leave through the queue, which gives them their share of a channel.
    fn due(&self, _api: &Api) -> Option<i64> {
        None
    }

    fn again(&self, api: &Api) -> impl Future<Output = Result<Option<Self>, Error>> + Send {
        api.db().get_refund(&self.merchant_id, self.refund_id)
    }
}

fn read(flow_id: i64, mut fields: Fields) -> Result<RefundWish, Problem> {
    let wish = RefundWish {
        flow_id,
        amount: fields.amount("amount", 1),
        reason: fields.text("reason", 500),
        expected_refundable: fields.optional_amount("expected_refundable", 0),
        requested_by: fields.optional_text("requested_by", 128),
    };
    fields.finish(&["amount", "reason", "expected_refundable", "requested_by"])?;
    Ok(wish)
}

/// Ask for a refund.
///
/// In part or in full, of a payment that is `BIZ_SUCCESS`. The amount is held back at once, so refunds that race never
/// exceed the charge. The same key with the same request gives the same refund, as it is now.
#[utoipa::path(
    post, path = "/v1/payments/{id}/refunds", operation_id = "createRefund", tag = "refunds",
    params(
        ("id" = String, Path, description = "The payment.", example = "901"),
        ("Idempotency-Key" = String, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$",
         description = "The request's name: a UUID, or an id of yours.", example = "return-31"),
        ("Prefer" = Option<String>, Header, nullable = false, description = "`wait=N`: wait up to N seconds for the end.", example = "wait=10"),
    ),
    request_body(content = RefundRequest, content_type = "application/json"),
    responses(
        (status = 202, description = "Held back. `status` is PENDING: on its way; or REQUESTED: waits for approval.",
         body = Refund, headers(
            ("Location" = String, description = "The refund."),
            ("Preference-Applied" = String, description = "The wait that was granted."))),
        (status = 200, description = "The refund of an earlier request under the same key, as it is now.", body = Refund,
         headers(
            ("Location" = String, description = "The refund."),
            ("Idempotent-Replayed" = String, description = "`true`."),
            ("Preference-Applied" = String, description = "The wait that was granted."))),
    )
)]
pub async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Extension(place): Extension<Place>,
    Id(flow_id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = input::idempotency_key(&headers)?;
    let mut wish = read(flow_id, fields(&api, &headers, body).await?)?;
    wish.requested_by.get_or_insert_with(|| caller.name.clone());
    let asked = api.db().request_refund(&caller.merchant_id, &key, &wish).await?;
    let Some(refund_id) = asked.refund_id else { return Err(refused(&asked)) };
    let row = api.db().get_refund(&caller.merchant_id, refund_id).await?.ok_or_else(|| Problem::new(Kind::NotFound))?;
    let (row, granted) = wait::wait(&api, &place, &headers, row).await;
    let is_replay = asked.outcome == "replayed";
    let status = if is_replay { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = refund(row, status, Some(asked.outcome))?;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/refunds/{refund_id}")) {
        headers.insert(header::LOCATION, location);
    }
    if is_replay {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    wait::applied(headers, granted);
    Ok(response)
}

/// Nothing was reserved.
fn refused(asked: &RefundAsked) -> Problem {
    let kind = match asked.outcome.as_str() {
        "over_limit" => Kind::OverLimit,
        "not_refundable" => Kind::NotRefundable,
        "precondition_failed" => Kind::PreconditionFailed,
        _ => return too_old(),
    };
    Problem::new(kind).with_refundable(asked.refundable)
}

/// Look at a refund.
#[utoipa::path(
    get, path = "/v1/refunds/{id}", operation_id = "getRefund", tag = "refunds",
    params(
        ("id" = String, Path, description = "The refund.", example = "31"),
        ("Prefer" = Option<String>, Header, nullable = false, description = "`wait=N`: wait up to N seconds for the end.", example = "wait=10"),
    ),
    responses((status = 200, description = "As it is now.", body = Refund, headers(
        ("Preference-Applied" = String, description = "The wait that was granted."))))
)]
pub async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Extension(place): Extension<Place>,
    Id(refund_id): Id,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = api.db().get_refund(&caller.merchant_id, refund_id).await?.ok_or_else(|| Problem::new(Kind::NotFound))?;
    let (row, granted) = wait::wait(&api, &place, &headers, row).await;
    let mut response = refund(row, StatusCode::OK, None)?;
    wait::applied(response.headers_mut(), granted);
    Ok(response)
}

/// List the refunds of a payment.
#[utoipa::path(
    get, path = "/v1/payments/{id}/refunds", operation_id = "getRefunds", tag = "refunds",
    params(("id" = String, Path, description = "The payment.", example = "901")),
    responses((status = 200, description = "All of them.", body = Refunds))
)]
pub async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Id(flow_id): Id,
) -> Result<Json<Refunds>, Problem> {
    let payment = api.db().get_payment(&caller.merchant_id, flow_id).await?;
    payment.ok_or_else(|| Problem::new(Kind::NotFound))?;
    let rows = api.db().get_refunds(&caller.merchant_id, flow_id).await?;
    let refunds = rows.into_iter().map(|row| Refund::of(row).ok_or_else(too_old));
    Ok(Json(Refunds { refunds: refunds.collect::<Result<_, _>>()? }))
}

fn refund(row: RefundRow, status: StatusCode, outcome: Option<String>) -> Result<Response, Problem> {
    let told = Told { flow_id: Some(row.flow_id), refund_id: Some(row.refund_id), outcome: outcome.clone() };
    let mut refund = Refund::of(row).ok_or_else(too_old)?;
    refund.outcome = outcome;
    let mut response = (status, Json(refund)).into_response();
    response.extensions_mut().insert(told);
    Ok(response)
}
