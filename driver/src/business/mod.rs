//! Businesses: whoever does what was paid for.
//!
//! The same rules as for wallets (see [`crate::wallet`]), and one more: executing proves nothing by itself. Whatever
//! [`Business::execute`] answers, the database asks for the fact afterwards and decides by that and its owner.

mod http;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use paylatch_core::outcome::Action;
use serde::Deserialize;

pub use self::http::HttpBusiness;
use crate::endpoint::{EndpointError, EndpointSettings};
use crate::evidence::{Answer, Handout};

/// One business. Object-safe: the daemon holds an `Arc<dyn Business>` per target.
pub trait Business: Send + Sync {
    /// Asks it to do the work, or to refuse because `valid_until` has passed or the number was closed, in one step.
    fn execute<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// Reads whether the work is done, and by which `order_no`.
    fn fact<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// Has it refuse any later execution under `order_no`.
    fn close<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer>;

    /// The longest time between a call's start and the moment its request leaves. Whoever holds a call against its
    /// send window counts this in: a call begun with less than this left might be sent too late.
    fn lead(&self) -> Duration {
        Duration::ZERO
    }
}

/// Carries out the business action of `handout`; the answer's outcome is one that the action may report.
pub async fn carry_out(business: &dyn Business, handout: &Handout) -> Answer {
    let answer = match handout.action {
        Action::ExecuteBusiness => business.execute(handout).await,
        Action::QueryBusiness => business.fact(handout).await,
        Action::CloseBusiness => business.close(handout).await,
        Action::Charge | Action::QueryCharge | Action::CloseCharge | Action::Refund | Action::QueryRefund => {
            Answer::unavailable("not_for_businesses", "a wallet action was routed to a business")
        }
    };
    answer.for_action(handout.action)
}

/// The adapters that a target's configuration can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BusinessAdapter {
    /// Our documented JSON protocol over HTTP.
    Http,
}

/// Opens the business that a target's configuration describes.
///
/// # Errors
/// The endpoint is missing, malformed, or its TLS could not be set up.
pub fn open(adapter: BusinessAdapter, endpoint: Option<&EndpointSettings>) -> Result<Arc<dyn Business>, EndpointError> {
    let endpoint = endpoint.ok_or(EndpointError::NoBaseUrl)?;
    match adapter {
        BusinessAdapter::Http => Ok(Arc::new(HttpBusiness::open(endpoint)?)),
    }
}
