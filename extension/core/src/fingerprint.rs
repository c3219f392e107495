//! The fingerprint of a request: whether two of them ask for the same.
//!
//! SHA-256 over named fields, cut to 16 bytes. Their order does not matter, an absent value is told from an empty one,
//! and every part stands behind its length, so no two different requests give the same bytes. The field [`JSON`] counts
//! by what it means: key order, white space, escapes and the spelling of a number (1, 1.0, 10e-1) do not matter.
//! All other fields count byte for byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The field that is JSON.
pub const JSON: &str = "payload";
/// JSON nested deeper counts byte for byte from there on.
const DEEPEST: usize = 64;

/// 16 bytes that stand for a request.
pub type Fingerprint = [u8; 16];

/// The fingerprint of these fields.
pub fn fingerprint<'a>(fields: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Fingerprint {
    let mut fields: Vec<_> = fields.into_iter().collect();
    fields.sort_unstable();
    let mut bytes = Vec::with_capacity(256);
    for (name, value) in fields {
        put(&mut bytes, name.as_bytes());
        match value {
            None => bytes.push(b'-'),
            Some(text) if name == JSON => {
                bytes.push(b'+');
                json(&mut bytes, text, 0);
            }
            Some(text) => {
                bytes.push(b'+');
                put(&mut bytes, text.as_bytes());
            }
        }
    }
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(&Sha256::digest(&bytes)[..16]);
    fingerprint
}

/// Bytes behind their length.
fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
    bytes.extend_from_slice(part);
}

/// What a JSON text means; text that is none, or too deep, as it stands.
fn json(bytes: &mut Vec<u8>, text: &str, depth: usize) {
    let text = text.trim();
    let before = bytes.len();
    if depth >= DEEPEST || meaning(bytes, text, depth).is_none() {
        bytes.truncate(before);
        bytes.push(b'?');
        put(bytes, text.as_bytes());
    }
}

/// A letter for the kind of value, then the value; nothing where the text is no JSON.
fn meaning(bytes: &mut Vec<u8>, text: &str, depth: usize) -> Option<()> {
    match text.as_bytes().first()? {
        b'{' => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            bytes.push(b'{');
            bytes.extend_from_slice(&(members.len() as u64).to_be_bytes());
            for (name, value) in members {
                put(bytes, name.as_bytes());
                json(bytes, value.get(), depth + 1);
            }
        }
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            bytes.push(b'[');
            bytes.extend_from_slice(&(elements.len() as u64).to_be_bytes());
            for value in elements {
                json(bytes, value.get(), depth + 1);
            }
        }
        b'"' => {
            bytes.push(b'"');
            put(bytes, serde_json::from_str::<String>(text).ok()?.as_bytes());
        }
        b'-' | b'0'..=b'9' => {
            serde_json::from_str::<&RawValue>(text).ok()?;
            let (negative, digits, exponent) = number(text)?;
            bytes.push(if negative { b'm' } else { b'n' });
            put(bytes, digits.as_bytes());
            bytes.extend_from_slice(&exponent.to_be_bytes());
        }
        _ => {
            serde_json::from_str::<&RawValue>(text).ok()?;
            bytes.push(b'w');
            put(bytes, text.as_bytes());
        }
    }
    Some(())
}

/// A number as sign, digits without zeros at either end, and the power of ten of the last of them; exact at any size.
fn number(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_end_matches('0');
    let cut = i64::try_from(all.len() - digits.len()).ok()? - i64::try_from(fraction.len()).ok()?;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some((false, String::new(), 0));
    }
    Some((negative, digits.to_owned(), exponent.checked_add(cut)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &str) -> Fingerprint {
        fingerprint([(JSON, Some(text))])
    }

    #[test]
    fn names_come_in_any_order_and_every_field_counts() {
        let base = fingerprint([("amount", Some("100")), ("currency", Some("USD"))]);
        assert_eq!(base, fingerprint([("currency", Some("USD")), ("amount", Some("100"))]));
        for other in [
            fingerprint([("amount", Some("100")), ("currency", Some("EUR"))]),
            fingerprint([("amount", Some("USD")), ("currency", Some("100"))]),
            fingerprint([("amount", Some("100"))]),
            fingerprint([("amount", Some("100")), ("currency", None)]),
            fingerprint([("amount", Some("100")), ("currency", Some(""))]),
            fingerprint([("amoun", Some("t100")), ("currency", Some("USD"))]),
        ] {
            assert_ne!(base, other);
        }
        // Only the payload is JSON: elsewhere text is text.
        assert_ne!(fingerprint([("biz_key", Some("1"))]), fingerprint([("biz_key", Some("1.0"))]));
    }

    #[test]
    fn json_counts_by_what_it_means() {
        let base = of_json(r#"{"a":1,"b":{"c":[1,2,"x/A"],"d":null}}"#);
        for same in [
            "{ \"b\" : {\"d\":null, \"c\":[1.0, 20e-1, \"x\\/\\u0041\"]},\n\t\"a\":1.00 }",
            r#"{"a":100e-2,"b":{"c":[1,2,"x/A"],"d":null}}"#,
            r#"{"a":7,"a":1,"b":{"c":[1,2,"x/A"],"d":null}}"#, // the last one counts, as in jsonb
        ] {
            assert_eq!(base, of_json(same), "{same}");
        }
        for other in [
            r#"{"a":1,"b":{"c":[2,1,"x/A"],"d":null}}"#,
            r#"{"a":1,"b":{"c":[1,2,"x/A"]}}"#,
            r#"{"a":"1","b":{"c":[1,2,"x/A"],"d":null}}"#,
            r#"{"a":1,"b":{"c":[1,2,"x/a"],"d":null}}"#,
            r#"{"a":1,"b":{"c":[1,[2,"x/A"]],"d":null}}"#,
            r#"{"a":-1,"b":{"c":[1,2,"x/A"],"d":null}}"#,
            r#"{"a":1,"b":{"c":[1,2,"x/A"],"d":false}}"#,
        ] {
            assert_ne!(base, of_json(other), "{other}");
        }
    }

    #[test]
    fn numbers_are_exact_at_any_size() {
        let same = [("0", "-0.00e5"), ("1e3", "1000.0"), ("0.1", "1E-1"), ("-12.50", "-125e-1"), ("1e400", "10e399")];
        for (left, right) in same {
            assert_eq!(of_json(left), of_json(right), "{left} {right}");
        }
        let others =
            [("12345678901234567890123", "12345678901234567890124"), ("1e400", "1e401"), ("10", "1"), ("1", "-1")];
        for (left, right) in others {
            assert_ne!(of_json(left), of_json(right), "{left} {right}");
        }
    }

    #[test]
    fn what_is_no_json_counts_as_it_stands() {
        for text in ["", "{", "{]", "[1,]", "nul", "01", "1e", "\"a", "{\"a\":1}x", "1e99999999999999999999"] {
            assert_eq!(of_json(text), of_json(text));
            assert_ne!(of_json(text), of_json("{\"a\":1}"), "{text}");
        }
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(4000), "]".repeat(4000));
        assert_eq!(of_json(&deep("1")), of_json(&deep("1")));
        assert_ne!(of_json(&deep("1")), of_json(&deep("2")));
    }
}
