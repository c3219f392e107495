//! The admin verbs, from the other side.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};

use super::admin::{ClockOffset, Dispute, LateCharge, Outage, RefundByHand, WebhookSetting};
use super::effects::Effects;
use super::fault::FaultRates;
use super::notice_book::NoticeCount;
use super::script::Rule;
use crate::endpoint::install_crypto;

/// The report of a long run is large; it still comes from next door.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Commands one running simulator.
#[derive(Debug, Clone)]
pub struct SimAdmin {
    client: Client,
    base_url: String,
}

/// Why a simulator could not be commanded.
#[derive(Debug, thiserror::Error)]
pub enum SimAdminError {
    /// It could not be reached, or its answer not be read.
    #[error("the simulator does not answer")]
    Http(#[from] reqwest::Error),
    /// It refused.
    #[error("the simulator refuses: {0}")]
    Refused(String),
}

impl SimAdmin {
    /// The simulator at `base_url`; connects to nothing yet.
    ///
    /// # Errors
    /// The HTTP client could not be set up.
    pub fn new(base_url: &str) -> Result<Self, SimAdminError> {
        install_crypto();
        let client = Client::builder().no_proxy().timeout(TIMEOUT).tls_certs_only(Vec::new()).build()?;
        Ok(Self { client, base_url: base_url.trim_end_matches('/').to_owned() })
    }

    /// Whether it is there.
    pub async fn is_healthy(&self) -> bool {
        self.send(self.client.get(self.url("health"))).await.is_ok()
    }

    /// All that took effect, and all that was asked.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn effects(&self) -> Result<Effects, SimAdminError> {
        Ok(self.send(self.client.get(self.url("effects"))).await?.json().await?)
    }

    /// Adds a scripted fault.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn script(&self, rule: Rule) -> Result<(), SimAdminError> {
        self.send(self.client.post(self.url("script")).json(&rule)).await.map(drop)
    }

    /// The rules that are not used up, `times` being what is left.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn rules(&self) -> Result<Vec<Rule>, SimAdminError> {
        Ok(self.send(self.client.get(self.url("script"))).await?.json().await?)
    }

    /// Forgets every scripted fault.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn clear_script(&self) -> Result<(), SimAdminError> {
        self.send(self.client.delete(self.url("script"))).await.map(drop)
    }

    /// Cuts every wallet request for `duration` from now; zero ends an outage.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn outage(&self, duration: Duration) -> Result<(), SimAdminError> {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.send(self.client.post(self.url("outage")).json(&Outage { ms })).await.map(drop)
    }

    /// Sets how often random faults strike.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn faults(&self, rates: &FaultRates) -> Result<(), SimAdminError> {
        self.send(self.client.post(self.url("faults")).json(rates)).await.map(drop)
    }

    /// Moves the simulator's time away from the machine's.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn clock_offset(&self, offset_ms: i64) -> Result<(), SimAdminError> {
        self.send(self.client.post(self.url("clock")).json(&ClockOffset { offset_ms })).await.map(drop)
    }

    /// Sends webhooks to `url` from now on, signed with each of `secrets`.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn webhooks(&self, url: &str, secrets: &[&str]) -> Result<(), SimAdminError> {
        let secrets = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        let setting = WebhookSetting { url: url.to_owned(), secrets };
        self.send(self.client.post(self.url("webhooks")).json(&setting)).await.map(drop)
    }

    /// How many webhooks there are, wait and were delivered.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn webhook_count(&self) -> Result<NoticeCount, SimAdminError> {
        Ok(self.send(self.client.get(self.url("webhooks"))).await?.json().await?)
    }

    /// Charges an order after all that had failed.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn late_charge(&self, order_no: &str) -> Result<(), SimAdminError> {
        let late = LateCharge { order_no: order_no.to_owned() };
        self.send(self.client.post(self.url("late_charge")).json(&late)).await.map(drop)
    }

    /// Gives money back as somebody at the wallet would, by hand.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn refund_by_hand(&self, refund: &RefundByHand) -> Result<(), SimAdminError> {
        self.send(self.client.post(self.url("refund_by_hand")).json(refund)).await.map(drop)
    }

    /// Opens, wins or loses a dispute.
    ///
    /// # Errors
    /// See [`SimAdminError`].
    pub async fn dispute(&self, dispute: &Dispute) -> Result<(), SimAdminError> {
        self.send(self.client.post(self.url("dispute")).json(dispute)).await.map(drop)
    }

    fn url(&self, verb: &str) -> String {
        format!("{}/sim/{verb}", self.base_url)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, SimAdminError> {
        let response = request.send().await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(SimAdminError::Refused(response.text().await?))
    }
}
