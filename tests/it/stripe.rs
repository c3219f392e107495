//! Payments through Stripe from end to end: real cluster, real daemon, and localstripe, which we did not write.

use hmac::{Hmac, KeyInit, Mac};
use paylatch_tests::daemon::Setup;
use paylatch_tests::localstripe::{CAREFUL_CARD, DECLINED_CARD, GOOD_CARD};
use paylatch_tests::payments::Flow;
use paylatch_tests::process::paylatchd;
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Daemon, Database, LocalStripe, eventually};
use paylatchd::clock;
use paylatchd::simulate::{Fault, Op};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::process::Command;

/// `ride` asks for nothing but the charge; the business of `seat` refuses every number, so its money goes back; `walk`
/// asks again after ten minutes only, so whatever happens sooner was told by a webhook.
const SCENES: &str = "
    create schema app;
    grant usage on schema app to public;
    create function app.seat_execute(order_no text, biz_key text, valid_until timestamptz, payload jsonb)
        returns void language sql as '';
    create function app.seat_fact(biz_key text, order_no text, out fact text, out owner text)
        language sql as $$ select 'REJECTED', null $$;
    insert into paylatch.channel (channel, call_timeout_ms, can_close_charge, resend_window_ms)
    values ('card', 2000, true, 82800000);
    insert into paylatch.scene (scene, channel, order_prefix, business_mode, business_target, business_timeout_ms,
                                retry_base_ms, retry_max_ms, slow_interval_ms)
    values ('ride', 'card', 'rd', 'none', null, 1000, 50, 400, 400),
           ('seat', 'card', 'st', 'sql', 'app.seat', 1000, 50, 400, 400),
           ('walk', 'card', 'wk', 'none', null, 1000, 600000, 600000, 600000);";

const SECRET: &str = "whsec_endtoendendtoendendtoendend";

/// A shop whose wallet is Stripe.
struct Shop {
    // Before the database that it works for.
    daemon: Daemon,
    stripe: LocalStripe,
    db: Database,
}

impl Shop {
    async fn open() -> Self {
        let db = Database::fresh().await;
        db.execute(SCENES).await;
        let stripe = LocalStripe::start().await;
        let secrets = format!("webhook_secrets = [\"{SECRET}\"]");
        let daemon = Setup::of(&db).stripe("card", &stripe.base_url(), &secrets).api("").start().await;
        Self { daemon, stripe, db }
    }

    async fn buy(&self, scene: &str, biz_key: &str, card: &str) -> i64 {
        let payload = json!({"stripe": {"payment_method": card, "payment_method_types": ["card"]}});
        let create = "select flow_id from paylatch.create_pay_flow($1, 'alice', $2, 1500, 'USD', payload => $3)";
        let flow = sqlx::query_scalar(create).bind(scene).bind(biz_key).bind(payload).fetch_one(self.db.pool());
        flow.await.unwrap()
    }

    async fn reaches(&self, flow_id: i64, status: &str) -> Flow {
        eventually(&format!("flow {flow_id} is {status}"), PATIENCE, async || {
            let flow = self.db.flow(flow_id).await;
            (flow.status == status).then_some(flow)
        })
        .await
    }

    /// What Stripe says of the only intent that bears the flow's number.
    async fn intent(&self, flow: &Flow) -> Value {
        let mut intents = self.stripe.with("payment_intents", "order_no", &flow.trade_order_no).await;
        assert_eq!(intents.len(), 1, "{flow:?}: {intents:?}");
        intents.remove(0)
    }

    async fn waits_for_the_customer(&self, flow_id: i64) {
        let code = "select coalesce(last_error_code, '') from paylatch.pay_flow where flow_id = $1";
        eventually("the customer is waited for", PATIENCE, async || {
            (self.text(code, flow_id).await == "requires_action").then_some(())
        })
        .await;
    }

    /// The customer authenticates, or declines to.
    async fn acts(&self, flow_id: i64, success: bool) {
        let intent = self.intent(&self.db.flow(flow_id).await).await;
        let path = format!("/v1/payment_intents/{}/_authenticate", intent["id"].as_str().unwrap());
        let client_secret = intent["client_secret"].as_str().unwrap();
        self.stripe.post(&path, &[("client_secret", client_secret), ("success", &success.to_string())]).await;
    }

    fn door(&self) -> String {
        format!("http://{}/webhooks/card", self.daemon.api_address())
    }

    /// Sends an event that localstripe never sends, signed as Stripe would.
    async fn tell(&self, id: &str, kind: &str, object: &Value) -> StatusCode {
        self.told(id, kind, object, SECRET).await
    }

    async fn told(&self, id: &str, kind: &str, object: &Value, secret: &str) -> StatusCode {
        let now = clock::now().unix_timestamp();
        let body = json!({"id": id, "type": kind, "created": now, "data": {"object": object}}).to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(format!("{now}.{body}").as_bytes());
        let v1: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let request = reqwest::Client::new().post(self.door()).header("stripe-signature", format!("t={now},v1={v1}"));
        request.body(body).send().await.unwrap().status()
    }

