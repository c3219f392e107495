//! The wallet suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::LocalSimulator;
use paylatch_tests::eventually;
use paylatch_tests::localstripe::KEY;
use paylatch_tests::proxy::SLOW;
use paylatch_tests::wait::SOON;
use paylatchd::endpoint::EndpointSettings;
use paylatchd::evidence::{Answer, Handout};
use paylatchd::simulate::{Fault, Op};
use paylatchd::wallet::{self, NullWallet, Wallet, WalletAdapter, WebhookError, carry_out};
use reqwest::header::HeaderMap;

use super::stripe::StripeBench;
use super::{AMOUNT, CURRENCY, Counterparty, HASTY, PATIENT, Payment, settings};

/// One adapter before one counterparty.
struct Bench<C> {
    counterparty: C,
    patient: Arc<dyn Wallet>,
    hasty: Arc<dyn Wallet>,
    payments: AtomicU32,
}

/// One payment on a bench.
struct Case<'a, C> {
    bench: &'a Bench<C>,
    payment: Payment,
}

impl Bench<LocalSimulator> {
    async fn before_simulator(adapter: WalletAdapter) -> Self {
        let counterparty = LocalSimulator::start().await;
        let open = |call_timeout| {
            let settings = settings(&counterparty.base_url(), call_timeout);
            wallet::open(adapter, Some(&settings), &[]).expect("the adapter opens")
        };
        Self { patient: open(PATIENT), hasty: open(HASTY), payments: AtomicU32::new(0), counterparty }
    }
}

impl Bench<StripeBench> {
    async fn before_localstripe() -> Self {
        let counterparty = StripeBench::start().await;
        let open = |call_timeout| {
            let settings =
                EndpointSettings { token: Some(KEY.into()), ..settings(&counterparty.base_url(), call_timeout) };
            wallet::open(WalletAdapter::Stripe, Some(&settings), &[]).expect("the adapter opens")
        };
        // Long enough for the look-up before an act, and less than the proxy's idea of slow.
        Self { patient: open(PATIENT), hasty: open(SLOW / 2), payments: AtomicU32::new(0), counterparty }
    }
}

impl<C: Counterparty> Bench<C> {
    fn case(&self) -> Case<'_, C> {
        let payment = Payment::nth(self.payments.fetch_add(1, Ordering::Relaxed));
        Case { bench: self, payment }
    }

    /// A payment that `action` can be tried on: a refund needs its charge.
    async fn case_for(&self, action: Action) -> Case<'_, C> {
        let case = self.case();
        if matches!(action, Action::Refund | Action::QueryRefund) {
            case.succeeds(Action::Charge).await;
        }
        case
    }
}

impl<C: Counterparty> Case<'_, C> {
    fn handout(&self, action: Action) -> Handout {
        self.bench.counterparty.dressed(self.payment.handout(action))
    }

    async fn ask(&self, action: Action) -> Answer {
        self.ask_about(&self.handout(action)).await
    }

    async fn ask_about(&self, handout: &Handout) -> Answer {
        carry_out(&*self.bench.patient, handout).await
    }

    async fn is(&self, action: Action, outcome: Outcome) -> Answer {
        let answer = self.ask(action).await;
        assert_eq!(answer.outcome, outcome, "{action}: {answer:?}");
        answer
    }

    /// `action` answers SUCCEEDED and echoes all that it must.
    async fn succeeds(&self, action: Action) -> Answer {
        let answer = self.is(action, Outcome::Succeeded).await;
        self.echoes(action, &answer);
        answer
    }

    fn echoes(&self, action: Action, answer: &Answer) {
        let number = match action {
            Action::Refund | Action::QueryRefund => &self.payment.refund_no,
            _ => &self.payment.order_no,
        };
        let echo = (answer.order_no.as_deref(), answer.amount, answer.currency.as_deref());
        assert_eq!(echo, (Some(number.as_str()), Some(AMOUNT), Some(CURRENCY)), "{action}: {answer:?}");
    }

    /// The answer to `action`, its next request meeting `fault`. What outlasts the hasty adapter is asked by that.
    async fn provoked(&self, action: Action, fault: Fault, arg: Option<u64>) -> Answer {
        self.bench.counterparty.provoke(op(action), fault, arg).await;
        let outlasts = matches!(fault, Fault::Trickle | Fault::Slow);
        let wallet = if outlasts { &self.bench.hasty } else { &self.bench.patient };
        carry_out(&**wallet, &self.handout(action)).await
    }

    async fn provoked_is(&self, action: Action, fault: Fault, arg: Option<u64>, outcome: Outcome) -> Answer {
        let answer = self.provoked(action, fault, arg).await;
        assert_eq!(answer.outcome, outcome, "{action} with {fault:?}: {answer:?}");
        answer
    }

    async fn count(&self, action: Action) -> u32 {
        match action {
            Action::Refund | Action::QueryRefund => self.bench.counterparty.refunded(&self.payment).await,
            _ => self.bench.counterparty.charged(&self.payment).await,
        }
    }
}

