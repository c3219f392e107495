//! Delivers the simulator's webhooks: signed as Standard Webhooks says, again and again until they are answered 2xx.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use paylatch_core::signature::Key;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;

use super::notice_book::Notice;
use super::world::Shared;
use crate::clock;
use crate::endpoint::install_crypto;

/// How long one delivery may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Without anything in the queue; being queued wakes the sender.
const IDLE: Duration = Duration::from_secs(60);
/// What forged copies are signed with.
const STRANGERS_KEY: [u8; 32] = [0x5a; 32];

/// Where webhooks go.
#[derive(Debug, Clone)]
pub struct WebhookTarget {
    /// The whole URL, as `http://127.0.0.1:8080/webhooks/sim`.
    pub url: String,
    /// Every message carries the signature of each.
    pub keys: Vec<Key>,
}

/// Sends what is due, until `shutdown`.
pub async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    install_crypto();
    let client = Client::builder().no_proxy().timeout(TIMEOUT).tls_certs_only(Vec::new()).build();
    let Ok(client) = client.inspect_err(|error| tracing::error!(%error, "no webhooks can be sent")) else { return };
    let queued = shared.queued();
    loop {
        let (due, pause) = {
            let mut world = shared.lock();
            (world.take_due_notices(), world.next_notice_in())
        };
        for (target, notice_no, notice) in due {
            tokio::spawn(deliver(client.clone(), Arc::clone(&shared), target, notice_no, notice));
        }
        tokio::select! {
            () = queued.notified() => {}
            () = tokio::time::sleep(pause.unwrap_or(IDLE)) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn deliver(client: Client, shared: Arc<Shared>, target: Arc<WebhookTarget>, notice_no: u64, notice: Notice) {
    if notice.forged
        && let Some(stranger) = Key::from_bytes(&STRANGERS_KEY)
    {
        match post(&client, &target.url, &[stranger], &notice).await {
            Some(StatusCode::UNAUTHORIZED) => shared.lock().forged_came_back(false),
            Some(status) if status.is_success() => shared.lock().forged_came_back(true),
            // Nobody was there, or had no time to look.
            _ => {}
        }
    }
    let copies = (0..notice.copies).map(|_| post(&client, &target.url, &target.keys, &notice));
    let delivered = join_all(copies).await.into_iter().filter(|status| status.is_some_and(|s| s.is_success())).count();
    shared.lock().notice_came_back(notice_no, delivered);
    shared.queued().notify_one();
}

/// What it was answered, if it was.
async fn post(client: &Client, url: &str, keys: &[Key], notice: &Notice) -> Option<StatusCode> {
    let at = clock::now().unix_timestamp();
    let signatures: Vec<_> = keys.iter().map(|key| key.sign(&notice.event_id, at, notice.body.as_bytes())).collect();
    let request = client
        .post(url)
        .header(CONTENT_TYPE, "application/json")
        .header("webhook-id", &notice.event_id)
        .header("webhook-timestamp", at)
        .header("webhook-signature", signatures.join(" "))
        .body(notice.body.clone());
    request.send().await.ok().map(|response| response.status())
}
