//! The immutable SQL faces of the rules: what a query, a check or a person may ask.

use std::str::FromStr;

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use paylatch_core::decide::{self, Evidence};
use paylatch_core::fingerprint;
use paylatch_core::flow::{self, Status};
use paylatch_core::late;
use paylatch_core::log_hash::{self, Entry};
use paylatch_core::outcome::{Action, Outcome};
use paylatch_core::{money, order_no, refund};

use crate::settings;

fn status(text: &str) -> Status {
    Status::from_str(text).unwrap_or_else(|unknown| {
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, unknown.to_string());
    })
}

#[pg_extern(immutable, parallel_safe, strict)]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pg_extern(volatile, parallel_safe, strict)]
fn clock() -> TimestampWithTimeZone {
    TimestampWithTimeZone::try_from(settings::now()).unwrap_or_else(|_| error!("the clock is out of range"))
}

#[pg_extern(stable, parallel_safe, strict)]
fn key_ttl_hours() -> i32 {
    settings::key_ttl_hours()
}

#[pg_extern(stable, parallel_safe, strict)]
fn log_source() -> String {
    settings::source()
}

#[pg_extern(stable, parallel_safe, strict)]
fn log_actor() -> String {
    settings::actor()
}

#[pg_extern(stable, parallel_safe, strict)]
fn in_command() -> bool {
    settings::in_command()
}

/// The identity of this cluster, from shared memory: a copy started elsewhere keeps it, an initdb does not.
#[pg_extern(stable, parallel_safe, strict)]
fn system_identifier() -> i64 {
    // SAFETY: reads a constant of the running server.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

#[pg_extern(immutable, parallel_safe, strict)]
fn can_transition(from_status: &str, to_status: &str) -> bool {
    status(from_status).can_become(status(to_status))
}

#[pg_extern(immutable, parallel_safe, strict)]
fn transitions() -> TableIterator<
    'static,
    (name!(from_status, &'static str), name!(to_status, &'static str), name!(because, &'static str)),
> {
    TableIterator::new(flow::EDGES.iter().map(|&(from, to)| (from.as_str(), to.as_str(), flow::edge_label(from, to))))
}

#[pg_extern(immutable, parallel_safe, strict)]
fn state_diagram() -> String {
    flow::diagram()
}

#[pg_extern(immutable, parallel_safe, strict)]
fn is_terminal(flow_status: &str) -> bool {
    status(flow_status).is_terminal()
}

#[pg_extern(immutable, parallel_safe, strict)]
fn client_status(flow_status: &str, frozen: bool) -> &'static str {
    status(flow_status).shown(frozen)
}

#[pg_extern(immutable, parallel_safe, strict)]
fn lane_of(flow_status: &str) -> &'static str {
    crate::steps::lane(status(flow_status))
}

#[pg_extern(immutable, parallel_safe, strict)]
fn order_status_after(flow_status: &str) -> &'static str {
    paylatch_core::order::Status::after(status(flow_status)).as_str()
}

#[pg_extern(immutable, parallel_safe, strict)]
fn trade_order_no(order_prefix: &str, user_id: &str, flow_id: i64) -> String {
    order_no::trade(order_prefix, user_id, flow_id)
}

#[pg_extern(immutable, parallel_safe, strict)]
fn refund_order_no(trade_order_no: &str) -> String {
    order_no::compensation(trade_order_no)
}

/// The number of the nth further refund; NULL where it would be longer than a number may be.
#[pg_extern(immutable, parallel_safe, strict)]
fn nth_refund_order_no(trade_order_no: &str, n: i64) -> Option<String> {
    order_no::nth_refund(trade_order_no, u64::try_from(n).ok()?)
}

/// The number of the nth refund made elsewhere; NULL where it would be longer than a number may be.
#[pg_extern(immutable, parallel_safe, strict)]
fn external_order_no(trade_order_no: &str, n: i64) -> Option<String> {
    order_no::nth_external(trade_order_no, u64::try_from(n).ok()?)
}

#[pg_extern(immutable, parallel_safe)]
fn flow_id_of(order_no: Option<&str>) -> Option<i64> {
    order_no::decode(order_no?).map(|decoded| decoded.flow_id)
}

#[pg_extern(immutable, parallel_safe)]
fn order_prefix_of(order_no: Option<&str>) -> Option<&str> {
    order_no::decode(order_no?).map(|decoded| decoded.prefix)
}

#[pg_extern(immutable, parallel_safe, strict)]
fn is_order_prefix(order_prefix: &str) -> bool {
    order_no::is_prefix(order_prefix)
}

/// The flow id that a sequence value makes in this database's shard.
#[pg_extern(stable, parallel_safe, strict)]
fn flow_id_from(sequence: i64) -> i64 {
    settings::shard() * order_no::SHARD_SPAN + sequence
}

#[pg_extern(immutable, parallel_safe)]
fn minor_unit_digits(currency: Option<&str>) -> Option<i32> {
    money::minor_unit_digits(currency?).map(i32::from)
}

#[pg_extern(immutable, parallel_safe, strict)]
fn format_money(amount: i64, digits: i32, currency: &str) -> String {
    money::format(amount, u8::try_from(digits).unwrap_or(0), currency)
}

/// The fingerprint of named values, the field `payload` as JSON.
#[pg_extern(immutable, parallel_safe, strict)]
fn fingerprint(names: Array<'_, &str>, field_values: Array<'_, &str>) -> Vec<u8> {
    let names: Vec<&str> = names.iter().flatten().collect();
    if names.len() != field_values.len() {
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "give one name for each value");
    }
    fingerprint::fingerprint(names.into_iter().zip(field_values.iter())).to_vec()
}

