//! The demo's processes: a simulator and a daemon, each a child that runs this very program, and a NATS server where one
//! is installed.

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

/// A NATS server with JetStream, in a folder of its own.
pub struct Broker {
    child: Child,
    /// Where it is.
    pub url: String,
}

impl Broker {
    /// Starts one and waits until it answers; none where no `nats-server` is installed.
    pub async fn start(dir: &Path, listen: SocketAddr) -> Result<Option<Self>, Error> {
        let Some(program) = nats_server() else { return Ok(None) };
        let config = dir.join("nats.conf");
        let store = dir.join("nats");
        let text = format!("listen: \"{listen}\"\njetstream {{ store_dir: {:?} }}\n", store.display().to_string());
        std::fs::write(&config, text).map_err(Error::io(config.display().to_string()))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        let mut child = spawn(command, &dir.join("nats.log"))?;
        let url = format!("nats://{listen}");
        let up = async {
            while !jetstream_answers(&url).await {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(Error::Broken(format!("nats-server ended: {status}; see {}", dir.display())));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let too_slow = |_| Error::Broken(format!("nats-server does not start; see {}", dir.display()));
        tokio::time::timeout(START, up).await.map_err(too_slow)??;
        Ok(Some(Self { child, url }))
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

/// Debian puts it where only root's path leads.
fn nats_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/bin".into()]);
    folders.map(|folder| folder.join("nats-server")).find(|program| program.is_file())
}

/// Connections are taken before JetStream is there.
async fn jetstream_answers(url: &str) -> bool {
    match async_nats::connect(url).await {
        Ok(client) => client.request("$JS.API.INFO", "".into()).await.is_ok(),
        Err(_) => false,
    }
}

/// What a daemon of the demo is told.
pub struct Setting<'a> {
    /// The database, as a user that may do what a daemon must.
    pub database_url: &'a str,
    /// The simulator.
    pub base_url: &'a str,
    /// Where its events go, if anywhere.
    pub nats_url: Option<&'a str>,
    /// What the simulator signs with.
    pub webhook_secret: &'a str,
    /// Where it serves /metrics.
    pub listen: SocketAddr,
    /// Where it serves the API, and takes webhooks.
    pub api: SocketAddr,
}

/// The daemon, which can be killed and started again with the same configuration.
pub struct Daemon {
    child: Child,
    config: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts one.
    pub fn start(dir: &Path, setting: &Setting) -> Result<Self, Error> {
        let config = dir.join("paylatchd.toml");
        let text = setting.text();
        // It holds a password and a secret.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&config);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(config.display().to_string()))?;
        let log = dir.join("paylatchd.log");
        let child = spawn(run_command(&config)?, &log)?;
        Ok(Self { child, config, log })
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

impl Setting<'_> {
    fn text(&self) -> String {
        let Self { database_url, base_url, webhook_secret, listen, api, .. } = self;
        let endpoint = format!("base_url = \"{base_url}\"\nconnect_timeout_ms = 300\ncall_timeout_ms = 1000\n");
        let relay = self.nats_url.map(|url| {
            format!("[relay.nats]\nadapter = \"nats\"\nurl = \"{url}\"\nlease_ms = 3000\npublish_timeout_ms = 1000\n")
        });
        format!(
            "[database]\nurl = \"{database_url}\"\n[driver]\nname = \"demo\"\nlease_ms = 3000\npoll_max_ms = 100\n\
             [http]\nlisten = \"{listen}\"\n[api]\nlisten = \"{api}\"\n[wallet.sim]\nadapter = \"sim\"\n{endpoint}\
             webhook_secrets = [\"{webhook_secret}\"]\n[wallet.bank]\nadapter = \"sim\"\n{endpoint}[business.shop]\n\
             adapter = \"http\"\n{endpoint}{}",
            relay.unwrap_or_default()
        )
    }
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

/// Three free ports of this machine.
pub fn free_addresses() -> Result<[SocketAddr; 3], Error> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("find a free port"));
    // All are held before the first is let go, so that they differ.
    let held = [bind()?, bind()?, bind()?];
    let address = |at: usize| held[at].local_addr().map_err(Error::io("find a free port"));
    Ok([address(0)?, address(1)?, address(2)?])
}
