//! Stripe: PaymentIntents and Refunds. `docs/stripe.md` is its manual.
//!
//! Our number is Stripe's idempotency key and stands in the metadata of what it made. What became of it is asked by
//! Stripe's id, once that is known, and else by going through a list: never by Stripe's search, which lags behind.
//!
//! Invariants:
//! - FAILED and CLOSED are said only of an intent that is canceled, so that nobody can pay it any more.
//! - NOT_FOUND is said only of a list that was read to its end. An id that we were given and that Stripe does not know
//!   means that we ask with another account's key, so it is UNKNOWN.
//! - A stored answer that Stripe repeats is never taken for today's state.
//! - One action may take several requests, which together take no longer than the call's timeout. At most one of them
//!   moves money: a charge's first, and a refund's, before which its charge may have to be looked for. That look-up is
//!   given no longer than connecting is, so that money never moves later than [`Wallet::lead`] says.

mod amount;
mod api;
mod key;
mod params;
mod verdict;
mod webhook;

use std::time::Duration;

use axum::http::HeaderMap;
use futures::future::{BoxFuture, FutureExt};
use paylatch_core::outcome::Outcome;
use time::OffsetDateTime;

use self::api::{Api, Intent, Refund, Refusal, Said, Why};
use self::params::{ORDER_NO, REFUND_NO};
use self::verdict::{Standing, standing, together};
use self::webhook::Secrets;
use super::{About, Capabilities, Wallet, WebhookError, WebhookEvent};
use crate::config::Secret;
use crate::endpoint::{EndpointError, EndpointSettings};
use crate::evidence::{Answer, Handout};

pub use self::key::{KeyProblem, Mode, check_key};

/// Where Stripe is.
pub const BASE_URL: &str = "https://api.stripe.com";
/// How far Stripe's clock may be from ours before a look-up misses what was just sent.
const SKEW: Duration = Duration::from_secs(300);

/// An account at Stripe.
#[derive(Debug, Clone)]
pub struct StripeWallet {
    api: Api,
    connect_timeout: Duration,
    call_timeout: Duration,
    secrets: Secrets,
}

