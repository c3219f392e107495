//! `[api]`: the HTTP API, and every limit that it has.

use std::net::{Ipv4Addr, SocketAddr};

use super::{ConfigError, Listen, within};

/// Where `paylatchd serve` listens unless it was told.
const SERVE_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// What it serves to merchants.
#[derive(Debug, Clone, confique::Config)]
pub struct Api {
    /// Where the HTTP API is served; "off" for nowhere. `paylatchd serve` takes 127.0.0.1:8080 for "off". While no
    /// token was ever made, only a loopback address is served.
    #[config(default = "off", env = "PAYLATCH_API_LISTEN")]
    pub listen: Listen,
    /// The most connections to the database that the API opens, beside those of `[database]`.
    #[config(default = 10, env = "PAYLATCH_API_DATABASE_CONNECTIONS")]
    pub database_connections: u32,
    /// The most clients that are connected at once; further ones wait to be accepted.
    #[config(default = 1024, env = "PAYLATCH_API_MAX_CONNECTIONS")]
    pub max_connections: usize,
    /// The most requests under way at once, those that only wait not counted. Further ones are answered 503 at once.
    #[config(default = 256, env = "PAYLATCH_API_MAX_REQUESTS")]
    pub max_requests: usize,
    /// The most requests that wait at once (`Prefer: wait`). Further ones are answered without waiting.
    #[config(default = 256, env = "PAYLATCH_API_MAX_WAITING")]
    pub max_waiting: usize,
    /// The longest that `Prefer: wait` may wait.
    #[config(default = 30000, env = "PAYLATCH_API_MAX_WAIT_MS")]
    pub max_wait_ms: u64,
    /// A request's head must be here within this time; so long may a kept connection also stand idle.
    #[config(default = 10000, env = "PAYLATCH_API_HEADER_TIMEOUT_MS")]
    pub header_timeout_ms: u64,
    /// A request's body must be here within this time.
    #[config(default = 10000, env = "PAYLATCH_API_BODY_TIMEOUT_MS")]
    pub body_timeout_ms: u64,
    /// A request is answered within this time, waiting that it asked for not counted. A client that does not take its
    /// answer for so long is disconnected.
    #[config(default = 20000, env = "PAYLATCH_API_REQUEST_TIMEOUT_MS")]
    pub request_timeout_ms: u64,
    /// How long a request waits for another one that holds the same payment or the same key; then it is answered 409.
    #[config(default = 2000, env = "PAYLATCH_API_LOCK_TIMEOUT_MS")]
    pub lock_timeout_ms: u64,
    /// The largest head of a request: its line and all headers.
    #[config(default = 16384, env = "PAYLATCH_API_MAX_HEADER_BYTES")]
    pub max_header_bytes: usize,
    /// The largest body of a request.
    #[config(default = 65536, env = "PAYLATCH_API_MAX_BODY_BYTES")]
    pub max_body_bytes: usize,
    /// Requests a second for all tokens of a merchant together. A token made with a rate of its own is not counted.
    #[config(default = 100, env = "PAYLATCH_API_RATE_PER_SECOND")]
    pub rate_per_second: u32,
    /// How many seconds' worth of requests may come at once after it was quiet.
    #[config(default = 2, env = "PAYLATCH_API_RATE_BURST_SECONDS")]
    pub rate_burst_seconds: u32,
    /// After SIGTERM: how long it still takes new connections, while `/readyz` says 503 already.
    #[config(default = 1000, env = "PAYLATCH_API_UNREADY_MS")]
    pub unready_ms: u64,
}

impl Api {
    /// Where `paylatchd serve` listens.
    pub fn serve_address(&self) -> SocketAddr {
        self.listen.0.unwrap_or(SERVE_LISTEN)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("api.database_connections", self.database_connections, 1, 1000)?;
        within("api.max_connections", self.max_connections, 1, 100_000)?;
        within("api.max_requests", self.max_requests, 1, 100_000)?;
        within("api.max_waiting", self.max_waiting, 0, 100_000)?;
        within("api.max_wait_ms", self.max_wait_ms, 0, 600_000)?;
        within("api.header_timeout_ms", self.header_timeout_ms, 10, 600_000)?;
        within("api.body_timeout_ms", self.body_timeout_ms, 10, 600_000)?;
        within("api.request_timeout_ms", self.request_timeout_ms, 100, 600_000)?;
        within("api.lock_timeout_ms", self.lock_timeout_ms, 10, self.request_timeout_ms)?;
        // The HTTP library reads no head into less than 8 KiB.
        within("api.max_header_bytes", self.max_header_bytes, 8192, 1_048_576)?;
        within("api.max_body_bytes", self.max_body_bytes, 1024, 1_048_576)?;
        within("api.rate_per_second", self.rate_per_second, 1, 1_000_000)?;
        within("api.rate_burst_seconds", self.rate_burst_seconds, 1, 3600)?;
        within("api.unready_ms", self.unready_ms, 0, 600_000)
    }
}
