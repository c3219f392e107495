//! What documents itself must do so: a comment on every function, one table of error codes.

use std::collections::BTreeSet;

use paylatch_core::sqlstate;
use paylatch_tests::Database;
use paylatch_tests::cluster::root;

#[tokio::test]
async fn every_function_table_and_view_has_a_comment() {
    let db = Database::fresh().await;
    let silent: Vec<String> = sqlx::query_scalar(
        "select oid::regprocedure::text from pg_proc
         where pronamespace = 'paylatch'::regnamespace and obj_description(oid, 'pg_proc') is null
         union all
         select oid::regclass::text from pg_class
         where relnamespace = 'paylatch'::regnamespace and relkind in ('r', 'p', 'v') and not relispartition
           and obj_description(oid, 'pg_class') is null
         order by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(silent.is_empty(), "without a comment: {silent:#?}");
}

#[test]
fn architecture_lists_the_error_codes_of_the_code() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let listed: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
            let (code, meaning) = (cells.next()?, cells.next()?);
            let is_code = code.len() == 5 && code.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
            is_code.then_some((code, meaning))
        })
        .collect();
    let known = sqlstate::ALL.iter().map(|state| (state.code.to_owned(), state.meaning.to_owned())).collect();
    assert_eq!(listed, known);
}

/// The codes that SQL raises are those of the enum.
#[tokio::test]
async fn functions_raise_only_listed_codes() {
    let db = Database::fresh().await;
    let raised: Vec<String> = sqlx::query_scalar(
        "select distinct m[1] from pg_proc, regexp_matches(prosrc, '(PL[0-9]{3})', 'g') m
         where pronamespace = 'paylatch'::regnamespace order by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(!raised.is_empty());
    for code in raised {
        assert!(sqlstate::ALL.iter().any(|state| state.code == code), "{code} is not listed");
    }
}
