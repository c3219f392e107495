//! The Stripe adapter before localstripe: what the common suite has no words for.

use std::sync::atomic::{AtomicU32, Ordering};

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::localstripe::{CAREFUL_CARD, DECLINED_CARD, EMPTY_ACCOUNT, GOOD_CARD, KEY};
use paylatch_tests::proxy::read_request;
use paylatch_tests::wait::SOON;
use paylatch_tests::{LocalStripe, eventually};
use paylatchd::clock;
use paylatchd::config::Secret;
use paylatchd::endpoint::EndpointSettings;
use paylatchd::evidence::{Answer, Handout};
use paylatchd::wallet::{About, StripeWallet, Wallet, WebhookError, carry_out};
use reqwest::header::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{AMOUNT, CURRENCY, PATIENT, Payment, settings};

const SECRET: &str = "whsec_localstripelocalstripelocal";

/// localstripe and what is paid with there.
pub(super) struct StripeBench {
    pub(super) stripe: LocalStripe,
    pub(super) good_card: String,
}

impl StripeBench {
    pub(super) async fn start() -> Self {
        let stripe = LocalStripe::start().await;
        let good_card = stripe.card(GOOD_CARD).await;
        Self { stripe, good_card }
    }

    pub(super) fn base_url(&self) -> String {
        self.stripe.base_url()
    }

    /// A payload; localstripe knows no automatic payment methods, so it says which.
    #[allow(clippy::unused_self)]
    pub(super) fn pays_with(&self, payment_method: &str) -> Value {
        json!({"stripe": {"payment_method": payment_method, "payment_method_types": ["card"]}, "sku": 7})
    }

    /// How many succeeded.
    pub(super) async fn count(&self, list: &str, key: &str, value: &str) -> u32 {
        let all = self.stripe.with(list, key, value).await;
        let done = all.iter().filter(|one| one["status"] == "succeeded").count();
        u32::try_from(done).expect("a few")
    }
}

/// One payment at a time.
struct Till {
    bench: StripeBench,
    wallet: StripeWallet,
    payments: AtomicU32,
}

impl Till {
    async fn open() -> Self {
        let bench = StripeBench::start().await;
        let wallet = wallet(&bench.base_url(), &[SECRET]);
        Self { bench, wallet, payments: AtomicU32::new(0) }
    }

    /// A charge by this payment method, not made yet.
    fn payment(&self, payment_method: &str) -> Handout {
        let payment = Payment::nth(self.payments.fetch_add(1, Ordering::Relaxed));
        Handout {
            payload: Some(self.bench.pays_with(payment_method)),
            sent_at: Some(clock::now()),
            ..payment.handout(Action::Charge)
        }
    }

    async fn ask(&self, handout: &Handout, action: Action) -> Answer {
        carry_out(&self.wallet, &Handout { action, ..handout.clone() }).await
    }

    async fn is(&self, handout: &Handout, action: Action, outcome: Outcome, code: Option<&str>) -> Answer {
        let answer = self.ask(handout, action).await;
        assert_eq!((answer.outcome, answer.code.as_deref()), (outcome, code), "{action}: {answer:?}");
        answer
    }

    async fn intent(&self, handout: &Handout) -> Value {
        self.bench.stripe.with("payment_intents", "order_no", &handout.order_no).await.remove(0)
    }
}

pub(super) fn wallet(base_url: &str, secrets: &[&str]) -> StripeWallet {
    let settings = EndpointSettings { token: Some(KEY.into()), ..settings(base_url, PATIENT) };
    let secrets: Vec<_> = secrets.iter().map(|secret| Secret::from((*secret).to_owned())).collect();
    StripeWallet::open(&settings, &secrets).expect("the wallet opens")
}

#[tokio::test]
async fn a_declined_card_has_failed_for_good() {
    let till = Till::open().await;
    let declined = till.bench.stripe.card(DECLINED_CARD).await;
    let payment = till.payment(&declined);
    for action in [Action::Charge, Action::QueryCharge] {
        let answer = till.is(&payment, action, Outcome::Failed, Some("card_declined")).await;
        assert_eq!(answer.message.as_deref(), Some("Your card was declined."));
    }
    assert_eq!(till.intent(&payment).await["status"], "canceled", "nobody can pay it with another card");
    assert_eq!(till.bench.count("payment_intents", "order_no", &payment.order_no).await, 0);
}

