//! The log and the outbox: what every accepted change leaves behind, in sets, in the transaction of the change (rules 9
//! and 12).
//!
//! `AFTER STATEMENT` triggers with transition tables: PostgreSQL keeps the rows before and after a statement in the same
//! order, so they are read side by side, and what they leave is written many rows at a time (`bulk.rs`). Log row and event
//! come from one reading of one row, so neither is there without the other.
//!
//! An order may begin in the charge of its first attempt; both are inserted by one statement, the order first. Its event
//! waits for that of the attempt, so that subscribers hear of a flow before they hear of what it did.

use std::cell::RefCell;
use std::collections::HashMap;

use pgrx::pg_sys;
use pgrx::prelude::*;

use crate::bulk::Writer;
use crate::composite::pg_function;
use crate::shape::{Shape, shape_of};
use crate::{rules, settings};

pg_function!(pg_finfo_paylatch_journal, paylatch_journal, |fcinfo| journal(fcinfo));

/// Runs as the trigger `t50_log` of `pay_flow` and `refund` and as `t90_outbox` of `pay_order`.
unsafe fn journal(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL calls trigger functions with trigger data; anything else is refused first.
    unsafe {
        let data = (*fcinfo).context.cast::<pg_sys::TriggerData>();
        if data.is_null() || (*data).type_ != pg_sys::NodeTag::T_TriggerData || (*data).tg_newtable.is_null() {
            error!("journal() is called by triggers over new rows only");
        }
        let relation = (*data).tg_relation;
        let descriptor = (*relation).rd_att;
        let shape = shape_of(relation);
        let mut after = Rows::of((*data).tg_newtable, descriptor);
        let mut before = (!(*data).tg_oldtable.is_null()).then(|| Rows::of((*data).tg_oldtable, descriptor));
        let (kind, id) = match shape.table.as_str() {
            "pay_flow" => ("flow", "flow_id"),
            "refund" => ("refund", "refund_id"),
            "pay_order" => ("order", "order_id"),
            table => error!("journal() knows nothing of table {table}"),
        };
        let columns = Columns::of(&shape, id);
        let mut journal = Journal::new(kind, &columns);
        while let Some(new) = after.next() {
            let old = before.as_mut().map(|rows| rows.next().unwrap_or_else(|| error!("a row after and none before")));
            if old.is_some_and(|old| old.i64(columns.id) != new.i64(columns.id)) {
                error!("the rows before a statement are in another order than those after it");
            }
            journal.keep(&columns, &new, old.as_ref());
        }
        journal.close();
        after.close();
        if let Some(rows) = before {
            rows.close();
        }
        pg_sys::Datum::null()
    }
}

thread_local! {
    /// Orders that were inserted in the charge of an attempt, by that attempt's flow: until it is inserted too.
    static BEGUN: RefCell<HashMap<i64, Begun>> = RefCell::new(HashMap::new());
}

/// An order that waits for its first attempt, and the transaction that made it.
struct Begun {
    order_id: i64,
    version: i64,
    at: i64,
    transaction: pg_sys::TransactionId,
}

impl Begun {
    fn wait_for(self, flow_id: i64) {
        BEGUN.with_borrow_mut(|begun| {
            // What another transaction left was rolled back, or it would have gone.
            begun.retain(|_, other| other.transaction == self.transaction);
            begun.insert(flow_id, self);
        });
    }

    fn of(flow_id: i64, transaction: pg_sys::TransactionId) -> Option<Self> {
        let begun = BEGUN.with_borrow_mut(|begun| begun.remove(&flow_id))?;
        (begun.transaction == transaction).then_some(begun)
    }
}

/// The rows of a transition table.
struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    slot: *mut pg_sys::TupleTableSlot,
    pointer: i32,
}

/// One of them, until the next is read.
#[derive(Clone, Copy)]
struct Row(*mut pg_sys::TupleTableSlot);

impl Rows {
    unsafe fn of(store: *mut pg_sys::Tuplestorestate, descriptor: pg_sys::TupleDesc) -> Self {
        // SAFETY: the store is the trigger's own; a read pointer of ours disturbs no other reader.
        unsafe {
            let pointer = pg_sys::tuplestore_alloc_read_pointer(store, pg_sys::EXEC_FLAG_REWIND as i32);
            pg_sys::tuplestore_select_read_pointer(store, pointer);
            pg_sys::tuplestore_rescan(store);
            let slot = pg_sys::MakeSingleTupleTableSlot(descriptor, &raw const pg_sys::TTSOpsMinimalTuple);
            Self { store, slot, pointer }
        }
    }

    unsafe fn next(&mut self) -> Option<Row> {
        // SAFETY: the slot has the shape of the store's rows.
        unsafe {
            pg_sys::tuplestore_select_read_pointer(self.store, self.pointer);
            if !pg_sys::tuplestore_gettupleslot(self.store, true, false, self.slot) {
                return None;
            }
            pg_sys::slot_getallattrs(self.slot);
            Some(Row(self.slot))
        }
    }

