//! docs/http.md does what it shows: its shell runs in order, and then its Python, against a daemon that runs and serves.

use std::path::Path;
use std::process::Command;

use paylatch_tests::Stage;
use paylatch_tests::cluster::{output, root};
use paylatch_tests::process::paylatchd;

use crate::docs::blocks;

#[tokio::test]
async fn the_page_runs() {
    let stage = Stage::set().await;
    let daemon = stage.setup().api("").start().await;
    let page = std::fs::read_to_string(root().join("docs/http.md")).unwrap();
    let page = page.replace("127.0.0.1:8080", &daemon.api_address().to_string());
    let shell = blocks(&page, "sh");
    let python = blocks(&page, "python");
    assert!(shell.len() > 5 && python.len() == 1, "{} blocks of shell, {} of Python", shell.len(), python.len());
    let mut script: String = shell.iter().map(|block| block.code.as_str()).collect();
    script += "export API TOKEN\npython3 client.py\n";
    let work = tempfile::TempDir::new().unwrap();
    std::fs::write(work.path().join("client.py"), &python[0].code).unwrap();
    let program = paylatchd();
    let path = format!("{}:{}", program.parent().map(Path::display).unwrap(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).current_dir(&work).env("PATH", path);
    bash.env("PAYLATCH_DATABASE_URL", stage.db.url_as("operator"));
    let said = output(&mut bash);
    assert!(said.contains("urn:problem-type:paylatch:invalid"), "{said}");
    stage.assert_rules().await;
}
