//! Money: whole minor units of a named currency. No float, anywhere.

use std::str::FromStr;

use iso_currency::Currency;

/// Digits behind the decimal point of an ISO 4217 currency (2 for USD, 0 for JPY, 3 for KWD); `None` for a code that
/// ISO does not list or gives no minor unit.
pub fn minor_unit_digits(code: &str) -> Option<u8> {
    let currency = Currency::from_str(code).ok()?;
    currency.exponent().and_then(|digits| u8::try_from(digits).ok())
}

/// Whether a code has the shape of a currency or custom asset: 3 to 12 of `A-Z0-9`, beginning with a letter.
pub fn is_code(code: &str) -> bool {
    (3..=12).contains(&code.len())
        && code.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
        && code.as_bytes()[0].is_ascii_uppercase()
}

/// `amount` minor units as a person reads them: `format(1250, 2, "USD")` is `12.50 USD`.
pub fn format(amount: i64, digits: u8, code: &str) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    let magnitude = amount.unsigned_abs().to_string();
    let digits = usize::from(digits);
    if digits == 0 {
        return format!("{sign}{magnitude} {code}");
    }
    let padded = format!("{magnitude:0>width$}", width = digits + 1);
    let (whole, fraction) = padded.split_at(padded.len() - digits);
    format!("{sign}{whole}.{fraction} {code}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_follow_iso_4217() {
        for (code, digits) in [("USD", 2), ("EUR", 2), ("JPY", 0), ("VND", 0), ("KWD", 3), ("BHD", 3), ("CLF", 4)] {
            assert_eq!(minor_unit_digits(code), Some(digits), "{code}");
        }
        for code in ["", "usd", "COINS", "XAU", "US$", "XXX"] {
            assert_eq!(minor_unit_digits(code), None, "{code}");
        }
    }

    #[test]
    fn formats_without_floats() {
        assert_eq!(format(5, 2, "USD"), "0.05 USD");
        assert_eq!(format(-5, 2, "USD"), "-0.05 USD");
        assert_eq!(format(250_000, 0, "VND"), "250000 VND");
        assert_eq!(format(1, 3, "KWD"), "0.001 KWD");
        assert_eq!(format(i64::MAX, 2, "USD"), "92233720368547758.07 USD");
        assert_eq!(format(i64::MIN, 2, "USD"), "-92233720368547758.08 USD");
    }

    #[test]
    fn codes_have_one_shape() {
        for good in ["USD", "COINS", "GOLD2", "A23"] {
            assert!(is_code(good), "{good}");
        }
        for bad in ["", "US", "usd", "2AB", "TOOLONGACODEX", "US D", "ÜSD"] {
            assert!(!is_code(bad), "{bad}");
        }
    }
}
