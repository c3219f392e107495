#![allow(clippy::unwrap_used)]

use futures::future::BoxFuture;
use paylatch_core::outcome::{Action, Outcome};

use super::*;
use crate::wallet::{Capabilities, NullWallet};

/// Panics on a charge, never answers a question, needs two seconds to connect.
struct BadWallet;

impl Wallet for BadWallet {
    fn charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        async { panic!("inside the adapter") }.boxed()
    }
    fn query_charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        futures::future::pending().boxed()
    }
    fn close_charge<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        futures::future::pending().boxed()
    }
    fn refund<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        futures::future::pending().boxed()
    }
    fn query_refund<'a>(&'a self, _: &'a Handout) -> BoxFuture<'a, Answer> {
        futures::future::pending().boxed()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { close_charge: false, webhooks: false }
    }
    fn lead(&self) -> Duration {
        Duration::from_secs(2)
    }
}

pub(crate) fn handout(flow_id: i64, action: Action, send_within: Duration) -> Handout {
    Handout {
        flow_id,
        lease_token: flow_id * 10,
        version: 1,
        action,
        channel: "sim".into(),
        scene: "shop".into(),
        business_target: (!action.is_wallet()).then(|| "shop".into()),
        order_no: format!("sh_1_{flow_id}"),
        refund_no: Some(format!("r_sh_1_{flow_id}")),
        merchant_id: "default".into(),
        user_id: "1".into(),
        biz_key: "b".into(),
        attempt_no: 1,
        amount: 100,
        currency: "CNY".into(),
        valid_until: None,
        send_within,
        payload: Some(serde_json::json!({"secret": 1})),
        refund_id: None,
        channel_ref: None,
        charge_ref: None,
        sent_at: None,
    }
}

async fn carry_out(adapters: &Adapters, action: Action, send_within: Duration, abort: &CancellationToken) -> Carried {
    let now = clock::instant();
    let received = Received { handout: handout(7, action, send_within), asked: now, received: now };
    adapters.carry_out(received, abort).await
}

fn said(carried: &Carried) -> (Outcome, String) {
    let json = serde_json::to_value(&carried.evidence).unwrap();
    (carried.evidence.outcome(), json["code"].as_str().unwrap_or_default().to_owned())
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_counterparty_is_asked_and_counted() {
    let adapters = Adapters::default().with_wallet("sim", Arc::new(NullWallet));
    let carried = carry_out(&adapters, Action::Charge, LONG, &CancellationToken::new()).await;
    assert_eq!(carried.evidence.outcome(), Outcome::Succeeded);
    assert!(carried.handout.payload.is_none(), "a payload is kept no longer than the call");
    let counted = "paylatch_calls_total{action=\"CHARGE\",outcome=\"SUCCEEDED\",target=\"sim\"} 1";
    assert!(adapters.metrics().text(None).contains(counted));
}

#[tokio::test]
async fn too_late_is_not_sent() {
    let adapters = Adapters::default().with_wallet("sim", Arc::new(BadWallet));
    // Two seconds may pass before the request leaves, so a window of one second is too short.
    for window in [Duration::ZERO, Duration::from_secs(1)] {
        let carried = carry_out(&adapters, Action::Charge, window, &CancellationToken::new()).await;
        assert_eq!(said(&carried), (Outcome::Unavailable, "not_sent".into()));
    }
}

#[tokio::test]
async fn a_panic_is_an_answer_too() {
    let adapters = Adapters::default().with_wallet("sim", Arc::new(BadWallet));
    let carried = carry_out(&adapters, Action::Charge, LONG, &CancellationToken::new()).await;
    assert_eq!(said(&carried), (Outcome::Unknown, "adapter_panicked".into()));
}

#[tokio::test]
async fn a_call_given_up_is_unknown() {
    let adapters = Adapters::default().with_wallet("sim", Arc::new(BadWallet));
    let abort = CancellationToken::new();
    abort.cancel();
    let carried = carry_out(&adapters, Action::QueryCharge, LONG, &abort).await;
    assert_eq!(said(&carried), (Outcome::Unknown, "daemon_stopped".into()));
}

#[tokio::test]
async fn nobody_to_call_is_unavailable() {
    let adapters = Adapters::default();
    for action in [Action::Charge, Action::ExecuteBusiness] {
        let carried = carry_out(&adapters, action, LONG, &CancellationToken::new()).await;
        assert_eq!(said(&carried), (Outcome::Unavailable, "no_adapter".into()));
    }
    assert_eq!(adapters.warned.lock().unwrap().len(), 2);
}
