//! What the HTTP API asks of the database.

use std::time::Duration;

use serde_json::value::RawValue;
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{FromRow, Row};
use time::OffsetDateTime;

use super::{Db, connect_options};
use crate::config;
use crate::error::Error;

/// What the database knows of an API token.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct KnownToken {
    /// Its identity.
    pub token_id: i64,
    /// Whom it acts for.
    pub merchant_id: String,
    /// What it was called when it was made.
    pub name: String,
    /// Requests a second, if it has a rate of its own.
    pub rate_per_second: Option<i32>,
}

impl Db {
    /// The API's own pool, beside the worker's: a statement gives up on a lock and on its own length sooner than a
    /// client gives up on its answer.
    ///
    /// # Errors
    /// `database.url` is not a URL.
    pub fn serving(settings: &config::Database, api: &config::Api, driver: &str) -> Result<Self, Error> {
        let mut options = connect_options(settings, driver)?;
        let timeout = Duration::from_millis(api.request_timeout_ms);
        let limits = [("lock_timeout", api.lock_timeout_ms), ("statement_timeout", api.request_timeout_ms)];
        // A pooler may refuse these with the start-up; it gets them with each transaction.
        if !settings.transaction_pooling {
            options = options.options(limits.map(|(name, ms)| (name, ms.to_string())));
        }
        let pool = PgPoolOptions::new()
            .max_connections(api.database_connections)
            .acquire_timeout(timeout)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let transaction_limits =
            format!("set local lock_timeout = {}; set local statement_timeout = {}", limits[0].1, limits[1].1);
        Ok(Self {
            pool,
            driver: driver.to_owned(),
            timeout,
            transaction_pooling: settings.transaction_pooling,
            transaction_limits: Some(transaction_limits.into()),
        })
    }

    /// Whose token has this digest.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn authenticate(&self, digest: &[u8; 32]) -> Result<Option<KnownToken>, Error> {
        let query = "select token_id, merchant_id, name, rate_per_second from paylatch.authenticate($1)";
        let rows = self.rows("authenticate", sqlx::query_as(query).bind(&digest[..])).await?;
        Ok(rows.into_iter().next())
    }

    /// Whether no token was ever made.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn api_is_open(&self) -> Result<bool, Error> {
        let (open,) = self.one("api_is_open", sqlx::query_as("select paylatch.api_is_open()")).await?;
        Ok(open)
    }
}

/// A payment, as the database shows it to clients.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct PaymentRow {
    /// The flow.
    pub flow_id: i64,
    /// What is paid for.
    pub order_id: i64,
    /// Which attempt at it this is, from 1.
    pub attempt_no: i32,
    /// Whose it is.
    pub merchant_id: String,
    /// The kind of business.
    pub scene: String,
    /// The payment channel.
    pub channel: String,
    /// Who pays.
    pub user_id: String,
    /// What is paid for, in the merchant's terms.
    pub biz_key: String,
    /// In minor units.
    pub amount: i64,
    /// ISO 4217 code or asset.
    pub currency: String,
    /// The charge's number.
    pub trade_order_no: String,
    /// What clients are shown.
    pub client_status: String,
    /// Raised by one with every change.
    pub version: i64,
    /// As the wallet evidenced.
    pub charged_amount: Option<i64>,
    /// Reserved and succeeded refunds.
    pub refunded_amount: i64,
    /// The class of what went wrong last.
    pub last_error_class: Option<String>,
    /// The counterparty's code of it.
    pub last_error_code: Option<String>,
    /// No business act leaves later.
    pub biz_deadline: OffsetDateTime,
    /// When it began.
    pub created_at: OffsetDateTime,
    /// When it last changed.
    pub updated_at: OffsetDateTime,
    /// In how many milliseconds something is to be done, or is leased until; below zero: overdue.
    #[sqlx(default)]
    pub due_in_ms: Option<i64>,
}

/// What became of a request for a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// created, replayed, in_flight, already_paid, refunded_already, closed or channel_unavailable.
    pub outcome: String,
    /// When to try again, where the channel is unavailable.
    pub retry_after_ms: Option<i64>,
    /// The payment; none where nothing was begun.
    pub payment: Option<PaymentRow>,
}