#[tokio::test]
async fn a_customer_who_must_act_is_waited_for() {
    let till = Till::open().await;
    let careful = till.bench.stripe.card(CAREFUL_CARD).await;
    for (success, outcome, code) in
        [("true", Outcome::Succeeded, None), ("false", Outcome::Failed, Some("payment_intent_authentication_failure"))]
    {
        let payment = till.payment(&careful);
        let answer = till.is(&payment, Action::Charge, Outcome::Processing, Some("requires_action")).await;
        let known = Handout { channel_ref: answer.request_id.clone(), ..payment.clone() };
        till.is(&known, Action::QueryCharge, Outcome::Processing, Some("requires_action")).await;
        let intent = till.intent(&payment).await;
        let path = format!("/v1/payment_intents/{}/_authenticate", answer.request_id.expect("the intent's id"));
        let client_secret = intent["client_secret"].as_str().expect("a secret");
        till.bench.stripe.post(&path, &[("client_secret", client_secret), ("success", success)]).await;
        till.is(&known, Action::QueryCharge, outcome, code).await;
        till.is(&payment, Action::QueryCharge, outcome, code).await;
    }
}

#[tokio::test]
async fn a_debit_that_bounces_later_is_waited_for() {
    let till = Till::open().await;
    let account = till.bench.stripe.account(EMPTY_ACCOUNT).await;
    let payment = till.payment(&account);
    till.is(&payment, Action::Charge, Outcome::Processing, Some("processing")).await;
    // What is under way cannot be canceled.
    assert_eq!(till.ask(&payment, Action::CloseCharge).await.outcome, Outcome::Unknown);
    let failed = eventually("the debit bounces", SOON, async || {
        Some(till.ask(&payment, Action::QueryCharge).await).filter(|answer| answer.outcome != Outcome::Processing)
    });
    let failed = failed.await;
    assert_eq!((failed.outcome, failed.code.as_deref()), (Outcome::Failed, Some("card_declined")));
}

#[tokio::test]
async fn closing_an_unseen_number_uses_up_its_key() {
    let till = Till::open().await;
    let payment = till.payment(&till.bench.good_card);
    for _ in 0..2 {
        till.is(&payment, Action::CloseCharge, Outcome::Closed, Some("closed")).await;
    }
    till.is(&payment, Action::QueryCharge, Outcome::Failed, Some("closed")).await;
    assert_eq!(till.intent(&payment).await["status"], "canceled");
    let made: Vec<_> = till.bench.stripe.proxy().heard().into_iter().filter(|r| r.starts_with("POST")).collect();
    assert!(made[0].contains(&format!("idempotency-key: {}", payment.order_no)), "{}", made[0]);
    assert!(!made[0].contains("confirm"), "{}", made[0]);
    assert_eq!(made.len(), 2, "one intent, canceled once");
}

