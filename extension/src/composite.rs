//! Rows in and out of Rust, by position: the only place with raw tuples.
//!
//! Reading a row by column name costs several times what deciding it does, so composite arguments are taken apart in
//! one go. Positions are those of `sql/types.sql`, which is a member of the same extension version; the number of
//! columns is checked all the same.

use std::ffi::CStr;
use std::str::FromStr;

use pgrx::pg_sys;
use pgrx::prelude::*;

use paylatch_core::Micros;

/// The columns of one row.
pub struct Fields {
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
}

impl Fields {
    /// Takes a composite datum apart; `None` for NULL.
    ///
    /// # Safety
    /// `datum` must be a composite datum with `columns` columns, living at least as long as the fields are read.
    pub unsafe fn of_composite(datum: Option<pg_sys::Datum>, columns: usize) -> Option<Self> {
        let datum = datum?;
        // SAFETY: the caller says that it is a composite datum, so it is a varlena with a tuple header.
        unsafe {
            let header: pg_sys::HeapTupleHeader = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let (type_id, type_mod) =
                ((*header).t_choice.t_datum.datum_typeid, (*header).t_choice.t_datum.datum_typmod);
            let mut tuple = pg_sys::HeapTupleData {
                t_len: pgrx::varsize_any(header.cast()) as u32,
                t_self: pg_sys::ItemPointerData::default(),
                t_tableOid: pg_sys::InvalidOid,
                t_data: header,
            };
            let shape = pg_sys::lookup_rowtype_tupdesc(type_id, type_mod);
            let fields = Self::of_tuple(&raw mut tuple, shape);
            if (*shape).tdrefcount >= 0 {
                pg_sys::DecrTupleDescRefCount(shape);
            }
            if fields.values.len() != columns {
                error!("a row of {columns} columns was expected, {} came: update the extension", fields.values.len());
            }
            Some(fields)
        }
    }

    /// Takes each element of an array of composites apart; NULL is no element.
    ///
    /// # Safety
    /// `datum` must be an array of composites with `columns` columns, living at least as long as the fields are read.
    pub unsafe fn of_array(datum: Option<pg_sys::Datum>, columns: usize) -> Vec<Self> {
        let Some(datum) = datum else { return Vec::new() };
        // SAFETY: the caller says that it is an array of composites, which are varlenas aligned as doubles.
        unsafe {
            let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            let kind = (*array).elemtype;
            let align = pg_sys::TYPALIGN_DOUBLE as std::ffi::c_char;
            pg_sys::deconstruct_array(array, kind, -1, false, align, &raw mut elements, &raw mut nulls, &raw mut count);
            (0..count as usize)
                .filter(|at| !*nulls.add(*at))
                .filter_map(|at| Self::of_composite(Some(*elements.add(at)), columns))
                .collect()
        }
    }

    /// Takes a heap tuple apart.
    ///
    /// # Safety
    /// `tuple` must be a valid tuple of the given shape, living at least as long as the fields are read.
    pub unsafe fn of_tuple(tuple: pg_sys::HeapTuple, shape: pg_sys::TupleDesc) -> Self {
        // SAFETY: the caller vouches for both pointers; the vectors have room for every column.
        unsafe {
            let columns = (*shape).natts as usize;
            let mut fields = Self { values: vec![pg_sys::Datum::from(0); columns], nulls: vec![true; columns] };
            pg_sys::heap_deform_tuple(tuple, shape, fields.values.as_mut_ptr(), fields.nulls.as_mut_ptr());
            fields
        }
    }

    /// The raw value of a column, `None` for NULL.
    pub fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        (!self.nulls[column]).then(|| self.values[column])
    }

    /// Replaces a column.
    pub fn set(&mut self, column: usize, value: Option<pg_sys::Datum>) {
        self.nulls[column] = value.is_none();
        self.values[column] = value.unwrap_or(pg_sys::Datum::from(0));
    }

    /// A tuple of the given shape with these columns.
    ///
    /// # Safety
    /// The columns must be of that shape.
    pub unsafe fn form(&mut self, shape: pg_sys::TupleDesc) -> pg_sys::HeapTuple {
        // SAFETY: the caller says that values and shape agree.
        unsafe { pg_sys::heap_form_tuple(shape, self.values.as_mut_ptr(), self.nulls.as_mut_ptr()) }
    }

    /// A text (or domain over text) column.
    pub fn text(&self, column: usize) -> Option<&str> {
        // SAFETY: columns read as text are declared as text; the row outlives the fields.
        self.datum(column).and_then(|datum| unsafe { <&str>::from_datum(datum, false) })
    }

    /// A bytea column.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        // SAFETY: columns read as bytes are declared as bytea; the row outlives the fields.
        self.datum(column).and_then(|datum| unsafe { <&[u8]>::from_datum(datum, false) })
    }

    /// A bigint or timestamptz column (the latter in microseconds).
    pub fn i64(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    /// An integer column.
    pub fn i32(&self, column: usize) -> Option<i32> {
        self.datum(column).map(|datum| datum.value() as i32)
    }

    /// A boolean column; NULL is false.
    pub fn bool(&self, column: usize) -> bool {
        self.datum(column).is_some_and(|datum| datum.value() & 0xFF != 0)
    }
}

