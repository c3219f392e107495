//! The session settings of paylatch, and its only clock.
//!
//! `paylatch.source` and `paylatch.actor` say who is behind a change; commands set them for their own duration, so a
//! change made by hand is logged as OPERATOR under the session's user. `paylatch.clock_offset_ms` moves the clock, for
//! tests, and only a superuser can set it, as `paylatch.shard_id` and `paylatch.key_ttl_hours`.

use std::ffi::{CStr, CString};

use pgrx::prelude::*;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

use paylatch_core::{MS, Micros};

static SOURCE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ACTOR: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static SHARD_ID: GucSetting<i32> = GucSetting::<i32>::new(0);
static KEY_TTL_HOURS: GucSetting<i32> = GucSetting::<i32>::new(24);
static CLOCK_OFFSET_MS: GucSetting<i32> = GucSetting::<i32>::new(0);

pub fn define() {
    GucRegistry::define_string_guc(
        c"paylatch.source",
        c"What caused the change: API, DRIVER, SCANNER, OPERATOR ...",
        c"Set by paylatch's commands for their own duration; empty means a change made by hand.",
        &SOURCE,
        GucContext::Userset,
        GucFlags::NO_SHOW_ALL,
    );
    GucRegistry::define_string_guc(
        c"paylatch.actor",
        c"Who, within the source.",
        c"Set by paylatch's commands for their own duration; empty means the session's user.",
        &ACTOR,
        GucContext::Userset,
        GucFlags::NO_SHOW_ALL,
    );
    GucRegistry::define_int_guc(
        c"paylatch.shard_id",
        c"The shard that new flow ids carry.",
        c"Set it for the whole database, before its first flow: ALTER DATABASE ... SET paylatch.shard_id.",
        &SHARD_ID,
        0,
        1023,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"paylatch.key_ttl_hours",
        c"How long an idempotency key is kept after its flow or refund has ended, at least.",
        c"Set it for the whole database: ALTER DATABASE ... SET paylatch.key_ttl_hours.",
        &KEY_TTL_HOURS,
        1,
        8760,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"paylatch.clock_offset_ms",
        c"Moves paylatch's clock by so many milliseconds. For tests.",
        c"Every time that paylatch reads or writes is shifted. Leave it at 0 wherever money is real.",
        &CLOCK_OFFSET_MS,
        i32::MIN,
        i32::MAX,
        GucContext::Suset,
        GucFlags::default(),
    );
}

/// Now, in microseconds as PostgreSQL counts them (from 2000-01-01 UTC), moved by the test offset.
pub fn now() -> Micros {
    // SAFETY: reads the clock, nothing else.
    let now = unsafe { pg_sys::GetCurrentTimestamp() };
    now + Micros::from(CLOCK_OFFSET_MS.get()) * MS
}

/// The shard that new flow ids carry.
pub fn shard() -> i64 {
    SHARD_ID.get().into()
}

/// How long keys outlive what they made, in hours.
pub fn key_ttl_hours() -> i32 {
    KEY_TTL_HOURS.get()
}

/// What caused the change; OPERATOR where no command says.
pub fn source() -> String {
    text(&SOURCE).unwrap_or_else(|| "OPERATOR".to_owned())
}

/// Whether a command of ours makes the change.
pub fn in_command() -> bool {
    text(&SOURCE).is_some()
}

/// Who makes the change.
pub fn actor() -> String {
    text(&ACTOR).unwrap_or_else(|| {
        // SAFETY: both look up the session's user; the returned string lives in the current memory context.
        let name = unsafe { CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetSessionUserId(), false)) };
        name.to_string_lossy().into_owned()
    })
}

fn text(setting: &GucSetting<Option<CString>>) -> Option<String> {
    let value = setting.get()?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}