impl StripeWallet {
    /// Opens the wallet; connects to nothing yet. The settings' token is the account's secret key.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(settings: &EndpointSettings, webhook_secrets: &[Secret]) -> Result<Self, EndpointError> {
        let (api, secrets) = (Api::open(settings)?, Secrets::of(webhook_secrets)?);
        let EndpointSettings { connect_timeout, call_timeout, .. } = *settings;
        Ok(Self { api, connect_timeout, call_timeout, secrets })
    }

    /// Whether Stripe accepts the secret key, found out without doing anything.
    ///
    /// # Errors
    /// What it answered instead.
    pub async fn probe(&self) -> Result<(), Answer> {
        self.api.probe().await
    }

    /// Whatever was sent by then, its answer is not known.
    async fn in_time(&self, work: impl Future<Output = Answer>) -> Answer {
        let late = || Answer::unknown("timeout", format!("no answer within {} ms", self.call_timeout.as_millis()));
        tokio::time::timeout(self.call_timeout, work).await.unwrap_or_else(|_| late())
    }

    async fn do_charge(&self, handout: &Handout) -> Answer {
        let fields = match params::charge(handout) {
            Ok(fields) => fields,
            Err(why) => return why.answer(Outcome::Failed),
        };
        match self.api.create::<Intent>(&handout.order_no, &fields).await {
            Err(answer) => answer,
            Ok(Said { what: Ok(intent), replayed: true }) => self.charge_by_id(&handout.order_no, &intent.id).await,
            Ok(Said { what: Ok(intent), replayed: false }) => self.settled(intent, &handout.order_no, None).await,
            Ok(Said { what: Err(refusal), replayed }) => self.refused(handout, refusal, replayed).await,
        }
    }

    /// A charge that Stripe refused: final once no intent can be paid any more.
    async fn refused(&self, handout: &Handout, mut refusal: Refusal, replayed: bool) -> Answer {
        let (order_no, why) = (&handout.order_no, refusal.why());
        if refusal.is_conflict() {
            return why.answer(Outcome::Conflict);
        }
        match refusal.payment_intent.take() {
            Some(intent) if replayed => self.charge_by_id(order_no, &intent.id).await,
            Some(intent) => self.settled(intent, order_no, Some(why)).await,
            // Declined, and it does not say which intent was: look for it.
            None if refusal.status == 402 => match self.intents(handout, handout.sent_at).await {
                Err(_) => Answer { outcome: Outcome::Unknown, ..why.answer(Outcome::Failed) },
                Ok(intents) => {
                    let none = why.clone().answer(Outcome::Failed);
                    self.all_settled(intents, order_no, Some(why)).await.unwrap_or(none)
                }
            },
            None => why.answer(Outcome::Failed),
        }
    }

    async fn do_query_charge(&self, handout: &Handout) -> Answer {
        let order_no = &handout.order_no;
        if let Some(id) = intent_id(handout.channel_ref.as_deref()) {
            return self.charge_by_id(order_no, id).await;
        }
        match self.intents(handout, handout.sent_at).await {
            Err(answer) => answer,
            Ok(intents) => {
                self.all_settled(intents, order_no, None).await.unwrap_or_else(|| Answer::new(Outcome::NotFound))
            }
        }
    }

    async fn charge_by_id(&self, order_no: &str, id: &str) -> Answer {
        match self.api.fetch::<Intent>(id).await {
            Err(answer) => answer,
            Ok(Said { what: Ok(intent), .. }) => self.settled(intent, order_no, None).await,
            Ok(Said { what: Err(refusal), .. }) => not_theirs(&refusal),
        }
    }

    async fn all_settled(&self, intents: Vec<Intent>, order_no: &str, why: Option<Why>) -> Option<Answer> {
        let mut answers = Vec::with_capacity(intents.len());
        for intent in intents {
            answers.push(self.settled(intent, order_no, why.clone()).await);
        }
        together(answers)
    }

    /// What the intent means, once it is canceled if it could still be paid without anyone wanting that.
    async fn settled(&self, intent: Intent, order_no: &str, why: Option<Why>) -> Answer {
        let is_ours = intent.metadata.get(ORDER_NO).is_some_and(|said| said == order_no);
        if standing(&intent) != Standing::Payable || !is_ours {
            return verdict::of_intent(&intent, order_no, why);
        }
        let why = why.or_else(|| intent.why());
        match self.canceled(&intent.id).await {
            Ok(intent) => verdict::of_intent(&intent, order_no, why),
            // The charge itself was executed, whatever became of the canceling.
            Err(answer) => Answer { outcome: Outcome::Unknown, request_id: Some(intent.id), ..answer },
        }
    }

    /// The intent after an attempt to cancel it: canceled, or what Stripe would not cancel.
    async fn canceled(&self, id: &str) -> Result<Intent, Answer> {
        match self.api.cancel(id).await?.what {
            Ok(intent) => Ok(intent),
            // It stands otherwise than it did: canceled before, paid meanwhile, or under way.
            Err(_) => self.api.fetch::<Intent>(id).await?.what.map_err(|refusal| not_theirs(&refusal)),
        }
    }

    async fn do_close_charge(&self, handout: &Handout) -> Answer {
        let intents = match intent_id(handout.channel_ref.as_deref()) {
            Some(id) => match self.api.fetch::<Intent>(id).await {
                Err(answer) => return answer,
                Ok(Said { what: Ok(intent), .. }) => vec![intent],
                Ok(Said { what: Err(refusal), .. }) => return not_theirs(&refusal),
            },
            None => match self.intents(handout, handout.sent_at).await {
                Err(answer) => return answer,
                Ok(intents) => intents,
            },
        };
        if intents.is_empty() {
            return self.use_up(handout).await;
        }
        let mut answers = Vec::with_capacity(intents.len());
        for intent in intents {
            answers.push(self.closed(intent, &handout.order_no).await);
        }
        together(answers).unwrap_or_else(|| Answer::new(Outcome::Unknown))
    }

    /// Stripe has not seen the number. An intent that nobody can pay uses up its idempotency key: a charge that is
    /// still on its way to Stripe meets an idempotency error there.
    async fn use_up(&self, handout: &Handout) -> Answer {
        let fields = match params::unconfirmed(handout) {
            Ok(fields) => fields,
            // Nothing like it was ever sent, nor will be.
            Err(why) => return why.answer(Outcome::Closed),
        };
        match self.api.create::<Intent>(&handout.order_no, &fields).await {
            Err(answer) => answer,
            Ok(Said { what: Ok(intent), .. }) => self.closed(intent, &handout.order_no).await,
            Ok(Said { what: Err(refusal), .. }) => refusal.why().answer(Outcome::Unknown),
        }
    }

    async fn closed(&self, intent: Intent, order_no: &str) -> Answer {
        if intent.metadata.get(ORDER_NO).is_none_or(|said| said != order_no) {
            return Answer::unknown("wrong_number", "the intent bears another number");
        }
        let intent = match standing(&intent) {
            Standing::Taken | Standing::Canceled => intent,
            _ => match self.canceled(&intent.id).await {
                Ok(intent) => intent,
                Err(answer) => return answer,
            },
        };
        let answer = verdict::of_intent(&intent, order_no, None);
        match answer.outcome {
            Outcome::Failed => Answer { outcome: Outcome::Closed, ..answer },
            _ => answer,
        }
    }

    async fn do_refund(&self, handout: &Handout) -> Answer {
        let Some(refund_no) = handout.refund_no.as_deref() else { return no_refund_no() };
        let charge_ref = match tokio::time::timeout(self.connect_timeout, self.charge_ref(handout)).await {
            Ok(Ok(Some(charge_ref))) => charge_ref,
            Ok(Ok(None)) => return Answer::unavailable("charge_not_found", "Stripe knows no charge of this number"),
            Ok(Err(answer)) => return Answer { outcome: Outcome::Unavailable, ..answer },
            Err(_) => {
                return Answer::unavailable("charge_not_found_in_time", "the look-up of its charge took too long");
            }
        };
        let fields = match params::refund(handout, refund_no, &charge_ref) {
            Ok(fields) => fields,
            Err(why) => return why.answer(Outcome::Failed),
        };
        let refusal = match self.api.create::<Refund>(refund_no, &fields).await {
            Err(answer) => return answer,
            Ok(Said { what: Ok(refund), replayed: true }) => return self.refund_by_id(refund_no, &refund.id).await,
            Ok(Said { what: Ok(refund), replayed: false }) => return verdict::of_refund(&refund, refund_no),
            Ok(Said { what: Err(refusal), .. }) => refusal,
        };
        let why = refusal.why();
        match refusal.status {
            _ if refusal.is_conflict() => why.answer(Outcome::Conflict),
            404 => why.answer(Outcome::Unavailable),
            // "Already refunded" may be said of this very refund.
            _ => match self.refunds(&charge_ref, refund_no).await {
                Err(_) => why.answer(Outcome::Unknown),
                Ok(found) => found.unwrap_or_else(|| why.answer(Outcome::Failed)),
            },
        }
    }

    async fn do_query_refund(&self, handout: &Handout) -> Answer {
        let Some(refund_no) = handout.refund_no.as_deref() else { return no_refund_no() };
        if let Some(id) = handout.channel_ref.as_deref().filter(|id| is_refund_id(id)) {
            return self.refund_by_id(refund_no, id).await;
        }
        let found = match self.charge_ref(handout).await {
            Ok(Some(charge_ref)) => self.refunds(&charge_ref, refund_no).await,
            Ok(None) => Ok(None),
            Err(answer) => Err(answer),
        };
        match found {
            Ok(found) => found.unwrap_or_else(|| Answer::new(Outcome::NotFound)),
            Err(answer) => answer,
        }
    }

    async fn refund_by_id(&self, refund_no: &str, id: &str) -> Answer {
        match self.api.fetch::<Refund>(id).await {
            Err(answer) => answer,
            Ok(Said { what: Ok(refund), .. }) => verdict::of_refund(&refund, refund_no),
            Ok(Said { what: Err(refusal), .. }) => not_theirs(&refusal),
        }
    }

    /// What the charge's refunds of this number say together.
    async fn refunds(&self, charge_ref: &str, refund_no: &str) -> Result<Option<Answer>, Answer> {
        let found = self.api.find::<Refund>(&vec![params::charged_as(charge_ref)], REFUND_NO, refund_no).await?;
        Ok(together(found.iter().map(|refund| verdict::of_refund(refund, refund_no)).collect()))
    }

    /// Stripe's name for the charge to be refunded; looked for where the database does not know it.
    async fn charge_ref(&self, handout: &Handout) -> Result<Option<String>, Answer> {
        if let Some(known) = &handout.charge_ref {
            return Ok(Some(known.clone()));
        }
        let intents = self.intents(handout, None).await?;
        Ok(intents.into_iter().find(|intent| standing(intent) == Standing::Taken).map(|intent| intent.id))
    }

    /// Disputes, and refunds made in the dashboard, name the intent and not our number, which stands in the intent.
    async fn identified(&self, event: WebhookEvent) -> Result<WebhookEvent, Answer> {
        let id = match (&event.number, event.about) {
            (None, About::Refund | About::Dispute) => intent_id(event.request_id.as_deref()),
            _ => None,
        };
        let Some(id) = id else { return Ok(event) };
        let number = match self.api.fetch::<Intent>(id).await?.what {
            Ok(intent) => intent.metadata.get(ORDER_NO).cloned(),
            Err(refusal) => return Err(not_theirs(&refusal)),
        };
        Ok(WebhookEvent { number, ..event })
    }

    /// The intents of a number, none of them created before `since`.
    async fn intents(&self, handout: &Handout, since: Option<OffsetDateTime>) -> Result<Vec<Intent>, Answer> {
        let since = since.map(|at| ("created[gte]".to_owned(), (at - SKEW).unix_timestamp().to_string()));
        self.api.find(&since.into_iter().collect(), ORDER_NO, &handout.order_no).await
    }
}