fn op(action: Action) -> Op {
    match action {
        Action::Charge => Op::Charge,
        Action::QueryCharge => Op::QueryCharge,
        Action::CloseCharge => Op::CloseCharge,
        Action::Refund => Op::Refund,
        Action::QueryRefund => Op::QueryRefund,
        other => panic!("{other} is no wallet action"),
    }
}

/// Each act with the question about it.
const ACTS: [(Action, Action); 2] = [(Action::Charge, Action::QueryCharge), (Action::Refund, Action::QueryRefund)];

macro_rules! suite {
    ($adapter:ident = $bench:expr; $($case:ident)+) => {
        mod $adapter {
            #[allow(unused_imports)]
            use super::{Bench, WalletAdapter};

            $(#[tokio::test]
            async fn $case() {
                super::$case($bench.await).await;
            })+
        }
    };
}

macro_rules! suites {
    ($($adapter:ident = $which:ident),+) => {
        $(suite! { $adapter = Bench::before_simulator(WalletAdapter::$which);
            success_echoes_number_amount_and_currency
            the_same_number_has_one_effect
            other_parameters_conflict
            a_lost_answer_is_unknown_and_the_question_finds_one_effect
            without_effect_the_question_finds_nothing
            certainly_not_executed_is_unavailable
            a_refused_charge_stays_refused
            a_refused_refund_may_be_tried_again
            processing_ends
            a_late_effect_is_found_in_the_end
            a_closed_number_is_never_charged
            closing_tells_of_a_payment
            a_lying_close_is_found_out_by_asking
            a_close_without_answer_is_unknown
            wrong_echoes_are_passed_on
            a_question_without_answer_is_unknown
            a_false_not_found_is_passed_on
            refunds_stay_within_their_charge
            a_refund_without_number_is_not_sent
            webhooks_need_a_secret
        })+
    };
}

suites! { http = Http, sim = Sim }

// As far as localstripe goes; docs/stripe.md lists what it cannot show, and stripe_canned.rs shows that.
suite! { stripe = Bench::before_localstripe();
    success_echoes_number_amount_and_currency
    a_lost_answer_is_unknown_and_the_question_finds_one_effect
    without_effect_the_question_finds_nothing
    certainly_not_executed_is_unavailable
    closing_tells_of_a_payment
    a_close_without_answer_is_unknown
    a_question_without_answer_is_unknown
    a_refund_without_number_is_not_sent
}

async fn success_echoes_number_amount_and_currency(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    for (act, question) in ACTS {
        for action in [act, question] {
            let answer = case.succeeds(action).await;
            assert!(answer.request_id.is_some(), "{answer:?}");
        }
        assert_eq!(case.count(act).await, 1);
    }
}

async fn the_same_number_has_one_effect(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    for (act, _) in ACTS {
        for _ in 0..5 {
            case.succeeds(act).await;
        }
        assert_eq!(case.count(act).await, 1);
    }
}

async fn other_parameters_conflict(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    for (act, question) in ACTS {
        case.succeeds(act).await;
        let other_amount = Handout { amount: AMOUNT - 1, ..case.handout(act) };
        let other_currency = Handout { currency: "USD".into(), ..case.handout(act) };
        for other in [other_amount, other_currency] {
            let answer = case.ask_about(&other).await;
            assert_eq!(answer.outcome, Outcome::Conflict, "{answer:?}");
        }
        case.succeeds(question).await;
        assert_eq!(case.count(act).await, 1);
    }
}

async fn a_lost_answer_is_unknown_and_the_question_finds_one_effect<C: Counterparty>(bench: Bench<C>) {
    for (act, question) in ACTS {
        for (fault, arg) in [
            (Fault::DropAfter, None),
            (Fault::ErrorAfter, None),
            (Fault::Truncate, None),
            (Fault::Garbage, None),
            (Fault::Trickle, Some(20)),
            (Fault::Oversized, None),
            (Fault::Slow, Some(400)),
        ] {
            let case = bench.case_for(act).await;
            case.provoked_is(act, fault, arg, Outcome::Unknown).await;
            let what = format!("the effect of {act} with {fault:?}");
            eventually(&what, SOON, async || (case.count(act).await == 1).then_some(())).await;
            case.succeeds(question).await;
            if C::KEEPS_KEYS {
                case.succeeds(act).await;
            }
            assert_eq!(case.count(act).await, 1, "{act} {fault:?}");
        }
    }
}

