//! The paylatch extension: code only, no data.
//!
//! Rules are Rust and come from `paylatch-core`; data is moved by the commands in `sql/`, in sets. This file only lists
//! the parts: the SQL faces of the rules ([`rules`]), the planned steps of a set ([`steps`]), a channel's budget
//! ([`budgets`]), where claims begin to look ([`look`]), the row guards ([`guard`]) and the SQL files in the order in which they are run.
//!
//! Invariant: no member of the extension holds data, so dropping or upgrading it can lose no payment.

use pgrx::prelude::*;

mod budgets;
mod bulk;
mod composite;
mod guard;
mod journal;
mod look;
mod rules;
mod settings;
mod shape;
mod steps;

::pgrx::pg_module_magic!(name, version);

#[pg_guard]
#[allow(non_snake_case)]
extern "C-unwind" fn _PG_init() {
    settings::define();
}

extension_sql_file!("sql/types.sql", name = "types", bootstrap);
extension_sql_file!("sql/native.sql", name = "native", requires = ["types"]);
extension_sql_file!("sql/effects.sql", name = "effects", requires = ["native"]);
extension_sql_file!("sql/refund_effects.sql", name = "refund_effects", requires = ["effects"]);
extension_sql_file!("sql/engine.sql", name = "engine", requires = ["refund_effects"]);
extension_sql_file!("sql/scope.sql", name = "scope", requires = ["engine"]);
extension_sql_file!("sql/keys.sql", name = "keys", requires = ["scope"]);
extension_sql_file!("sql/create.sql", name = "create", requires = ["keys"]);
extension_sql_file!("sql/create_keyed.sql", name = "create_keyed", requires = ["create"]);
extension_sql_file!("sql/token.sql", name = "token", requires = ["create_keyed"]);
extension_sql_file!("sql/read.sql", name = "read", requires = ["token"]);
extension_sql_file!("sql/claim.sql", name = "claim", requires = ["read"]);
extension_sql_file!("sql/report.sql", name = "report", requires = ["claim"]);
extension_sql_file!("sql/wish.sql", name = "wish", requires = ["report"]);
extension_sql_file!("sql/refund.sql", name = "refund", requires = ["wish"]);
extension_sql_file!("sql/outside.sql", name = "outside", requires = ["refund"]);
extension_sql_file!("sql/inbox.sql", name = "inbox", requires = ["outside"]);
extension_sql_file!("sql/api.sql", name = "api", requires = ["inbox"]);
extension_sql_file!("sql/scan.sql", name = "scan", requires = ["api"]);
extension_sql_file!("sql/outbox.sql", name = "outbox", requires = ["scan"]);
extension_sql_file!("sql/deliver.sql", name = "deliver", requires = ["outbox"]);
extension_sql_file!("sql/explain.sql", name = "explain", requires = ["deliver"]);
extension_sql_file!("sql/verify.sql", name = "verify", requires = ["explain"]);
extension_sql_file!("sql/watch.sql", name = "watch", requires = ["verify"]);
extension_sql_file!("sql/finish.sql", name = "finish", finalize);
