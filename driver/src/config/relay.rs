//! `[relay.NAME]`: where the events of sink NAME go.

use super::{ConfigError, Secret, within};
use crate::relay::RelayAdapter;

/// Where the events of a sink go.
#[derive(Debug, Clone, confique::Config)]
pub struct Relay {
    /// "nats": a JetStream stream. "kafka": a topic.
    pub adapter: RelayAdapter,
    /// NATS: where it is, as "nats://HOST:4222" or "tls://HOST:4222"; several with commas between. PAYLATCH_RELAY_NAME_URL
    /// wins over it.
    pub url: Option<Secret>,
    /// NATS: the stream that keeps events. Made where it is missing; one that is there must take SUBJECT.>.
    #[config(default = "paylatch")]
    pub stream: String,
    /// NATS: events go to SUBJECT.TYPE, as paylatch.flow.paying.
    #[config(default = "paylatch")]
    pub subject: String,
    /// NATS: a user, with `password`.
    pub user: Option<String>,
    /// PAYLATCH_RELAY_NAME_PASSWORD wins over it, and keeps it out of the file.
    pub password: Option<Secret>,
    /// NATS: a token, instead of a user. PAYLATCH_RELAY_NAME_TOKEN wins over it.
    pub token: Option<Secret>,
    /// Kafka: where it is, as "HOST:9092"; several with commas between. PAYLATCH_RELAY_NAME_BROKERS wins over it.
    pub brokers: Option<String>,
    /// Kafka: the topic. Events are keyed by their flow.
    #[config(default = "paylatch")]
    pub topic: String,
    /// The most events that are claimed with one statement, and held.
    #[config(default = 500)]
    pub batch: usize,
    /// The most events on their way to the broker at once. Events of one flow follow each other.
    #[config(default = 200)]
    pub max_in_flight: usize,
    /// How long the broker may take to acknowledge an event before it counts as down.
    #[config(default = 5000)]
    pub publish_timeout_ms: u64,
    /// How long the sink is this daemon's own. It is also how long the events of one that was killed wait for another.
    #[config(default = 30000)]
    pub lease_ms: u64,
}

impl Relay {
    pub(super) fn overlay(&mut self, of: impl Fn(&str) -> Option<String>) {
        self.url = of("URL").map(Secret::from).or(self.url.take());
        self.password = of("PASSWORD").map(Secret::from).or(self.password.take());
        self.token = of("TOKEN").map(Secret::from).or(self.token.take());
        self.brokers = of("BROKERS").or(self.brokers.take());
    }

    pub(super) fn check(&self, section: &str) -> Result<(), ConfigError> {
        let key = |key: &str| format!("{section}.{key}");
        let (missing, example, foreign) = match self.adapter {
            RelayAdapter::Nats => (
                self.url.is_none().then_some("url"),
                "nats://127.0.0.1:4222",
                self.brokers.as_ref().map(|_| ("brokers", "url")),
            ),
            RelayAdapter::Kafka => (
                self.brokers.is_none().then_some("brokers"),
                "127.0.0.1:9092",
                self.url.as_ref().map(|_| ("url", "brokers")),
            ),
        };
        if let Some(missing) = missing {
            return Err(ConfigError::new(key(missing), format!("is missing: say where it is, as {example:?}")));
        }
        if let Some((foreign, instead)) = foreign {
            return Err(ConfigError::new(key(foreign), format!("is not for this adapter; set {instead}")));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(ConfigError::new(key("password"), "belongs to a user: set both, or neither"));
        }
        for (name, value, plain) in
            [("subject", &self.subject, true), ("stream", &self.stream, false), ("topic", &self.topic, true)]
        {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c) || (plain && c == '.');
            if value.is_empty() || !value.chars().all(allowed) || value.split('.').any(str::is_empty) {
                return Err(ConfigError::new(key(name), format!("is {value:?}; use letters, digits, _ and -")));
            }
        }
        within(&key("batch"), self.batch, 1, 10_000)?;
        within(&key("max_in_flight"), self.max_in_flight, 1, 10_000)?;
        within(&key("lease_ms"), self.lease_ms, 1000, 3_600_000)?;
        within(&key("publish_timeout_ms"), self.publish_timeout_ms, 10, self.lease_ms / 2)
    }
}