    async fn refunds(&self, refund_no: &str) -> Vec<Value> {
        self.stripe.with("refunds", "refund_no", refund_no).await
    }

    async fn text(&self, query: &'static str, flow_id: i64) -> String {
        sqlx::query_scalar(query).bind(flow_id).fetch_one(self.db.pool()).await.unwrap()
    }
}

#[tokio::test]
async fn a_card_that_pays() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(GOOD_CARD).await;
    let flow = shop.reaches(shop.buy("ride", "a", &card).await, "BIZ_SUCCESS").await;
    let intent = shop.intent(&flow).await;
    assert_eq!(
        (&intent["status"], &intent["amount"], &intent["currency"]),
        (&json!("succeeded"), &json!(1500), &json!("usd"))
    );
    let known = "select channel_request_id from paylatch.pay_flow where flow_id = $1";
    assert_eq!(intent["id"], json!(shop.text(known, flow.flow_id).await));
}

#[tokio::test]
async fn a_card_that_is_declined() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(DECLINED_CARD).await;
    let flow = shop.reaches(shop.buy("ride", "a", &card).await, "PAY_FAIL").await;
    assert_eq!(shop.intent(&flow).await["status"], "canceled");
    let code = "select last_error_code from paylatch.pay_flow where flow_id = $1";
    assert_eq!(shop.text(code, flow.flow_id).await, "card_declined");
}

#[tokio::test]
async fn an_answer_that_is_lost() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(GOOD_CARD).await;
    for (fault, key) in
        [(Fault::DropAfter, "a"), (Fault::ErrorAfter, "b"), (Fault::DropBefore, "c"), (Fault::TooMany, "d")]
    {
        shop.stripe.proxy().provoke(Op::Charge, fault, None);
        let flow = shop.reaches(shop.buy("ride", key, &card).await, "BIZ_SUCCESS").await;
        assert_eq!(shop.intent(&flow).await["status"], "succeeded", "charged once, {fault:?}");
    }
}

#[tokio::test]
async fn a_customer_who_must_act() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(CAREFUL_CARD).await;
    let flow_id = shop.buy("ride", "a", &card).await;
    shop.waits_for_the_customer(flow_id).await;
    shop.acts(flow_id, true).await;
    shop.reaches(flow_id, "BIZ_SUCCESS").await;
}

#[tokio::test]
async fn a_customer_who_gives_up() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(CAREFUL_CARD).await;
    let flow_id = shop.buy("ride", "a", &card).await;
    shop.waits_for_the_customer(flow_id).await;
    shop.db.execute(&format!("select paylatch.cancel_pay_flow({flow_id})")).await;
    // The bank still waits for the customer, who declines.
    shop.acts(flow_id, false).await;
    let flow = shop.reaches(flow_id, "PAY_FAIL").await;
    assert_eq!(shop.intent(&flow).await["status"], "canceled");
}

#[tokio::test]
async fn a_business_that_refuses_gives_the_money_back() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(GOOD_CARD).await;
    shop.stripe.proxy().provoke(Op::Refund, Fault::DropAfter, None);
    let flow = shop.reaches(shop.buy("seat", "a", &card).await, "REFUNDED").await;
    assert_eq!(shop.intent(&flow).await["status"], "succeeded");
    let refunds = shop.refunds(&flow.refund_order_no).await;
    assert_eq!(refunds.len(), 1, "refunded once: {refunds:?}");
    assert_eq!(refunds[0]["amount"], 1500);
}

#[tokio::test]
async fn refunds_that_a_person_asks_for() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(GOOD_CARD).await;
    let flow = shop.reaches(shop.buy("ride", "a", &card).await, "BIZ_SUCCESS").await;
    let intent = shop.intent(&flow).await;
    let ask = async |amount: i64| -> (String, Option<String>) {
        let ask = "select outcome, refund_order_no from paylatch.request_refund($1, $2, 'too late')";
        sqlx::query_as(ask).bind(flow.flow_id).bind(amount).fetch_one(shop.db.pool()).await.unwrap()
    };
    for (amount, fault) in [(600, Fault::None), (900, Fault::DropAfter)] {
        shop.stripe.proxy().provoke(Op::Refund, fault, None);
        let (outcome, refund_no) = ask(amount).await;
        let refund_no = refund_no.unwrap();
        assert_eq!(outcome, "reserved");
        eventually(&format!("{refund_no} succeeded"), PATIENCE, async || {
            let status = "select status::text from paylatch.refund where refund_order_no = $1";
            let status: String = sqlx::query_scalar(status).bind(&refund_no).fetch_one(shop.db.pool()).await.unwrap();
            (status == "SUCCEEDED").then_some(())
        })
        .await;
        let made = shop.refunds(&refund_no).await;
        assert_eq!(made.len(), 1, "refunded once, {fault:?}: {made:?}");
        assert_eq!((&made[0]["amount"], &made[0]["payment_intent"]), (&json!(amount), &intent["id"]));
    }
    assert_eq!(ask(1).await, ("over_limit".to_owned(), None));
    let order = "select o.status::text from paylatch.pay_order o join paylatch.pay_flow f using (order_id) where f.flow_id = $1";
    assert_eq!(shop.text(order, flow.flow_id).await, "REFUNDED");
}

