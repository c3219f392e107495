//! `paylatchd run` and `paylatchd serve` as real processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use tempfile::TempDir;

use crate::process::{Process, paylatchd};
use crate::wait::{SOON, eventually};
use crate::{ApiClient, Database};

/// A daemon's configuration; [`Setup::start`] writes it to a file and runs `paylatchd` with it.
pub struct Setup {
    url: String,
    name: String,
    driver: Vec<String>,
    endpoints: String,
    command: &'static str,
    api: Option<(SocketAddr, String)>,
    database: String,
    log: String,
}

impl Setup {
    /// A daemon that works for `db`, as a member of `paylatch_driver`, with timings that suit tests.
    pub fn of(db: &Database) -> Self {
        let driver = ["lease_ms = 5000", "poll_min_ms = 10", "poll_max_ms = 200"].map(str::to_owned).to_vec();
        let url = db.url_as("driver");
        Self {
            url,
            name: "test".to_owned(),
            driver,
            endpoints: String::new(),
            command: "run",
            api: None,
            database: String::new(),
            log: "info".to_owned(),
        }
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

    /// An account at a stand-in for Stripe; `more` are further lines of its section.
    pub fn stripe(self, channel: &str, base_url: &str, more: &str) -> Self {
        let more = format!("token = \"{}\"\n{more}", crate::localstripe::KEY);
        self.endpoint(&format!("wallet.{channel}"), "stripe", base_url, &more)
    }

    /// A business service reached at `base_url`; `more` are further lines of its section.
    pub fn business(self, target: &str, base_url: &str, more: &str) -> Self {
        self.endpoint(&format!("business.{target}"), "http", base_url, more)
    }

    /// Has it send merchants' webhooks to plain http://; `more` are further lines of `[webhooks]`.
    pub fn webhooks(mut self, more: &str) -> Self {
        let allow = if more.contains("allow_http") { "" } else { "allow_http = true" };
        self.endpoints += &format!("[webhooks]\n{allow}\npoll_ms = 100\n{more}\n");
        self
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

    /// A relay that publishes the events of `sink`; `lines` are those of its section.
    pub fn relay(mut self, sink: &str, lines: &str) -> Self {
        self.endpoints += &format!("[relay.{sink}]\n{lines}\n");
        self
    }

    /// One more line of `[database]`.
    pub fn database(mut self, line: &str) -> Self {
        self.database = line.to_owned();
        self
    }

    /// Its log's level.
    pub fn log(mut self, level: &str) -> Self {
        self.log = level.to_owned();
        self
    }

    /// Has it serve the HTTP API too; `more` are further lines of `[api]`.
    pub fn api(mut self, more: &str) -> Self {
        self.api = Some((free_address(), more.to_owned()));
        self
    }

    /// Has it serve the HTTP API and do nothing else.
    pub fn serve_only(mut self, more: &str) -> Self {
        self.command = "serve";
        self.api(more)
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
        let api = self.api.as_ref().map(|(address, more)| {
            let unready = if more.contains("unready_ms") { "" } else { "unready_ms = 0" };
            format!("[api]\nlisten = \"{address}\"\n{unready}\n{more}\n")
        });
        let config = format!(
            "[database]\nurl = \"{}\"\n{}\n[driver]\nname = \"{}\"\n{}\n[http]\nlisten = \"{listen}\"\n[log]\nlevel = \"{}\"\n{}{}",
            self.url,
            self.database,
            self.name,
            self.driver.join("\n"),
            self.log,
            api.unwrap_or_default(),
            self.endpoints
        );
        std::fs::write(dir.path().join("paylatchd.toml"), config).expect("write the configuration");
        let (name, command, api) = (self.name, self.command, self.api.map(|(address, _)| address));
        let mut daemon = Daemon { name, dir, listen, command, api, process: None };
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
    command: &'static str,
    api: Option<SocketAddr>,
}

impl Daemon {
    /// The process, which must have been started.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the daemon was started")
    }

    /// Everything it has said so far.
    pub fn log(&self) -> String {
        self.process.as_ref().expect("the daemon was started").log()
    }

    /// Where it serves `/metrics`, `/healthz` and `/readyz`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// Where it serves the HTTP API, which it must have been told to.
    pub fn api_address(&self) -> SocketAddr {
        self.api.expect("the daemon serves the API")
    }

    /// A client of its API without a token.
    pub fn client(&self) -> ApiClient {
        ApiClient::new(self.api_address(), None)
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
        paylatchd::endpoint::install_crypto();
        let url = format!("{}/readyz", self.base_url());
        let what = format!("daemon {} is ready", self.name);
        eventually(&what, SOON, async || reqwest::get(&url).await.ok().filter(|r| r.status().is_success())).await;
        if let Some(address) = self.api {
            let connected = async || tokio::net::TcpStream::connect(address).await.ok();
            eventually("it serves the API", SOON, connected).await;
        }
    }

    /// Its metrics, in Prometheus' text format.
    pub async fn metrics(&self) -> String {
        let answer = reqwest::get(format!("{}/metrics", self.base_url())).await.expect("GET /metrics");
        answer.text().await.expect("metrics as text")
    }

    fn spawn(&mut self) {
        let mut command = Command::new(paylatchd());
        command.arg(self.command).arg("--config").arg(self.config());
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
