//! What clients read and write, as JSON. Ids are texts, amounts whole numbers of minor units, times RFC 3339.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::db::{OrderRow, PaymentRow, RefundRow};

/// How soon a client that does not wait may ask again.
const POLL_AFTER_MS: i32 = 1000;

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PaymentStatus {
    /// On its way.
    Processing,
    /// Waits for a person.
    ManualReview,
    /// Charged, and the business is done. Final.
    BizSuccess,
    /// Not charged. Final.
    PayFail,
    /// Charged, the business was not done, and the money went back. Final.
    Refunded,
}

/// Where a refund stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RefundStatus {
    /// Waits for approval.
    Requested,
    /// On its way.
    Pending,
    /// The money went back. Final.
    Succeeded,
    /// The wallet refused; the amount can be refunded again. Final.
    Failed,
    /// Not approved. Final.
    Rejected,
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderStatus {
    /// No attempt is under way; a new one may begin.
    Pending,
    /// An attempt is under way.
    Processing,
    /// Paid for.
    Paid,
    /// Paid for, and refunded in part or in full.
    Refunded,
}

/// What went wrong last; it need not be final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LastError {
    /// Of which kind it was.
    #[schema(example = "EXPLICIT_FAILURE")]
    pub class: String,
    /// The counterparty's own code.
    #[schema(example = "insufficient_funds")]
    pub code: Option<String>,
}

/// A payment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Payment {
    /// Its identity.
    #[schema(example = "901", pattern = "^[1-9][0-9]{0,15}$")]
    pub id: String,
    /// Where it stands.
    pub status: PaymentStatus,
    /// What became of the request, in the answer to it: `created`; `replayed`, the key was used before; `in_flight`,
    /// an attempt to pay for the same is under way and this is it; `already_paid`, `refunded_already`, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "created")]
    pub outcome: Option<String>,
    /// What is paid for.
    #[schema(example = "17")]
    pub order_id: String,
    /// Which attempt at it this is, from 1.
    #[schema(example = 1, minimum = 1)]
    pub attempt_no: i32,
    /// Whose it is.
    #[schema(example = "default")]
    pub merchant_id: String,
    /// The kind of business.
    #[schema(example = "topup")]
    pub scene: String,
    /// Who pays.
    #[schema(example = "1086")]
    pub user_id: String,
    /// What is paid for, in the merchant's terms.
    #[schema(example = "topup-73")]
    pub biz_key: String,
    /// In minor units of the currency.
    #[schema(example = 1250, minimum = 1)]
    pub amount: i64,
    /// ISO 4217 code, or an asset of the server's own.
    #[schema(example = "USD")]
    pub currency: String,
    /// The number under which the wallet was charged.
    #[schema(example = "tp_u6_p1")]
    pub trade_order_no: String,
    /// What the wallet says was charged, in minor units.
    #[schema(example = 1250)]
    pub charged_amount: Option<i64>,
    /// Refunds that succeeded or are on their way, in minor units.
    #[schema(example = 0, minimum = 0)]
    pub refunded_amount: i64,
    /// What went wrong last.
    pub last_error: Option<LastError>,
    /// Raised by one with every change.
    #[schema(example = 4, minimum = 0)]
    pub version: i64,
    /// The business may begin until then.
    #[serde(with = "time::serde::rfc3339")]
    pub biz_deadline: OffsetDateTime,
    /// When it began.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// Ask again after so many milliseconds; only while it is on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 1000)]
    pub poll_after_ms: Option<i32>,
}

/// Payments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Payments {
    /// Those that were asked for.
    pub payments: Vec<Payment>,
}

/// What is paid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Order {
    /// Its identity.
    #[schema(example = "17")]
    pub id: String,
    /// Where it stands.
    pub status: OrderStatus,
    /// How many attempts there were.
    #[schema(example = 1, minimum = 1)]
    pub attempt_count: i32,
    /// The attempt under way.
    #[schema(example = "901")]
    pub live_payment_id: Option<String>,
    /// The attempt that paid for it.
    pub paid_payment_id: Option<String>,
    /// What went back after it was paid for, in minor units.
    #[schema(example = 0, minimum = 0)]
    pub refunded_amount: i64,
    /// Raised by one with every change.
    pub version: i64,
    /// When the first attempt began.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Refund {
    /// Its identity.
    #[schema(example = "31", pattern = "^[1-9][0-9]{0,15}$")]
    pub id: String,
    /// Where it stands.
    pub status: RefundStatus,
    /// What became of the request, in the answer to it: `reserved`, `needs_approval`, or `replayed`, the key was used
    /// before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "reserved")]
    pub outcome: Option<String>,
    /// Why there is one: `AFTER_SALE`, somebody asked for it; `COMPENSATION`, the business was not done; `RECON`, a
    /// charge came to light after its payment had ended; `EXTERNAL`, made in the provider's own dashboard.
    #[schema(example = "AFTER_SALE")]
    pub kind: String,
    /// The payment.
    #[schema(example = "901")]
    pub payment_id: String,
    /// The payment's number.
    #[schema(example = "tp_u6_p1")]
    pub trade_order_no: String,
    /// The refund's own number, as the wallet has it.
    #[schema(example = "r1_tp_u6_p1")]
    pub refund_order_no: String,
    /// In minor units of the currency.
    #[schema(example = 500, minimum = 1)]
    pub amount: i64,
    /// The payment's.
    #[schema(example = "USD")]
    pub currency: String,
    /// Why, for people.
    #[schema(example = "arrived broken")]
    pub reason: Option<String>,
    /// Who asked.
    #[schema(example = "desk 4")]
    pub requested_by: Option<String>,
    /// Who approved or rejected it.
    pub decided_by: Option<String>,
    /// Whether it waits for a person.
    #[schema(example = false)]
    pub needs_review: bool,
    /// What went wrong last.
    pub last_error: Option<LastError>,
    /// Raised by one with every change.
    #[schema(example = 1, minimum = 0)]
    pub version: i64,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// Ask again after so many milliseconds; only while it is on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 1000)]
    pub poll_after_ms: Option<i32>,
}

