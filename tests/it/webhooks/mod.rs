//! Webhooks: the inbox in the database, the door in the daemon, and both with a simulator that sends.

mod door;
mod inbox;
mod permutations;
mod simulator;

use paylatch_core::signature::Key;
use paylatch_tests::daemon::Setup;
use paylatch_tests::{Daemon, Database};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use sqlx::FromRow;

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
struct Told {
    event_id: String,
    disposition: String,
    applied: Option<String>,
}

impl Told {
    fn words(&self) -> (&str, Option<&str>) {
        (&self.disposition, self.applied.as_deref())
    }
}

/// An event about `number`, as the daemon would pass it on.
fn event(event_id: &str, event_type: &str, number: &str) -> Value {
    let (about, last) = event_type.split_once('.').unwrap();
    let about = if ["charge", "refund", "dispute"].contains(&about) { about } else { "other" };
    let status = last.to_uppercase();
    let status = (["SUCCEEDED", "FAILED", "PROCESSING"].contains(&status.as_str())).then_some(status);
    json!({"event_id": event_id, "event_type": event_type, "about": about, "number": number, "status": status,
           "key": 0, "body_base64": "e30="})
}

/// The same with the money that a test's flows are about.
fn with_money(mut event: Value) -> Value {
    event["amount"] = json!(1500);
    event["currency"] = json!("USD");
    event
}

async fn receive(db: &Database, events: &[Value]) -> Vec<Told> {
    let mut driver = db.session_as("driver").await;
    let receive = sqlx::query_as("select * from paylatch.receive_webhooks('door', 'sim', $1)").bind(json!(events));
    receive.fetch_all(&mut driver).await.unwrap_or_else(|e| panic!("receive: {e}"))
}

async fn receive_one(db: &Database, event: Value) -> Told {
    receive(db, &[event]).await.pop().unwrap()
}

/// A secret of its own for each byte.
fn key(byte: u8) -> Key {
    Key::from_bytes(&[byte; 32]).unwrap()
}

/// A daemon for `db` whose channel `sim` has these secrets and its wallet at `wallet`.
fn setup(db: &Database, wallet: &str, keys: &[Key]) -> Setup {
    let secrets: Vec<_> = keys.iter().map(|key| format!("{:?}", key.expose())).collect();
    let more = format!("connect_timeout_ms = 300\ncall_timeout_ms = 1000\nwebhook_secrets = [{}]", secrets.join(", "));
    Setup::of(db).driver("lease_ms = 4000").wallet("sim", wallet, &more).business("shop", wallet, "").api("")
}

/// Where the daemon takes webhooks of a channel.
fn door(daemon: &Daemon, channel: &str) -> String {
    format!("http://{}/webhooks/{channel}", daemon.api_address())
}

fn now() -> i64 {
    paylatchd::clock::now().unix_timestamp()
}

/// Sends a webhook as a wallet of our own protocol would.
async fn send(client: &Client, url: &str, key: &Key, id: &str, at: i64, body: &str) -> Response {
    let request = client.post(url).header("webhook-id", id).header("webhook-timestamp", at);
    let request = request.header("webhook-signature", key.sign(id, at, body.as_bytes())).body(body.to_owned());
    request.send().await.unwrap()
}
