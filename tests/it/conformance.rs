//! One suite for every adapter: whatever the counterparty does, the answer has the right outcome class.
//!
//! A case provokes a situation at the counterparty, makes the call, looks at the class, and then counts effects at the
//! counterparty itself. An adapter joins by one `suite!` line; a counterparty that is no simulator of ours joins by
//! implementing [`Counterparty`]. What no well-formed server does (closing a kept-alive connection under a request,
//! redirecting, never ending) is done by [`canned`] answers.

mod business;
mod canned;
mod ledger;
mod stripe;
mod stripe_canned;
mod wallet;

use std::time::Duration;

use paylatch_core::outcome::Action;
use paylatch_tests::LocalSimulator;
use paylatchd::clock;
use paylatchd::endpoint::EndpointSettings;
use paylatchd::evidence::Handout;
use paylatchd::simulate::{Fault, Op, Rule};

use self::stripe::StripeBench;

const AMOUNT: i64 = 1234;
const CURRENCY: &str = "CNY";

/// Longer than any answer takes on a loaded machine.
const PATIENT: Duration = Duration::from_secs(20);
/// For calls that are meant to run into it.
const HASTY: Duration = Duration::from_millis(200);

/// One payment; each situation gets a new one, so that every act is the first under its number.
#[derive(Debug, Clone)]
struct Payment {
    order_no: String,
    refund_no: String,
    biz_key: String,
}

impl Payment {
    fn nth(n: u32) -> Self {
        Self {
            order_no: format!("sh_1_{n}"),
            refund_no: format!("r_sh_1_{n}"),
            biz_key: format!("streak of day {n} & more"),
        }
    }

    fn handout(&self, action: Action) -> Handout {
        Handout {
            flow_id: 1,
            lease_token: 1,
            version: 1,
            action,
            channel: "sim".into(),
            scene: "shop".into(),
            business_target: Some("shop".into()),
            order_no: self.order_no.clone(),
            refund_no: Some(self.refund_no.clone()),
            merchant_id: "default".into(),
            user_id: "1".into(),
            biz_key: self.biz_key.clone(),
            attempt_no: 1,
            amount: AMOUNT,
            currency: CURRENCY.into(),
            valid_until: Some(clock::now() + Duration::from_secs(600)),
            send_within: Duration::from_secs(20),
            payload: Some(serde_json::json!({"sku": 7})),
            refund_id: None,
            channel_ref: None,
            charge_ref: None,
            sent_at: None,
        }
    }
}

/// How a case makes the other side behave, and what it asks it afterwards.
trait Counterparty {
    /// It keeps the number as an idempotency key: the same act again is the same act.
    const KEEPS_KEYS: bool = true;
    /// What it is asked with.
    fn dressed(&self, handout: Handout) -> Handout {
        handout
    }
    /// The next request of kind `op` meets `fault`.
    async fn provoke(&self, op: Op, fault: Fault, arg: Option<u64>);
    /// How often money was taken.
    async fn charged(&self, payment: &Payment) -> u32;
    /// How often money was given back.
    async fn refunded(&self, payment: &Payment) -> u32;
    /// Who completed the target, and how often the work was done.
    async fn done(&self, payment: &Payment) -> (Option<String>, u32);
    /// Its clock is so much ahead of ours.
    async fn ahead_by(&self, ms: i64);
}

impl Counterparty for LocalSimulator {
    async fn provoke(&self, op: Op, fault: Fault, arg: Option<u64>) {
        let op = serde_json::to_value(op).expect("an op is a word");
        let rule = Rule { arg, ..Rule::new("*", op.as_str().expect("an op is a word"), fault).times(1) };
        self.admin().script(rule).await.expect("the rule is taken");
    }

    async fn charged(&self, payment: &Payment) -> u32 {
        self.effects().await.charge_count(&payment.order_no)
    }

    async fn refunded(&self, payment: &Payment) -> u32 {
        self.effects().await.refund_count(&payment.refund_no)
    }

    async fn done(&self, payment: &Payment) -> (Option<String>, u32) {
        let target = self.effects().await.business.remove(&payment.biz_key);
        target.map_or((None, 0), |target| (target.owner, target.count))
    }

    async fn ahead_by(&self, ms: i64) {
        self.admin().clock_offset(ms).await.expect("the clock is moved");
    }
}

impl Counterparty for StripeBench {
    const KEEPS_KEYS: bool = false;

    fn dressed(&self, handout: Handout) -> Handout {
        Handout { payload: Some(self.pays_with(&self.good_card)), ..handout }
    }

    async fn provoke(&self, op: Op, fault: Fault, arg: Option<u64>) {
        self.stripe.proxy().provoke(op, fault, arg);
    }

    async fn charged(&self, payment: &Payment) -> u32 {
        self.count("payment_intents", "order_no", &payment.order_no).await
    }

    async fn refunded(&self, payment: &Payment) -> u32 {
        self.count("refunds", "refund_no", &payment.refund_no).await
    }

    async fn done(&self, _: &Payment) -> (Option<String>, u32) {
        panic!("a wallet does no business")
    }

    async fn ahead_by(&self, _: i64) {
        panic!("its clock is the machine's")
    }
}

fn settings(base_url: &str, call_timeout: Duration) -> EndpointSettings {
    EndpointSettings {
        base_url: base_url.to_owned(),
        connect_timeout: PATIENT,
        call_timeout,
        token: Some("conformance".into()),
    }
}