fn intent_id(channel_ref: Option<&str>) -> Option<&str> {
    channel_ref.filter(|id| id.starts_with("pi_"))
}

fn is_refund_id(id: &str) -> bool {
    id.starts_with("re_") || id.starts_with("pyr_")
}

/// Stripe itself gave us the id once, and forgets none: so we are asking another account, or the other mode.
fn not_theirs(refusal: &Refusal) -> Answer {
    refusal.why().answer(Outcome::Unknown)
}

fn no_refund_no() -> Answer {
    Answer::unavailable("no_refund_no", "the handout names no refund")
}

impl Wallet for StripeWallet {
    fn charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.in_time(self.do_charge(handout)).boxed()
    }

    fn query_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.in_time(self.do_query_charge(handout)).boxed()
    }

    fn close_charge<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.in_time(self.do_close_charge(handout)).boxed()
    }

    fn refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.in_time(self.do_refund(handout)).boxed()
    }

    fn query_refund<'a>(&'a self, handout: &'a Handout) -> BoxFuture<'a, Answer> {
        self.in_time(self.do_query_refund(handout)).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { close_charge: true, webhooks: !self.secrets.is_empty() }
    }

    fn lead(&self) -> Duration {
        self.connect_timeout * 2
    }

    fn verify_webhook(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<WebhookEvent, WebhookError> {
        webhook::verify(&self.secrets, headers, body, now)
    }

    fn identify_webhook<'a>(&'a self, event: WebhookEvent) -> BoxFuture<'a, Result<WebhookEvent, Answer>> {
        self.identified(event).boxed()
    }
}
