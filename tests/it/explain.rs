//! explain() for a support person: whatever state a flow is in, it says whether it was charged, on what evidence,
//! whether the business is done, and what happens next, when, and by whom.

use std::collections::BTreeMap;

use paylatch_core::decide::Reason;
use paylatch_core::flow::Status;
use paylatch_core::outcome::Outcome;
use paylatch_tests::payments::{Handout, claim, report};
use paylatch_tests::{Database, database};
use serde_json::json;
use sqlx::PgConnection;

/// What explain() says, topic and words, in its order.
async fn page(db: &Database, flow_id: i64) -> Vec<(String, String)> {
    let says = sqlx::query_as("select topic, says from paylatch.explain($1)").bind(flow_id).fetch_all(db.pool());
    says.await.unwrap_or_else(|e| panic!("explain {flow_id}: {e}"))
}

/// The same by topic.
async fn explained(db: &Database, flow_id: i64) -> BTreeMap<String, Vec<String>> {
    let mut topics = BTreeMap::<String, Vec<String>>::new();
    for (topic, text) in page(db, flow_id).await {
        topics.entry(topic).or_default().push(text);
    }
    topics
}

/// A flow, and the session of a driver that carries it on.
struct Story {
    db: Database,
    session: PgConnection,
    flow_id: i64,
    handout: Option<Handout>,
}

impl Story {
    async fn of(scene: &str) -> Self {
        let db = Database::fresh().await;
        db.add_scenes().await;
        let flow_id = db.create_flow(scene, "alice", "day-1").await;
        let session = db.session().await;
        Self { db, session, flow_id, handout: None }
    }

    async fn claimed(mut self) -> Self {
        self.handout = claim(&mut self.session, 1).await.pop();
        assert!(self.handout.is_some(), "nothing was due");
        self
    }

    /// The answer to what is out; what follows at once is out then.
    async fn told(self, outcome: Outcome) -> Self {
        self.told_with(outcome, json!({})).await
    }

    async fn told_with(mut self, outcome: Outcome, more: serde_json::Value) -> Self {
        let handout = self.handout.take().expect("an action is out");
        let mut evidence = handout.evidence(outcome);
        for (key, value) in more.as_object().unwrap() {
            evidence[key] = value.clone();
        }
        let next = "select * from paylatch.report_evidence('by-hand', $1, 30000) where action is not null";
        self.handout = sqlx::query_as(next).bind(json!([evidence])).fetch_optional(&mut self.session).await.unwrap();
        self
    }

    /// Whatever is due an hour later is claimed.
    async fn later(mut self) -> Self {
        database::run(&mut self.session, "set paylatch.clock_offset_ms = 3600000").await;
        self.claimed().await
    }

    async fn sql(self, sql: &str) -> Self {
        self.db.execute(&sql.replace("FLOW", &self.flow_id.to_string())).await;
        self
    }

    async fn frozen_by_hand(self, reason: &str) -> Self {
        let freeze = format!(
            "update paylatch.pay_flow set frozen_reason = '{reason}', version = version + 1, last_action = null,
                 last_outcome = null where flow_id = FLOW"
        );
        self.sql(&freeze).await
    }

    /// Charged, the business not yet asked.
    async fn charged() -> Self {
        Self::of("shop").await.claimed().await.told(Outcome::Succeeded).await
    }

    async fn refunding() -> Self {
        Self::charged().await.told(Outcome::Unknown).await.told(Outcome::Rejected).await
    }

    /// Checks state and topics; returns the words.
    async fn stands(&self, status: Status, charged: &str, next: &str) -> BTreeMap<String, Vec<String>> {
        let flow = self.db.flow(self.flow_id).await;
        assert_eq!(flow.status, status.as_str());
        let says = explained(&self.db, self.flow_id).await;
        for topic in ["flow", "charge", "business", "refund", "next", "timeline"] {
            assert!(says.contains_key(topic), "no word about {topic} of a flow that is {status}: {says:#?}");
        }
        for (topic, start) in [("charge", charged), ("next", next)] {
            let text = &says[topic][0];
            assert!(text.starts_with(start), "{topic} of a flow that is {status}: {text:?}, not {start:?}");
        }
        assert!(says["flow"][0].contains(&flow.trade_order_no) && says["flow"][0].contains("15.00 USD"), "{says:#?}");
        let versions = usize::try_from(flow.version).unwrap() + 1;
        assert_eq!(says["timeline"].iter().filter(|line| !line.contains("late answer")).count(), versions);
        says
    }
}

