//! Amounts: our minor units (ISO 4217) and the integers that Stripe counts in.
//!
//! Stripe follows neither ISO nor one rule: MGA has no decimals there and two in ISO, ISK and UGX have two there (that
//! must be zero) and none in ISO, and of the three decimals of KWD and its like the last must be zero. An amount is
//! converted exactly or not at all, and a currency that is not in the table is not sent: a factor of a hundred is worse
//! than a refusal. Nothing here knows a float.

use paylatch_core::money;

/// How Stripe counts a currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counting {
    /// Digits behind the decimal point, at Stripe.
    digits: u32,
    /// What Stripe's integer must be a multiple of.
    step: i64,
}

const WHOLE: Counting = Counting { digits: 0, step: 1 };
const CENTS: Counting = Counting { digits: 2, step: 1 };
/// Whole units written with two decimals, for compatibility with Stripe's past.
const WHOLE_AS_CENTS: Counting = Counting { digits: 2, step: 100 };
const MILS: Counting = Counting { digits: 3, step: 10 };

/// What Stripe takes without decimals.
pub(super) const NO_DECIMALS: &[&str] =
    &["BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"];
/// What Stripe takes with two decimals that must be zero.
pub(super) const ZERO_DECIMALS: &[&str] = &["ISK", "UGX"];
/// What Stripe takes with three decimals, the last of which must be zero.
pub(super) const THREE_DECIMALS: &[&str] = &["BHD", "JOD", "KWD", "OMR", "TND"];
/// What Stripe takes with two decimals. HUF and TWD are among them: only payouts have none.
pub(super) const TWO_DECIMALS: &[&str] = &[
    "AED", "AFN", "ALL", "AMD", "AOA", "ARS", "AUD", "AWG", "AZN", "BAM", "BBD", "BDT", "BGN", "BMD", "BND", "BOB",
    "BRL", "BSD", "BWP", "BYN", "BZD", "CAD", "CDF", "CHF", "CNY", "COP", "CRC", "CVE", "CZK", "DKK", "DOP", "DZD",
    "EGP", "ETB", "EUR", "FJD", "FKP", "GBP", "GEL", "GIP", "GMD", "GTQ", "GYD", "HKD", "HNL", "HTG", "HUF", "IDR",
    "ILS", "INR", "JMD", "KES", "KGS", "KHR", "KYD", "KZT", "LAK", "LBP", "LKR", "LRD", "LSL", "MAD", "MDL", "MKD",
    "MMK", "MNT", "MOP", "MUR", "MVR", "MWK", "MXN", "MYR", "MZN", "NAD", "NGN", "NIO", "NOK", "NPR", "NZD", "PAB",
    "PEN", "PGK", "PHP", "PKR", "PLN", "QAR", "RON", "RSD", "RUB", "SAR", "SBD", "SCR", "SEK", "SGD", "SHP", "SLE",
    "SOS", "SRD", "SZL", "THB", "TJS", "TOP", "TRY", "TTD", "TWD", "TZS", "UAH", "USD", "UYU", "UZS", "WST", "XCD",
    "XCG", "YER", "ZAR", "ZMW",
];

/// How Stripe counts `currency` (in capitals); `None` if it takes none of it as far as we know.
fn counting(currency: &str) -> Option<Counting> {
    [(NO_DECIMALS, WHOLE), (TWO_DECIMALS, CENTS), (ZERO_DECIMALS, WHOLE_AS_CENTS), (THREE_DECIMALS, MILS)]
        .into_iter()
        .find_map(|(list, counting)| list.contains(&currency).then_some(counting))
}

/// Why an amount cannot be said in Stripe's integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsayable {
    /// Stripe takes no such currency as far as we know, or ISO gives it no minor unit.
    Currency,
    /// Stripe counts the currency in larger steps.
    Amount,
}

impl Unsayable {
    /// What the evidence says.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Currency => "currency_not_supported",
            Self::Amount => "amount_not_representable",
        }
    }
}

/// Stripe's integer for `amount` minor units of `currency`.
pub(super) fn to_stripe(amount: i64, currency: &str) -> Result<i64, Unsayable> {
    let (ours, theirs) = both(currency).ok_or(Unsayable::Currency)?;
    let converted = rescale(amount, ours, theirs.digits).ok_or(Unsayable::Amount)?;
    if converted % theirs.step == 0 { Ok(converted) } else { Err(Unsayable::Amount) }
}

