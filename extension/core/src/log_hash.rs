//! The chain that ties each log row to the one before it.
//!
//! A hash covers the one before and everything the row says, each field behind its length, so no two different rows
//! give the same bytes. It is SHA-256 cut to 16 bytes: finding other content for a given hash stays out of reach, and
//! half the bytes are written. The flow keeps the newest hash, so a log that lost its tail is noticed too.

use sha2::{Digest, Sha256};

use crate::Micros;

/// The hash of one log row.
pub type Hash = [u8; 16];

/// What a log row says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry<'a> {
    /// `flow` or `refund`.
    pub kind: &'a str,
    /// Its id.
    pub ref_id: i64,
    /// The version that this change made.
    pub version: i64,
    /// When, on the database's clock.
    pub at: Micros,
    /// The state before; empty for the first row.
    pub from: &'a str,
    /// The state after.
    pub to: &'a str,
    /// API, DRIVER, SCANNER, ...
    pub source: &'a str,
    /// Who, within the source.
    pub actor: &'a str,
    /// The action that brought the evidence, if any.
    pub action: Option<&'a str>,
    /// The outcome class, if any.
    pub outcome: Option<&'a str>,
    /// The counterparty's code, if any.
    pub code: Option<&'a str>,
    /// The counterparty's own reference, if any.
    pub request_id: Option<&'a str>,
    /// Why the flow is frozen after this change, if it is.
    pub frozen_reason: Option<&'a str>,
}

/// The hash of `entry` behind `previous` (`None` for the first row of a chain).
pub fn log_hash(previous: Option<&[u8]>, entry: &Entry<'_>) -> Hash {
    let mut bytes = Vec::with_capacity(256);
    put(&mut bytes, previous);
    for number in [entry.ref_id, entry.version, entry.at] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    for text in [entry.kind, entry.from, entry.to, entry.source, entry.actor] {
        put(&mut bytes, Some(text.as_bytes()));
    }
    for text in [entry.action, entry.outcome, entry.code, entry.request_id, entry.frozen_reason] {
        put(&mut bytes, text.map(str::as_bytes));
    }
    let mut hash = Hash::default();
    hash.copy_from_slice(&Sha256::digest(&bytes)[..16]);
    hash
}

/// A field behind its length; an absent one is told from an empty one.
fn put(bytes: &mut Vec<u8>, field: Option<&[u8]>) {
    let length = field.map_or(u32::MAX, |f| f.len() as u32);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(field.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry<'static> = Entry {
        kind: "flow",
        ref_id: 901,
        version: 2,
        at: 5,
        from: "PAYING",
        to: "PAYED",
        source: "DRIVER",
        actor: "d1",
        action: Some("CHARGE"),
        outcome: Some("SUCCEEDED"),
        code: None,
        request_id: Some("w-1"),
        frozen_reason: None,
    };

    #[test]
    fn every_field_counts() {
        let base = log_hash(Some(b"before"), &ENTRY);
        let others = [
            log_hash(None, &ENTRY),
            log_hash(Some(b""), &ENTRY),
            log_hash(Some(b"before"), &Entry { kind: "refund", ..ENTRY }),
            log_hash(Some(b"before"), &Entry { ref_id: 902, ..ENTRY }),
            log_hash(Some(b"before"), &Entry { version: 3, ..ENTRY }),
            log_hash(Some(b"before"), &Entry { at: 6, ..ENTRY }),
            log_hash(Some(b"before"), &Entry { from: "PAYIN", to: "GPAYED", ..ENTRY }),
            log_hash(Some(b"before"), &Entry { source: "API", ..ENTRY }),
            log_hash(Some(b"before"), &Entry { actor: "d2", ..ENTRY }),
            log_hash(Some(b"before"), &Entry { action: None, ..ENTRY }),
            log_hash(Some(b"before"), &Entry { outcome: None, ..ENTRY }),
            log_hash(Some(b"before"), &Entry { code: Some(""), ..ENTRY }),
            log_hash(Some(b"before"), &Entry { request_id: Some("w-2"), ..ENTRY }),
            log_hash(Some(b"before"), &Entry { frozen_reason: Some("POISON"), ..ENTRY }),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(base, *other, "change {at} went unnoticed");
        }
        assert_eq!(base, log_hash(Some(b"before"), &ENTRY));
    }
}
