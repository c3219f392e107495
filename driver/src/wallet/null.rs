//! A wallet that says yes at once, in-process: what is left when it is benchmarked is the engine itself.

use futures::future::{BoxFuture, FutureExt, ready};
use paylatch_core::outcome::Outcome;

use super::{Capabilities, Wallet};
use crate::evidence::{Answer, Handout};

/// Answers SUCCEEDED, echoing what it was asked. It takes no money and remembers nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullWallet;

fn succeeded(number: Option<&str>, handout: &Handout) -> BoxFuture<'static, Answer> {
    ready(Answer {
        order_no: number.map(str::to_owned),
        amount: Some(handout.amount),
        currency: Some(handout.currency.clone()),
        ..Answer::new(Outcome::Succeeded)
    })
    .boxed()
}

impl Wallet for NullWallet {
    fn charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        succeeded(Some(&handout.order_no), handout)
    }

    fn query_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        succeeded(Some(&handout.order_no), handout)
    }

    fn close_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        succeeded(Some(&handout.order_no), handout)
    }

    fn refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        succeeded(handout.refund_no.as_deref(), handout)
    }

    fn query_refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        succeeded(handout.refund_no.as_deref(), handout)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { close_charge: false, webhooks: false }
    }
}
