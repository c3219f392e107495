//! Many rows into one table at once, the way COPY writes them.
//!
//! The executor spends more on each row of an INSERT than the row itself costs. Here a set of rows goes to its partition in
//! one piece: fewer instructions, and one log record for a page of rows in place of one for each. Measured in
//! docs/performance.md.
//!
//! What a table declares holds all the same: NOT NULL and CHECK constraints and every index. A table that somebody gave
//! row triggers for INSERT is written by INSERT, so that they fire.

use std::ptr::null_mut;

use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::Spi;

use crate::composite::name_of;

/// Most rows that are held before they are written.
const ROWS: usize = 1000;
const LOCK: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;

/// A table being written to; partitioned by range of one timestamptz, or not at all.
pub struct Writer {
    table: pg_sys::Relation,
    leaf: Option<Leaf>,
}

/// The partition that rows go to, as the executor wants to have it described.
struct Leaf {
    table: pg_sys::Relation,
    relation: pg_sys::Relation,
    info: *mut pg_sys::ResultRelInfo,
    estate: *mut pg_sys::EState,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
    filled: usize,
    fires_row_triggers: bool,
}

impl Writer {
    /// Opens a table of ours.
    ///
    /// # Safety
    /// Call it, and everything else here, inside a transaction; `close()` before the calling function returns.
    pub unsafe fn open(table: pg_sys::Oid) -> Self {
        // SAFETY: the lock is kept until the transaction ends, as an INSERT does.
        Self { table: unsafe { pg_sys::table_open(table, LOCK) }, leaf: None }
    }

    /// The table.
    pub const fn table(&self) -> pg_sys::Relation {
        self.table
    }

    /// Adds a row that belongs to the time `at`. Values are copied.
    ///
    /// # Safety
    /// Values and nulls must be those of the table's columns, in their order.
    pub unsafe fn push(&mut self, at: i64, values: &[pg_sys::Datum], nulls: &[bool]) {
        // SAFETY: as the caller says; slots belong to the open leaf.
        unsafe {
            let leaf_id = self.leaf_of(at);
            if self.leaf.as_ref().is_none_or(|leaf| (*leaf.relation).rd_id != leaf_id || leaf.filled == ROWS) {
                self.end_leaf();
                self.leaf = Some(Leaf::open(leaf_id, self.table));
            }
            if let Some(leaf) = &mut self.leaf {
                leaf.push(values, nulls);
            }
        }
    }