#[tokio::test]
async fn every_state_is_explained() {
    let story = Story::of("shop").await;
    story
        .stands(Status::WaitPay, "not yet: nothing was sent", "the wallet is asked to charge, now, by whichever daemon")
        .await;
    let story = story.claimed().await;
    story
        .stands(Status::Paying, "not known yet: 15.00 USD was sent under sh_", "by-hand is at it: CHARGE is out")
        .await;
    let story = story.told(Outcome::Unknown).await;
    let says = story.stands(Status::Paying, "not known yet", "the wallet is asked about the charge").await;
    assert!(says["charge"][0].ends_with("the wallet, asked to charge, gave no definite answer"), "{says:#?}");
    let story = story.later().await.told(Outcome::Succeeded).await;
    let says = story.stands(Status::Payed, "yes, 15.00 USD was charged", "by-hand is at it").await;
    assert!(says["business"][0].starts_with("not known yet"), "{says:#?}");

    let story = Story::charged().await.told(Outcome::Unknown).await.told(Outcome::Done).await;
    let says = story.stands(Status::BizSuccess, "yes", "nothing: this is final").await;
    assert!(says["business"][0].starts_with("done, by this attempt: the business, asked for the fact, answered DONE"));
    assert_eq!(says["refund"], ["none"]);

    let story = Story::refunding().await;
    let says = story.stands(Status::Refunding, "yes", "by-hand is at it: REFUND is out").await;
    assert!(
        says["business"][0]
            .starts_with("not done by this attempt: the business, asked for the fact, answered REJECTED")
    );
    assert!(says["refund"][0].ends_with(": under way"), "{says:#?}");
    let story = story.told(Outcome::Succeeded).await;
    let says = story.stands(Status::Refunded, "yes", "nothing: this is final").await;
    assert!(says["refund"][0].contains(": given back, the wallet, asked to refund, answered SUCCEEDED"), "{says:#?}");

    let story = Story::of("shop").await.claimed().await.told(Outcome::Failed).await;
    let says = story
        .stands(Status::PayFail, "no: the wallet, asked to charge, answered FAILED", "nothing: this is final")
        .await;
    assert_eq!(says["business"], ["not begun, since nothing was charged"]);
    let story = Story::of("shop").await.sql("select paylatch.cancel_pay_flow(FLOW)").await;
    story.stands(Status::PayFail, "no: it was never sent (cancelled)", "nothing: this is final").await;
    let story = Story::of("topup").await.claimed().await.told(Outcome::Succeeded).await;
    let says = story.stands(Status::BizSuccess, "yes", "nothing: this is final").await;
    assert_eq!(says["business"], ["being charged was the whole business"]);
}

/// Each way in which evidence freezes a flow, and what a person is told.
#[tokio::test]
async fn every_freeze_is_explained() {
    let charging = async |outcome, more| Story::of("shop").await.claimed().await.told_with(outcome, more).await;
    let asked = async || Story::charged().await.told(Outcome::Unknown).await;
    let cases = [
        (charging(Outcome::Succeeded, json!({"amount": 1})).await, Status::Paying, "EVIDENCE_MISMATCH"),
        (charging(Outcome::Conflict, json!({})).await, Status::Paying, "PARAMETER_CONFLICT"),
        (asked().await.told_with(Outcome::Done, json!({"owner": null})).await, Status::Payed, "UNATTRIBUTED"),
        (asked().await.told(Outcome::Contradictory).await, Status::Payed, "BUSINESS_CONTRADICTORY"),
        (Story::refunding().await.told(Outcome::Conflict).await, Status::Refunding, "PARAMETER_CONFLICT"),
        (
            Story::refunding().await.told_with(Outcome::Succeeded, json!({"currency": "EUR"})).await,
            Status::Refunding,
            "EVIDENCE_MISMATCH",
        ),
    ];
    for (story, status, reason) in cases {
        is_explained_frozen(&story, status, reason).await;
    }
    // At the first failure already, at the first question without an answer.
    let strict = "update paylatch.scene set refund_max_failures = 1, max_auto_retries = 1";
    let story = Story::refunding().await.sql(strict).await.told(Outcome::Failed).await;
    is_explained_frozen(&story, Status::Refunding, "REFUND_FAILED").await;
    let story = asked().await.sql(strict).await.told(Outcome::Unknown).await.later().await.told(Outcome::Unknown).await;
    is_explained_frozen(&story, Status::Payed, "BUSINESS_UNRESOLVED").await;
    // Success reported for a branch that was excluded meanwhile.
    let story = Story::refunding().await;
    let late = json!([{"flow_id": story.flow_id, "lease_token": 1, "action": "QUERY_BUSINESS", "outcome": "DONE",
                       "owner": story.db.flow(story.flow_id).await.trade_order_no}]);
    report(&mut story.db.session().await, late.as_array().unwrap()).await;
    is_explained_frozen(&story, Status::Refunding, "EXCLUDED_BRANCH").await;
}

