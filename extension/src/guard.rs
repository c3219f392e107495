//! The row guards: `BEFORE` triggers that refuse whatever breaks a rule, whoever asks.
//!
//! They run for commands and for a hand-written `update` alike, also under `session_replication_role = replica`
//! (migrations enable them ALWAYS). A guard looks at one row and decides from it alone; what concerns several rows is
//! done by the statement triggers in `sql/effects.sql` and `journal.rs`.

use std::str::FromStr;

use pgrx::pg_sys;
use pgrx::prelude::*;

use paylatch_core::flow::Status;
use paylatch_core::log_hash::{self, Entry};
use paylatch_core::order_no::Names;
use paylatch_core::{order, order_no, refund};

use crate::composite::{Fields, IntoColumn, pg_function};
use crate::shape::{Shape, shape_of};
use crate::{rules, settings};

pg_function!(pg_finfo_paylatch_guard_flow, paylatch_guard_flow, |fcinfo| guard(fcinfo, flow));
pg_function!(pg_finfo_paylatch_guard_order, paylatch_guard_order, |fcinfo| guard(fcinfo, order));
pg_function!(pg_finfo_paylatch_guard_refund, paylatch_guard_refund, |fcinfo| guard(fcinfo, refund));
pg_function!(pg_finfo_paylatch_guard_append_only, paylatch_guard_append_only, |fcinfo| guard(fcinfo, append_only));

/// Identity, money and creation never change after insert.
const FLOW_FROZEN: &[&str] = &[
    "flow_id",
    "order_id",
    "attempt_no",
    "amount",
    "currency",
    "scene",
    "channel",
    "user_id",
    "trade_order_no",
    "biz_deadline",
    "payload",
    "created_at",
];
/// All that may still change on a final flow: refunds and disputes lower what is left of the charge. Its log rows say
/// why, so what the newest of them repeats from the row changes too.
const FLOW_LIVE_AFTER_END: &[&str] = &[
    "version",
    "updated_at",
    "log_hash",
    "refunded_amount",
    "disputed_amount",
    "last_action",
    "last_outcome",
    "last_error_code",
    "last_latency_ms",
];
/// And, once, on a flow that had ended as not charged: that it was, with the wallet's own reference.
const FLOW_LATE_CHARGE: &[&str] = &["charged_amount", "channel_request_id"];
const ORDER_FROZEN: &[&str] = &["order_id", "merchant_id", "scene", "user_id", "biz_key", "created_at"];
const REFUND_FROZEN: &[&str] = &[
    "refund_id",
    "flow_id",
    "kind",
    "refund_order_no",
    "amount",
    "currency",
    "reason",
    "requested_by",
    "requested_login",
    "external_no",
    "charge_ref",
    "created_at",
];

/// One row on its way in.
struct Change<'a> {
    shape: &'a Shape,
    old: Option<Fields>,
    new: Option<Fields>,
}

