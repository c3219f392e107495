//! `paylatchd run` as a real process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use tempfile::TempDir;

use crate::Database;
use crate::process::{Process, paylatchd};
use crate::wait::{SOON, eventually};

/// A daemon's configuration; [`Setup::start`] writes it to a file and runs `paylatchd` with it.
pub struct Setup {
    url: String,
    name: String,
    driver: Vec<String>,
    endpoints: String,
}

impl Setup {
    /// A daemon that works for `db`, as a member of `paylatch_driver`, with timings that suit tests.
    pub fn of(db: &Database) -> Self {
        let driver = ["lease_ms = 5000", "poll_min_ms = 10", "poll_max_ms = 200"].map(str::to_owned).to_vec();
        Self { url: db.url_as("driver"), name: "test".to_owned(), driver, endpoints: String::new() }
    }

    /// Its name among several.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// One more line of `[driver]`, as `lease_ms = 500`; a later line for a key wins.
    pub fn driver(mut self, line: &str) -> Self {
        let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        self.driver.retain(|kept| key(kept) != key(line));
        self.driver.push(line.to_owned());
        self
    }

    /// A wallet reached at `base_url`; `more` are further lines of its section.
    pub fn wallet(self, channel: &str, base_url: &str, more: &str) -> Self {
        self.endpoint(&format!("wallet.{channel}"), "sim", base_url, more)
    }

    /// A business service reached at `base_url`; `more` are further lines of its section.
    pub fn business(self, target: &str, base_url: &str, more: &str) -> Self {
        self.endpoint(&format!("business.{target}"), "http", base_url, more)
    }

    /// A wallet inside the daemon that answers at once.
    pub fn null_wallet(mut self, channel: &str) -> Self {
        self.endpoints += &format!("[wallet.{channel}]\nadapter = \"null\"\n");
        self
    }

    fn endpoint(mut self, section: &str, adapter: &str, base_url: &str, more: &str) -> Self {
        // Within what `Database::add_scenes` says of channel and scenes.
        let timeout = if more.contains("call_timeout_ms") { "" } else { "call_timeout_ms = 2000" };
        self.endpoints +=
            &format!("[{section}]\nadapter = \"{adapter}\"\nbase_url = \"{base_url}\"\n{timeout}\n{more}\n");
        self
    }

    /// Starts it, and returns once it says that it is ready.
    pub async fn start(self) -> Daemon {
        let daemon = self.start_unready();
        daemon.ready().await;
        daemon
    }

    /// Starts it and returns at once.
    pub fn start_unready(self) -> Daemon {
        let dir = TempDir::new().expect("a temporary folder");
        let listen = free_address();
        let config = format!(
            "[database]\nurl = \"{}\"\n[driver]\nname = \"{}\"\n{}\n[http]\nlisten = \"{listen}\"\n[log]\nlevel = \"info\"\n{}",
            self.url,
            self.name,
            self.driver.join("\n"),
            self.endpoints
        );
        std::fs::write(dir.path().join("paylatchd.toml"), config).expect("write the configuration");
        let mut daemon = Daemon { name: self.name, dir, listen, process: None };
        daemon.spawn();
        daemon
    }
}

/// A daemon, running or not; its configuration stays the same over restarts.
pub struct Daemon {
    // Before the folder: it reads its log when it is dropped.
    process: Option<Process>,
    name: String,
    dir: TempDir,
    listen: SocketAddr,
}

impl Daemon {
    /// The process, which must have been started.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the daemon was started")
    }

    /// Where it serves `/metrics`, `/healthz` and `/readyz`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process().kill();
    }

    /// SIGTERM, then waits for its graceful end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.process().terminate().await
    }

    /// Starts it again with the same configuration; waits until it is ready.
    pub async fn restart(&mut self) {
        self.process = None;
        self.spawn();
        self.ready().await;
    }

    /// Waits until it says that it is ready.
    pub async fn ready(&self) {
        let url = format!("{}/readyz", self.base_url());
        let what = format!("daemon {} is ready", self.name);
        eventually(&what, SOON, async || reqwest::get(&url).await.ok().filter(|r| r.status().is_success())).await;
    }

    /// Its metrics, in Prometheus' text format.
    pub async fn metrics(&self) -> String {
        let answer = reqwest::get(format!("{}/metrics", self.base_url())).await.expect("GET /metrics");
        answer.text().await.expect("metrics as text")
    }

    fn spawn(&mut self) {
        let mut command = Command::new(paylatchd());
        command.arg("run").arg("--config").arg(self.config());
        self.process = Some(Process::spawn(&self.name, &mut command, &self.dir.path().join("log")));
    }

    /// Its configuration file, for other commands of `paylatchd`.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("paylatchd.toml")
    }
}

/// A loopback address that was free a moment ago.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a free port");
    listener.local_addr().expect("its address")
}