/// A column on its way out.
pub trait IntoColumn {
    /// As a datum, `None` for NULL.
    fn column(self) -> Option<pg_sys::Datum>;
}

impl IntoColumn for Micros {
    fn column(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self))
    }
}

impl IntoColumn for i32 {
    fn column(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self))
    }
}

impl IntoColumn for bool {
    fn column(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self))
    }
}

impl IntoColumn for &str {
    fn column(self) -> Option<pg_sys::Datum> {
        self.into_datum()
    }
}

impl<T: IntoColumn> IntoColumn for Option<T> {
    fn column(self) -> Option<pg_sys::Datum> {
        self.and_then(T::column)
    }
}

/// A row to be built.
pub type Columns<const N: usize> = [Option<pg_sys::Datum>; N];

/// Builds the array of composites that the called function returns.
///
/// # Safety
/// `fcinfo` must belong to a call of a function whose declared result is an array of composites with exactly these columns.
pub unsafe fn compose_all<const N: usize>(fcinfo: pg_sys::FunctionCallInfo, rows: &[Columns<N>]) -> pg_sys::Datum {
    // SAFETY: the shape is that of the array's elements, as the catalog declares the function's result.
    unsafe {
        let kind = pg_sys::get_element_type(pg_sys::get_fn_expr_rettype((*fcinfo).flinfo));
        let shape = pg_sys::lookup_rowtype_tupdesc(kind, -1);
        if (*shape).natts as usize != N {
            error!("the result's type does not have {N} columns: update the extension");
        }
        let mut elements: Vec<pg_sys::Datum> = rows.iter().map(|columns| row(shape, columns)).collect();
        if (*shape).tdrefcount >= 0 {
            pg_sys::DecrTupleDescRefCount(shape);
        }
        let align = pg_sys::TYPALIGN_DOUBLE as std::ffi::c_char;
        let array = pg_sys::construct_array(elements.as_mut_ptr(), rows.len() as i32, kind, -1, false, align);
        pg_sys::Datum::from(array)
    }
}

/// # Safety
/// The columns must be of that shape.
unsafe fn row<const N: usize>(shape: pg_sys::TupleDesc, columns: &Columns<N>) -> pg_sys::Datum {
    let mut nulls = columns.map(|column| column.is_none());
    let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::from(0)));
    // SAFETY: the caller says that columns and shape agree.
    unsafe {
        let tuple = pg_sys::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
    }
}

/// Builds the composite that the called function returns.
///
/// # Safety
/// `fcinfo` must belong to a call of a function whose declared result is a composite with exactly these columns.
pub unsafe fn compose<const N: usize>(fcinfo: pg_sys::FunctionCallInfo, columns: Columns<N>) -> pg_sys::Datum {
    // SAFETY: the shape is the one that the catalog declares for this function.
    unsafe {
        let mut shape: pg_sys::TupleDesc = std::ptr::null_mut();
        let class = pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &raw mut shape);
        if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE || (*shape).natts as usize != N {
            error!("the result's type does not have {N} columns: update the extension");
        }
        row(pg_sys::BlessTupleDesc(shape), &columns)
    }
}

/// An argument of a raw call, `None` for NULL.
///
/// # Safety
/// `fcinfo` must belong to a running call with more than `n` arguments.
pub unsafe fn arg(fcinfo: pg_sys::FunctionCallInfo, n: usize) -> Option<pg_sys::Datum> {
    // SAFETY: as the caller says.
    unsafe {
        let arg = (*fcinfo).args.as_slice((*fcinfo).nargs as usize)[n];
        (!arg.isnull).then_some(arg.value)
    }
}

/// Declares a raw function to PostgreSQL, as `PG_FUNCTION_INFO_V1` does in C.
macro_rules! pg_function {
    ($info:ident, $name:ident, $body:expr) => {
        #[unsafe(no_mangle)]
        #[doc(hidden)]
        pub extern "C" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const V1_API: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &V1_API
        }

        #[unsafe(no_mangle)]
        #[doc(hidden)]
        pub unsafe extern "C-unwind" fn $name(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: PostgreSQL calls this with a valid call record; a Rust panic becomes a PostgreSQL error.
            unsafe { pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard(move || $body(fcinfo)) }
        }
    };
}
pub(crate) use pg_function;

/// A C string as text, for names out of the catalog.
///
/// # Safety
/// `name` must point to a NUL-terminated string.
pub unsafe fn name_of(name: *const std::ffi::c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// What the caller's SQL always gives.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| error!("{name} must not be null"))
}

/// A word of ours; 22023 for any other.
pub fn word<T: FromStr<Err: std::fmt::Display>>(text: Option<&str>, name: &str) -> T {
    T::from_str(required(text, name)).unwrap_or_else(|unknown| {
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("{name}: {unknown}"));
    })
}
