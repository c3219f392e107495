//! API tokens: how they look, how they are made, and what the database keeps of them.
//!
//! `paylatch_`, 40 random characters, 6 that check them. The prefix lets scanners of repositories and logs find a leaked
//! one, the check lets a server refuse a mistyped one without asking the database. Invariant: only the SHA-256 of the
//! whole text leaves this process; 238 random bits need no slow hash.

use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};

const PREFIX: &str = "paylatch_";
const RANDOM: usize = 40;
const CHECK: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A new token.
pub fn generate() -> String {
    let random = Alphanumeric.sample_string(&mut rand::rng(), RANDOM);
    format!("{PREFIX}{random}{}", check(&random))
}

/// Whether `text` can be a token of ours.
pub fn is_well_formed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(PREFIX).filter(|rest| rest.is_ascii()) else { return false };
    rest.len() == RANDOM + CHECK && check(&rest[..RANDOM]) == rest[RANDOM..]
}

/// What the database keeps of a token.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn check(random: &str) -> String {
    let digest = Sha256::digest(random.as_bytes());
    digest.iter().take(CHECK).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_well_formed_and_a_slip_is_not() {
        let token = generate();
        assert_ne!(token, generate());
        assert!(is_well_formed(&token), "{token}");
        assert_eq!(token.len(), PREFIX.len() + RANDOM + CHECK);
        let other = if token.ends_with('a') { "b" } else { "a" };
        for bad in
            [&token[1..], &format!("{}{other}", &token[..token.len() - 1]), &format!("{token}x"), "", "paylatch_é"]
        {
            assert!(!is_well_formed(bad), "{bad}");
        }
        // A known one, so that tokens in use stay valid.
        assert!(is_well_formed(&format!("paylatch_{}{}", "a".repeat(40), check(&"a".repeat(40)))));
        assert_eq!(digest("abc")[..4], [0xba, 0x78, 0x16, 0xbf], "SHA-256");
    }
}
