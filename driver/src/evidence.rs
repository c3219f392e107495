//! What travels between the database and a counterparty: the handout, the answer, the evidence.
//!
//! A [`Handout`] is one action as the database gave it out. An adapter carries it out and returns an [`Answer`], never
//! an error: whatever happened has an outcome class. [`Evidence`] is the answer as it is reported.
//!
//! Invariant: one bad answer never spoils the batch it is reported in. [`Evidence::new`] is the only way to make one,
//! and it cuts every text to its column, removes what jsonb cannot store, and turns an outcome that the action may not
//! report into UNKNOWN.

use std::fmt;
use std::time::Duration;

use paylatch_core::outcome::{Action, Outcome};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

/// Longest reported code, in characters.
pub const CODE_LIMIT: usize = 64;
/// Longest reported message, in characters.
pub const MESSAGE_LIMIT: usize = 200;
/// Longest reported request id, in characters.
pub const REQUEST_ID_LIMIT: usize = 128;
/// Longest reported echo of a number or owner, in characters: twice the longest number we give out, so that a longer
/// echo still differs from every one of ours after it was cut.
pub const NUMBER_LIMIT: usize = 64;
/// Longest reported currency, in characters.
pub const CURRENCY_LIMIT: usize = 16;

/// One action, as the database handed it out.
#[derive(Clone, PartialEq)]
pub struct Handout {
    /// The flow that it belongs to.
    pub flow_id: i64,
    /// The fencing token of the lease; goes back with the evidence.
    pub lease_token: i64,
    /// The flow's version when the action was handed out.
    pub version: i64,
    /// What to do.
    pub action: Action,
    /// The payment channel: names the wallet.
    pub channel: String,
    /// The scene that the payment is for.
    pub scene: String,
    /// Names the business, for business actions.
    pub business_target: Option<String>,
    /// `trade_order_no`: the charge's identity at the wallet, and the owner's name at the business.
    pub order_no: String,
    /// `refund_order_no`, for refund actions.
    pub refund_no: Option<String>,
    /// Who sells.
    pub merchant_id: String,
    /// Who pays.
    pub user_id: String,
    /// What is paid for, in the business's own terms.
    pub biz_key: String,
    /// Which attempt at that target this is, from 1.
    pub attempt_no: i32,
    /// In the currency's minor unit.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// The business refuses an execution later than this.
    pub valid_until: Option<OffsetDateTime>,
    /// The call may only be sent within this time, counted from the moment the claim was sent.
    pub send_within: Duration,
    /// What the merchant attached; passed on, never read.
    pub payload: Option<serde_json::Value>,
    /// The refund that it belongs to, where that is a row of its own: an after-sale refund, or that of a late charge. Then
    /// `amount` and `refund_no` are the refund's.
    pub refund_id: Option<i64>,
    /// The wallet's own reference of the charge (or, for refund actions, of the refund), as far as it is known.
    pub channel_ref: Option<String>,
    /// The wallet's own reference of the charge, for refund actions.
    pub charge_ref: Option<String>,
    /// When this act was first announced: the provider's memory of the number runs from here.
    pub sent_at: Option<OffsetDateTime>,
}

impl Handout {
    /// What the database decides as one row: the flow, or one refund of it.
    pub const fn row(&self) -> (i64, Option<i64>) {
        (self.flow_id, self.refund_id)
    }
}

/// Leaves out who pays and the payload: neither belongs in a log.
impl fmt::Debug for Handout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handout")
            .field("flow_id", &self.flow_id)
            .field("refund_id", &self.refund_id)
            .field("lease_token", &self.lease_token)
            .field("version", &self.version)
            .field("action", &self.action.as_str())
            .field("channel", &self.channel)
            .field("scene", &self.scene)
            .field("order_no", &self.order_no)
            .field("refund_no", &self.refund_no)
            .field("amount", &self.amount)
            .field("currency", &self.currency)
            .field("valid_until", &self.valid_until)
            .field("send_within", &self.send_within)
            .finish_non_exhaustive()
    }
}

