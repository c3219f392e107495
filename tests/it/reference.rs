//! docs/sql-reference.md lists what roles may call, as it is: every function, its arguments and their defaults.

use std::collections::BTreeSet;

use paylatch_tests::Database;
use paylatch_tests::cluster::root;

/// The signatures in the blocks that are only to be read, one space between words.
fn listed() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/sql-reference.md")).unwrap();
    let blocks = page.split("```sql,norun\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let text = blocks.map(|(block, _)| block).collect::<String>();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.split_inclusive(')').map(|signature| signature.trim().to_owned()).collect()
}

/// An argument as the page writes it: default values without their casts, words in lower case. Results are no arguments.
fn argument(text: &str) -> Option<String> {
    let plain = text.split("::").next()?.replace("timestamp with time zone", "timestamptz");
    let plain = plain.replace("DEFAULT NULL", "default null").replace("SESSION_USER", "session_user");
    (!plain.starts_with("OUT ")).then(|| plain.replace("DEFAULT", "default"))
}

#[tokio::test]
async fn the_reference_lists_what_roles_may_call() {
    let db = Database::fresh().await;
    let functions: Vec<(String, String)> = sqlx::query_as(
        r"select p.proname::text, pg_get_function_arguments(p.oid) from pg_proc p
          where p.pronamespace = 'paylatch'::regnamespace and exists (
              select from pg_roles r where r.rolname like 'paylatch\_%' and r.rolname <> 'paylatch_owner'
              and has_function_privilege(r.oid, p.oid, 'execute'))",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    let signature = |(name, arguments): &(String, String)| {
        let arguments: Vec<_> = arguments.split(", ").filter_map(argument).collect();
        format!("{name}({})", arguments.join(", "))
    };
    let callable: BTreeSet<String> = functions.iter().map(signature).collect();
    let listed = listed();
    let missing: Vec<_> = callable.difference(&listed).collect();
    let invented: Vec<_> = listed.difference(&callable).collect();
    assert!(missing.is_empty() && invented.is_empty(), "missing: {missing:#?}\nno such function: {invented:#?}");
}