async fn without_effect_the_question_finds_nothing(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        for (fault, arg) in [
            (Fault::DropBefore, None),
            (Fault::ErrorBefore, None),
            (Fault::Status, Some(418)),
            (Fault::Status, Some(400)),
            (Fault::Status, Some(401)),
            (Fault::Status, Some(404)),
            (Fault::Status, Some(302)),
            (Fault::Status, Some(503)),
            (Fault::Status, Some(204)),
        ] {
            let case = bench.case_for(act).await;
            case.provoked_is(act, fault, arg, Outcome::Unknown).await;
            case.is(question, Outcome::NotFound).await;
            assert_eq!(case.count(act).await, 0, "{act} {fault:?}");
        }
    }
}

async fn certainly_not_executed_is_unavailable(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        let case = bench.case_for(act).await;
        case.provoked_is(act, Fault::TooMany, None, Outcome::Unavailable).await;
        case.provoked_is(question, Fault::TooMany, None, Outcome::Unavailable).await;
        case.is(question, Outcome::NotFound).await;
        assert_eq!(case.count(act).await, 0);
    }
}

async fn a_refused_charge_stays_refused(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    let answer = case.provoked_is(Action::Charge, Fault::Refuse, None, Outcome::Failed).await;
    assert!(answer.code.is_some(), "{answer:?}");
    case.is(Action::QueryCharge, Outcome::Failed).await;
    case.is(Action::Charge, Outcome::Failed).await;
    assert_eq!(case.count(Action::Charge).await, 0);
}

async fn a_refused_refund_may_be_tried_again(bench: Bench<impl Counterparty>) {
    let case = bench.case_for(Action::Refund).await;
    case.provoked_is(Action::Refund, Fault::Refuse, None, Outcome::Failed).await;
    case.is(Action::QueryRefund, Outcome::Failed).await;
    assert_eq!(case.count(Action::Refund).await, 0);
    case.succeeds(Action::Refund).await;
    assert_eq!(case.count(Action::Refund).await, 1);
}

async fn processing_ends(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        let case = bench.case_for(act).await;
        case.provoked_is(act, Fault::Processing, Some(2), Outcome::Processing).await;
        case.is(act, Outcome::Processing).await;
        case.is(question, Outcome::Processing).await;
        case.is(question, Outcome::Processing).await;
        assert_eq!(case.count(act).await, 0);
        case.succeeds(question).await;
        assert_eq!(case.count(act).await, 1);
    }
}

async fn a_late_effect_is_found_in_the_end(bench: Bench<impl Counterparty>) {
    const LATE_MS: i64 = 3_600_000;
    for (act, question) in ACTS {
        bench.counterparty.ahead_by(0).await;
        let case = bench.case_for(act).await;
        case.provoked_is(act, Fault::LateEffect, Some(LATE_MS.unsigned_abs()), Outcome::Unknown).await;
        case.is(question, Outcome::NotFound).await;
        // "Already in progress" is neither a failure nor a conflict.
        let answer = case.is(act, Outcome::Processing).await;
        assert_eq!(answer.code.as_deref(), Some("in_progress"));
        bench.counterparty.ahead_by(LATE_MS).await;
        case.succeeds(question).await;
        assert_eq!(case.count(act).await, 1);
    }
}

async fn a_closed_number_is_never_charged(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    case.is(Action::CloseCharge, Outcome::Closed).await;
    case.is(Action::CloseCharge, Outcome::Closed).await;
    for action in [Action::Charge, Action::QueryCharge] {
        let answer = case.is(action, Outcome::Failed).await;
        assert_eq!(answer.code.as_deref(), Some("closed"));
    }
    let case = bench.case();
    case.provoked_is(Action::Charge, Fault::Processing, None, Outcome::Processing).await;
    case.is(Action::CloseCharge, Outcome::Closed).await;
    case.is(Action::QueryCharge, Outcome::Failed).await;
    assert_eq!(case.count(Action::Charge).await, 0);
}

async fn closing_tells_of_a_payment(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    case.succeeds(Action::Charge).await;
    case.succeeds(Action::CloseCharge).await;
    case.succeeds(Action::QueryCharge).await;
}

async fn a_lying_close_is_found_out_by_asking(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    case.succeeds(Action::Charge).await;
    case.provoked_is(Action::CloseCharge, Fault::CloseLies, None, Outcome::Closed).await;
    case.succeeds(Action::QueryCharge).await;
}