/// A request for a payment.
#[derive(Debug, Clone)]
pub struct PaymentWish {
    /// The kind of business.
    pub scene: String,
    /// Who pays.
    pub user_id: String,
    /// What is paid for.
    pub biz_key: String,
    /// In minor units.
    pub amount: i64,
    /// ISO 4217 code or asset.
    pub currency: String,
    /// No business act leaves later.
    pub biz_deadline: Option<OffsetDateTime>,
    /// Passed on, never read; JSON as it was sent.
    pub payload: Option<Box<RawValue>>,
}

/// What is paid for.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
#[allow(missing_docs)]
pub struct OrderRow {
    pub order_id: i64,
    pub status: String,
    pub attempt_count: i32,
    pub live_flow_id: Option<i64>,
    pub paid_flow_id: Option<i64>,
    pub refunded_amount: i64,
    pub version: i64,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// A refund, as the database shows it to clients.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
#[allow(missing_docs)]
pub struct RefundRow {
    pub refund_id: i64,
    pub flow_id: i64,
    pub merchant_id: String,
    pub trade_order_no: String,
    pub refund_order_no: String,
    pub kind: String,
    pub amount: i64,
    pub currency: String,
    pub status: String,
    pub reason: Option<String>,
    pub requested_by: Option<String>,
    pub decided_by: Option<String>,
    pub frozen_reason: Option<String>,
    pub last_error_class: Option<String>,
    pub last_error_code: Option<String>,
    pub version: i64,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// A request for a refund.
#[derive(Debug, Clone)]
pub struct RefundWish {
    /// The payment.
    pub flow_id: i64,
    /// In minor units.
    pub amount: i64,
    /// Why, for people.
    pub reason: String,
    /// Refuse unless exactly so much is left.
    pub expected_refundable: Option<i64>,
    /// Who asks.
    pub requested_by: Option<String>,
}

/// What became of a request for a refund.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct RefundAsked {
    /// reserved, replayed, needs_approval, over_limit, precondition_failed or not_refundable.
    pub outcome: String,
    /// The refund, where there is one.
    pub refund_id: Option<i64>,
    /// What is left to be refunded.
    pub refundable: Option<i64>,
}

/// A token, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
#[allow(missing_docs)]
pub struct TokenRow {
    pub token_id: i64,
    pub merchant_id: String,
    pub name: String,
    pub rate_per_second: Option<i32>,
    pub created_at: OffsetDateTime,
    pub created_by: String,
    pub revoked_at: Option<OffsetDateTime>,
}

impl FromRow<'_, PgRow> for Posted {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let flow_id: Option<i64> = row.try_get("flow_id")?;
        Ok(Self {
            outcome: row.try_get("outcome")?,
            retry_after_ms: row.try_get("retry_after_ms")?,
            payment: flow_id.map(|_| PaymentRow::from_row(row)).transpose()?,
        })
    }
}

