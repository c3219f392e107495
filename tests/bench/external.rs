//! Other people's ways to the same end, as programs of their own in tests/bench/peers.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use paylatch_tests::Database;
use serde::Deserialize;

/// A program that carries payments to their end and says how long it took.
#[derive(Debug, Clone, Copy)]
pub struct External {
    /// Its folder, and what the table calls it.
    pub name: &'static str,
    /// What runs it: `python` or `node`, from the folder that scripts/peers made.
    pub runtime: &'static str,
    /// Its file.
    pub main: &'static str,
    /// So many payments, so that it works for several seconds.
    pub flows: i64,
}

/// The hand-written service of the article.
pub const ARTICLE: External = External { name: "article", runtime: "python", main: "main.py", flows: 2000 };
/// Well-known ways to make steps durable, and queues.
pub const PEERS: [External; 3] = [
    External { name: "dbos", runtime: "node", main: "main.mjs", flows: 2000 },
    External { name: "graphile-worker", runtime: "node", main: "main.mjs", flows: 2000 },
    External { name: "pg-boss", runtime: "node", main: "main.mjs", flows: 10_000 },
];

/// The slowest of them takes half a minute for what it is given.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Deserialize)]
struct Said {
    flows: f64,
    seconds: f64,
    version: String,
}

/// What one round gave.
#[derive(Debug)]
pub struct Outcome {
    pub flows_per_second: f64,
    /// The library and its version.
    pub version: String,
}

impl External {
    /// One round. With `simulator`, its three calls a flow go there over HTTP.
    pub async fn run(self, flows: i64, simulator: Option<&str>) -> Outcome {
        let db = Database::empty().await;
        let peers = PathBuf::from(std::env::var_os("PAYLATCH_PEERS").expect("scripts/bench sets PAYLATCH_PEERS"));
        let mut command = Command::new(peers.join("bin").join(self.runtime));
        command.arg(peers.join(self.name).join(self.main));
        command.env("DATABASE_URL", db.url()).env("FLOWS", flows.to_string()).env("CONNECTIONS", "16");
        if let Some(url) = simulator {
            command.env("WALLET_URL", url).env("BUSINESS_URL", url);
        }
        let mut child = tokio::process::Command::from(command);
        let ended = child.stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, ended).await;
        let output = output.unwrap_or_else(|_| panic!("{} is not done after {PATIENCE:?}", self.name));
        let output = output.unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert!(output.status.success(), "{} failed: {}", self.name, output.status);
        let said: Said = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        Outcome { flows_per_second: said.flows / said.seconds, version: said.version }
    }
}
