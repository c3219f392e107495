//! Races between two sessions, step by step, as PostgreSQL's own isolation tester plays them.
//!
//! `tests/isolation/specs/NAME.spec` says who does what in which order, `expected/NAME.out` what must come out. Where
//! `<waiting ...>` stands, one session waits for the other's transaction, and nobody deadlocks.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use paylatch_tests::Database;
use paylatch_tests::cluster::{bin_dir, pg_config, root};
use paylatch_tests::invariants::assert_verified;
use sqlx::postgres::PgConnectOptions;
use tempfile::TempDir;

async fn play(spec: &str) {
    let db = Database::fresh().await;
    let files = root().join("tests/isolation");
    db.add_scenes().await;
    db.execute(&std::fs::read_to_string(files.join("helpers.sql")).unwrap()).await;

    let server = PgConnectOptions::from_str(db.url()).unwrap();
    let out = TempDir::new().unwrap();
    let pgxs = pg_config("--pgxs");
    let tester = Path::new(&pgxs).ancestors().nth(2).unwrap().join("test/isolation/pg_isolation_regress");
    let run = Command::new(tester)
        .args(["--use-existing", "--dbname", db.name(), "--host", server.get_host(), "--user", "postgres"])
        .args(["--port", &server.get_port().to_string()])
        .args([
            Path::new("--bindir"),
            &bin_dir(),
            Path::new("--inputdir"),
            &files,
            Path::new("--outputdir"),
            out.path(),
        ])
        .arg(spec)
        .output()
        .unwrap();
    if !run.status.success() {
        let read = |name: &str| std::fs::read_to_string(out.path().join(name)).unwrap_or_default();
        let said = String::from_utf8_lossy(&run.stdout);
        panic!("{spec} came out otherwise:\n{said}\n{}", read("regression.diffs"));
    }
    assert_verified(&db).await;
}

#[tokio::test]
async fn two_creators_of_one_order() {
    play("create-create").await;
}

#[tokio::test]
async fn twins_with_one_key() {
    play("key-key").await;
}

#[tokio::test]
async fn two_claims() {
    play("claim-claim").await;
}

#[tokio::test]
async fn two_reports_on_one_flow() {
    play("report-report").await;
}

#[tokio::test]
async fn cancel_against_claim() {
    play("cancel-claim").await;
}

#[tokio::test]
async fn report_against_a_hand_written_update() {
    play("report-update").await;
}

#[tokio::test]
async fn two_refunds_of_one_payment() {
    play("refund-refund").await;
}

#[tokio::test]
async fn a_refund_against_a_dispute() {
    play("refund-dispute").await;
}

#[tokio::test]
async fn two_decisions_about_one_refund() {
    play("approve-reject").await;
}
