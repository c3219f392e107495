//! The OpenAPI document: committed as it is generated, true to the server, and complete in what it lists.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use paylatch_tests::cluster::{output, root};
use paylatch_tests::process::paylatchd;

use super::{Served, token};

const COMMITTED: &str = "docs/api.openapi.json";

/// `paylatchd openapi > docs/api.openapi.json` makes it so again.
#[tokio::test]
async fn the_committed_document_is_the_one_that_is_served() {
    let printed = output(Command::new(paylatchd()).arg("openapi"));
    let committed = std::fs::read_to_string(root().join(COMMITTED)).unwrap();
    assert!(committed.trim_end() == printed, "{COMMITTED} is not what `paylatchd openapi` prints");
    let served = Served::open("").await;
    assert_eq!(served.client.get("/openapi.json").await.expect(200).text.trim_end(), printed);
}

/// An independent tool reads the document and tries the server against it: no 5xx, no undocumented answer, wrong input
/// refused, right input taken, no token no answer. The seed is fixed.
#[tokio::test]
async fn schemathesis_finds_the_server_true_to_its_document() {
    let served = Served::of("default", "rate_per_second = 1000000\nmax_wait_ms = 20\nheader_timeout_ms = 60000").await;
    // Something to find for the document's own examples.
    served.db.execute("select setval('paylatch.flow_id_seq', 900)").await;
    assert_eq!(served.db.settled_flow("1086", "topup-1").await, 901);
    let token = token(&served.db, "default", &[]);
    let tools = output(&mut Command::new(root().join("scripts/venv")));
    let work = tempfile::TempDir::new().unwrap();
    let mut tool = Command::new(Path::new(&tools).join("schemathesis"));
    tool.current_dir(&work).arg("--config-file").arg(root().join("tests/it/api/schemathesis.toml"));
    tool.arg("run").arg(served.client.url("/openapi.json"));
    tool.args(["-H", &format!("Authorization: Bearer {token}"), "--seed", "3"]);
    let ran = tool.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    let broken: i64 = served.db.value("select count(*) from paylatch.verify() where not ok").await;
    assert_eq!(broken, 0);
}

/// docs/http.md has a row for every kind of problem, and no other.
#[test]
fn the_page_lists_every_problem() {
    use paylatchd::api::problem::Kind;
    let page = std::fs::read_to_string(root().join("docs/http.md")).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(cells);
    let is_status = |cells: &Vec<String>| cells.get(2).is_some_and(|cell| cell.parse::<u16>().is_ok());
    let listed: BTreeSet<_> =
        rows.filter(is_status).map(|cells| (cells[1].clone(), cells[2].clone(), cells[3].clone())).collect();
    let kinds = Kind::ALL.iter();
    let known: BTreeSet<_> = kinds
        .map(|kind| (kind.slug().to_owned(), kind.status().as_u16().to_string(), kind.title().to_owned()))
        .collect();
    assert_eq!(listed, known);
}
