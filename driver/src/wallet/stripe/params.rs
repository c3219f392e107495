//! What is sent: form fields made of a handout, or why nothing may be sent.
//!
//! The fields are a pure function of what the flow froze at its creation, so a charge that is sent again is sent the
//! same, as Stripe demands of an idempotency key.

use serde::Deserialize;
use serde_json::Value;

use super::amount::{self, Unsayable};
use super::api::{Fields, Why};
use crate::evidence::Handout;

/// Where our numbers stand in the metadata of Stripe's objects.
pub(super) const ORDER_NO: &str = "order_no";
pub(super) const REFUND_NO: &str = "refund_no";

/// `payload.stripe` of a flow: how to charge. A key that is not listed is a mistake, and nothing is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HowToCharge {
    payment_method: Option<String>,
    customer: Option<String>,
    off_session: Option<bool>,
    payment_method_types: Option<Vec<String>>,
    return_url: Option<String>,
    description: Option<String>,
    statement_descriptor_suffix: Option<String>,
    receipt_email: Option<String>,
}

/// Creates the intent and charges it, in one request.
pub(super) fn charge(handout: &Handout) -> Result<Fields, Why> {
    let how = how_to_charge(handout.payload.as_ref())?;
    let payment_method = how.payment_method.ok_or_else(|| {
        refuse("no_payment_method", "payload.stripe.payment_method must name the payment method, as pm_...")
    })?;
    let mut fields = unconfirmed(handout)?;
    let mut add = |name: &str, value: Option<String>| fields.extend(value.map(|value| (name.to_owned(), value)));
    add("confirm", Some("true".to_owned()));
    add("payment_method", Some(payment_method));
    add("customer", how.customer);
    add("off_session", how.off_session.map(|off| off.to_string()));
    match how.payment_method_types {
        Some(types) => {
            for (n, one) in types.into_iter().enumerate() {
                add(&format!("payment_method_types[{n}]"), Some(one));
            }
        }
        None => {
            add("automatic_payment_methods[enabled]", Some("true".to_owned()));
            // Without an address to come back to, a method that sends the customer away cannot be used.
            let redirects = if how.return_url.is_some() { "always" } else { "never" };
            add("automatic_payment_methods[allow_redirects]", Some(redirects.to_owned()));
        }
    }
    add("return_url", how.return_url);
    add("description", how.description);
    add("statement_descriptor_suffix", how.statement_descriptor_suffix);
    add("receipt_email", how.receipt_email);
    Ok(fields)
}

/// Creates an intent that nobody can pay: it uses up the idempotency key, so that a charge under it can never be.
pub(super) fn unconfirmed(handout: &Handout) -> Result<Fields, Why> {
    let amount = amount::to_stripe(handout.amount, &handout.currency).map_err(|why| unsayable(handout, why))?;
    Ok(vec![
        ("amount".to_owned(), amount.to_string()),
        ("currency".to_owned(), handout.currency.to_ascii_lowercase()),
        (format!("metadata[{ORDER_NO}]"), handout.order_no.clone()),
    ])
}

/// Refunds part or all of the charge that `charge_ref` names.
pub(super) fn refund(handout: &Handout, refund_no: &str, charge_ref: &str) -> Result<Fields, Why> {
    let amount = amount::to_stripe(handout.amount, &handout.currency).map_err(|why| unsayable(handout, why))?;
    Ok(vec![
        charged_as(charge_ref),
        ("amount".to_owned(), amount.to_string()),
        (format!("metadata[{REFUND_NO}]"), refund_no.to_owned()),
        (format!("metadata[{ORDER_NO}]"), handout.order_no.clone()),
    ])
}

/// The field that names a charge, by whichever of Stripe's objects it was told as.
pub(super) fn charged_as(charge_ref: &str) -> (String, String) {
    let name = if charge_ref.starts_with("pi_") { "payment_intent" } else { "charge" };
    (name.to_owned(), charge_ref.to_owned())
}

fn how_to_charge(payload: Option<&Value>) -> Result<HowToCharge, Why> {
    match payload.and_then(|payload| payload.get("stripe")) {
        None => Ok(HowToCharge::default()),
        // What is wrong is not quoted: it may be somebody's address.
        Some(how) => HowToCharge::deserialize(how)
            .map_err(|_| refuse("bad_payload", "payload.stripe holds a key or a value that is not as documented")),
    }
}

fn unsayable(handout: &Handout, why: Unsayable) -> Why {
    let Handout { amount, currency, .. } = handout;
    let words = match why {
        Unsayable::Currency => format!("this adapter knows no currency {currency} at Stripe"),
        Unsayable::Amount => {
            format!("Stripe cannot take {amount} minor units of {currency}: it counts in larger steps")
        }
    };
    refuse(why.code(), words)
}

fn refuse(code: &str, message: impl Into<String>) -> Why {
    Why { code: code.to_owned(), message: Some(message.into()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use paylatch_core::outcome::Action;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests::handout;

    fn with(payload: Value) -> Handout {
        Handout { payload: Some(payload), ..handout(1, Action::Charge, Duration::from_secs(1)) }
    }

    fn sent(payload: Value) -> Vec<String> {
        charge(&with(payload)).unwrap().into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_charge_is_confirmed_at_once_and_sends_nobody_away() {
        assert_eq!(
            sent(json!({"stripe": {"payment_method": "pm_1", "customer": "cus_1", "off_session": true}, "sku": 7})),
            [
                "amount=100",
                "currency=cny",
                "metadata[order_no]=sh_1_1",
                "confirm=true",
                "payment_method=pm_1",
                "customer=cus_1",
                "off_session=true",
                "automatic_payment_methods[enabled]=true",
                "automatic_payment_methods[allow_redirects]=never"
            ]
        );
    }

    #[test]
    fn types_and_a_way_back_are_passed_on() {
        let fields = sent(json!({"stripe": {"payment_method": "pm_1", "payment_method_types": ["card", "link"]}}));
        assert_eq!(fields[5..], ["payment_method_types[0]=card", "payment_method_types[1]=link"]);
        let fields = sent(json!({"stripe": {"payment_method": "pm_1", "return_url": "https://shop/back"}}));
        assert_eq!(fields[6..], ["automatic_payment_methods[allow_redirects]=always", "return_url=https://shop/back"]);
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let code = |handout: &Handout| charge(handout).unwrap_err().code;
        assert_eq!(code(&Handout { payload: None, ..with(json!(null)) }), "no_payment_method");
        assert_eq!(code(&with(json!({"stripe": {"customer": "cus_1"}}))), "no_payment_method");
        assert_eq!(code(&with(json!({"stripe": {"payment_methode": "pm_1"}}))), "bad_payload");
        assert_eq!(code(&with(json!({"stripe": {"payment_method": 1}}))), "bad_payload");
        assert_eq!(code(&with(json!({"stripe": []}))), "bad_payload");
        let good = with(json!({"stripe": {"payment_method": "pm_1"}}));
        assert_eq!(code(&Handout { currency: "COINS".into(), ..good.clone() }), "currency_not_supported");
        assert_eq!(code(&Handout { currency: "KWD".into(), amount: 1234, ..good }), "amount_not_representable");
    }

    #[test]
    fn a_refund_names_its_charge_and_both_numbers() {
        let fields = refund(&with(json!(null)), "r_sh_1_1", "pi_1").unwrap();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("payment_intent", "pi_1"),
                ("amount", "100"),
                ("metadata[refund_no]", "r_sh_1_1"),
                ("metadata[order_no]", "sh_1_1")
            ]
        );
        assert_eq!(charged_as("ch_1").0, "charge");
    }
}
