//! A PostgreSQL cluster: the one that `make test` shares out, or one that a test may crash.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The root of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root")
}

/// The folder of PostgreSQL's own programs.
pub fn bin_dir() -> PathBuf {
    PathBuf::from(pg_config("--bindir"))
}

/// One answer of `pg_config`.
pub fn pg_config(what: &str) -> String {
    let program = std::env::var("PG_CONFIG").unwrap_or_else(|_| "/usr/lib/postgresql/15/bin/pg_config".to_owned());
    output(Command::new(program).arg(what))
}

/// Runs a command that must succeed, and returns its output without the last line break.
pub fn output(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?} failed: {}\n{stderr}", out.status);
    String::from_utf8(out.stdout).expect("UTF-8").trim_end().to_owned()
}

/// A running cluster. A private one ends with its owner.
pub struct Cluster {
    url: String,
    dir: Option<PathBuf>,
}

impl Cluster {
    /// The cluster of this test run, from `$PAYLATCH_TEST_URL`.
    pub fn shared() -> Self {
        let url = std::env::var("PAYLATCH_TEST_URL").expect(
            "PAYLATCH_TEST_URL is not set: use `make test`, or export the URL that `scripts/cluster start .run/own` prints",
        );
        Self { url, dir: None }
    }

    /// A cluster of the caller's own, with these settings beside those of `scripts/cluster`.
    pub fn private(settings: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("p{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = root().join(".run/test").join(name);
        let url = script("start", &dir, settings);
        Self { url, dir: Some(dir) }
    }

    /// The superuser's URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        let (server, _) = self.url.rsplit_once('/').expect("a URL with a database");
        format!("{server}/{database}")
    }

    /// Ends the server without a checkpoint, as a power cut would.
    pub fn crash(&self) {
        script("crash", self.own_dir(), &[]);
    }

    /// Starts it again, under the same URL.
    pub fn restart(&self) {
        let url = script("start", self.own_dir(), &[]);
        assert_eq!(url, self.url, "a cluster keeps its port");
    }

    /// The server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.own_dir().join("log")).expect("the server's log")
    }

    fn own_dir(&self) -> &Path {
        self.dir.as_deref().expect("only a private cluster may be crashed")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            script("drop", dir, &[]);
        }
    }
}

fn script(command: &str, dir: &Path, arguments: &[&str]) -> String {
    output(Command::new(root().join("scripts/cluster")).arg(command).arg(dir).args(arguments))
}
