//! The simulator, as a process of its own or inside the test.
//!
//! [`Simulator`] is the real `paylatchd simulate`, for tests that kill it. [`LocalSimulator`] is the same server inside
//! the test's own runtime, behind the same loopback sockets, for tests that only talk to it. Both come back on the same
//! address with the same ledger, and both are commanded through [`SimAdmin`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use paylatchd::simulate::{Effects, Options, SimAdmin, SimulateError, serve};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::process::{Process, paylatchd};
use crate::wait::{SOON, eventually};

/// `paylatchd simulate` as a real process.
pub struct Simulator {
    // Before the folder: it reads its log when it is dropped.
    process: Process,
    dir: TempDir,
    seed: u64,
    faults: f64,
    address: SocketAddr,
    admin: SimAdmin,
}

impl Simulator {
    /// Starts one without random faults.
    pub async fn start() -> Self {
        Self::with_faults(1, 0.0).await
    }

    /// Starts one whose random faults are drawn from `seed`, at `rate`.
    pub async fn with_faults(seed: u64, rate: f64) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let process = spawn(dir.path(), any, seed, rate);
        let address = address_in(&port_file(dir.path())).await;
        let admin = admin(address);
        Self { dir, seed, faults: rate, address, admin, process }
    }

    /// Where it serves.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its admin verbs.
    pub const fn admin(&self) -> &SimAdmin {
        &self.admin
    }

    /// All that took effect so far.
    pub async fn effects(&self) -> Effects {
        self.admin.effects().await.expect("the simulator tells its effects")
    }

    /// The process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again after its end, at the same address, from its ledger.
    pub async fn restart(&mut self) {
        std::fs::remove_file(port_file(self.dir.path())).expect("it had written its address");
        self.process = spawn(self.dir.path(), self.address, self.seed, self.faults);
        address_in(&port_file(self.dir.path())).await;
    }
}

fn spawn(dir: &Path, listen: SocketAddr, seed: u64, faults: f64) -> Process {
    let mut command = Command::new(paylatchd());
    command.arg("simulate").arg("--listen").arg(listen.to_string());
    command.arg("--seed").arg(seed.to_string()).arg("--faults").arg(faults.to_string());
    command.arg("--ledger").arg(dir.join("ledger")).arg("--port-file").arg(port_file(dir));
    Process::spawn("simulator", &mut command, &dir.join("log"))
}

fn port_file(dir: &Path) -> PathBuf {
    dir.join("port")
}

async fn address_in(port_file: &Path) -> SocketAddr {
    let read = async || std::fs::read_to_string(port_file).ok()?.trim().parse().ok();
    eventually("the simulator listens", SOON, read).await
}

fn admin(address: SocketAddr) -> SimAdmin {
    SimAdmin::new(&format!("http://{address}")).expect("an HTTP client")
}

/// The simulator inside this process.
pub struct LocalSimulator {
    dir: TempDir,
    address: SocketAddr,
    admin: SimAdmin,
    shutdown: CancellationToken,
    server: JoinHandle<Result<(), SimulateError>>,
}

impl LocalSimulator {
    /// Starts one without random faults.
    pub async fn start() -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let (address, shutdown, server) = serve_local(dir.path(), (Ipv4Addr::LOCALHOST, 0).into()).await;
        Self { dir, address, admin: admin(address), shutdown, server }
    }

    /// Where it serves.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its admin verbs.
    pub const fn admin(&self) -> &SimAdmin {
        &self.admin
    }

    /// All that took effect so far.
    pub async fn effects(&self) -> Effects {
        self.admin.effects().await.expect("the simulator tells its effects")
    }

    /// Its ledger's file.
    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    /// Ends it; its address refuses connections from then on.
    pub async fn stop(&mut self) {
        self.shutdown.cancel();
        let ended = (&mut self.server).await.expect("the simulator does not panic");
        ended.expect("the simulator ends well");
    }

    /// Starts it again after [`LocalSimulator::stop`], at the same address, from its ledger.
    pub async fn restart(&mut self) {
        (self.address, self.shutdown, self.server) = serve_local(self.dir.path(), self.address).await;
    }
}

impl Drop for LocalSimulator {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

type Serving = (SocketAddr, CancellationToken, JoinHandle<Result<(), SimulateError>>);

async fn serve_local(dir: &Path, listen: SocketAddr) -> Serving {
    let listener = TcpListener::bind(listen).await.expect("bind to loopback");
    let address = listener.local_addr().expect("its address");
    let shutdown = CancellationToken::new();
    let options = Options { seed: 1, ledger: Some(dir.join("ledger")), ..Options::default() };
    let server = tokio::spawn(serve(listener, options, shutdown.clone()));
    (address, shutdown, server)
}