impl Change<'_> {
    fn before(&self) -> &Fields {
        self.old.as_ref().unwrap_or_else(|| error!("a guard without an old row"))
    }

    fn after(&self) -> &Fields {
        self.new.as_ref().unwrap_or_else(|| error!("a guard without a new row"))
    }

    fn set(&mut self, column: &str, value: impl IntoColumn) {
        let at = self.shape.at(column);
        if let Some(new) = self.new.as_mut() {
            new.set(at, value.column());
        }
    }

    fn text<'r>(&self, row: &'r Fields, column: &str) -> Option<&'r str> {
        row.text(self.shape.at(column))
    }

    fn i64(&self, row: &Fields, column: &str) -> i64 {
        row.i64(self.shape.at(column)).unwrap_or(0)
    }

    fn same(&self, column: usize) -> bool {
        match (self.before().datum(column), self.after().datum(column)) {
            (None, None) => true,
            // SAFETY: both are values of this column's type.
            (Some(old), Some(new)) => unsafe { same_image(old, new, self.shape.by_value[column]) },
            _ => false,
        }
    }

    /// Refuses the change: 23514, the rule's number in the message, JSON in DETAIL.
    fn refuse(&self, rule: u8, why: &str) -> ! {
        let row = self.old.as_ref().or(self.new.as_ref());
        let id = row.and_then(|row| row.i64(0)).unwrap_or(0);
        let version = row.map(|row| self.shape.names.iter().position(|c| c == "version").and_then(|at| row.i64(at)));
        let version = version.flatten().unwrap_or(0);
        let detail = format!(r#"{{"rule":{rule},"table":"{}","id":{id},"version":{version}}}"#, self.shape.table);
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_CHECK_VIOLATION, format!("paylatch rule {rule}: {why}"), detail);
    }

    fn refuse_unless_same(&self, rule: u8, frozen: impl Iterator<Item = usize>) {
        for column in frozen {
            if !self.same(column) {
                self.refuse(rule, &format!("{}.{} never changes", self.shape.table, self.shape.names[column]));
            }
        }
    }

    fn refuse_unless_next_version(&self) {
        let (old, new) = (self.i64(self.before(), "version"), self.i64(self.after(), "version"));
        if new != old + 1 {
            self.refuse(4, &format!("a change makes version {}, not {new}", old + 1));
        }
    }
}