/// Whether evidence for this action can decide a flow in this state.
#[pg_extern(immutable, parallel_safe, strict)]
fn answers_state(flow_status: &str, action: &str) -> bool {
    let at = status(flow_status);
    Action::from_str(action).is_ok_and(|action| decide::answers(at, action))
}

/// What becomes of evidence that comes too late; `rejected` where action or outcome is no word of ours.
#[pg_extern(immutable, parallel_safe)]
fn late_disposition(
    flow_status: Option<&str>,
    action: Option<&str>,
    outcome: Option<&str>,
    owned: Option<bool>,
) -> &'static str {
    let known = || Some((Action::from_str(action?).ok()?, Outcome::from_str(outcome?).ok()?, flow_status?));
    match known() {
        Some((action, outcome, at)) => late::late(status(at), action, outcome, owned.unwrap_or(false)).as_str(),
        None => late::Disposition::Rejected.as_str(),
    }
}

/// The same for a refund that is no compensation.
#[pg_extern(immutable, parallel_safe)]
fn late_refund_disposition(
    kind: Option<&str>,
    refund_status: Option<&str>,
    action: Option<&str>,
    outcome: Option<&str>,
) -> &'static str {
    let known = || {
        let (kind, at) = (refund::Kind::from_str(kind?).ok()?, refund::Status::from_str(refund_status?).ok()?);
        Some(late::late_refund(kind, at, Action::from_str(action?).ok()?, Outcome::from_str(outcome?).ok()?))
    };
    known().unwrap_or(late::Disposition::Rejected).as_str()
}

/// What an inquiry about a flow that ended as not charged makes of an answer.
#[pg_extern(immutable, parallel_safe)]
fn inquiry_answer(outcome: Option<&str>, echoed: Option<bool>) -> &'static str {
    let outcome = outcome.and_then(|word| Outcome::from_str(word).ok()).unwrap_or(Outcome::Unknown);
    late::inquiry(outcome, echoed.unwrap_or(false)).as_str()
}

/// Whether what was told names exactly this number, amount and currency; a missing one is a difference.
#[pg_extern(immutable, parallel_safe)]
fn is_full_echo(
    number: &str,
    amount: i64,
    currency: &str,
    told_number: Option<&str>,
    told_amount: Option<i64>,
    told_currency: Option<&str>,
) -> bool {
    let told = Evidence {
        action: Action::QueryCharge,
        outcome: Outcome::Succeeded,
        asked_at: 0,
        number: told_number,
        amount: told_amount,
        currency: told_currency,
        owner: None,
    };
    told.echoes(number, amount, currency)
}

#[pg_extern(immutable, parallel_safe, strict)]
fn can_refund_become(from_status: &str, to_status: &str) -> bool {
    let parsed = |word| refund::Status::from_str(word);
    parsed(from_status).is_ok_and(|from| parsed(to_status).is_ok_and(|to| from.can_become(to)))
}

/// Whether action and outcome are words of ours.
#[pg_extern(immutable, parallel_safe)]
fn is_evidence(action: Option<&str>, outcome: Option<&str>) -> bool {
    let known = || Some((Action::from_str(action?).ok()?, Outcome::from_str(outcome?).ok()?));
    known().is_some()
}

/// NULL for no action.
#[pg_extern(immutable, parallel_safe, strict)]
fn is_wallet_action(action: &str) -> bool {
    Action::from_str(action).is_ok_and(Action::is_wallet)
}

/// What an event is called: what became of a flow, order or refund, or that it stopped or goes on where it stands. NULL: a
/// version that is no news outside (a repeated question, a wish to cancel).
#[pg_extern(immutable, parallel_safe)]
pub fn event_type(
    kind: &str,
    from_status: Option<&str>,
    to_status: &str,
    was_frozen: bool,
    frozen: bool,
) -> Option<String> {
    match (was_frozen, frozen) {
        _ if from_status != Some(to_status) => Some(format!("{kind}.{}", to_status.to_ascii_lowercase())),
        (false, true) => Some(format!("{kind}.frozen")),
        (true, false) => Some(format!("{kind}.resumed")),
        _ => None,
    }
}

/// Whether a row's newest answer brought the wallet's own reference, so that its log row names it.
#[pg_extern(immutable, parallel_safe)]
pub fn brings_reference(action: Option<&str>, outcome: Option<&str>) -> bool {
    let known = || Some((Action::from_str(action?).ok()?, Outcome::from_str(outcome?).ok()?));
    known().is_some_and(|(action, outcome)| action.is_wallet() && outcome.brings_reference())
}

#[pg_extern(immutable, parallel_safe)]
#[allow(clippy::too_many_arguments, reason = "a log row has so many columns")]
fn log_hash(
    previous: Option<&[u8]>,
    kind: Option<&str>,
    ref_id: Option<i64>,
    version: Option<i64>,
    at: Option<TimestampWithTimeZone>,
    from_status: Option<&str>,
    to_status: Option<&str>,
    source: Option<&str>,
    actor: Option<&str>,
    action: Option<&str>,
    outcome: Option<&str>,
    code: Option<&str>,
    request_id: Option<&str>,
    frozen_reason: Option<&str>,
) -> Vec<u8> {
    let entry = Entry {
        kind: kind.unwrap_or_default(),
        ref_id: ref_id.unwrap_or_default(),
        version: version.unwrap_or_default(),
        at: at.map(i64::from).unwrap_or_default(),
        from: from_status.unwrap_or_default(),
        to: to_status.unwrap_or_default(),
        source: source.unwrap_or_default(),
        actor: actor.unwrap_or_default(),
        action,
        outcome,
        code,
        request_id,
        frozen_reason,
    };
    log_hash::log_hash(previous, &entry).to_vec()
}