    unsafe fn close(self) {
        // SAFETY: the slot was made by of().
        unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.slot) };
    }
}

impl Row {
    fn datum(self, column: usize) -> Option<pg_sys::Datum> {
        // SAFETY: all columns were taken apart when the row was read.
        unsafe { (!*(*self.0).tts_isnull.add(column)).then(|| *(*self.0).tts_values.add(column)) }
    }

    fn i64(self, column: usize) -> i64 {
        self.datum(column).map_or(0, |datum| datum.value() as i64)
    }

    fn text<'a>(self, column: usize) -> Option<&'a str> {
        // SAFETY: columns read as text are declared as text; the row is used before the next is read.
        self.datum(column).and_then(|datum| unsafe { <&str>::from_datum(datum, false) })
    }
}

/// Where the columns stand that are read here. A table has those of its kind; the others are not asked for.
struct Columns {
    id: usize,
    flow_id: Option<usize>,
    version: usize,
    updated_at: usize,
    status: usize,
    answer: Option<Answer>,
    order: Option<Order>,
}

/// What a log row tells beside the edge.
struct Answer {
    action: usize,
    outcome: usize,
    code: usize,
    request_id: usize,
    latency_ms: usize,
    frozen_reason: usize,
    hash: usize,
}

/// What an order's event is made of.
struct Order {
    live_flow_id: usize,
    paid_flow_id: usize,
    refunded_amount: usize,
}

impl Columns {
    fn of(shape: &Shape, id: &str) -> Self {
        let is_order = id == "order_id";
        Self {
            id: shape.at(id),
            flow_id: (!is_order).then(|| shape.at("flow_id")),
            version: shape.at("version"),
            updated_at: shape.at("updated_at"),
            status: shape.at("status"),
            answer: (!is_order).then(|| Answer {
                action: shape.at("last_action"),
                outcome: shape.at("last_outcome"),
                code: shape.at("last_error_code"),
                request_id: shape.at("channel_request_id"),
                latency_ms: shape.at("last_latency_ms"),
                frozen_reason: shape.at("frozen_reason"),
                hash: shape.at("log_hash"),
            }),
            order: is_order.then(|| Order {
                live_flow_id: shape.at("live_flow_id"),
                paid_flow_id: shape.at("paid_flow_id"),
                refunded_amount: shape.at("refunded_amount"),
            }),
        }
    }
}

/// The columns of `paylatch.transition_log`, in the order in which they are filled.
const LOG: [&str; 15] = [
    "kind",
    "ref_id",
    "version",
    "at",
    "from_status",
    "to_status",
    "source",
    "actor",
    "action",
    "outcome",
    "code",
    "request_id",
    "latency_ms",
    "frozen_reason",
    "hash",
];
/// The columns of `paylatch.outbox`, likewise.
const OUTBOX: [&str; 8] = ["outbox_id", "at", "flow_id", "ref_id", "version", "type", "order_from", "order_refunded"];

/// Both tables, opened when the first row comes.
struct Journal {
    kind: &'static str,
    kind_text: Option<pg_sys::Datum>,
    source: Option<pg_sys::Datum>,
    actor: Option<pg_sys::Datum>,
    event_ids: pg_sys::Oid,
    log: Target,
    outbox: Target,
}

impl Journal {
    unsafe fn new(kind: &'static str, columns: &Columns) -> Self {
        // SAFETY: names of relations that our migrations made.
        unsafe {
            Self {
                kind,
                kind_text: kind.into_datum(),
                source: columns.answer.as_ref().and_then(|_| settings::source().into_datum()),
                actor: columns.answer.as_ref().and_then(|_| settings::actor().into_datum()),
                event_ids: table("outbox_id_seq"),
                log: Target::of(table("transition_log")),
                outbox: Target::of(table("outbox")),
            }
        }
    }

