//! A real `nats-server` with JetStream, on a free port, in a folder of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use async_nats::jetstream;
use tempfile::TempDir;

use crate::daemon::free_address;
use crate::process::Process;
use crate::wait::{SOON, eventually};

/// A server, running or not; it keeps its port and its messages over restarts.
pub struct NatsServer {
    process: Option<Process>,
    dir: TempDir,
    address: SocketAddr,
}

/// One message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Where it was published to.
    pub subject: String,
    /// The id by which the server drops what comes twice.
    pub message_id: String,
    /// What it says.
    pub payload: serde_json::Value,
}

impl NatsServer {
    /// Starts one; `more` are further lines of its configuration.
    pub async fn start(more: &str) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let address = free_address();
        let store = dir.path().join("store");
        let config = format!("listen: \"{address}\"\njetstream {{ store_dir: \"{}\" }}\n{more}\n", store.display());
        std::fs::write(dir.path().join("nats.conf"), config).expect("write the configuration");
        let mut server = Self { process: None, dir, address };
        server.restart().await;
        server
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// The process, which must be running.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the server was started")
    }

    /// kill -9; what it has acknowledged stays on its disk.
    pub fn kill(&mut self) {
        self.process().kill();
        self.process = None;
    }

    /// Starts it again, and waits until it takes connections.
    pub async fn restart(&mut self) {
        // Debian puts it where only root's path leads.
        let program =
            ["/usr/sbin/nats-server", "/usr/local/bin/nats-server"].into_iter().find(|p| Path::new(p).exists());
        let mut command = Command::new(program.unwrap_or("nats-server"));
        command.arg("--config").arg(self.dir.path().join("nats.conf"));
        self.process = None;
        self.process = Some(Process::spawn("nats-server", &mut command, &self.dir.path().join("log")));
        eventually("nats-server takes connections", SOON, async || self.context().await).await;
    }

    /// A connection of the test's own.
    pub async fn context(&self) -> Option<jetstream::Context> {
        let options = async_nats::ConnectOptions::new().connection_timeout(std::time::Duration::from_secs(2));
        let client = options.connect(self.url()).await.inspect_err(|e| eprintln!("{e}")).ok()?;
        // Connections are taken before JetStream is there.
        client.request("$JS.API.INFO", "".into()).await.ok().map(|_| jetstream::new(client))
    }

    /// Every message of a stream, in its order; none where there is no stream.
    pub async fn messages(&self, stream: &str) -> Vec<Stored> {
        let context = eventually("a connection", SOON, async || self.context().await).await;
        let Ok(stream) = context.get_stream(stream).await else { return Vec::new() };
        let mut messages = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.expect("a message that was counted");
            let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID).expect("a message id");
            messages.push(Stored {
                subject: message.subject.to_string(),
                message_id: id.as_str().to_owned(),
                payload: serde_json::from_slice(&message.payload).expect("JSON"),
            });
        }
        messages
    }
}
