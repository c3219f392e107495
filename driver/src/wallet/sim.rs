//! The HTTP wallet protocol against `paylatchd simulate`.
//!
//! On the wire it is exactly [`HttpWallet`]; what differs is only that the simulator's admin verbs can be reached from
//! the same configuration, by [`SimWallet::admin`].

use std::time::Duration;

use axum::http::HeaderMap;
use futures::future::BoxFuture;
use time::OffsetDateTime;

use super::{Capabilities, HttpWallet, Wallet, WebhookError, WebhookEvent};
use crate::config::Secret;
use crate::endpoint::{EndpointError, EndpointSettings};
use crate::evidence::{Answer, Handout};
use crate::simulate::{SimAdmin, SimAdminError};

/// The simulator as a wallet.
#[derive(Debug, Clone)]
pub struct SimWallet {
    http: HttpWallet,
    base_url: String,
}

impl SimWallet {
    /// Opens the wallet; connects to nothing yet.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(settings: &EndpointSettings, webhook_secrets: &[Secret]) -> Result<Self, EndpointError> {
        Ok(Self { http: HttpWallet::open(settings, webhook_secrets)?, base_url: settings.base_url.clone() })
    }

    /// The admin verbs of the same simulator.
    ///
    /// # Errors
    /// The HTTP client could not be set up.
    pub fn admin(&self) -> Result<SimAdmin, SimAdminError> {
        SimAdmin::new(&self.base_url)
    }
}

impl Wallet for SimWallet {
    fn charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.http.charge(handout)
    }

    fn query_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.http.query_charge(handout)
    }

    fn close_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.http.close_charge(handout)
    }

    fn refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.http.refund(handout)
    }

    fn query_refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.http.query_refund(handout)
    }

    fn capabilities(&self) -> Capabilities {
        self.http.capabilities()
    }

    fn lead(&self) -> Duration {
        self.http.lead()
    }
    fn verify_webhook(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<WebhookEvent, WebhookError> {
        self.http.verify_webhook(headers, body, now)
    }
}
