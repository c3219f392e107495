//! F26: a dump restored into an empty database is the same: rows, guards, sequences. And as a copy it charges nobody.

use std::process::Command;

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::cluster::{bin_dir, output};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::lines::assert_same_lines;
use paylatch_tests::payments::{claim, report};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

/// What tells two databases apart: each table's rows in order, and the sequences.
async fn contents(db: &Database) -> Vec<String> {
    let mut lines = Vec::new();
    let tables: Vec<String> = sqlx::query_scalar(
        "select oid::regclass::text from pg_class
         where relnamespace = 'paylatch'::regnamespace and relkind = 'r' order by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(tables.iter().any(|t| t == "paylatch.pay_flow"), "{tables:?}");
    for table in tables {
        let rows = format!("select '{table} ' || t::text from {table} t order by 1");
        lines.extend(sqlx::query_scalar(AssertSqlSafe(rows)).fetch_all(db.pool()).await.unwrap());
    }
    let sequences = "select sequencename || ' ' || coalesce(last_value, 0) from pg_sequences
                     where schemaname = 'paylatch' order by 1";
    lines.extend(sqlx::query_scalar(sequences).fetch_all(db.pool()).await.unwrap());
    lines
}

/// What holds the rows: triggers with their state, constraints, grants, ownership.
fn schema(db: &Database) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("schema.sql");
    output(Command::new(bin_dir().join("pg_dump")).args(["--schema-only", "--file"]).arg(&file).arg(db.url()));
    let text = std::fs::read_to_string(file).unwrap();
    // pg_dump makes up a token for two of its lines.
    text.lines().filter(|line| !line.contains("restrict ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_restored_dump_is_the_same_and_charges_nobody() {
    let original = Database::fresh().await;
    original.add_scenes().await;
    let settled = original.settled_flow("alice", "one").await;
    let waiting = original.create_flow("shop", "bob", "two").await;
    let mut session = original.session().await;
    let asked = claim(&mut session, 10).await;
    assert_eq!(asked.len(), 1);
    report(&mut session, &[asked[0].evidence(Outcome::Unknown)]).await;
    let untouched = original.create_flow("topup", "carol", "three").await;

    let copy = Database::empty().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("dump");
    output(Command::new(bin_dir().join("pg_dump")).args(["--format=custom", "--file"]).arg(&file).arg(original.url()));
    output(
        Command::new(bin_dir().join("pg_restore"))
            .args(["--exit-on-error", "--single-transaction", "--dbname", copy.url()])
            .arg(&file),
    );

    assert_same_lines(&contents(&copy).await, &contents(&original).await);
    assert_same_lines(&schema(&copy), &schema(&original));

    // The guards are awake in the copy.
    let back =
        format!("update paylatch.pay_flow set status = 'PAYING', version = version + 1 where flow_id = {settled}");
    assert_eq!(copy.refused(&back).await.0, "23514");
    assert_eq!(copy.refused("truncate paylatch.pay_flow").await.0, "23514");

    // It hands out nothing, and doctor() says why.
    let mut session = copy.session().await;
    let refusal = sqlx::query("select from paylatch.claim_actions('by-hand', 10)").fetch_all(&mut session).await;
    assert!(refusal.map_or(true, |handouts| handouts.is_empty()), "a copy hands out actions");
    let armed = "select ok from paylatch.doctor() where check_name = 'armed'";
    assert!(!copy.value::<bool>(armed).await, "doctor() is silent about a copy");

    // Once an operator answers for it, it goes on where the dump was taken, with new numbers.
    copy.execute("select paylatch.arm('restored on purpose')").await;
    copy.execute(&format!("select paylatch.advance({waiting}, 'OPERATOR'), paylatch.advance({untouched}, 'OPERATOR')"))
        .await;
    let mut resumed: Vec<i64> = claim(&mut session, 10).await.iter().map(|h| h.flow_id).collect();
    resumed.sort_unstable();
    assert_eq!(resumed, [waiting, untouched]);
    let fresh = copy.create_flow("topup", "dave", "four").await;
    assert!(fresh > untouched, "sequences go on behind the dump");
    assert_verified(&copy).await;
}
