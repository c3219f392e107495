//! What the state of an object at Stripe means for us. Pure.
//!
//! Invariant: FAILED and CLOSED are said of canceled intents only. One that was declined, or never confirmed, can still
//! be paid by whoever holds its client secret, and may even be in the middle of it; that is [`Standing::Payable`], and
//! canceling comes before any such word.

use paylatch_core::outcome::Outcome;

use super::amount;
use super::api::{Intent, Refund, Why, shown};
use super::params::{ORDER_NO, REFUND_NO};
use crate::evidence::Answer;

/// Where an intent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The money was taken.
    Taken,
    /// Stripe, the bank or the customer is still at it.
    Underway,
    /// Nothing was taken, and somebody still could.
    Payable,
    /// Nothing was taken, and nothing will be.
    Canceled,
    /// None of ours ever stands so.
    Strange,
}

pub(super) fn standing(intent: &Intent) -> Standing {
    match intent.status.as_str() {
        "succeeded" => Standing::Taken,
        "processing" | "requires_action" => Standing::Underway,
        "requires_payment_method" | "requires_confirmation" => Standing::Payable,
        "canceled" => Standing::Canceled,
        _ => Standing::Strange,
    }
}

/// What the intent says of the charge `order_no`. `why` is known to whoever saw it fail.
pub(super) fn of_intent(intent: &Intent, order_no: &str, why: Option<Why>) -> Answer {
    let why = why.or_else(|| intent.why());
    let answer = match standing(intent) {
        Standing::Taken => Answer::new(Outcome::Succeeded),
        Standing::Underway => Answer { code: Some(intent.status.clone()), ..Answer::new(Outcome::Processing) },
        Standing::Canceled => {
            why.unwrap_or_else(|| Why { code: "closed".to_owned(), message: None }).answer(Outcome::Failed)
        }
        Standing::Payable => Answer::unknown("still_payable", "declined or never confirmed, and not canceled yet"),
        Standing::Strange => Answer::unknown("unexpected_status", format!("the intent is {}", shown_status(intent))),
    };
    let currency = intent.currency.to_ascii_uppercase();
    let amount = amount::from_stripe(intent.amount_received.unwrap_or(intent.amount), &currency);
    echoing(answer, &intent.id, intent.metadata.get(ORDER_NO), order_no, amount, currency)
}

/// What the refund says of `refund_no`.
pub(super) fn of_refund(refund: &Refund, refund_no: &str) -> Answer {
    let coded = |outcome, code: Option<&str>| Answer { code: code.map(str::to_owned), ..Answer::new(outcome) };
    let answer = match refund.status.as_deref() {
        Some("succeeded") => Answer::new(Outcome::Succeeded),
        Some("pending") => coded(Outcome::Processing, refund.pending_reason.as_deref()),
        Some("requires_action") => coded(Outcome::Processing, Some("requires_action")),
        Some("failed") => coded(Outcome::Failed, refund.failure_reason.as_deref().or(Some("failed"))),
        Some("canceled") => coded(Outcome::Failed, Some("canceled")),
        _ => Answer::unknown("unexpected_status", "the refund's status is none that we know"),
    };
    let currency = refund.currency.to_ascii_uppercase();
    let amount = amount::from_stripe(refund.amount, &currency);
    echoing(answer, &refund.id, refund.metadata.get(REFUND_NO), refund_no, amount, currency)
}

fn echoing(
    answer: Answer,
    id: &str,
    echoed: Option<&String>,
    number: &str,
    amount: Option<i64>,
    currency: String,
) -> Answer {
    // Said of another number it proves nothing about ours; the database compares echoes only where money moved.
    if answer.outcome == Outcome::Failed && echoed.is_none_or(|echoed| echoed != number) {
        return Answer::unknown("wrong_number", "FAILED is said of another number");
    }
    Answer { request_id: Some(id.to_owned()), order_no: echoed.cloned(), amount, currency: Some(currency), ..answer }
}

fn shown_status(intent: &Intent) -> String {
    shown(Some(&intent.status)).unwrap_or_default()
}

