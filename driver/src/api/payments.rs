//! `/v1/payments` and `/v1/orders`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::Api;
use super::auth::Identity;
use super::input::{self, Fields};
use super::limits::Place;
use super::model::{Order, Payment, PaymentRequest, Payments};
use super::observe::Told;
use super::problem::{FieldError, Kind, Problem};
use super::wait::{self, Awaited};
use crate::db::{PaymentRow, PaymentWish};
use crate::error::Error;

/// Says that an answer is that of an earlier request under the same key.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An id in a path. What is no id of ours names nothing.
pub struct Id(pub i64);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await.ok();
        path.and_then(|Path(text)| input::id(&text)).map(Self).ok_or_else(|| Problem::new(Kind::NotFound))
    }
}

/// The parameters of a query, each of these names once and no other.
///
/// # Errors
/// `invalid`, naming the parameter.
fn parameters<const N: usize>(
    query: Result<Query<Vec<(String, String)>>, axum::extract::rejection::QueryRejection>,
    names: [&str; N],
) -> Result<[String; N], Problem> {
    let Query(pairs) = query.map_err(|_| Problem::says(Kind::BadRequest, "the query cannot be read"))?;
    let mut given = BTreeMap::new();
    let mut errors = Vec::new();
    let mut wrong = |field: &str, detail: &str| {
        errors.push(FieldError { field: field.chars().take(64).collect(), detail: detail.to_owned() });
    };
    for (name, value) in pairs {
        if !names.contains(&name.as_str()) {
            wrong(&name, &format!("there is no such parameter; there are: {}", names.join(", ")));
        } else if value.is_empty() || value.len() > 1000 || value.contains('\0') {
            wrong(&name, "give 1 to 1000 bytes without U+0000");
        } else if given.insert(name.clone(), value).is_some() {
            wrong(&name, "stands there twice");
        }
    }
    let values = names.map(|name| given.remove(name).unwrap_or_default());
    for (name, _) in names.iter().zip(&values).filter(|(_, value)| value.is_empty()) {
        if !errors.iter().any(|error: &FieldError| error.field == *name) {
            errors.push(FieldError { field: (*name).to_owned(), detail: "is missing".to_owned() });
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(Problem::invalid(errors)) }
}

impl Awaited for PaymentRow {
    fn is_settled(&self) -> bool {
        self.client_status != "PROCESSING"
    }

    fn due(&self, api: &Api) -> Option<i64> {
        let due = self.due_in_ms.is_none_or(|ms| ms <= 0);
        (due && api.adapters().has_wallet(&self.channel)).then_some(self.flow_id)
    }

    fn again(&self, api: &Api) -> impl Future<Output = Result<Option<Self>, Error>> + Send {
        api.db().get_payment(&self.merchant_id, self.flow_id)
    }
}

/// Reads a request's body.
///
/// # Errors
/// Every way in which it cannot be read.
pub async fn fields(api: &Api, headers: &HeaderMap, body: Body) -> Result<Fields, Problem> {
    let limits = &api.0.body;
    input::check_head(headers, limits.bytes)?;
    Fields::parse(&input::body(body, limits.bytes, limits.timeout).await?)
}

fn read(mut fields: Fields) -> Result<PaymentWish, Problem> {
    let wish = PaymentWish {
        scene: fields.text("scene", 32),
        user_id: fields.text("user_id", 128),
        biz_key: fields.text("biz_key", 160),
        amount: fields.amount("amount", 1),
        currency: fields.text("currency", 12),
        biz_deadline: fields.optional_time("biz_deadline"),
        payload: fields.optional_object("payload", 8192),
    };
    fields.finish(&["scene", "user_id", "biz_key", "amount", "currency", "biz_deadline", "payload"])?;
    Ok(wish)
}

/// Begin a payment.
///
/// The same key with the same request gives the same payment, as it is now, however often and however concurrently it
/// is sent. With `Prefer: wait=N` the payment is carried out at once, and the answer waits up to N seconds for its end.
#[utoipa::path(
    post, path = "/v1/payments", operation_id = "createPayment", tag = "payments",
    params(
        ("Idempotency-Key" = String, Header, min_length = 1, max_length = 255, pattern = "^[!-~]+$",
         description = "The request's name: a UUID, or an id of yours. It is kept for as long as its payment is \
                        unfinished, and then for the time that the server's administrator has set.",
         example = "order-73-attempt-1"),
        ("Prefer" = Option<String>, Header, nullable = false, description = "`wait=N`: wait up to N seconds for the end.", example = "wait=10"),
    ),
    request_body(content = PaymentRequest, content_type = "application/json"),
    responses(
        (status = 201, description = "Begun.", body = Payment, headers(
            ("Location" = String, description = "The payment."),
            ("Preference-Applied" = String, description = "The wait that was granted."))),
        (status = 200, description = "The payment of an earlier request, as it is now: the same key was used before \
         (`Idempotent-Replayed: true`), or the same is being or has been paid for. `outcome` says which.", body = Payment,
         headers(
            ("Location" = String, description = "The payment."),
            ("Idempotent-Replayed" = String, description = "`true` where the key was used before."),
            ("Preference-Applied" = String, description = "The wait that was granted."))),
    )
)]
pub async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Extension(place): Extension<Place>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = input::idempotency_key(&headers)?;
    let wish = read(fields(&api, &headers, body).await?)?;
    let posted = api.db().post_payment(&caller.merchant_id, &key, &wish).await?;
    let Some(row) = posted.payment else {
        return Err(match posted.retry_after_ms {
            Some(ms) => {
                let seconds = u16::try_from(ms.saturating_add(999) / 1000).unwrap_or(u16::MAX);
                Problem::new(Kind::ChannelUnavailable).retry_after(seconds.max(1))
            }
            None => Problem::new(Kind::SceneClosed),
        });
    };
    let flow_id = row.flow_id;
    let (row, granted) = wait::wait(&api, &place, &headers, row).await;
    let status = if posted.outcome == "created" { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = payment(row, status, Some(posted.outcome.as_str()))?;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/payments/{flow_id}")) {
        headers.insert(header::LOCATION, location);
    }
    if posted.outcome == "replayed" {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    wait::applied(headers, granted);
    Ok(response)
}