impl Db {
    /// Begins a payment under a key, or finds what the key was used for.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn post_payment(&self, merchant_id: &str, key: &str, wish: &PaymentWish) -> Result<Posted, Error> {
        let query = "select r.outcome, r.retry_after_ms, (r.payment).*
                     from paylatch.post_payment($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb) r";
        let query = sqlx::query_as(query).bind(merchant_id).bind(key).bind(&wish.scene).bind(&wish.user_id);
        let query = query.bind(&wish.biz_key).bind(wish.amount).bind(&wish.currency).bind(wish.biz_deadline);
        self.one("post_payment", query.bind(wish.payload.as_ref().map(|payload| payload.get()))).await
    }

    /// A merchant's payment.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn get_payment(&self, merchant_id: &str, flow_id: i64) -> Result<Option<PaymentRow>, Error> {
        let query = "select v.*, case when isfinite(v.due_at)
                                      then (extract(epoch from v.due_at - paylatch.clock()) * 1000)::bigint end as due_in_ms
                     from paylatch.get_pay_flow($1, $2) v";
        let rows = self.rows("get_pay_flow", sqlx::query_as(query).bind(flow_id).bind(merchant_id)).await?;
        Ok(rows.into_iter().next())
    }

    /// The merchant's payment behind one of its order numbers.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn find_payment(&self, merchant_id: &str, order_no: &str) -> Result<Option<PaymentRow>, Error> {
        let query = "select v.* from paylatch.find_pay_flow($1, $2) v";
        let rows = self.rows("find_pay_flow", sqlx::query_as(query).bind(order_no).bind(merchant_id)).await?;
        Ok(rows.into_iter().next())
    }

    /// What a merchant is paid for, if an attempt was ever made.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn get_order(
        &self,
        merchant_id: &str,
        scene: &str,
        user_id: &str,
        biz_key: &str,
    ) -> Result<Option<OrderRow>, Error> {
        let query = sqlx::query_as("select o.* from paylatch.get_pay_order($1, $2, $3, $4) o");
        let query = query.bind(scene).bind(user_id).bind(biz_key).bind(merchant_id);
        Ok(self.rows("get_pay_order", query).await?.into_iter().next())
    }

    /// Wishes a merchant's payment away. Returns what became of the wish.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn cancel_payment(&self, merchant_id: &str, flow_id: i64) -> Result<String, Error> {
        let query = sqlx::query_as("select outcome from paylatch.cancel_pay_flow($1, $2)");
        let (outcome,) = self.one("cancel_pay_flow", query.bind(flow_id).bind(merchant_id)).await?;
        Ok(outcome)
    }

    /// Asks for a refund under a key, or finds what the key was used for.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn request_refund(&self, merchant_id: &str, key: &str, wish: &RefundWish) -> Result<RefundAsked, Error> {
        let query = "select outcome, refund_id, refundable from paylatch.request_refund(
                         flow_id => $1, amount => $2, reason => $3, idempotency_key => $4, expected_refundable => $5,
                         requested_by => $6, merchant_id => $7)";
        let query = sqlx::query_as(query).bind(wish.flow_id).bind(wish.amount).bind(&wish.reason).bind(key);
        let query = query.bind(wish.expected_refundable).bind(&wish.requested_by).bind(merchant_id);
        self.one("request_refund", query).await
    }

    /// A merchant's refund.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn get_refund(&self, merchant_id: &str, refund_id: i64) -> Result<Option<RefundRow>, Error> {
        let query = sqlx::query_as("select r.* from paylatch.get_refund($1, $2) r").bind(refund_id).bind(merchant_id);
        Ok(self.rows("get_refund", query).await?.into_iter().next())
    }

    /// The refunds of a merchant's payment, oldest first.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn get_refunds(&self, merchant_id: &str, flow_id: i64) -> Result<Vec<RefundRow>, Error> {
        let query = sqlx::query_as("select r.* from paylatch.get_refunds($1, $2) r").bind(flow_id).bind(merchant_id);
        self.rows("get_refunds", query).await
    }

    /// Lets the bearer of the token with this digest act for a merchant. Returns the token's id.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn create_api_token(
        &self,
        merchant_id: &str,
        name: &str,
        digest: &[u8; 32],
        rate_per_second: Option<i32>,
    ) -> Result<i64, Error> {
        let query = sqlx::query_as("select paylatch.create_api_token($1, $2, $3, $4)");
        let query = query.bind(merchant_id).bind(name).bind(&digest[..]).bind(rate_per_second);
        let (token_id,) = self.one("create_api_token", query).await?;
        Ok(token_id)
    }

    /// Ends a token; false where it was not live.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn revoke_api_token(&self, token_id: i64) -> Result<bool, Error> {
        let query = sqlx::query_as("select paylatch.revoke_api_token($1)").bind(token_id);
        let (revoked,) = self.one("revoke_api_token", query).await?;
        Ok(revoked)
    }

    /// Every token ever made.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn api_tokens(&self) -> Result<Vec<TokenRow>, Error> {
        self.rows("api_tokens", sqlx::query_as("select t.* from paylatch.api_tokens() t order by token_id")).await
    }
}
