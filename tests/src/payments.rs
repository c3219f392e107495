//! Payments by hand: scenes, flows, and a test that acts as the driver, one claim and one report at a time.

use paylatch_core::outcome::{Action, Outcome};
use serde_json::{Value, json};
use sqlx::{FromRow, PgConnection};

use crate::Database;

/// What an application sees of a flow.
#[derive(Debug, Clone, PartialEq, FromRow)]
pub struct Flow {
    /// Its identity.
    pub flow_id: i64,
    /// Where it stands.
    pub status: String,
    /// What a client is shown.
    pub client_status: String,
    /// Raised by one with every change.
    pub version: i64,
    /// The number the wallet knows.
    pub trade_order_no: String,
    /// The number of its compensation.
    pub refund_order_no: String,
    /// Its money, in minor units.
    pub amount: i64,
    /// As the wallet evidenced.
    pub charged_amount: Option<i64>,
    /// Reserved and succeeded refunds.
    pub refunded_amount: i64,
    /// Why it waits for a person.
    pub frozen_reason: Option<String>,
}

/// One action that the database handed out.
#[derive(Debug, Clone, PartialEq, FromRow)]
#[allow(missing_docs)]
pub struct Handout {
    pub flow_id: i64,
    pub lease_token: i64,
    pub version: i64,
    pub action: String,
    pub channel: String,
    pub scene: String,
    pub business_target: Option<String>,
    pub order_no: String,
    pub refund_no: String,
    pub biz_key: String,
    pub amount: i64,
    pub currency: String,
    pub send_within_ms: i32,
    pub refund_id: Option<i64>,
    pub channel_ref: Option<String>,
    pub charge_ref: Option<String>,
}

/// What became of one piece of evidence, and the next action where one follows at once.
#[derive(Debug, Clone, PartialEq, FromRow)]
#[allow(missing_docs)]
pub struct Verdict {
    pub disposition: String,
    pub status: Option<String>,
    pub frozen_reason: Option<String>,
    pub flow_id: Option<i64>,
    pub refund_id: Option<i64>,
    pub action: Option<String>,
}

impl Handout {
    /// The action, as a word of the vocabulary.
    pub fn action(&self) -> Action {
        self.action.parse().expect("an action of the vocabulary")
    }

    /// Evidence for this action; a success echoes number, amount and currency, a DONE names this attempt.
    pub fn evidence(&self, outcome: Outcome) -> Value {
        let mut evidence = json!({
            "flow_id": self.flow_id, "lease_token": self.lease_token, "action": self.action,
            "outcome": outcome.as_str(), "waited_ms": 0, "took_ms": 1,
        });
        if let Some(refund_id) = self.refund_id {
            evidence["refund_id"] = json!(refund_id);
        }
        match outcome {
            Outcome::Succeeded => {
                let refund = matches!(self.action(), Action::Refund | Action::QueryRefund);
                evidence["order_no"] = json!(if refund { &self.refund_no } else { &self.order_no });
                evidence["amount"] = json!(self.amount);
                evidence["currency"] = json!(self.currency);
                evidence["request_id"] = json!(format!("req-{}", self.lease_token));
            }
            Outcome::Done => evidence["owner"] = json!(self.order_no),
            _ => {}
        }
        evidence
    }
}

/// Claims up to `max` actions with the default lease.
pub async fn claim(session: &mut PgConnection, max: i32) -> Vec<Handout> {
    let claim = sqlx::query_as("select * from paylatch.claim_actions('by-hand', $1)").bind(max);
    claim.fetch_all(session).await.unwrap_or_else(|e| panic!("claim: {e}"))
}

/// Reports evidence; the next actions come leased for 30 s.
pub async fn report(session: &mut PgConnection, evidence: &[Value]) -> Vec<Verdict> {
    let report = sqlx::query_as("select * from paylatch.report_evidence('by-hand', $1, 30000)");
    report.bind(json!(evidence)).fetch_all(session).await.unwrap_or_else(|e| panic!("report: {e}"))
}

impl Database {
    /// One channel and the scenes `shop` (business over HTTP) and `topup` (being charged is all), in a hurry, so that
    /// the leases of tests can be short: a lease must outlast the longest call.
    pub async fn add_scenes(&self) {
        self.execute(
            "insert into paylatch.channel (channel, call_timeout_ms) values ('sim', 2000);
             insert into paylatch.scene (scene, channel, order_prefix, business_mode, business_target, business_timeout_ms)
             values ('shop', 'sim', 'sh', 'http', 'shop', 2000), ('topup', 'sim', 'tp', 'none', null, 2000);",
        )
        .await;
    }

    /// A new flow of 1500 US cents.
    pub async fn create_flow(&self, scene: &str, user: &str, biz_key: &str) -> i64 {
        let create = "select flow_id from paylatch.create_pay_flow($1, $2, $3, 1500, 'USD')";
        let created = sqlx::query_scalar(create).bind(scene).bind(user).bind(biz_key).fetch_one(self.pool()).await;
        created.unwrap_or_else(|e| panic!("create a flow of {scene}: {e}"))
    }

    /// A flow as an application sees it.
    pub async fn flow(&self, flow_id: i64) -> Flow {
        let flow = sqlx::query_as("select * from paylatch.get_pay_flow($1)").bind(flow_id).fetch_one(self.pool());
        flow.await.unwrap_or_else(|e| panic!("flow {flow_id}: {e}"))
    }

    /// Carries a flow of `topup` to BIZ_SUCCESS by hand.
    pub async fn settled_flow(&self, user: &str, biz_key: &str) -> i64 {
        let flow_id = self.create_flow("topup", user, biz_key).await;
        let mut session = self.session().await;
        let handouts = claim(&mut session, 1000).await;
        let handout = handouts.iter().find(|h| h.flow_id == flow_id).expect("the new flow is handed out");
        report(&mut session, &[handout.evidence(Outcome::Succeeded)]).await;
        assert_eq!(self.flow(flow_id).await.status, "BIZ_SUCCESS");
        flow_id
    }
}