/// Every state that can freeze, with every reason that there is: each has its words.
#[tokio::test]
async fn every_reason_has_words_in_every_state() {
    for mut story in [
        Story::of("shop").await,
        Story::of("shop").await.claimed().await,
        Story::charged().await,
        Story::refunding().await,
    ] {
        let status = story.db.flow(story.flow_id).await.status.parse().unwrap();
        for reason in Reason::ALL {
            story = story.frozen_by_hand(reason.as_str()).await;
            is_explained_frozen(&story, status, reason.as_str()).await;
        }
    }
}

async fn is_explained_frozen(story: &Story, status: Status, reason: &str) {
    let flow = story.db.flow(story.flow_id).await;
    assert_eq!((flow.status.as_str(), flow.frozen_reason.as_deref()), (status.as_str(), Some(reason)));
    let charged = match status {
        Status::WaitPay => "not yet",
        Status::Paying => "not known yet",
        _ => "yes",
    };
    let next = format!("nothing by itself; an operator decides and calls resume_pay_flow({}, why)", story.flow_id);
    let says = story.stands(status, charged, &next).await;
    let attention = &says["attention"][0];
    assert!(
        attention.starts_with("waits for a person: ") && !attention.contains(reason),
        "no words for {reason}: {attention}"
    );
    assert!(says["flow"][0].contains("MANUAL_REVIEW"), "{says:#?}");
}

/// The whole page of one flow, with its times and its number made even.
#[tokio::test]
async fn the_page_of_a_refunded_flow() {
    let story = Story::of("shop").await.claimed().await.told(Outcome::Unknown).await.later().await;
    // It turns out to be charged after its deadline: nothing is executed any more, only asked.
    let story = story.told(Outcome::Succeeded).await.told(Outcome::NotDone).await.told(Outcome::Succeeded).await;
    story.stands(Status::Refunded, "yes", "nothing: this is final").await;
    let order_no = story.db.flow(story.flow_id).await.trade_order_no;
    let lines: Vec<String> = page(&story.db, story.flow_id)
        .await
        .into_iter()
        .map(|(topic, says)| format!("{topic}: {}", without_times(&says.replace(&order_no, "NUMBER"))))
        .collect();
    assert_eq!(lines, PAGE, "\n{}", lines.join("\n"));
}

/// `2026-12-01 03:22:07.199 UTC` becomes `T`.
fn without_times(says: &str) -> String {
    let shape: String = says.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let time = "0000-00-00 00:00:00.000 UTC";
    let mut even = String::new();
    let (mut rest, mut shape) = (says, shape.as_str());
    while let Some(at) = shape.find(time) {
        even += &rest[..at];
        even += "T";
        (rest, shape) = (&rest[at + time.len()..], &shape[at + time.len()..]);
    }
    even + rest
}

const PAGE: &[&str] = &[
    "flow: 1 · NUMBER · attempt 1 of shop day-1 for user alice · 15.00 USD · REFUNDED",
    "charge: yes, 15.00 USD was charged: the wallet, asked about the charge, answered SUCCEEDED, its reference req-2, after 1 ms, at T",
    "business: not done by this attempt: the business, asked for the fact, answered NOT_DONE, after 1 ms, at T",
    "refund: 15.00 USD r_NUMBER (the undo of this payment): given back, the wallet, asked to refund, answered SUCCEEDED, its reference req-4",
    "next: nothing: this is final",
    "timeline: T  v0  WAIT_PAY  by API postgres",
    "timeline: T  v1  WAIT_PAY -> PAYING  by DRIVER by-hand: CHARGE is announced",
    "timeline: T  v2  PAYING  by DRIVER by-hand: the wallet, asked to charge, gave no definite answer, after 1 ms",
    "timeline: T  v3  PAYING -> PAYED  by DRIVER by-hand: the wallet, asked about the charge, answered SUCCEEDED, its reference req-2, after 1 ms",
    "timeline: T  v4  PAYED -> REFUNDING  by DRIVER by-hand: the business, asked for the fact, answered NOT_DONE, after 1 ms",
    "timeline: T  v5  REFUNDING -> REFUNDED  by DRIVER by-hand: the wallet, asked to refund, answered SUCCEEDED, its reference req-4, after 1 ms",
];
