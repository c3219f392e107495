//! Signatures of webhooks, in and out: the scheme of Standard Webhooks, <https://www.standardwebhooks.com>.
//!
//! A message carries `webhook-id`, `webhook-timestamp` (Unix seconds) and `webhook-signature`: `v1,` and the base64 of
//! HMAC-SHA256 over `id.timestamp.body`, several of them apart by spaces while a secret is being replaced. A secret is
//! written `whsec_` and base64. Comparison takes the same time whatever differs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How a secret begins.
pub const SECRET_PREFIX: &str = "whsec_";
/// The shortest and the longest secret, in bytes.
pub const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// How far a message's time may lie from ours, in seconds.
pub const TOLERANCE_S: i64 = 300;

/// Why a message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No signature of a known version is there.
    Missing,
    /// Its time lies outside the tolerance: perhaps an old message, sent once more.
    Time,
    /// None of our secrets made any of its signatures.
    Wrong,
}

/// A secret that signs messages. `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Reads `whsec_` and base64; `None` for anything else, or outside [`SECRET_BYTES`].
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?;
        SECRET_BYTES.contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The key of these bytes; `None` outside [`SECRET_BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        SECRET_BYTES.contains(&bytes.len()).then(|| Self(bytes.to_vec()))
    }

    /// As it is written.
    pub fn expose(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// The signature of a message, `v1,` included.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        format!("v1,{}", STANDARD.encode(self.mac(id, timestamp, body).finalize().into_bytes()))
    }

    fn mac(&self, id: &str, timestamp: i64, body: &[u8]) -> Hmac<Sha256> {
        // HMAC takes a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!());
        mac.update(id.as_bytes());
        mac.update(b".");
        mac.update(timestamp.to_string().as_bytes());
        mac.update(b".");
        mac.update(body);
        mac
    }
}

/// Checks a message that came at `now` (Unix seconds) with this `webhook-signature`, against each of our live secrets.
/// Returns the place of the one that made it.
///
/// # Errors
/// Why it is not taken.
pub fn verify(keys: &[Key], id: &str, timestamp: i64, body: &[u8], header: &str, now: i64) -> Result<usize, Refusal> {
    let signatures: Vec<Vec<u8>> = header
        .split_ascii_whitespace()
        .filter_map(|part| STANDARD.decode(part.strip_prefix("v1,")?).ok())
        .take(16)
        .collect();
    if signatures.is_empty() {
        return Err(Refusal::Missing);
    }
    let made = keys.iter().position(|key| {
        let mac = key.mac(id, timestamp, body);
        signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    });
    let made = made.ok_or(Refusal::Wrong)?;
    if now.saturating_sub(timestamp).saturating_abs() > TOLERANCE_S {
        return Err(Refusal::Time);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const AT: i64 = 1_614_265_330;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn signs_as_the_specification_does() {
        assert_eq!(Key::parse(SECRET).unwrap().sign(ID, AT, BODY), SIGNATURE);
        assert_eq!(Key::parse(SECRET).unwrap().expose(), SECRET);
    }

    #[test]
    fn either_of_two_live_secrets_is_taken() {
        let keys = [Key::from_bytes(&[7; 32]).unwrap(), Key::parse(SECRET).unwrap()];
        assert_eq!(verify(&keys, ID, AT, BODY, SIGNATURE, AT + TOLERANCE_S), Ok(1));
        let both = format!("v1,AAAA v2,whatever {}", keys[0].sign(ID, AT, BODY));
        assert_eq!(verify(&keys, ID, AT, BODY, &both, AT - TOLERANCE_S), Ok(0));
    }

    #[test]
    fn refuses_what_is_forged_changed_old_or_not_signed() {
        let keys = [Key::parse(SECRET).unwrap()];
        assert_eq!(verify(&keys, ID, AT, b"{}", SIGNATURE, AT), Err(Refusal::Wrong));
        assert_eq!(verify(&keys, "msg_other", AT, BODY, SIGNATURE, AT), Err(Refusal::Wrong));
        assert_eq!(verify(&keys, ID, AT + 1, BODY, SIGNATURE, AT), Err(Refusal::Wrong));
        assert_eq!(verify(&[], ID, AT, BODY, SIGNATURE, AT), Err(Refusal::Wrong));
        assert_eq!(verify(&keys, ID, AT, BODY, SIGNATURE, AT + TOLERANCE_S + 1), Err(Refusal::Time));
        assert_eq!(verify(&keys, ID, AT, BODY, SIGNATURE, i64::MIN), Err(Refusal::Time));
        for header in ["", "v1", "v1,***", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="] {
            assert_eq!(verify(&keys, ID, AT, BODY, header, AT), Err(Refusal::Missing), "{header}");
        }
    }

    #[test]
    fn secrets_have_a_shape() {
        for text in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_***"] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
        assert_eq!(format!("{:?}", Key::parse(SECRET).unwrap()), "Key(..)");
    }
}
