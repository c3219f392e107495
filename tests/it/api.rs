//! The HTTP API of a real `paylatchd` over loopback.

mod hostile;
mod idempotency;
mod openapi;
mod page;
mod payments;
mod refunds;
mod server;
mod tokens;
mod wait;

use std::path::Path;
use std::process::Command;

use paylatch_tests::api::fresh_key;
use paylatch_tests::cluster::output;
use paylatch_tests::daemon::Setup;
use paylatch_tests::process::paylatchd;
use paylatch_tests::{ApiClient, Daemon, Database};
use serde_json::{Value, json};

/// A database with the scenes `shop` and `topup`, and a server that only serves: nobody carries anything out.
pub struct Served {
    // Before its database.
    pub daemon: Daemon,
    pub db: Database,
    pub client: ApiClient,
}

impl Served {
    /// Without any token, hence as merchant `default`.
    pub async fn open(api: &str) -> Self {
        let db = Database::fresh().await;
        db.add_scenes().await;
        let daemon = Setup::of(&db).serve_only(api).start().await;
        let client = daemon.client();
        Self { daemon, db, client }
    }

    /// With a token of this merchant, and of no other yet.
    pub async fn of(merchant: &str, api: &str) -> Self {
        let served = Self::open(api).await;
        let client = served.client_of(merchant);
        Self { client, ..served }
    }

    /// A client with a new token of this merchant.
    pub fn client_of(&self, merchant: &str) -> ApiClient {
        self.client.with_token(Some(&token(&self.db, merchant, &[])))
    }

    /// Begins a payment that must be new.
    pub async fn begin(&self, client: &ApiClient, biz_key: &str) -> String {
        client.post("/v1/payments", &topup(biz_key), &fresh_key()).await.expect(201).id().to_owned()
    }

    /// So many flows were made.
    pub async fn flows(&self) -> i64 {
        self.db.value("select count(*) from paylatch.pay_flow").await
    }
}

/// A request for 12.50 USD.
pub fn topup(biz_key: &str) -> Value {
    json!({"scene": "topup", "user_id": "1086", "biz_key": biz_key, "amount": 1250, "currency": "USD"})
}

/// `paylatchd token ...` as an operator.
pub fn token_command(db: &Database, arguments: &[&str]) -> Command {
    let mut command = Command::new(paylatchd());
    command.arg("token").args(arguments).args(["--database-url", &db.url_as("operator")]);
    command.env_remove("PAYLATCH_CONFIG").current_dir(Path::new("/"));
    command
}

/// A new token of this merchant, from the command line.
pub fn token(db: &Database, merchant: &str, more: &[&str]) -> String {
    output(token_command(db, &["create", "--merchant", merchant, "--name", "test"]).args(more))
}
