//! Order numbers: pure functions of the row, so that any process computes the same identity after a crash.
//!
//! `trade_order_no = {prefix}_{base36(user)}_{base36(flow_id)}`, a compensation's `refund_order_no` puts `r_` before it,
//! the nth further refund `r{base36(n)}_`, and the nth refund that somebody made elsewhere `x{base36(n)}_`. All stay
//! within `[0-9a-z_]{6,32}`, the narrowest rule among the channels, because a prefix has two or three characters, a user
//! at most 13 and a flow id at most 11. That leaves one character for n behind the longest charge, so 35 refunds of one
//! charge at the least, and millions behind an ordinary one.

use sha2::{Digest, Sha256};

/// Flow ids lie below this, so that they survive a JSON number.
pub const FLOW_ID_END: i64 = 1 << 53;

/// Flow ids of one shard; `shard * SHARD_SPAN + sequence`.
pub const SHARD_SPAN: i64 = 1 << 43;

/// Numbers are no longer than this.
pub const LONGEST: usize = 32;

/// What a number names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// The charge.
    Charge,
    /// The flow's own undo.
    Compensation,
    /// The nth further refund, n from 1.
    Refund(u64),
    /// The nth refund that was made elsewhere, n from 1.
    External(u64),
}

/// What a decoded number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The scene's prefix.
    pub prefix: &'a str,
    /// The user, as encoded by [`user_number`].
    pub user: u64,
    /// The flow.
    pub flow_id: i64,
    /// Which of its numbers it is.
    pub names: Names,
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

/// The number of the `n`th further refund, n from 1; `None` where no such number fits any more.
pub fn nth_refund(trade_order_no: &str, n: u64) -> Option<String> {
    nth('r', trade_order_no, n)
}

/// The number of the `n`th refund that was made elsewhere, n from 1; `None` where no such number fits any more.
pub fn nth_external(trade_order_no: &str, n: u64) -> Option<String> {
    nth('x', trade_order_no, n)
}

fn nth(letter: char, trade_order_no: &str, n: u64) -> Option<String> {
    let mut text = String::with_capacity(LONGEST);
    text.push(letter);
    push_base36(&mut text, n);
    text.push('_');
    text.push_str(trade_order_no);
    (n > 0 && text.len() <= LONGEST).then_some(text)
}

/// Reads any of our numbers; `None` for what was not made here.
pub fn decode(number: &str) -> Option<Decoded<'_>> {
    if !(6..=LONGEST).contains(&number.len()) {
        return None;
    }
    let fields: Vec<&str> = number.split('_').collect();
    let (names, [prefix, user, flow]) = match fields.as_slice() {
        [a, b, c] => (Names::Charge, [*a, *b, *c]),
        [which, a, b, c] => (refund_field(which)?, [*a, *b, *c]),
        _ => return None,
    };
    let flow_id = i64::try_from(base36(flow)?).ok().filter(|id| (1..FLOW_ID_END).contains(id))?;
    is_prefix(prefix).then_some(Decoded { prefix, user: base36(user)?, flow_id, names })
}

fn refund_field(field: &str) -> Option<Names> {
    let nth = |n: &str| base36(n).filter(|n| *n > 0);
    match field.split_at_checked(1)? {
        ("r", "") => Some(Names::Compensation),
        ("r", n) => nth(n).map(Names::Refund),
        ("x", n) => nth(n).map(Names::External),
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
        assert_eq!(nth_refund(&number, 2).unwrap(), "r2_h2r_u6_p1");
        assert_eq!(nth_refund(&number, 10).unwrap(), "ra_h2r_u6_p1");
        assert_eq!(nth_external(&number, 1).unwrap(), "x1_h2r_u6_p1");
        let decoded = decode("ra_h2r_u6_p1").unwrap();
        let expected = Decoded { prefix: "h2r", user: 1086, flow_id: 901, names: Names::Refund(10) };
        assert_eq!(decoded, expected);
    }

    #[test]
    fn the_longest_charge_leaves_room_for_35_refunds() {
        let longest = trade("zzz", &((1u64 << 63) - 1).to_string(), FLOW_ID_END - 1);
        assert_eq!(compensation(&longest).len(), 31);
        assert_eq!(nth_refund(&longest, 35).map(|number| number.len()), Some(LONGEST));
        assert_eq!((nth_refund(&longest, 36), nth_refund(&longest, 0)), (None, None));
        // A ten-digit user of a database that has made a billion payments: more refunds than anybody can ask for.
        let ordinary = trade("h2r", "9999999999", 1_000_000_000);
        assert!(nth_refund(&ordinary, 1_000_000_000).is_some(), "{ordinary}");
        assert!(trade("ab", "0", 1).len() >= 6);
    }

    #[test]
    fn strangers_are_not_decoded() {
        for text in [
            "",
            "abc",
            "h2r_u6",
            "h2r_U6_p1",
            "h2r_u6_0",
            "h2r_u6_0p1",
            "r0_h2r_u6_p1",
            "x_h2r_u6_p1",
            "h2r__p1",
            "r01_h2r_u6_p1",
            "s1_h2r_u6_p1",
            "é1_h2r_u6_p1",
            "_h2r_u6_p1",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn decodes_what_it_made(prefix in "[a-z][a-z0-9]{1,2}", user in ".{0,40}", flow_id in 1i64..FLOW_ID_END, n in 1u64..2000) {
            let number = trade(&prefix, &user, flow_id);
            prop_assert!(number.len() <= 29 && number.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            let decoded = decode(&number).unwrap();
            prop_assert_eq!(decoded, Decoded { prefix: &prefix, user: user_number(&user), flow_id, names: Names::Charge });
            let undo = compensation(&number);
            prop_assert_eq!(decode(&undo).unwrap().names, Names::Compensation);
            if let (Some(again), Some(elsewhere)) = (nth_refund(&number, n), nth_external(&number, n)) {
                prop_assert_eq!(decode(&again).unwrap().names, Names::Refund(n));
                prop_assert_eq!(decode(&elsewhere).unwrap().names, Names::External(n));
            }
        }

        #[test]
        fn never_panics(text in ".{0,64}") {
            let _ = decode(&text);
        }
    }
}