    /// Writes what is left.
    ///
    /// # Safety
    /// As `open()` says.
    pub unsafe fn close(mut self) {
        // SAFETY: the relation was opened here.
        unsafe {
            self.end_leaf();
            pg_sys::table_close(self.table, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }

    unsafe fn end_leaf(&mut self) {
        if let Some(mut leaf) = self.leaf.take() {
            // SAFETY: the leaf was opened here.
            unsafe {
                leaf.write();
                leaf.close();
            }
        }
    }

    /// The partition of a time; the table itself if it has none.
    unsafe fn leaf_of(&self, at: i64) -> pg_sys::Oid {
        // SAFETY: the descriptors belong to the open relation; bounds and indexes have the lengths that they state.
        unsafe {
            if i64::from((*(*self.table).rd_rel).relkind) != i64::from(pg_sys::RELKIND_PARTITIONED_TABLE) {
                return (*self.table).rd_id;
            }
            let partitions = pg_sys::RelationGetPartitionDesc(self.table, true);
            let bounds = (*partitions).boundinfo;
            if bounds.is_null() || i64::from((*bounds).strategy) != i64::from(b'r') {
                error!("{} has no partitions by range", table_name(self.table));
            }
            // Bounds are in order; a partition reaches from one to the next.
            let is_reached = |n: usize| match *(*(*bounds).kind.add(n)) {
                pg_sys::PartitionRangeDatumKind::PARTITION_RANGE_DATUM_MINVALUE => true,
                pg_sys::PartitionRangeDatumKind::PARTITION_RANGE_DATUM_MAXVALUE => false,
                _ => (*(*(*bounds).datums.add(n))).value() as i64 <= at,
            };
            let count = (*bounds).ndatums as usize;
            let passed = (0..count).rev().find(|n| is_reached(*n)).map_or(0, |n| n + 1);
            let index = match *(*bounds).indexes.add(passed) {
                -1 => (*bounds).default_index,
                index => index,
            };
            if index < 0 {
                error!("{} has no partition for this time: call paylatch.make_partitions()", table_name(self.table));
            }
            *(*partitions).oids.add(index as usize)
        }
    }
}

impl Leaf {
    unsafe fn open(id: pg_sys::Oid, table: pg_sys::Relation) -> Self {
        // SAFETY: everything is made for this relation and freed by close().
        unsafe {
            let relation = pg_sys::table_open(id, LOCK);
            if !same_columns((*relation).rd_att, (*table).rd_att) {
                error!("{} has other columns than {}", table_name(relation), table_name(table));
            }
            let estate = pg_sys::CreateExecutorState();
            let parse = pg_sys::make_parsestate(null_mut());
            pg_sys::addRangeTableEntryForRelation(parse, relation, LOCK, null_mut(), false, false);
            #[cfg(any(feature = "pg14", feature = "pg15"))]
            pg_sys::ExecInitRangeTable(estate, (*parse).p_rtable);
            #[cfg(any(feature = "pg16", feature = "pg17"))]
            pg_sys::ExecInitRangeTable(estate, (*parse).p_rtable, (*parse).p_rteperminfos);
            let info: *mut pg_sys::ResultRelInfo = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, relation, 1, null_mut(), 0);
            pg_sys::ExecOpenIndices(info, false);
            let triggers = (*relation).trigdesc;
            let fires_row_triggers =
                !triggers.is_null() && ((*triggers).trig_insert_before_row || (*triggers).trig_insert_after_row);
            Self { table, relation, info, estate, slots: Vec::new(), filled: 0, fires_row_triggers }
        }
    }

    unsafe fn push(&mut self, values: &[pg_sys::Datum], nulls: &[bool]) {
        // SAFETY: the slot is one of this relation's; its arrays have a place for each column.
        unsafe {
            if self.filled == self.slots.len() {
                self.slots.push(pg_sys::table_slot_create(self.relation, null_mut()));
            }
            let slot = self.slots[self.filled];
            std::ptr::copy_nonoverlapping(values.as_ptr(), (*slot).tts_values, values.len());
            std::ptr::copy_nonoverlapping(nulls.as_ptr(), (*slot).tts_isnull, nulls.len());
            pg_sys::ExecStoreVirtualTuple(slot);
            if !(*(*self.relation).rd_att).constr.is_null() {
                pg_sys::ExecConstraints(self.info, slot, self.estate);
            }
            pg_sys::ExecMaterializeSlot(slot);
            self.filled += 1;
        }
    }

    unsafe fn write(&mut self) {
        // SAFETY: the filled slots hold rows of this relation.
        unsafe {
            let slots = &mut self.slots[..self.filled];
            if self.fires_row_triggers {
                slots.iter().for_each(|slot| insert(self.table, self.relation, *slot));
                return;
            }
            let Some(multi_insert) = (*(*self.relation).rd_tableam).multi_insert else {
                error!("{} has an access method without multi_insert", table_name(self.relation));
            };
            let command = pg_sys::GetCurrentCommandId(true);
            multi_insert(self.relation, slots.as_mut_ptr(), slots.len() as i32, command, 0, null_mut());
            let context = pg_sys::MakePerTupleExprContext(self.estate);
            for slot in slots {
                (**slot).tts_tableOid = (*self.relation).rd_id;
                if (*self.info).ri_NumIndices > 0 {
                    pg_sys::ExecInsertIndexTuples(
                        self.info,
                        *slot,
                        self.estate,
                        false,
                        false,
                        null_mut(),
                        null_mut(),
                        #[cfg(any(feature = "pg16", feature = "pg17"))]
                        false,
                    );
                }
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            }
        }
    }

    unsafe fn close(self) {
        // SAFETY: all of it was opened by open().
        unsafe {
            for slot in self.slots {
                pg_sys::ExecDropSingleTupleTableSlot(slot);
            }
            pg_sys::ExecCloseIndices(self.info);
            pg_sys::FreeExecutorState(self.estate);
            pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}

/// One row by INSERT into the table, with all that is attached to it and to the partition.
unsafe fn insert(table: pg_sys::Relation, relation: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: the slot holds a row of this relation, so it is a composite of the relation's own row type.
    unsafe {
        let row = pg_sys::ExecFetchSlotHeapTupleDatum(slot);
        let row = pgrx::datum::DatumWithOid::new(row, (*(*relation).rd_rel).reltype);
        let table = table_name(table);
        Spi::run_with_args(&format!("insert into {table} select ($1).*"), &[row])
            .unwrap_or_else(|problem| error!("{table}: {problem}"));
    }
}

/// Whether values of one row fit the other: the same types in the same order, none of them dropped.
unsafe fn same_columns(one: pg_sys::TupleDesc, other: pg_sys::TupleDesc) -> bool {
    // SAFETY: both descriptors belong to open relations.
    unsafe {
        let columns = |shape: pg_sys::TupleDesc| (*shape).attrs.as_slice((*shape).natts as usize);
        columns(one).len() == columns(other).len()
            && columns(one).iter().zip(columns(other)).all(|(one, other)| {
                one.atttypid == other.atttypid
                    && one.attisdropped == other.attisdropped
                    && one.attname.data == other.attname.data
            })
    }
}

unsafe fn table_name(relation: pg_sys::Relation) -> String {
    // SAFETY: the relation is open; catalog names end with NUL.
    unsafe { format!("paylatch.{:?}", name_of((*(*relation).rd_rel).relname.data.as_ptr())) }
}
