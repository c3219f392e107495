//! `paylatchd simulate`: a wallet and a business to try paylatch on, with faults.
//!
//! It speaks the two HTTP protocols of `docs/wallet.openapi.yaml` and counts every effect, so that a test can ask how
//! often a number was charged. Faults come from a seed or from a script. What took effect survives its own end: see
//! [`ledger`]. For tests, demos and staging; anyone who can reach it can command it.

mod admin;
mod answer;
mod business_book;
mod client;
mod connection;
mod effects;
mod fault;
mod ledger;
mod notice_book;
mod notices;
mod routes;
mod script;
mod sender;
mod wallet_book;
mod world;

use std::future::IntoFuture;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paylatch_core::signature::Key;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::admin::{Dispute, DisputeWord, RefundByHand};
pub use self::client::{SimAdmin, SimAdminError};
use self::connection::{Cut, CuttableListener};
pub use self::effects::{Effects, TargetEffect, TransferEffect};
pub use self::fault::{Fault, FaultRates, Op};
use self::ledger::Ledger;
pub use self::ledger::LedgerError;
pub use self::notice_book::NoticeCount;
pub use self::script::Rule;
pub use self::sender::WebhookTarget;
pub use self::wallet_book::Standing;
use self::world::Shared;

/// How long requests under way may take once the simulator was told to end.
const GRACE: Duration = Duration::from_secs(1);

/// Arguments of `paylatchd simulate`.
#[derive(Debug, Clone, clap::Args)]
pub struct SimulateArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// What random faults are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The share of requests that meet a random fault, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub faults: f64,
    /// The file that effects are kept in; without one they end with the process.
    #[arg(long)]
    pub ledger: Option<PathBuf>,
    /// Written with the address once the simulator listens.
    #[arg(long)]
    pub port_file: Option<PathBuf>,
    /// Where webhooks go, as http://127.0.0.1:8080/webhooks/sim; without one none are sent.
    #[arg(long, requires = "webhook_secret")]
    pub webhook_url: Option<String>,
    /// What they are signed with; give it twice while one secret replaces the other.
    #[arg(long, env = "PAYLATCH_SIMULATE_WEBHOOK_SECRET", hide_env_values = true, value_delimiter = ',', value_parser = secret)]
    pub webhook_secret: Vec<Key>,
}

/// What a simulator starts with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What random faults are drawn from.
    pub seed: u64,
    /// How often they strike, and which.
    pub rates: FaultRates,
    /// The file that effects are kept in.
    pub ledger: Option<PathBuf>,
    /// Where webhooks go.
    pub webhooks: Option<WebhookTarget>,
}

/// Why the simulator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The network or the file system refused.
    #[error("the simulator cannot run: {0}")]
    Io(#[from] io::Error),
}

/// Runs `paylatchd simulate` until `shutdown`.
///
/// # Errors
/// See [`SimulateError`].
pub async fn run(args: SimulateArgs, shutdown: CancellationToken) -> Result<(), SimulateError> {
    let listener = TcpListener::bind(args.listen).await?;
    let address = listener.local_addr()?;
    let webhooks = args.webhook_url.map(|url| WebhookTarget { url, keys: args.webhook_secret });
    let options = Options { seed: args.seed, rates: FaultRates::of(args.faults), ledger: args.ledger, webhooks };
    let shared = options.open()?;
    if let Some(path) = &args.port_file {
        write_whole(path, &address.to_string())?;
    }
    writeln!(io::stdout(), "simulator on http://{address}, seed {}, faults {}", args.seed, args.faults)?;
    serve_shared(listener, shared, shutdown).await
}

/// Serves `listener` until `shutdown`; then requests under way have a second to end, and the ledger is let go.
///
/// # Errors
/// See [`SimulateError`].
pub async fn serve(listener: TcpListener, options: Options, shutdown: CancellationToken) -> Result<(), SimulateError> {
    serve_shared(listener, options.open()?, shutdown).await
}

impl Options {
    fn open(&self) -> Result<Arc<Shared>, SimulateError> {
        let ledger = self.ledger.as_deref().map(Ledger::open).transpose()?;
        Ok(Arc::new(Shared::new(self.seed, self.rates.clone(), ledger, self.webhooks.clone())))
    }
}

async fn serve_shared(
    listener: TcpListener,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
) -> Result<(), SimulateError> {
    let sending = tokio::spawn(sender::run(Arc::clone(&shared), shutdown.clone()));
    let service = routes::router(Arc::clone(&shared)).into_make_service_with_connect_info::<Cut>();
    let server = axum::serve(CuttableListener(listener), service)
        .with_graceful_shutdown(shutdown.clone().cancelled_owned())
        .into_future();
    let too_long = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let served = tokio::select! { served = server => served, () = too_long => Ok(()) };
    shared.lock().shut();
    sending.abort();
    Ok(served?)
}

/// Whoever waits for the file finds it whole or not at all.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_added_extension("draft");
    std::fs::write(&draft, text)?;
    std::fs::rename(draft, path)
}

fn secret(text: &str) -> Result<Key, String> {
    Key::parse(text).ok_or_else(|| "a secret is whsec_ and the base64 of 24 to 64 random bytes".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}
