//! The demo's processes: a simulator and a daemon, each a child that runs this very program.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::error::Error;

/// How long a child may take to say where it listens.
const START: Duration = Duration::from_secs(20);

/// A simulator with faults on.
pub struct Simulator {
    child: Child,
    /// Where it is.
    pub base_url: String,
}

impl Simulator {
    /// Starts one whose ledger and log lie in `dir`, and waits until it listens.
    pub async fn start(dir: &Path, seed: u64, faults: f64) -> Result<Self, Error> {
        let port_file = dir.join("simulator.address");
        let mut command = program()?;
        command.args(["simulate", "--listen", "127.0.0.1:0", "--seed", &seed.to_string()]);
        command.args(["--faults", &faults.to_string()]);
        command.arg("--ledger").arg(dir.join("simulator.ledger")).arg("--port-file").arg(&port_file);
        let mut child = spawn(command, &dir.join("simulator.log"))?;
        let told = async {
            loop {
                if let Ok(address) = std::fs::read_to_string(&port_file) {
                    return Ok(address);
                }
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(Error::Broken(format!("the simulator ended: {status}; see {}", dir.display())));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let too_slow = |_| Error::Broken(format!("the simulator does not start; see {}", dir.display()));
        let address = tokio::time::timeout(START, told).await.map_err(too_slow)??;
        Ok(Self { child, base_url: format!("http://{}", address.trim()) })
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Lets it outlive the demo.
    pub fn keep(self) {
        std::mem::forget(self.child);
    }
}

/// The daemon, which can be killed and started again with the same configuration.
pub struct Daemon {
    child: Child,
    config: PathBuf,
    log: PathBuf,
    /// Where it serves /metrics.
    pub listen: SocketAddr,
}

impl Daemon {
    /// Starts one for `database_url` and the simulator at `base_url`.
    pub fn start(dir: &Path, database_url: &str, base_url: &str) -> Result<Self, Error> {
        let listen = free_address()?;
        let config = dir.join("paylatchd.toml");
        let text = configuration(database_url, base_url, listen);
        // It holds a password.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&config);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(config.display().to_string()))?;
        let log = dir.join("paylatchd.log");
        let child = spawn(run_command(&config)?, &log)?;
        Ok(Self { child, config, log, listen })
    }

    /// SIGKILL: no goodbye. Returns once it is gone.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.child.kill().await.map_err(Error::io("kill the daemon"))
    }

    /// Starts it again.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.child = spawn(run_command(&self.config)?, &self.log)?;
        Ok(())
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Lets it outlive the demo.
    pub fn keep(self) {
        std::mem::forget(self.child);
    }
}

fn configuration(database_url: &str, base_url: &str, listen: SocketAddr) -> String {
    let endpoint = format!("base_url = \"{base_url}\"\nconnect_timeout_ms = 300\ncall_timeout_ms = 1000\n");
    format!(
        "[database]\nurl = \"{database_url}\"\n[driver]\nname = \"demo\"\nlease_ms = 3000\npoll_max_ms = 100\n\
         [http]\nlisten = \"{listen}\"\n[wallet.sim]\nadapter = \"sim\"\n{endpoint}[wallet.bank]\nadapter = \"sim\"\n\
         {endpoint}[business.shop]\nadapter = \"http\"\n{endpoint}"
    )
}

fn run_command(config: &Path) -> Result<Command, Error> {
    let mut command = program()?;
    command.arg("run").arg("--config").arg(config);
    Ok(command)
}

/// This very program, without settings that are meant for the demo itself.
fn program() -> Result<Command, Error> {
    let mut command = Command::new(std::env::current_exe().map_err(Error::io("find this program"))?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PAYLATCH_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// What the child prints goes to `log`. It dies with the demo unless it is kept, and a Ctrl-C is the demo's alone.
fn spawn(mut command: Command, log: &Path) -> Result<Child, Error> {
    let open = || File::options().create(true).append(true).open(log).map_err(Error::io(log.display().to_string()));
    command.stdin(Stdio::null()).stdout(open()?).stderr(open()?);
    command.process_group(0).kill_on_drop(true).spawn().map_err(Error::io("start a child of this program"))
}

fn free_address() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(Error::io("find a free port"))
}