    unsafe fn keep(&mut self, columns: &Columns, new: &Row, old: Option<&Row>) {
        // SAFETY: values are given in the order of LOG and OUTBOX.
        unsafe {
            let (at, version) = (new.i64(columns.updated_at), new.datum(columns.version));
            let id = new.datum(columns.id);
            let (from, to) = (old.and_then(|old| old.datum(columns.status)), new.datum(columns.status));
            let from_word = old.and_then(|old| old.text(columns.status));
            let to_word = new.text(columns.status).unwrap_or_default();
            if let Some(answer) = &columns.answer {
                let brings = rules::brings_reference(new.text(answer.action), new.text(answer.outcome));
                self.log.push(
                    at,
                    &LOG,
                    [
                        self.kind_text,
                        id,
                        version,
                        new.datum(columns.updated_at),
                        from,
                        to,
                        self.source,
                        self.actor,
                        new.datum(answer.action),
                        new.datum(answer.outcome),
                        new.datum(answer.code),
                        new.datum(answer.request_id).filter(|_| brings),
                        new.datum(answer.latency_ms),
                        new.datum(answer.frozen_reason),
                        new.datum(answer.hash),
                    ],
                );
                let was_frozen = old.is_some_and(|old| old.datum(answer.frozen_reason).is_some());
                let frozen = new.datum(answer.frozen_reason).is_some();
                if let Some(event) = rules::event_type(self.kind, from_word, to_word, was_frozen, frozen) {
                    let flow_id = columns.flow_id.and_then(|at| new.datum(at));
                    self.event(at, [flow_id, id, version, event.into_datum(), None, None]);
                }
                if old.is_none()
                    && self.kind == "flow"
                    && let Some(order) = Begun::of(new.i64(columns.id), pg_sys::GetTopTransactionId())
                {
                    let (order_id, version) = (pg_sys::Datum::from(order.order_id), pg_sys::Datum::from(order.version));
                    let (event, from) = ("order.processing".into_datum(), "PENDING".into_datum());
                    self.event(order.at, [id, Some(order_id), Some(version), event, from, None]);
                }
            }
            if let Some(order) = &columns.order {
                let refunded = new.i64(order.refunded_amount);
                let Some(old) = old else {
                    if to_word == "PROCESSING" {
                        let transaction = pg_sys::GetTopTransactionId();
                        let (order_id, version) = (new.i64(columns.id), new.i64(columns.version));
                        Begun { order_id, version, at, transaction }.wait_for(new.i64(order.live_flow_id));
                    }
                    return;
                };
                if from_word != Some(to_word) || old.i64(order.refunded_amount) != refunded {
                    let flow_id = new.datum(order.live_flow_id);
                    let flow_id = flow_id.or_else(|| old.datum(order.live_flow_id));
                    let flow_id = flow_id.or_else(|| new.datum(order.paid_flow_id));
                    let event = format!("order.{}", to_word.to_ascii_lowercase()).into_datum();
                    let refunded = (refunded != 0).then(|| pg_sys::Datum::from(refunded));
                    self.event(at, [flow_id, id, version, event, from, refunded]);
                }
            }
        }
    }

    unsafe fn event(&mut self, at: i64, [flow_id, id, version, event, from, refunded]: [Option<pg_sys::Datum>; 6]) {
        // SAFETY: nextval() takes the sequence's oid and gives a bigint.
        unsafe {
            let sequence = Some(pg_sys::Datum::from(self.event_ids));
            let next = pgrx::fcinfo::direct_function_call_as_datum(pg_sys::nextval_oid, &[sequence]);
            let at_datum = Some(pg_sys::Datum::from(at));
            self.outbox.push(at, &OUTBOX, [next, at_datum, flow_id, id, version, event, from, refunded]);
        }
    }

    unsafe fn close(self) {
        // SAFETY: closes what push() opened.
        unsafe {
            self.log.close();
            self.outbox.close();
        }
    }
}

/// A table to write to, once there is a row.
struct Target {
    table: pg_sys::Oid,
    places: Vec<usize>,
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
    writer: Option<Writer>,
}

impl Target {
    const fn of(table: pg_sys::Oid) -> Self {
        Self { table, places: Vec::new(), values: Vec::new(), nulls: Vec::new(), writer: None }
    }

    unsafe fn push<const N: usize>(&mut self, at: i64, names: &[&str; N], row: [Option<pg_sys::Datum>; N]) {
        // SAFETY: the vectors have a place for each column of the table.
        unsafe {
            if self.writer.is_none() {
                let writer = Writer::open(self.table);
                let shape = shape_of(writer.table());
                self.places = names.iter().map(|name| shape.at(name)).collect();
                self.values = vec![pg_sys::Datum::from(0); shape.names.len()];
                self.nulls = vec![true; shape.names.len()];
                self.writer = Some(writer);
            }
            for (place, value) in self.places.iter().zip(row) {
                self.nulls[*place] = value.is_none();
                self.values[*place] = value.unwrap_or(pg_sys::Datum::from(0));
            }
            if let Some(writer) = &mut self.writer {
                writer.push(at, &self.values, &self.nulls);
            }
        }
    }

    unsafe fn close(self) {
        if let Some(writer) = self.writer {
            // SAFETY: it was opened by push().
            unsafe { writer.close() };
        }
    }
}

/// A relation of ours by name.
unsafe fn table(name: &str) -> pg_sys::Oid {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    // SAFETY: looks two names up in the catalog.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"paylatch".as_ptr(), false);
        match pg_sys::get_relname_relid(name.as_ptr(), schema) {
            pg_sys::InvalidOid => error!("paylatch.{} is missing: run `paylatchd migrate`", name.to_string_lossy()),
            id => id,
        }
    }
}
