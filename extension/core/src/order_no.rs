//! Order numbers: pure functions of the row, so that any process computes the same identity after a crash.
//!
//! `trade_order_no = {prefix}_{base36(user)}_{base36(flow_id)}`, a compensation's `refund_order_no` puts `r_` before it
//! and an after-sale's `r{n}_`. All stay within `[0-9a-z_]{6,32}`, the narrowest rule among the channels, because a
//! prefix has two or three characters, a user at most 13 and a flow id at most 11.

use sha2::{Digest, Sha256};

/// Flow ids lie below this, so that they survive a JSON number.
pub const FLOW_ID_END: i64 = 1 << 53;

/// Flow ids of one shard; `shard * SHARD_SPAN + sequence`.
pub const SHARD_SPAN: i64 = 1 << 43;

/// What a decoded number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The scene's prefix.
    pub prefix: &'a str,
    /// The user, as encoded by [`user_number`].
    pub user: u64,
    /// The flow.
    pub flow_id: i64,
    /// `None` for a charge, 0 for the compensation, n for the nth after-sale refund.
    pub refund: Option<u32>,
}

/// Whether a scene may use this prefix: a letter, then one or two of `a-z0-9`.
pub fn is_prefix(prefix: &str) -> bool {
    let bytes = prefix.as_bytes();
    (2..=3).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes[1..].iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// A user as a number: a plain decimal below 2^63 is itself, anything else a stable 40-bit hash. Need not be unique,
/// since the flow id alone already is.
pub fn user_number(user_id: &str) -> u64 {
    let plain = user_id == "0" || (!user_id.starts_with('0') && user_id.bytes().all(|b| b.is_ascii_digit()));
    if plain
        && let Ok(number) = user_id.parse::<u64>()
        && number < 1 << 63
    {
        return number;
    }
    let hash = Sha256::digest(user_id.as_bytes());
    hash[..5].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The number of a charge. `flow_id` must be positive and below [`FLOW_ID_END`].
pub fn trade(prefix: &str, user_id: &str, flow_id: i64) -> String {
    let mut text = String::with_capacity(32);
    text.push_str(prefix);
    text.push('_');
    push_base36(&mut text, user_number(user_id));
    text.push('_');
    push_base36(&mut text, flow_id.unsigned_abs());
    text
}

/// The number of a flow's own undo.
pub fn compensation(trade_order_no: &str) -> String {
    format!("r_{trade_order_no}")
}

/// The number of the `n`th after-sale refund, n from 1.
pub fn after_sale(trade_order_no: &str, n: u32) -> String {
    format!("r{n}_{trade_order_no}")
}

/// Reads any of our numbers; `None` for what was not made here.
pub fn decode(number: &str) -> Option<Decoded<'_>> {
    if !(6..=32).contains(&number.len()) {
        return None;
    }
    let fields: Vec<&str> = number.split('_').collect();
    let (refund, [prefix, user, flow]) = match fields.as_slice() {
        [a, b, c] => (None, [*a, *b, *c]),
        [r, a, b, c] => (Some(refund_field(r)?), [*a, *b, *c]),
        _ => return None,
    };
    let flow_id = i64::try_from(base36(flow)?).ok().filter(|id| (1..FLOW_ID_END).contains(id))?;
    is_prefix(prefix).then_some(Decoded { prefix, user: base36(user)?, flow_id, refund })
}

fn refund_field(field: &str) -> Option<u32> {
    match field.strip_prefix('r')? {
        "" => Some(0),
        n if !n.starts_with('0') && n.bytes().all(|b| b.is_ascii_digit()) => n.parse().ok(),
        _ => None,
    }
}

fn push_base36(text: &mut String, mut number: u64) {
    let mut digits = [0u8; 13];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|b| char::from(*b)));
}

/// Canonical base 36 only: lower case, no sign, no leading zero.
fn base36(field: &str) -> Option<u64> {
    let canonical = field == "0" || (!field.starts_with('0') && !field.is_empty());
    let lower = field.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    if canonical && lower { u64::from_str_radix(field, 36).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_worked_example() {
        let number = trade("h2r", "1086", 901);
        assert_eq!(number, "h2r_u6_p1");
        assert_eq!(compensation(&number), "r_h2r_u6_p1");
        assert_eq!(after_sale(&number, 2), "r2_h2r_u6_p1");
        let decoded = decode("r2_h2r_u6_p1").unwrap();
        assert_eq!((decoded.prefix, decoded.user, decoded.flow_id, decoded.refund), ("h2r", 1086, 901, Some(2)));
    }

    #[test]
    fn the_longest_number_fits() {
        let longest = trade("zzz", &((1u64 << 63) - 1).to_string(), FLOW_ID_END - 1);
        assert!(after_sale(&longest, 9).len() <= 32, "{longest}");
        assert!(trade("ab", "0", 1).len() >= 6);
    }

    #[test]
    fn strangers_are_not_decoded() {
        for text in
            ["", "abc", "h2r_u6", "h2r_U6_p1", "h2r_u6_0", "h2r_u6_0p1", "r0_h2r_u6_p1", "x_h2r_u6_p1", "h2r__p1"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn decodes_what_it_made(prefix in "[a-z][a-z0-9]{1,2}", user in ".{0,40}", flow_id in 1i64..FLOW_ID_END) {
            let number = trade(&prefix, &user, flow_id);
            prop_assert!(number.len() <= 29 && number.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            let decoded = decode(&number).unwrap();
            prop_assert_eq!(decoded, Decoded { prefix: &prefix, user: user_number(&user), flow_id, refund: None });
            let undo = compensation(&number);
            prop_assert_eq!(decode(&undo).unwrap().refund, Some(0));
        }

        #[test]
        fn never_panics(text in ".{0,64}") {
            let _ = decode(&text);
        }
    }
}
