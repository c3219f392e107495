//! Who asks: bearer tokens, each a merchant's.
//!
//! What the database said of a token is believed for [`BELIEF`], so a revoked token stops within that time, and a busy
//! one costs one look-up in it. While no token was ever made, a server on a loopback address serves everybody on this
//! machine as merchant `default`; the first token ends that, within the same time.
//!
//! Invariants: a token is kept, logged and compared as its digest only; every route behind [`Auth::identify`] acts for
//! the identity's merchant and no other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};

use super::limits::Rate;
use super::problem::{Kind, Problem};
use super::token;
use crate::clock;
use crate::config;
use crate::db::{Db, KnownToken};

/// How long an answer of the database about a token is believed.
pub const BELIEF: Duration = Duration::from_secs(1);
/// The most digests remembered; past it what is no longer believed is forgotten first.
const MEMORY: usize = 10_000;
/// Whom requests act for while no token was ever made.
const DEFAULT_MERCHANT: &str = "default";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whose payments are seen and made.
    pub merchant_id: String,
    /// The token; `None` on a server without tokens.
    pub token_id: Option<i64>,
    /// The token's name, for the record of who asked for a refund.
    pub name: String,
}

/// An identity and its rate.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub identity: Arc<Identity>,
    /// How much it may ask.
    pub rate: Arc<Rate>,
}

/// Tells who asks.
#[derive(Debug)]
pub struct Auth {
    db: Db,
    loopback: bool,
    rate_per_second: u32,
    burst_seconds: u32,
    memory: Mutex<HashMap<[u8; 32], Remembered>>,
    /// What a merchant's tokens share, unless they have a rate of their own.
    shared: Mutex<HashMap<String, Arc<Rate>>>,
    open: Mutex<Option<(bool, Instant)>>,
    anybody: Caller,
}

/// What the database said of a digest.
#[derive(Debug, Clone)]
struct Remembered {
    caller: Option<Caller>,
    at: Instant,
}

impl Remembered {
    fn is_believed(&self) -> bool {
        self.at.elapsed() < BELIEF
    }
}

impl Auth {
    /// For a server that listens on loopback, or not.
    pub fn new(db: Db, api: &config::Api, loopback: bool) -> Self {
        let name = "without token".to_owned();
        let identity = Identity { merchant_id: DEFAULT_MERCHANT.to_owned(), token_id: None, name };
        let rate = Arc::new(Rate::new("merchant", api.rate_per_second, api.rate_burst_seconds));
        Self {
            db,
            loopback,
            rate_per_second: api.rate_per_second,
            burst_seconds: api.rate_burst_seconds,
            memory: Mutex::default(),
            shared: Mutex::default(),
            open: Mutex::default(),
            anybody: Caller { identity: Arc::new(identity), rate },
        }
    }

    /// Who sent these headers.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden`, or `unavailable` where the database could not be asked.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        if headers.contains_key(header::AUTHORIZATION) {
            let unknown = || Problem::says(Kind::Unauthorized, "the token is unknown or was revoked");
            let token = bearer(headers).filter(|token| token::is_well_formed(token)).ok_or_else(unknown)?;
            return self.known(token::digest(token)).await?.ok_or_else(unknown);
        }
        if !self.loopback || !self.is_open().await? {
            return Err(Problem::says(Kind::Unauthorized, "send Authorization: Bearer and a token"));
        }
        if !is_local(headers) {
            // A page in a browser may call this machine by a name of its own, and so act for whoever looks at it.
            let says = "no token was ever made, so only requests to localhost are served; \
                        make one: paylatchd token create --merchant M --name N";
            return Err(Problem::says(Kind::Forbidden, says));
        }
        Ok(self.anybody.clone())
    }

    async fn known(&self, digest: [u8; 32]) -> Result<Option<Caller>, Problem> {
        let before = self.memory().get(&digest).cloned();
        if let Some(remembered) = before.as_ref().filter(|remembered| remembered.is_believed()) {
            return Ok(remembered.caller.clone());
        }
        let at = clock::instant();
        let found = self.db.authenticate(&digest).await?;
        let caller = found.map(|token| self.caller(token, before.and_then(|remembered| remembered.caller)));
        let mut memory = self.memory();
        if memory.len() >= MEMORY {
            memory.retain(|_, remembered| remembered.is_believed());
        }
        // A flood of tokens that are unknown must not push out those in use.
        if memory.len() < MEMORY || caller.is_some() {
            memory.insert(digest, Remembered { caller: caller.clone(), at });
        }
        Ok(caller)
    }

    /// The caller behind a token. Without a rate of its own it shares its merchant's, so that more tokens bring no more
    /// requests; one that was known keeps its rate, and what it has used of it.
    fn caller(&self, token: KnownToken, before: Option<Caller>) -> Caller {
        let rate = match token.rate_per_second.and_then(|rate| u32::try_from(rate).ok()) {
            Some(own) => {
                before.map_or_else(|| Arc::new(Rate::new("token", own, self.burst_seconds)), |caller| caller.rate)
            }
            None => self.shared_rate(&token.merchant_id),
        };
        let identity = Identity { merchant_id: token.merchant_id, token_id: Some(token.token_id), name: token.name };
        Caller { identity: Arc::new(identity), rate }
    }

    fn shared_rate(&self, merchant_id: &str) -> Arc<Rate> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = shared.entry(merchant_id.to_owned());
        Arc::clone(rate.or_insert_with(|| Arc::new(Rate::new("merchant", self.rate_per_second, self.burst_seconds))))
    }

    /// Whether no token was ever made.
    async fn is_open(&self) -> Result<bool, Problem> {
        let before = *self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((open, _)) = before.filter(|(_, at)| at.elapsed() < BELIEF) {
            return Ok(open);
        }
        let at = clock::instant();
        let open = self.db.api_is_open().await?;
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some((open, at));
        Ok(open)
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<[u8; 32], Remembered>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether the request names this machine as loopback does.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name).trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_bearer_token_is_read_and_nothing_else() {
        for (value, token) in [("Bearer abc", Some("abc")), ("bearer  abc ", Some("abc"))] {
            assert_eq!(bearer(&with(header::AUTHORIZATION, value)), token, "{value}");
        }
        for value in ["abc", "Basic abc", "Bearer", ""] {
            assert_eq!(bearer(&with(header::AUTHORIZATION, value)), None, "{value}");
        }
    }

    #[test]
    fn only_names_of_loopback_are_local() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert!(is_local(&with(header::HOST, host)), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            assert!(!is_local(&with(header::HOST, host)), "{host}");
        }
        assert!(!is_local(&HeaderMap::new()));
    }
}