#[tokio::test]
async fn several_refunds_go_by_their_numbers() {
    let till = Till::open().await;
    let payment = till.payment(&till.bench.good_card);
    let charged = till.is(&payment, Action::Charge, Outcome::Succeeded, None).await;
    let refund = |n: u32, amount: i64, charge_ref: Option<&str>| Handout {
        refund_no: Some(format!("r{n}_{}", payment.order_no)),
        amount,
        charge_ref: charge_ref.map(str::to_owned),
        ..payment.clone()
    };
    for (n, amount, charge_ref) in [(1, 34, charged.request_id.as_deref()), (2, 100, None)] {
        let refund = refund(n, amount, charge_ref);
        till.is(&refund, Action::QueryRefund, Outcome::NotFound, None).await;
        let made = till.is(&refund, Action::Refund, Outcome::Succeeded, None).await;
        let known = Handout { channel_ref: made.request_id.clone(), ..refund.clone() };
        for answer in [
            made,
            till.is(&known, Action::QueryRefund, Outcome::Succeeded, None).await,
            till.is(&refund, Action::QueryRefund, Outcome::Succeeded, None).await,
        ] {
            assert_eq!((answer.order_no.as_ref(), answer.amount), (refund.refund_no.as_ref(), Some(amount)));
            assert!(answer.request_id.as_ref().is_some_and(|id| id.starts_with("re_")), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn currencies_are_counted_as_stripe_counts_them() {
    let till = Till::open().await;
    for (currency, amount, sent) in
        [("JPY", 500, 500), ("ISK", 5, 500), ("UGX", 5, 500), ("KWD", 5120, 5120), ("MGA", 500, 5)]
    {
        let payment = Handout { currency: currency.into(), amount, ..till.payment(&till.bench.good_card) };
        let answer = till.is(&payment, Action::Charge, Outcome::Succeeded, None).await;
        assert_eq!((answer.amount, answer.currency.as_deref()), (Some(amount), Some(currency)));
        assert_eq!(till.intent(&payment).await["amount"], sent, "{currency}");
    }
    let before = till.bench.stripe.proxy().heard().len();
    let fils = Handout { currency: "KWD".into(), amount: 5124, ..till.payment(&till.bench.good_card) };
    till.is(&fils, Action::Charge, Outcome::Failed, Some("amount_not_representable")).await;
    let coins = Handout { currency: "COINS".into(), ..till.payment(&till.bench.good_card) };
    till.is(&coins, Action::Charge, Outcome::Failed, Some("currency_not_supported")).await;
    let nothing = Handout { payload: None, ..till.payment(&till.bench.good_card) };
    till.is(&nothing, Action::Charge, Outcome::Failed, Some("no_payment_method")).await;
    assert_eq!(till.bench.stripe.proxy().heard().len(), before, "nothing was sent");
}

#[tokio::test]
async fn every_request_is_stripes() {
    let till = Till::open().await;
    let payment = till.payment(&till.bench.good_card);
    till.is(&payment, Action::Charge, Outcome::Succeeded, None).await;
    till.is(&payment, Action::Refund, Outcome::Succeeded, None).await;
    let heard = till.bench.stripe.proxy().heard();
    assert!(heard.iter().all(|request| request.contains("stripe-version: 2025-09-30.clover\r\n")), "{heard:?}");
    assert!(heard.iter().all(|request| request.contains(&format!("authorization: Bearer {KEY}\r\n"))), "{heard:?}");
    assert!(heard[0].starts_with("POST /v1/payment_intents HTTP/1.1\r\n"), "{}", heard[0]);
    assert!(heard[0].contains("content-type: application/x-www-form-urlencoded\r\n"), "{}", heard[0]);
    assert!(heard[0].contains(&format!("idempotency-key: {}\r\n", payment.order_no)), "{}", heard[0]);
    let refund_no = payment.refund_no.as_deref().expect("a number");
    assert!(heard.iter().any(|r| r.contains(&format!("idempotency-key: {refund_no}\r\n"))), "{heard:?}");
    // The look-up goes back only as far as it must.
    till.is(&payment, Action::QueryCharge, Outcome::Succeeded, None).await;
    let asked = till.bench.stripe.proxy().heard().pop().expect("a request");
    let since = payment.sent_at.expect("a time").unix_timestamp() - 300;
    assert!(asked.starts_with(&format!("GET /v1/payment_intents?limit=100&created%5Bgte%5D={since} ")), "{asked}");
}

#[tokio::test]
async fn a_long_list_is_read_to_its_end() {
    let till = Till::open().await;
    let payment = till.payment(&till.bench.good_card);
    till.is(&payment, Action::Charge, Outcome::Succeeded, None).await;
    for _ in 0..150 {
        till.bench.stripe.post("/v1/payment_intents", &[("amount", "5"), ("currency", "usd")]).await;
    }
    let unseen = till.payment(&till.bench.good_card);
    let before = till.bench.stripe.proxy().heard().len();
    till.is(&unseen, Action::QueryCharge, Outcome::NotFound, None).await;
    assert_eq!(till.bench.stripe.proxy().heard().len() - before, 2, "two pages");
    till.is(&payment, Action::QueryCharge, Outcome::Succeeded, None).await;
}

/// localstripe signs as Stripe does: another hand's signature, over another hand's body.
#[tokio::test]
async fn its_webhooks_are_taken() {
    let till = Till::open().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind to loopback");
    let url = format!("http://{}/webhooks/card", listener.local_addr().expect("its address"));
    till.bench.stripe.send_events_to(&url, SECRET).await;
    let payment = till.payment(&till.bench.good_card);
    till.is(&payment, Action::Charge, Outcome::Succeeded, None).await;

    let (mut stream, _) = listener.accept().await.expect("localstripe calls");
    let request = read_request(&mut stream).await.expect("a request");
    drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await);
    let (head, body) = request.split_once("\r\n\r\n").expect("head and body");
    let mut headers = HeaderMap::new();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        let name: HeaderName = name.to_ascii_lowercase().parse().expect("a header");
        headers.insert(name, value.parse().expect("its value"));
    }
    let event = till.wallet.verify_webhook(&headers, body.as_bytes(), clock::now()).expect("the signature holds");
    assert_eq!((event.event_type.as_str(), event.about), ("payment_intent.succeeded", About::Charge));
    assert_eq!((event.number.as_ref(), event.status), (Some(&payment.order_no), Some(Outcome::Succeeded)));
    assert_eq!((event.amount, event.currency.as_deref()), (Some(AMOUNT), Some(CURRENCY)));
    let forged = body.replace("1234", "1235");
    let refused = till.wallet.verify_webhook(&headers, forged.as_bytes(), clock::now());
    assert_eq!(refused, Err(WebhookError::BadSignature));
    assert!(till.wallet.capabilities().webhooks);
}
