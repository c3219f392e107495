//! Where a relation's columns stand, remembered per session: finding them by name for every row would cost more than all
//! that is done with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pgrx::pg_sys;
use pgrx::prelude::*;

use rustc_hash::FxHashMap;

use crate::composite::name_of;

/// The columns of one relation.
pub struct Shape {
    /// The relation's name.
    pub table: String,
    /// In their order.
    pub names: Vec<String>,
    /// Whether a value is passed by value, and its length.
    pub by_value: Vec<(bool, i16)>,
    places: FxHashMap<String, usize>,
}

impl Shape {
    /// The place of a column that our migrations made.
    pub fn at(&self, name: &str) -> usize {
        *self.places.get(name).unwrap_or_else(|| {
            error!("{} has no column {name}: run `paylatchd migrate`", self.table);
        })
    }
}

thread_local! {
    static SHAPES: RefCell<HashMap<pg_sys::Oid, Rc<Shape>>> = RefCell::new(HashMap::new());
}

/// The columns of an open relation, remembered until their number changes.
///
/// # Safety
/// The relation must be open.
pub unsafe fn shape_of(relation: pg_sys::Relation) -> Rc<Shape> {
    // SAFETY: as the caller says.
    let (id, columns) = unsafe {
        let descriptor = (*relation).rd_att;
        ((*relation).rd_id, (*descriptor).attrs.as_slice((*descriptor).natts as usize))
    };
    SHAPES.with_borrow_mut(|shapes| {
        if let Some(shape) = shapes.get(&id)
            && shape.names.len() == columns.len()
        {
            return Rc::clone(shape);
        }
        // SAFETY: catalog names end with NUL.
        let names: Vec<_> = columns.iter().map(|column| unsafe { name_of(column.attname.data.as_ptr()) }).collect();
        let shape = Rc::new(Shape {
            // SAFETY: likewise.
            table: unsafe { name_of((*(*relation).rd_rel).relname.data.as_ptr()) },
            by_value: columns.iter().map(|column| (column.attbyval, column.attlen)).collect(),
            places: names.iter().cloned().zip(0..).collect(),
            names,
        });
        shapes.insert(id, Rc::clone(&shape));
        shape
    })
}
