//! What a scene and its channel allow: the settings that decisions depend on.

use crate::backoff::{self, Curve};
use crate::words::words;
use crate::{MS, Micros};

words! {
    /// Who does what was paid for.
    BusinessMode {
        /// SQL functions in the same database.
        Sql = "sql",
        /// A service behind HTTP.
        Http = "http",
        /// Being charged is the whole business.
        None = "none",
    }
}

/// The settings of one scene and its channel. Spans in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Who does the business.
    pub business_mode: BusinessMode,
    /// The business can refuse a late execution on request.
    pub business_can_close: bool,
    /// How long after the deadline an execution could still be under way.
    pub biz_grace_ms: i64,
    /// How retries are spaced.
    pub curve: Curve,
    /// After so many retries in one state the slow interval takes over (or the flow freezes, where waiting helps nobody).
    pub max_auto_retries: i32,
    /// The pace of a flow that needs attention.
    pub slow_interval_ms: i64,
    /// How often a refund may fail before a person must look.
    pub refund_max_failures: i32,
    /// The channel accepts a second send of the same number.
    pub can_resend: bool,
    /// The channel can close a number that it does not know yet.
    pub can_close_charge: bool,
    /// How long the provider remembers its idempotency keys; past it only questions are asked.
    pub resend_window_ms: i64,
    /// How long NOT_FOUND must have been the answer before it is final; `None`: it never is.
    pub not_found_final_after_ms: Option<i64>,
}

impl Policy {
    /// When row `id` is looked at again after its `retry`th try in this state.
    pub fn retry_at(&self, id: i64, retry: i32, now: Micros) -> Micros {
        let wait = if self.needs_attention(retry) {
            backoff::jittered(self.slow_interval_ms.max(1) * MS, self.curve.jitter_percent, id, retry)
        } else {
            self.curve.delay(id, retry - 1)
        };
        now.saturating_add(wait)
    }

    /// Whether so many retries are more than automatic patience allows.
    pub const fn needs_attention(&self, retry: i32) -> bool {
        retry > self.max_auto_retries
    }
}