/// Refunds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Refunds {
    /// All of the payment's, oldest first.
    pub refunds: Vec<Refund>,
}

/// A request for a payment. Scene, user and `biz_key` say what is paid for: it has at most one attempt under way, and is
/// paid for at most once.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "describes what input.rs reads field by field")]
pub struct PaymentRequest {
    /// The kind of business, as the server's administrator named it.
    #[schema(example = "topup", min_length = 1, max_length = 32)]
    scene: String,
    /// Who pays.
    #[schema(example = "1086", min_length = 1, max_length = 128)]
    user_id: String,
    /// What is paid for, in your terms.
    #[schema(example = "topup-73", min_length = 1, max_length = 160)]
    biz_key: String,
    /// In minor units of the currency: 1250 is 12.50 USD. A whole number.
    #[schema(example = 1250, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    amount: i64,
    /// ISO 4217 code, or an asset of the server's own.
    #[schema(example = "USD", min_length = 3, max_length = 12)]
    currency: String,
    /// The business may begin until then; without it, the scene's own span.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime, example = "2126-12-01T08:00:00Z")]
    biz_deadline: Option<OffsetDateTime>,
    /// Passed on to wallet and business as it is; at most 8 KiB. Never a card number, never a secret.
    #[serde(default)]
    #[schema(value_type = Option<Object>, example = json!({"note": "birthday"}))]
    payload: Option<serde_json::Value>,
}

/// A request for a refund.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "describes what input.rs reads field by field")]
pub struct RefundRequest {
    /// In minor units of the payment's currency. A whole number.
    #[schema(example = 500, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    amount: i64,
    /// Why, for people.
    #[schema(example = "arrived broken", min_length = 1, max_length = 500)]
    reason: String,
    /// Refuse unless exactly so much can be refunded now, in minor units.
    #[serde(default)]
    #[schema(example = 1250, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    expected_refundable: Option<i64>,
    /// Who asks, in your terms; without it, the token's name. Whoever approves is somebody else.
    #[serde(default)]
    #[schema(example = "desk 4", min_length = 1, max_length = 128)]
    requested_by: Option<String>,
}

/// A word of the database that this binary does not know.
fn word<T: for<'de> Deserialize<'de>>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}

fn last_error(class: Option<String>, code: Option<String>) -> Option<LastError> {
    class.map(|class| LastError { class, code })
}

impl PaymentStatus {
    /// Whether waiting for more makes no sense.
    pub const fn is_settled(self) -> bool {
        !matches!(self, Self::Processing)
    }
}

impl Payment {
    /// As clients see it; `None` if this binary is too old for its status.
    pub fn of(row: PaymentRow) -> Option<Self> {
        let status: PaymentStatus = word(&row.client_status)?;
        Some(Self {
            id: row.flow_id.to_string(),
            status,
            outcome: None,
            order_id: row.order_id.to_string(),
            attempt_no: row.attempt_no,
            merchant_id: row.merchant_id,
            scene: row.scene,
            user_id: row.user_id,
            biz_key: row.biz_key,
            amount: row.amount,
            currency: row.currency,
            trade_order_no: row.trade_order_no,
            charged_amount: row.charged_amount,
            refunded_amount: row.refunded_amount,
            last_error: last_error(row.last_error_class, row.last_error_code),
            version: row.version,
            biz_deadline: row.biz_deadline,
            created_at: row.created_at,
            updated_at: row.updated_at,
            poll_after_ms: (!status.is_settled()).then_some(POLL_AFTER_MS),
        })
    }
}

impl Order {
    /// As clients see it; `None` if this binary is too old for its status.
    pub fn of(row: OrderRow) -> Option<Self> {
        Some(Self {
            id: row.order_id.to_string(),
            status: word(&row.status)?,
            attempt_count: row.attempt_count,
            live_payment_id: row.live_flow_id.map(|id| id.to_string()),
            paid_payment_id: row.paid_flow_id.map(|id| id.to_string()),
            refunded_amount: row.refunded_amount,
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

impl Refund {
    /// As clients see it; `None` if this binary is too old for its status.
    pub fn of(row: RefundRow) -> Option<Self> {
        let status: RefundStatus = word(&row.status)?;
        let needs_review = row.frozen_reason.is_some();
        Some(Self {
            id: row.refund_id.to_string(),
            status,
            outcome: None,
            kind: row.kind,
            payment_id: row.flow_id.to_string(),
            trade_order_no: row.trade_order_no,
            refund_order_no: row.refund_order_no,
            amount: row.amount,
            currency: row.currency,
            reason: row.reason,
            requested_by: row.requested_by,
            decided_by: row.decided_by,
            needs_review,
            last_error: last_error(row.last_error_class, row.last_error_code),
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
            poll_after_ms: (status == RefundStatus::Pending && !needs_review).then_some(POLL_AFTER_MS),
        })
    }

    /// Whether waiting for more makes no sense.
    pub const fn is_settled(&self) -> bool {
        self.poll_after_ms.is_none()
    }
}
