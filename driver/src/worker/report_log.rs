//! One log line for each verdict: what was done, what came of it, where the flow stands. Never a payload or a token.

use paylatch_core::late::Disposition;

use crate::db::Verdict;
use crate::dispatch::Carried;

/// Logs what the database made of an answer; `told` is the answer, if it is known.
pub(crate) fn verdict(verdict: &Verdict, told: Option<&Carried>) {
    let Some(Carried { handout, evidence, took }) = told else {
        tracing::warn!(flow_id = verdict.flow_id, refund_id = verdict.refund_id, disposition = %verdict.disposition, "a verdict on no answer of ours");
        return;
    };
    // The level must be known at compile time, so each level is a line of its own.
    macro_rules! say {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                flow_id = handout.flow_id,
                refund_id = handout.refund_id,
                version = handout.version,
                scene = %handout.scene,
                biz_key = %handout.biz_key,
                attempt_no = handout.attempt_no,
                order_no = %handout.order_no,
                refund_no = handout.refund_no,
                action = %handout.action,
                outcome = %evidence.outcome(),
                code = evidence.code(),
                request_id = evidence.request_id(),
                took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                status = verdict.status,
                frozen_reason = verdict.frozen_reason,
                next = verdict.next.as_ref().map(|next| next.action.as_str()),
                $message
            )
        };
    }
    match verdict.disposition {
        Disposition::Applied if verdict.frozen_reason.is_some() => say!(warn, "applied; the flow waits for a person"),
        Disposition::Applied => say!(debug, "applied"),
        Disposition::Replayed => say!(info, "replayed: the flow was there already"),
        Disposition::Stale => say!(info, "stale: the lease had passed on"),
        Disposition::Conflict => say!(warn, "conflict: the answer contradicts the flow's branch"),
        Disposition::Rejected => say!(warn, "rejected: no evidence for this flow"),
    }
}
