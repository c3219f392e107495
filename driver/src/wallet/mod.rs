//! Wallets: whoever holds the money.
//!
//! An adapter carries out one act or question for one handout and says what came back. Its rules, which `tests/it/conformance.rs`
//! holds every adapter to:
//!
//! - The number that the database gave is the idempotency key and the look-up key; never another one.
//! - It never retries: the database paces that. It never returns an error: every failure is an outcome class.
//! - UNKNOWN unless the counterparty was heard and understood; UNAVAILABLE only if certainly nothing was executed.
//! - What was echoed is passed on as it came. The database compares.

mod http;
mod null;
mod sim;
pub mod stripe;
pub mod webhook;

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use futures::future::{BoxFuture, FutureExt, ready};
use paylatch_core::outcome::Action;
use serde::Deserialize;
use time::OffsetDateTime;

pub use self::http::HttpWallet;
pub use self::null::NullWallet;
pub use self::sim::SimWallet;
pub use self::stripe::StripeWallet;
pub use self::webhook::{About, DisputeState, WebhookError, WebhookEvent};
use crate::config::Secret;
use crate::endpoint::{EndpointError, EndpointSettings};
use crate::evidence::{Answer, Handout};

/// What a wallet can do beyond charging, refunding and being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It can refuse a number for good before it was charged (`CLOSE_CHARGE`).
    pub close_charge: bool,
    /// [`Wallet::verify_webhook`] understands its webhooks, and there is a secret to check them by.
    pub webhooks: bool,
}

/// One wallet. Object-safe: the daemon holds an `Arc<dyn Wallet>` per channel.
pub trait Wallet: Send + Sync {
    /// Takes the money, under `order_no`.
    fn charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// What became of the charge.
    fn query_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// Has the wallet refuse the charge from now on.
    fn close_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// Gives the money back, under `refund_no`.
    fn refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// What became of the refund.
    fn query_refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The longest time between a call's start and the moment its request leaves. Whoever holds a call against its
    /// send window counts this in: a call begun with less than this left might be sent too late.
    fn lead(&self) -> Duration {
        Duration::ZERO
    }

    /// Checks a webhook over its raw body, in constant time; `now` is what its timestamp is held against. One message
    /// is one event.
    ///
    /// # Errors
    /// [`WebhookError::NotSupported`] unless the adapter says otherwise.
    fn verify_webhook(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<WebhookEvent, WebhookError> {
        let _ = (headers, body, now);
        Err(WebhookError::NotSupported)
    }

    /// The event with the number of ours that it speaks of, where the message could not name it and the wallet has to
    /// be asked. An event without any number afterwards is about nothing of ours.
    ///
    /// # Errors
    /// What the wallet answered instead. The event is then not taken, so that it is sent once more.
    fn identify_webhook<'a>(&'a self, event: WebhookEvent) -> BoxFuture<'a, Result<WebhookEvent, Answer>> {
        ready(Ok(event)).boxed()
    }
}

/// Carries out the wallet action of `handout`; the answer's outcome is one that the action may report.
pub async fn carry_out(wallet: &dyn Wallet, handout: &Handout) -> Answer {
    let answer = match handout.action {
        Action::Charge => wallet.charge(handout).await,
        Action::QueryCharge => wallet.query_charge(handout).await,
        Action::CloseCharge => wallet.close_charge(handout).await,
        Action::Refund => wallet.refund(handout).await,
        Action::QueryRefund => wallet.query_refund(handout).await,
        Action::ExecuteBusiness | Action::QueryBusiness | Action::CloseBusiness => {
            Answer::unavailable("not_for_wallets", "a business action was routed to a wallet")
        }
    };
    answer.for_action(handout.action)
}

/// The adapters that a channel's configuration can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalletAdapter {
    /// Our documented JSON protocol over HTTP.
    Http,
    /// The same against `paylatchd simulate`, with its admin verbs.
    Sim,
    /// An account at Stripe.
    Stripe,
    /// In-process, answers SUCCEEDED at once. For benchmarks only: it takes no money.
    Null,
}

/// Opens the wallet that a channel's configuration describes. Without `webhook_secrets` it takes no webhooks.
///
/// # Errors
/// The endpoint is missing, malformed, or its TLS could not be set up; a secret has not the shape that it must have.
pub fn open(
    adapter: WalletAdapter,
    endpoint: Option<&EndpointSettings>,
    webhook_secrets: &[Secret],
) -> Result<Arc<dyn Wallet>, EndpointError> {
    let endpoint = || endpoint.ok_or(EndpointError::NoBaseUrl);
    Ok(match adapter {
        WalletAdapter::Http => Arc::new(HttpWallet::open(endpoint()?, webhook_secrets)?),
        WalletAdapter::Sim => Arc::new(SimWallet::open(endpoint()?, webhook_secrets)?),
        WalletAdapter::Stripe => Arc::new(StripeWallet::open(endpoint()?, webhook_secrets)?),
        WalletAdapter::Null => Arc::new(NullWallet),
    })
}