/// Runs `check` on the row of a `BEFORE ROW` trigger; inserts and updates get what it leaves in the new row.
unsafe fn guard(fcinfo: pg_sys::FunctionCallInfo, check: fn(&mut Change<'_>)) -> pg_sys::Datum {
    // SAFETY: PostgreSQL calls trigger functions with trigger data; anything else is refused first.
    unsafe {
        let data = (*fcinfo).context.cast::<pg_sys::TriggerData>();
        if data.is_null() || (*data).type_ != pg_sys::NodeTag::T_TriggerData {
            error!("guards are called by triggers only");
        }
        let (event, relation) = ((*data).tg_event, (*data).tg_relation);
        let descriptor = (*relation).rd_att;
        let kind = event & pg_sys::TRIGGER_EVENT_OPMASK;
        let (old, new) = match kind {
            pg_sys::TRIGGER_EVENT_INSERT => (None, Some((*data).tg_trigtuple)),
            pg_sys::TRIGGER_EVENT_UPDATE => (Some((*data).tg_trigtuple), Some((*data).tg_newtuple)),
            _ => (Some((*data).tg_trigtuple), None),
        };
        let shape = shape_of(relation);
        let mut change = Change {
            shape: &shape,
            old: old.map(|tuple| Fields::of_tuple(tuple, descriptor)),
            new: new.map(|tuple| Fields::of_tuple(tuple, descriptor)),
        };
        check(&mut change);
        match (change.new, new) {
            (Some(mut fields), Some(original)) => {
                let tuple = fields.form(descriptor);
                (*(*tuple).t_data).t_ctid = (*(*original).t_data).t_ctid;
                (*tuple).t_self = (*original).t_self;
                (*tuple).t_tableOid = (*original).t_tableOid;
                pg_sys::Datum::from(tuple)
            }
            _ => pg_sys::Datum::from((*data).tg_trigtuple),
        }
    }
}

/// Whether two values of one column are the same bytes. A column that an update does not touch keeps its bytes.
unsafe fn same_image(old: pg_sys::Datum, new: pg_sys::Datum, (by_value, length): (bool, i16)) -> bool {
    if by_value {
        return old.value() == new.value();
    }
    // SAFETY: the caller says that both are values of a type with this storage.
    let bytes = |datum: pg_sys::Datum| unsafe {
        let start: *const u8 = datum.cast_mut_ptr();
        let size = if length > 0 { length as usize } else { pgrx::varsize_any(start.cast()) };
        std::slice::from_raw_parts(start, size)
    };
    bytes(old) == bytes(new)
}

fn parsed<T: FromStr>(change: &Change<'_>, row: &Fields) -> T {
    let word = change.text(row, "status").unwrap_or_default();
    T::from_str(word).unwrap_or_else(|_| change.refuse(4, &format!("{word:?} is no state")))
}

fn flow(change: &mut Change<'_>) {
    match (&change.old, &change.new) {
        (Some(_), None) => change.refuse(6, "a flow is never deleted"),
        (None, _) => flow_insert(change),
        _ => flow_update(change),
    }
}

fn flow_insert(change: &mut Change<'_>) {
    let new = change.after();
    let (flow_id, number) = (change.i64(new, "flow_id"), change.text(new, "trade_order_no").unwrap_or_default());
    let user = change.text(new, "user_id").unwrap_or_default();
    let prefix = order_no::decode(number).map(|decoded| decoded.prefix).unwrap_or_default();
    if parsed::<Status>(change, new) != Status::INITIAL || change.i64(new, "version") != 0 {
        change.refuse(4, "a flow begins as WAIT_PAY with version 0");
    }
    if number != order_no::trade(prefix, user, flow_id) {
        change.refuse(1, &format!("{number:?} is not the order number of flow {flow_id}"));
    }
    let now = settings::now();
    change.set("created_at", now);
    change.set("updated_at", now);
    chain(change, "flow", flow_id, now, None);
}

fn flow_update(change: &mut Change<'_>) {
    let (from, to): (Status, Status) = (parsed(change, change.before()), parsed(change, change.after()));
    if from != to && from.is_terminal() {
        change.refuse(4, &format!("{from} is final"));
    }
    if from != to && !from.can_become(to) {
        change.refuse(4, &format!("{from} -> {to} is no edge"));
    }
    change.refuse_unless_next_version();
    let names = &change.shape.names;
    if from.is_terminal() {
        let late_charge = from == Status::PayFail && change.before().datum(change.shape.at("charged_amount")).is_none();
        let lives =
            |name: &str| FLOW_LIVE_AFTER_END.contains(&name) || (late_charge && FLOW_LATE_CHARGE.contains(&name));
        change.refuse_unless_same(4, (0..names.len()).filter(|at| !lives(&names[*at])));
    } else {
        change.refuse_unless_same(4, FLOW_FROZEN.iter().map(|name| change.shape.at(name)));
    }
    if !settings::in_command() {
        // A change made by hand answers nothing.
        change.set("last_action", None::<&str>);
        change.set("last_outcome", None::<&str>);
    }
    let now = settings::now().max(change.i64(change.before(), "updated_at"));
    change.set("updated_at", now);
    chain(change, "flow", change.i64(change.before(), "flow_id"), now, Some(from.as_str()));
}

/// Ties this version to the one before: the new `log_hash`.
fn chain(change: &mut Change<'_>, kind: &str, id: i64, at: i64, from: Option<&str>) {
    let new = change.after();
    let column = |name| change.text(new, name);
    let (source, actor) = (settings::source(), settings::actor());
    let entry = Entry {
        kind,
        ref_id: id,
        version: change.i64(new, "version"),
        at,
        from: from.unwrap_or_default(),
        to: column("status").unwrap_or_default(),
        source: &source,
        actor: &actor,
        action: column("last_action"),
        outcome: column("last_outcome"),
        code: column("last_error_code"),
        // The counterparty's reference belongs to the answer that brought it, not to every later change.
        request_id: column("channel_request_id")
            .filter(|_| rules::brings_reference(column("last_action"), column("last_outcome"))),
        frozen_reason: column("frozen_reason"),
    };
    let previous = change.old.as_ref().and_then(|old| old.bytes(change.shape.at("log_hash")));
    let hash = log_hash::log_hash(previous, &entry);
    let at = change.shape.at("log_hash");
    if let Some(new) = change.new.as_mut() {
        new.set(at, hash.as_slice().into_datum());
    }
}

fn order(change: &mut Change<'_>) {
    match (&change.old, &change.new) {
        (Some(_), None) => change.refuse(5, "an order is never deleted"),
        (None, _) => {
            let new = change.after();
            match (parsed(change, new), change.i64(new, "version")) {
                (order::Status::Pending, 0) => {}
                // Its first attempt comes in the same statement, and is refused if it is not this one.
                (order::Status::Processing, 1) if settings::in_command() && begins_with_an_attempt(change) => {}
                _ => change
                    .refuse(5, "an order begins as PENDING with version 0, or in a command with its first attempt"),
            }
            let now = settings::now();
            change.set("created_at", now);
            change.set("updated_at", now);
        }
        _ => {
            let (from, to): (order::Status, order::Status) =
                (parsed(change, change.before()), parsed(change, change.after()));
            if from != to && !from.can_become(to) {
                change.refuse(5, &format!("order: {from} -> {to} is no edge"));
            }
            change.refuse_unless_next_version();
            change.refuse_unless_same(5, ORDER_FROZEN.iter().map(|name| change.shape.at(name)));
            change.set("updated_at", settings::now().max(change.i64(change.before(), "updated_at")));
        }
    }
}

fn begins_with_an_attempt(change: &Change<'_>) -> bool {
    let new = change.after();
    change.i64(new, "attempt_count") == 1 && new.datum(change.shape.at("live_flow_id")).is_some()
}

fn refund(change: &mut Change<'_>) {
    match (&change.old, &change.new) {
        (Some(_), None) => change.refuse(7, "a refund is never deleted"),
        (None, _) => refund_insert(change),
        _ => refund_update(change),
    }
}

fn refund_insert(change: &mut Change<'_>) {
    let new = change.after();
    let status: refund::Status = parsed(change, new);
    let (flow_id, number) = (change.i64(new, "flow_id"), change.text(new, "refund_order_no").unwrap_or_default());
    let kind = change.text(new, "kind").unwrap_or_default();
    let Ok(kind) = refund::Kind::from_str(kind) else { change.refuse(2, &format!("{kind:?} is no kind of refund")) };
    if !kind.may_begin(status) || change.i64(new, "version") != 0 {
        change.refuse(4, &format!("a refund of kind {kind} does not begin as {status}, or not with version 0"));
    }
    let fits = order_no::decode(number).is_some_and(|decoded| {
        decoded.flow_id == flow_id
            && match kind {
                refund::Kind::Compensation => decoded.names == Names::Compensation,
                refund::Kind::AfterSale | refund::Kind::Recon => matches!(decoded.names, Names::Refund(_)),
                refund::Kind::External => matches!(decoded.names, Names::External(_)),
            }
    });
    if !fits {
        change.refuse(1, &format!("{number:?} is no number of flow {flow_id} for a refund of kind {kind}"));
    }
    let now = settings::now();
    change.set("created_at", now);
    change.set("updated_at", now);
    chain(change, "refund", change.i64(change.after(), "refund_id"), now, None);
}

fn refund_update(change: &mut Change<'_>) {
    let (from, to): (refund::Status, refund::Status) =
        (parsed(change, change.before()), parsed(change, change.after()));
    // While it is on its way, tries and freezes are counted in the row.
    let stays = from == to && from == refund::Status::Pending;
    if !stays && !from.can_become(to) {
        change.refuse(4, &format!("refund: {from} -> {to} is no edge"));
    }
    change.refuse_unless_next_version();
    change.refuse_unless_same(7, REFUND_FROZEN.iter().map(|name| change.shape.at(name)));
    if !settings::in_command() {
        // A change made by hand answers nothing.
        change.set("last_action", None::<&str>);
        change.set("last_outcome", None::<&str>);
    }
    let now = settings::now().max(change.i64(change.before(), "updated_at"));
    change.set("updated_at", now);
    chain(change, "refund", change.i64(change.before(), "refund_id"), now, Some(from.as_str()));
}

fn append_only(change: &mut Change<'_>) {
    if change.old.is_some() {
        let rule = if change.shape.table.starts_with("idempotency_key") { 8 } else { 9 };
        change.refuse(rule, &format!("{} is append-only", change.shape.table));
    }
}