/// Our minor units for Stripe's integer; `None` where they cannot say it.
pub(super) fn from_stripe(amount: i64, currency: &str) -> Option<i64> {
    let (ours, theirs) = both(currency)?;
    rescale(amount, theirs.digits, ours)
}

fn both(currency: &str) -> Option<(u32, Counting)> {
    Some((u32::from(money::minor_unit_digits(currency)?), counting(currency)?))
}

/// `amount` of `from` digits with `to` digits instead, if that says the same.
fn rescale(amount: i64, from: u32, to: u32) -> Option<i64> {
    let factor = 10_i64.checked_pow(from.abs_diff(to))?;
    if to >= from { amount.checked_mul(factor) } else { (amount % factor == 0).then(|| amount / factor) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static str> {
        [NO_DECIMALS, ZERO_DECIMALS, THREE_DECIMALS, TWO_DECIMALS].concat().into_iter()
    }

    /// The whole table against ISO 4217: each currency is either counted as there, or one of the exceptions, each of
    /// which is written out.
    #[test]
    fn every_currency_is_counted_as_iso_does_or_is_a_known_exception() {
        for currency in all() {
            let iso = money::minor_unit_digits(currency).unwrap_or_else(|| panic!("ISO does not know {currency}"));
            // One whole unit, which every currency can say.
            let unit = 10_i64.pow(u32::from(iso));
            let expected = match currency {
                "MGA" => 1,
                "ISK" | "UGX" => 100,
                _ => unit,
            };
            assert_eq!(to_stripe(unit, currency), Ok(expected), "{currency}");
        }
    }

    #[test]
    fn what_goes_out_comes_back_and_the_rest_is_refused() {
        for currency in all() {
            for amount in 1..=2000 {
                match to_stripe(amount, currency) {
                    Ok(sent) => assert_eq!(from_stripe(sent, currency), Some(amount), "{currency} {amount}"),
                    Err(why) => {
                        assert_eq!(why, Unsayable::Amount, "{currency} {amount}");
                        let step = if currency == "MGA" { 100 } else { 10 };
                        assert!(amount % step != 0 && (currency == "MGA" || THREE_DECIMALS.contains(&currency)));
                    }
                }
            }
        }
    }

    #[test]
    fn lists_are_sorted_and_name_nothing_twice() {
        for list in [NO_DECIMALS, ZERO_DECIMALS, THREE_DECIMALS, TWO_DECIMALS] {
            assert!(list.is_sorted(), "{list:?}");
        }
        let mut every: Vec<_> = all().collect();
        every.sort_unstable();
        every.dedup();
        assert_eq!(every.len(), all().count());
    }

    #[test]
    fn the_examples_of_stripes_own_page() {
        assert_eq!(to_stripe(1000, "USD"), Ok(1000));
        assert_eq!(to_stripe(500, "JPY"), Ok(500));
        assert_eq!(to_stripe(5, "ISK"), Ok(500));
        assert_eq!(to_stripe(5, "UGX"), Ok(500));
        assert_eq!(to_stripe(5120, "KWD"), Ok(5120));
        assert_eq!(to_stripe(5124, "KWD"), Err(Unsayable::Amount));
        assert_eq!(to_stripe(1045, "HUF"), Ok(1045));
        assert_eq!(to_stripe(80_050, "TWD"), Ok(80_050));
        assert_eq!(to_stripe(150, "MGA"), Err(Unsayable::Amount));
    }

    #[test]
    fn a_fraction_that_we_cannot_say_is_no_amount() {
        assert_eq!(from_stripe(550, "ISK"), None);
        assert_eq!(from_stripe(5, "MGA"), Some(500));
        assert_eq!(from_stripe(5124, "KWD"), Some(5124));
    }

    #[test]
    fn strangers_and_overflows_are_refused() {
        for currency in ["", "usd", "XXX", "COINS", "IQD", "CLF"] {
            assert_eq!(to_stripe(100, currency), Err(Unsayable::Currency), "{currency}");
            assert_eq!(from_stripe(100, currency), None, "{currency}");
        }
        assert_eq!(to_stripe(i64::MAX, "ISK"), Err(Unsayable::Amount));
        assert_eq!(from_stripe(i64::MAX, "MGA"), None);
    }
}