async fn a_close_without_answer_is_unknown(bench: Bench<impl Counterparty>) {
    for fault in [Fault::DropBefore, Fault::DropAfter, Fault::ErrorAfter, Fault::Truncate, Fault::Conflict] {
        let case = bench.case();
        case.provoked_is(Action::CloseCharge, fault, None, Outcome::Unknown).await;
        case.is(Action::CloseCharge, Outcome::Closed).await;
    }
}

async fn wrong_echoes_are_passed_on(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        let case = bench.case_for(act).await;
        for action in [act, question] {
            let amount = case.provoked_is(action, Fault::WrongAmount, None, Outcome::Succeeded).await.amount;
            assert!(amount.is_some_and(|amount| amount != AMOUNT), "{amount:?}");
            let currency = case.provoked_is(action, Fault::WrongCurrency, None, Outcome::Succeeded).await.currency;
            assert!(currency.as_deref().is_some_and(|currency| currency != CURRENCY), "{currency:?}");
            let number = case.provoked_is(action, Fault::WrongNumber, None, Outcome::Succeeded).await.order_no;
            assert_eq!(number.as_deref(), Some("other_number_0"));
        }
        assert_eq!(case.count(act).await, 1);
    }
}

async fn a_question_without_answer_is_unknown(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        let case = bench.case_for(act).await;
        case.succeeds(act).await;
        for fault in [
            Fault::DropBefore,
            Fault::DropAfter,
            Fault::ErrorBefore,
            Fault::Status,
            Fault::Conflict,
            Fault::Garbage,
            Fault::Truncate,
            Fault::Oversized,
        ] {
            case.provoked_is(question, fault, None, Outcome::Unknown).await;
        }
        case.succeeds(question).await;
    }
}

async fn a_false_not_found_is_passed_on(bench: Bench<impl Counterparty>) {
    for (act, question) in ACTS {
        let case = bench.case_for(act).await;
        case.succeeds(act).await;
        case.provoked_is(question, Fault::NotFound, None, Outcome::NotFound).await;
        // The same status without a readable body may come from anyone on the way.
        case.provoked_is(question, Fault::Status, Some(404), Outcome::Unknown).await;
        case.succeeds(question).await;
    }
}

async fn refunds_stay_within_their_charge(bench: Bench<impl Counterparty>) {
    let case = bench.case();
    case.is(Action::Refund, Outcome::Failed).await;
    case.succeeds(Action::Charge).await;
    let too_much = Handout { amount: AMOUNT + 1, refund_no: Some("r2_sh_1_0".into()), ..case.handout(Action::Refund) };
    assert_eq!(case.ask_about(&too_much).await.outcome, Outcome::Failed);
    assert_eq!(case.count(Action::Refund).await, 0);
}

async fn a_refund_without_number_is_not_sent(bench: Bench<impl Counterparty>) {
    let case = bench.case_for(Action::Refund).await;
    for action in [Action::Refund, Action::QueryRefund] {
        let nameless = Handout { refund_no: None, ..case.handout(action) };
        assert_eq!(case.ask_about(&nameless).await.outcome, Outcome::Unavailable);
    }
    assert_eq!(case.count(Action::Refund).await, 0);
}

async fn webhooks_need_a_secret(bench: Bench<impl Counterparty>) {
    assert!(!bench.patient.capabilities().webhooks);
    let verified = bench.patient.verify_webhook(&HeaderMap::new(), b"{}", paylatchd::clock::now());
    assert_eq!(verified, Err(WebhookError::NotSupported));
}

/// It has no counterparty that could misbehave; what is left of the suite is the echo.
#[tokio::test]
async fn null_echoes_at_once() {
    let payment = Payment::nth(0);
    for action in [Action::Charge, Action::QueryCharge, Action::Refund, Action::QueryRefund] {
        let answer = carry_out(&NullWallet, &payment.handout(action)).await;
        let number = if action.as_str().ends_with("REFUND") { &payment.refund_no } else { &payment.order_no };
        assert_eq!(answer.outcome, Outcome::Succeeded);
        assert_eq!(answer.order_no.as_ref(), Some(number));
        assert_eq!((answer.amount, answer.currency.as_deref()), (Some(AMOUNT), Some(CURRENCY)));
    }
}

#[tokio::test]
async fn a_business_action_is_not_sent_to_a_wallet() {
    let answer = carry_out(&NullWallet, &Payment::nth(0).handout(Action::ExecuteBusiness)).await;
    assert_eq!(answer.outcome, Outcome::Unavailable);
}
