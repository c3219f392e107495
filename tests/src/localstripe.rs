//! localstripe: a fake of Stripe's API that we did not write, as a process of its own.
//!
//! `docs/stripe.md` says what it cannot show. Whoever talks to it goes through a [`FaultProxy`].

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{output, root};
use crate::process::Process;
use crate::proxy::FaultProxy;
use crate::wait::{SOON, eventually};

/// A key that it accepts; it accepts many.
pub const KEY: &str = "sk_test_localstripe";
/// A card that pays.
pub const GOOD_CARD: &str = "4242424242424242";
/// A card that is declined.
pub const DECLINED_CARD: &str = "4000000000000341";
/// A card whose owner has to authenticate first.
pub const CAREFUL_CARD: &str = "4000002500003155";
/// An account that is debited later, and then in vain.
pub const EMPTY_ACCOUNT: &str = "DE62370400440532013001";

/// A running localstripe behind its proxy.
pub struct LocalStripe {
    // Before the folder: it reads its log when it is dropped.
    _process: Process,
    _dir: TempDir,
    direct: String,
    proxy: FaultProxy,
    client: reqwest::Client,
}

impl LocalStripe {
    /// Starts one that holds nothing.
    pub async fn start() -> Self {
        let tools = output(&mut Command::new(root().join("scripts/venv")));
        let dir = TempDir::new().expect("a temporary folder");
        let mut command = Command::new(Path::new(&tools).join("python"));
        command.arg(root().join("tests/serve_localstripe.py")).arg(dir.path());
        let process = Process::spawn("localstripe", &mut command, &dir.path().join("log"));
        let port = || std::fs::read_to_string(dir.path().join("port")).ok()?.parse::<u16>().ok();
        let port = eventually("localstripe listens", SOON, async || port()).await;
        let proxy = FaultProxy::start(([127, 0, 0, 1], port).into()).await;
        paylatchd::endpoint::install_crypto();
        let direct = format!("http://127.0.0.1:{port}");
        Self { _process: process, _dir: dir, direct, proxy, client: reqwest::Client::new() }
    }

    /// Where the adapter reaches it.
    pub fn base_url(&self) -> String {
        self.proxy.base_url()
    }

    /// What stands between it and the adapter.
    pub const fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    /// Asks it directly.
    pub async fn get(&self, path: &str) -> Value {
        let request = self.client.get(format!("{}{path}", self.direct));
        Self::heard(request).await
    }

    /// Tells it directly.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        let request = self.client.post(format!("{}{path}", self.direct)).form(fields);
        Self::heard(request).await
    }

    async fn heard(request: reqwest::RequestBuilder) -> Value {
        let answer = request.bearer_auth(KEY).send().await.expect("localstripe answers");
        let text = answer.text().await.expect("localstripe answers in full");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// A payment method of this card.
    pub async fn card(&self, number: &str) -> String {
        let fields = [
            ("type", "card"),
            ("card[number]", number),
            ("card[exp_month]", "12"),
            ("card[exp_year]", "2040"),
            ("card[cvc]", "123"),
        ];
        id_of(&self.post("/v1/payment_methods", &fields).await)
    }

    /// A payment method of this bank account.
    pub async fn account(&self, iban: &str) -> String {
        let fields = [("type", "sepa_debit"), ("sepa_debit[iban]", iban)];
        id_of(&self.post("/v1/payment_methods", &fields).await)
    }

    /// The objects of a list, such as `payment_intents`, whose metadata says so.
    pub async fn with(&self, list: &str, key: &str, value: &str) -> Vec<Value> {
        let all = self.get(&format!("/v1/{list}?limit=100000")).await;
        let all = all["data"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|one| one["metadata"][key] == value).collect()
    }

    /// Has it send its events to `url` from now on.
    pub async fn send_events_to(&self, url: &str, secret: &str) {
        self.post("/_config/webhooks/test", &[("url", url), ("secret", secret)]).await;
    }
}

fn id_of(object: &Value) -> String {
    object["id"].as_str().unwrap_or_else(|| panic!("no id in {object}")).to_owned()
}