/// Look at a payment.
#[utoipa::path(
    get, path = "/v1/payments/{id}", operation_id = "getPayment", tag = "payments",
    params(
        ("id" = String, Path, description = "The payment.", example = "901"),
        ("Prefer" = Option<String>, Header, nullable = false, description = "`wait=N`: wait up to N seconds for the end.", example = "wait=10"),
    ),
    responses((status = 200, description = "As it is now.", body = Payment, headers(
        ("Preference-Applied" = String, description = "The wait that was granted."))))
)]
pub async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Extension(place): Extension<Place>,
    Id(flow_id): Id,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let row = api.db().get_payment(&caller.merchant_id, flow_id).await?.ok_or_else(|| Problem::new(Kind::NotFound))?;
    let (row, granted) = wait::wait(&api, &place, &headers, row).await;
    let mut response = payment(row, StatusCode::OK, None)?;
    wait::applied(response.headers_mut(), granted);
    Ok(response)
}

/// Find a payment by one of its order numbers.
#[utoipa::path(
    get, path = "/v1/payments", operation_id = "findPayments", tag = "payments",
    params(("order_no" = String, Query, min_length = 1, max_length = 1000,
            description = "The number of its charge, or of a refund.", example = "tp_u6_p1")),
    responses((status = 200, description = "It, or none.", body = Payments))
)]
pub async fn find(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    query: Result<Query<Vec<(String, String)>>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Payments>, Problem> {
    let [order_no] = parameters(query, ["order_no"])?;
    let found = api.db().find_payment(&caller.merchant_id, &order_no).await?;
    let payments = found.map(|row| Payment::of(row).ok_or_else(too_old)).transpose()?;
    Ok(Json(Payments { payments: payments.into_iter().collect() }))
}

/// Look at what is paid for, by its own names.
#[utoipa::path(
    get, path = "/v1/orders", operation_id = "getOrder", tag = "payments",
    params(
        ("scene" = String, Query, min_length = 1, max_length = 1000, example = "topup"),
        ("user_id" = String, Query, min_length = 1, max_length = 1000, example = "1086"),
        ("biz_key" = String, Query, min_length = 1, max_length = 1000, example = "topup-73"),
    ),
    responses((status = 200, description = "As it is now.", body = Order))
)]
pub async fn order(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    query: Result<Query<Vec<(String, String)>>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Order>, Problem> {
    let [scene, user_id, biz_key] = parameters(query, ["scene", "user_id", "biz_key"])?;
    let row = api.db().get_order(&caller.merchant_id, &scene, &user_id, &biz_key).await?;
    let row = row.ok_or_else(|| Problem::new(Kind::NotFound))?;
    Order::of(row).map(Json).ok_or_else(too_old)
}

/// Wish a payment away.
///
/// A wish: it takes effect only where nothing has been done yet. What was charged already goes back by itself if the
/// business was not done.
#[utoipa::path(
    post, path = "/v1/payments/{id}/cancel", operation_id = "cancelPayment", tag = "payments",
    params(("id" = String, Path, description = "The payment.", example = "901")),
    responses((status = 200, description = "The wish is noted, or came too late. `outcome` says which: `requested`, \
     `already_requested`, `too_late` (a refund is under way), `finished`.", body = Payment))
)]
pub async fn cancel(
    State(api): State<Api>,
    Extension(caller): Extension<Arc<Identity>>,
    Id(flow_id): Id,
) -> Result<Response, Problem> {
    let outcome = api.db().cancel_payment(&caller.merchant_id, flow_id).await?;
    let row = api.db().get_payment(&caller.merchant_id, flow_id).await?;
    payment(row.ok_or_else(|| Problem::new(Kind::NotFound))?, StatusCode::OK, Some(&outcome))
}

fn payment(row: PaymentRow, status: StatusCode, outcome: Option<&str>) -> Result<Response, Problem> {
    let told = Told { flow_id: Some(row.flow_id), refund_id: None, outcome: outcome.map(str::to_owned) };
    let mut payment = Payment::of(row).ok_or_else(too_old)?;
    payment.outcome = outcome.map(str::to_owned);
    let mut response = (status, Json(payment)).into_response();
    response.extensions_mut().insert(told);
    Ok(response)
}

/// The database knows a word that this binary does not.
pub fn too_old() -> Problem {
    tracing::error!("this binary is too old for what the database says");
    Problem::new(Kind::Internal)
}