/// What came back from a counterparty, in our terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The class.
    pub outcome: Outcome,
    /// The counterparty's own code, or ours where it gave none.
    pub code: Option<String>,
    /// A few words for people.
    pub message: Option<String>,
    /// The counterparty's name for this exchange.
    pub request_id: Option<String>,
    /// The number that it echoed; for refunds the refund's number.
    pub order_no: Option<String>,
    /// The amount that it echoed.
    pub amount: Option<i64>,
    /// The currency that it echoed.
    pub currency: Option<String>,
    /// The owner of a DONE: the `trade_order_no` that completed the target.
    pub owner: Option<String>,
}

impl Answer {
    /// An answer that is nothing but its class.
    pub const fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            code: None,
            message: None,
            request_id: None,
            order_no: None,
            amount: None,
            currency: None,
            owner: None,
        }
    }

    /// Perhaps executed, and no definite answer.
    pub fn unknown(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some(code.into()), message: Some(message.into()), ..Self::new(Outcome::Unknown) }
    }

    /// Certainly not executed.
    pub fn unavailable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some(code.into()), message: Some(message.into()), ..Self::new(Outcome::Unavailable) }
    }

    /// The send window had passed, so the call was not made.
    pub fn not_sent() -> Self {
        Self::unavailable("not_sent", "the send window had passed")
    }

    /// The same answer as `action` may report it: a class that makes no sense for the action says that the
    /// counterparty was not understood, which is UNKNOWN. Its code keeps what was said.
    pub fn for_action(self, action: Action) -> Self {
        if action.may_report(self.outcome) {
            return self;
        }
        let said = self.code.as_deref().unwrap_or("no code");
        let message = format!("{} is no answer to {action} ({said})", self.outcome);
        let code = format!("unexpected_{}", self.outcome.as_str().to_ascii_lowercase());
        Self { outcome: Outcome::Unknown, code: Some(code), message: Some(message), ..self }
    }
}

/// One element of the array that `paylatch.report_evidence` takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    flow_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_id: Option<i64>,
    lease_token: i64,
    #[serde(serialize_with = "action_word")]
    action: Action,
    #[serde(serialize_with = "outcome_word")]
    outcome: Outcome,
    waited_ms: i32,
    took_ms: i32,
    code: Option<String>,
    message: Option<String>,
    request_id: Option<String>,
    order_no: Option<String>,
    amount: Option<i64>,
    currency: Option<String>,
    owner: Option<String>,
}

impl Evidence {
    /// Makes `answer` reportable as the result of `handout`.
    ///
    /// `waited` runs from the handout's arrival to the start of the request, so that the database can tell from when
    /// on the fact was read at the earliest; `took` is the call's latency.
    pub fn new(handout: &Handout, answer: Answer, waited: Duration, took: Duration) -> Self {
        let answer = answer.for_action(handout.action);
        Self {
            flow_id: handout.flow_id,
            refund_id: handout.refund_id,
            lease_token: handout.lease_token,
            action: handout.action,
            outcome: answer.outcome,
            waited_ms: whole_ms(waited),
            took_ms: whole_ms(took),
            code: fit(answer.code, CODE_LIMIT),
            message: fit(answer.message, MESSAGE_LIMIT),
            request_id: fit(answer.request_id, REQUEST_ID_LIMIT),
            order_no: fit(answer.order_no, NUMBER_LIMIT),
            amount: answer.amount,
            currency: fit(answer.currency, CURRENCY_LIMIT),
            owner: fit(answer.owner, NUMBER_LIMIT),
        }
    }

    /// The flow that it is about.
    pub const fn flow_id(&self) -> i64 {
        self.flow_id
    }

    /// The refund that it is about, where that is a row of its own.
    pub const fn refund_id(&self) -> Option<i64> {
        self.refund_id
    }

    /// The fencing token that it goes back under.
    pub const fn lease_token(&self) -> i64 {
        self.lease_token
    }

    /// What was done.
    pub const fn action(&self) -> Action {
        self.action
    }