/// One answer for everything that bears one number. There is one object as a rule. Should there be several (after
/// Stripe forgot the key), money that moved is named in full, so that moving it twice is seen as a wrong amount; and
/// nothing has failed while any of them has not.
pub(super) fn together(answers: Vec<Answer>) -> Option<Answer> {
    const WEIGHT: [Outcome; 4] = [Outcome::Succeeded, Outcome::Processing, Outcome::Unknown, Outcome::Unavailable];
    let weight = |answer: &Answer| WEIGHT.iter().position(|outcome| *outcome == answer.outcome).unwrap_or(WEIGHT.len());
    let moved = answers
        .iter()
        .filter(|answer| answer.outcome == Outcome::Succeeded)
        .try_fold(0_i64, |sum, answer| sum.checked_add(answer.amount?));
    let answer = answers.into_iter().min_by_key(weight)?;
    Some(if answer.outcome == Outcome::Succeeded { Answer { amount: moved, ..answer } } else { answer })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn intent(more: &Value) -> Intent {
        let mut whole = json!({
            "id": "pi_1", "status": "succeeded", "amount": 1234, "amount_received": 1234, "currency": "usd",
            "metadata": {"order_no": "sh_1_1"}
        });
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn refund(more: &Value) -> Refund {
        let mut whole = json!({
            "id": "re_1", "status": "succeeded", "amount": 500, "currency": "jpy", "metadata": {"refund_no": "r_1"}
        });
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn charged(more: &Value) -> Answer {
        of_intent(&intent(more), "sh_1_1", None)
    }

    #[test]
    fn success_echoes_what_was_received() {
        let answer = charged(&json!({"amount_received": 1233}));
        assert_eq!(answer.outcome, Outcome::Succeeded);
        assert_eq!((answer.order_no.as_deref(), answer.amount), (Some("sh_1_1"), Some(1233)));
        assert_eq!((answer.currency.as_deref(), answer.request_id.as_deref()), (Some("USD"), Some("pi_1")));
        let refunded = of_refund(&refund(&json!({})), "r_1");
        assert_eq!((refunded.outcome, refunded.order_no.as_deref()), (Outcome::Succeeded, Some("r_1")));
        assert_eq!((refunded.amount, refunded.currency.as_deref()), (Some(500), Some("JPY")));
    }

    #[test]
    fn a_success_without_our_number_is_passed_on_as_it_is() {
        assert_eq!(charged(&json!({"metadata": {}})).order_no, None);
        assert_eq!(charged(&json!({"metadata": {"order_no": "x"}})).order_no.as_deref(), Some("x"));
        assert_eq!(charged(&json!({"currency": "isk", "amount_received": 550})).amount, None, "half a krona");
    }

    #[test]
    fn every_status_has_its_class() {
        for (status, outcome) in [
            ("succeeded", Outcome::Succeeded),
            ("processing", Outcome::Processing),
            ("requires_action", Outcome::Processing),
            ("canceled", Outcome::Failed),
            ("requires_payment_method", Outcome::Unknown),
            ("requires_confirmation", Outcome::Unknown),
            ("requires_capture", Outcome::Unknown),
            ("something_new", Outcome::Unknown),
        ] {
            assert_eq!(charged(&json!({"status": status})).outcome, outcome, "{status}");
        }
        for (status, outcome) in [
            (json!("succeeded"), Outcome::Succeeded),
            (json!("pending"), Outcome::Processing),
            (json!("requires_action"), Outcome::Processing),
            (json!("failed"), Outcome::Failed),
            (json!("canceled"), Outcome::Failed),
            (json!("something_new"), Outcome::Unknown),
            (json!(null), Outcome::Unknown),
        ] {
            assert_eq!(of_refund(&refund(&json!({"status": status})), "r_1").outcome, outcome, "{status}");
        }
    }

    #[test]
    fn a_failure_says_why_and_is_never_another_numbers() {
        let error = json!({"code": "card_declined", "decline_code": "lost_card", "message": "No."});
        let answer = charged(&json!({"status": "canceled", "last_payment_error": error}));
        assert_eq!((answer.code.as_deref(), answer.message.as_deref()), (Some("lost_card"), Some("No.")));
        assert_eq!(charged(&json!({"status": "canceled"})).code.as_deref(), Some("closed"));
        let other = charged(&json!({"status": "canceled", "metadata": {"order_no": "sh_1_2"}}));
        assert_eq!((other.outcome, other.code.as_deref()), (Outcome::Unknown, Some("wrong_number")));
        let failed = json!({"status": "failed", "failure_reason": "expired_or_canceled_card"});
        assert_eq!(of_refund(&refund(&failed), "r_1").code.as_deref(), Some("expired_or_canceled_card"));
        assert_eq!(of_refund(&refund(&failed), "r_2").outcome, Outcome::Unknown);
    }

    #[test]
    fn money_that_moved_twice_is_a_wrong_amount() {
        let once = || charged(&json!({}));
        let failed = || charged(&json!({"status": "canceled"}));
        let underway = || charged(&json!({"status": "processing"}));
        assert_eq!(together(vec![]), None);
        assert_eq!(together(vec![failed(), once()]).unwrap().amount, Some(1234));
        assert_eq!(together(vec![once(), once()]).unwrap().amount, Some(2468));
        assert_eq!(together(vec![failed(), underway()]).unwrap().outcome, Outcome::Processing);
        assert_eq!(together(vec![failed(), Answer::unknown("a", "b")]).unwrap().outcome, Outcome::Unknown);
        assert_eq!(together(vec![failed(), failed()]).unwrap().outcome, Outcome::Failed);
    }
}