#[tokio::test]
async fn a_webhook_tells_sooner_than_the_next_question() {
    let shop = Shop::open().await;
    shop.stripe.send_events_to(&shop.door(), SECRET).await;
    let card = shop.stripe.card(CAREFUL_CARD).await;
    let flow_id = shop.buy("walk", "a", &card).await;
    shop.waits_for_the_customer(flow_id).await;
    shop.acts(flow_id, true).await;
    shop.reaches(flow_id, "BIZ_SUCCESS").await;
    let told = "select string_agg(applied_as, ',') from paylatch.webhook_event where flow_id = $1";
    assert_eq!(shop.text(told, flow_id).await, "woken");
}

/// Neither names our number: the daemon asks Stripe for it.
#[tokio::test]
async fn what_happens_in_the_dashboard_counts() {
    let shop = Shop::open().await;
    let card = shop.stripe.card(GOOD_CARD).await;
    let flow = shop.reaches(shop.buy("ride", "a", &card).await, "BIZ_SUCCESS").await;
    let intent = shop.intent(&flow).await["id"].clone();
    let refund = json!({"id": "re_dashboard", "status": "succeeded", "amount": 400, "currency": "usd", "metadata": {},
                        "payment_intent": intent});
    let dispute = |status: &str| json!({"id": "dp_1", "status": status, "amount": 1100, "currency": "usd", "payment_intent": intent});
    // As long as Stripe does not answer, it is to send the event again.
    shop.stripe.proxy().provoke(Op::QueryCharge, Fault::ErrorBefore, None);
    assert_eq!(shop.tell("evt_1", "refund.updated", &refund).await, StatusCode::SERVICE_UNAVAILABLE);
    for _ in 0..2 {
        assert_eq!(shop.tell("evt_1", "refund.updated", &refund).await, StatusCode::NO_CONTENT);
        assert_eq!(shop.db.flow(flow.flow_id).await.refunded_amount, 400);
    }
    for (id, kind, status, disputed) in
        [("evt_2", "charge.dispute.created", "needs_response", 1100), ("evt_3", "charge.dispute.closed", "won", 0)]
    {
        assert_eq!(shop.tell(id, kind, &dispute(status)).await, StatusCode::NO_CONTENT);
        let now = format!("select disputed_amount from paylatch.pay_flow where flow_id = {}", flow.flow_id);
        assert_eq!(shop.db.value::<i64>(&now).await, disputed, "{status}");
    }
    let known = "select kind::text || ' ' || external_no from paylatch.refund where flow_id = $1";
    assert_eq!(shop.text(known, flow.flow_id).await, "EXTERNAL re_dashboard");
    let forged = shop.told("evt_4", "charge.dispute.closed", &dispute("lost"), "whsec_somebodyelsessomebodyelse").await;
    assert_eq!(forged, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn what_cannot_be_sent_fails_at_once() {
    let shop = Shop::open().await;
    let create = "select flow_id from paylatch.create_pay_flow('ride', 'alice', 'a', 1500, 'USD')";
    let flow_id = sqlx::query_scalar(create).fetch_one(shop.db.pool()).await.unwrap();
    shop.reaches(flow_id, "PAY_FAIL").await;
    let code = "select last_error_code from paylatch.pay_flow where flow_id = $1";
    assert_eq!(shop.text(code, flow_id).await, "no_payment_method");
    let sent = shop.stripe.proxy().heard();
    assert!(sent.iter().all(|request| request.starts_with("GET ")), "{sent:?}");
}

#[tokio::test]
async fn the_doctor_tries_the_key() {
    let db = Database::fresh().await;
    db.execute(SCENES).await;
    let stripe = LocalStripe::start().await;
    let said = async |key: &str| {
        let dir = tempfile::TempDir::new().unwrap();
        let config = dir.path().join("paylatchd.toml");
        let text = format!(
            "[database]\nurl = \"{}\"\n[wallet.card]\nadapter = \"stripe\"\nbase_url = \"{}\"\ntoken = \"{key}\"\n",
            db.url_as("driver"),
            stripe.base_url()
        );
        std::fs::write(&config, text).unwrap();
        let out = Command::new(paylatchd()).arg("doctor").arg("--config").arg(&config).output().await.unwrap();
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
    };
    let taken = said("sk_test_hunter2").await;
    assert!(taken.contains("a test key: no money moves"), "{taken}");
    for key in ["pk_test_hunter2", "sk_live_hunter2", "hunter2"] {
        let refused = said(key).await;
        assert!(refused.contains("wallet.card.") && !refused.contains("hunter2"), "{refused}");
    }
    stripe.proxy().provoke(Op::QueryCharge, Fault::Status, Some(401));
    let refused = said("sk_test_hunter2").await;
    assert!(refused.contains("wallet card") && !refused.contains("hunter2"), "{refused}");
}