    /// What came of it.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The counterparty's own code, or ours where it gave none.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The counterparty's name for the exchange.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

/// The text within `limit` characters, control characters replaced: jsonb refuses NUL, and one refused element would
/// take its whole batch along. Replaced, not dropped, so that a soiled echo never becomes a clean one.
pub(crate) fn fit(text: Option<String>, limit: usize) -> Option<String> {
    text.map(|text| {
        text.chars().take(limit).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    })
}

/// Whole milliseconds, rounded down, within the `int` that the database reads. Rounding down is the safe side for
/// `waited`: the fact is then taken to be read earlier.
fn whole_ms(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

fn action_word<S: Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(action.as_str())
}

fn outcome_word<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.as_str())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn handout(action: Action) -> Handout {
        Handout {
            flow_id: 7,
            lease_token: 9,
            version: 2,
            action,
            channel: "sim".into(),
            scene: "shop".into(),
            business_target: None,
            order_no: "sh_1_7".into(),
            refund_no: None,
            merchant_id: "default".into(),
            user_id: "secret-user".into(),
            biz_key: "b".into(),
            attempt_no: 1,
            amount: 100,
            currency: "CNY".into(),
            valid_until: None,
            send_within: Duration::from_secs(20),
            payload: Some(serde_json::json!({"card": "4242"})),
            refund_id: None,
            channel_ref: None,
            charge_ref: None,
            sent_at: None,
        }
    }

    #[test]
    fn serializes_to_the_element_that_the_database_reads() {
        let answer = Answer {
            order_no: Some("sh_1_7".into()),
            amount: Some(100),
            currency: Some("CNY".into()),
            ..Answer::new(Outcome::Succeeded)
        };
        let evidence =
            Evidence::new(&handout(Action::Charge), answer, Duration::from_micros(1900), Duration::from_millis(12));
        assert_eq!(
            serde_json::to_value(&evidence).unwrap(),
            serde_json::json!({
                "flow_id": 7, "lease_token": 9, "action": "CHARGE", "outcome": "SUCCEEDED", "waited_ms": 1,
                "took_ms": 12, "code": null, "message": null, "request_id": null, "order_no": "sh_1_7",
                "amount": 100, "currency": "CNY", "owner": null
            })
        );
    }

    #[test]
    fn evidence_about_a_refund_says_which() {
        let handout = Handout { refund_id: Some(3), ..handout(Action::Refund) };
        assert_eq!(handout.row(), (7, Some(3)));
        let evidence = Evidence::new(&handout, Answer::new(Outcome::Failed), Duration::ZERO, Duration::ZERO);
        assert_eq!(serde_json::to_value(&evidence).unwrap()["refund_id"], 3);
    }

    #[test]
    fn texts_are_cut_on_characters_and_hold_no_control() {
        let long = "é\0".repeat(300);
        let answer = Answer {
            code: Some(long.clone()),
            request_id: Some(long.clone()),
            order_no: Some("sh_1_7\0".into()),
            ..Answer::unknown("x", long)
        };
        let evidence = Evidence::new(&handout(Action::Charge), answer, Duration::ZERO, Duration::MAX);
        assert_eq!(evidence.code.as_ref().unwrap().chars().count(), CODE_LIMIT);
        assert_eq!(evidence.message.as_ref().unwrap().chars().count(), MESSAGE_LIMIT);
        assert_eq!(evidence.request_id.as_ref().unwrap().chars().count(), REQUEST_ID_LIMIT);
        assert_eq!(evidence.took_ms, i32::MAX);
        assert_ne!(evidence.order_no.as_deref(), Some("sh_1_7"), "a soiled echo stays a wrong one");
        assert!(!serde_json::to_string(&evidence).unwrap().contains("\\u0000"));
    }

    #[test]
    fn an_outcome_that_the_action_may_not_report_is_unknown() {
        for action in Action::ALL {
            for outcome in Outcome::ALL {
                let answer = Answer { code: Some("c".into()), ..Answer::new(*outcome) };
                let evidence = Evidence::new(&handout(*action), answer, Duration::ZERO, Duration::ZERO);
                assert!(action.may_report(evidence.outcome()), "{action} {outcome}");
                let kept = evidence.outcome() == *outcome && evidence.code.as_deref() == Some("c");
                assert_eq!(kept, action.may_report(*outcome), "{action} {outcome}");
            }
        }
    }

    #[test]
    fn debug_shows_neither_user_nor_payload() {
        let shown = format!("{:?}", handout(Action::Charge));
        assert!(!shown.contains("secret-user") && !shown.contains("4242"), "{shown}");
    }
}
