//! What README and docs/ show works: every sql block runs, in order, file by file, and so does README's Python.
//!
//! A fence says ```sql, or ```sql,norun where a block is only to be read. The blocks of a file are one psql session, as a
//! superuser, on a migrated database; Python runs after the SQL of its file, as an application's login role. Both find
//! the database through libpq's own environment variables.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use paylatch_tests::Database;
use paylatch_tests::cluster::{bin_dir, output, root};
use sqlx::postgres::PgConnectOptions;
use tempfile::TempDir;

pub struct Block {
    line: usize,
    pub code: String,
}

/// The blocks of `text` whose fence says exactly `language`.
pub fn blocks(text: &str, language: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(bool, Block)> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                open = Some((info.trim() == language, Block { line: index + 2, code: String::new() }));
            }
            (Some(_), Some(_)) => found.extend(open.take().filter(|(wanted, _)| *wanted).map(|(_, block)| block)),
            (None, Some((_, block))) => writeln!(block.code, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is never closed");
    found
}

fn connected(command: &mut Command, db: &Database, user: &str) {
    let server = PgConnectOptions::from_str(db.url()).unwrap();
    command
        .env("PGHOST", server.get_host())
        .env("PGPORT", server.get_port().to_string())
        .env("PGDATABASE", db.name())
        .env("PGUSER", user);
}

async fn run_sql(db: &Database, file: &Path, text: &str) -> usize {
    let blocks = blocks(text, "sql");
    let mut script = String::new();
    for block in &blocks {
        // psql counts lines from the start of its input; this makes them the lines of the page.
        script += &"\n".repeat((block.line - 1).saturating_sub(script.lines().count()));
        script += &block.code;
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(file.file_name().unwrap());
    std::fs::write(&path, script).unwrap();
    let mut psql = Command::new(bin_dir().join("psql"));
    connected(&mut psql, db, "postgres");
    output(psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file"]).arg(path));
    blocks.len()
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut pages: Vec<_> = docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

#[tokio::test]
async fn every_sql_block_runs() {
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        count += run_sql(&Database::fresh().await, &page, &text).await;
    }
    assert!(count > 0, "no page shows SQL");
}

#[tokio::test]
async fn the_python_of_readme_runs() {
    let db = Database::fresh().await;
    let page = root().join("README.md");
    let text = std::fs::read_to_string(&page).unwrap();
    run_sql(&db, &page, &text).await;
    let blocks = blocks(&text, "python");
    assert!(!blocks.is_empty(), "README shows no Python");
    let tools = output(&mut Command::new(root().join("scripts/venv")));
    for block in blocks {
        let mut python = Command::new(Path::new(&tools).join("python"));
        connected(&mut python, &db, "test_app");
        output(python.args(["-c", &block.code]));
    }
}

#[test]
fn the_rust_of_readme_is_the_example_that_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = blocks(&readme, "rust");
    let example = include_str!("examples.rs");
    let (_, rest) = example.split_once("// README shows this.\n").unwrap();
    let (shown, _) = rest.split_once("// README ends.").unwrap();
    assert_eq!(blocks.iter().map(|block| block.code.as_str()).collect::<String>(), shown);
}
