//! Kafka: each event to one topic, keyed by its flow, so that a flow stays in one partition and in order.
//!
//! The producer is idempotent and waits for all in-sync replicas. Every delivery result is awaited, and librdkafka gives
//! up on a message before we do, so nothing that we have given up is delivered behind our back.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use super::{Event, PublishError};
use crate::config;

/// A producer, and the topic.
pub(super) struct Kafka {
    producer: FutureProducer,
    topic: String,
    timeout: Duration,
}

impl Kafka {
    /// Connects, and makes sure that the topic is there.
    pub(super) async fn open(settings: &config::Relay) -> Result<Self, String> {
        let timeout = Duration::from_millis(settings.publish_timeout_ms);
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", settings.brokers.as_deref().unwrap_or_default())
            .set("client.id", "paylatchd")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // As Java's clients do, so that one key is one partition whoever writes.
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "2")
            .set("message.timeout.ms", settings.publish_timeout_ms.to_string())
            .create()
            .map_err(|e| format!("make a Kafka producer: {e}"))?;
        let (asking, topic) = (producer.clone(), settings.topic.clone());
        let asked = tokio::task::spawn_blocking(move || topic_error(&asking, &topic, timeout)).await;
        match asked {
            Ok(None) => Ok(Self { producer, topic: settings.topic.clone(), timeout }),
            Ok(Some(error)) => Err(format!("Kafka, topic {}: {error}", settings.topic)),
            Err(error) => Err(format!("Kafka, topic {}: {error}", settings.topic)),
        }
    }

    /// Waits until all in-sync replicas have it.
    pub(super) async fn publish(&self, event: &Event) -> Result<(), PublishError> {
        let key = event.flow_id.to_string();
        let headers = OwnedHeaders::new()
            .insert(Header { key: "event_id", value: Some(&event.event_id) })
            .insert(Header { key: "type", value: Some(&event.kind) });
        let record = FutureRecord::to(&self.topic).key(&key).payload(&event.envelope).headers(headers);
        let Err((error, _)) = self.producer.send(record, self.timeout).await else { return Ok(()) };
        Err(match &error {
            KafkaError::MessageProduction(
                RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::InvalidMessage
                | RDKafkaErrorCode::InvalidMessageSize
                | RDKafkaErrorCode::InvalidRecord,
            ) => PublishError::Refused(error.to_string()),
            _ => PublishError::Unavailable(format!("publish to Kafka: {error}")),
        })
    }
}

/// Why the topic cannot be used; asks and waits.
fn topic_error(producer: &FutureProducer, topic: &str, timeout: Duration) -> Option<String> {
    let metadata = match producer.client().fetch_metadata(Some(topic), timeout) {
        Ok(metadata) => metadata,
        Err(error) => return Some(error.to_string()),
    };
    let error = metadata.topics().iter().find(|t| t.name() == topic)?.error()?;
    Some(format!("{}; create it, or set relay's topic", RDKafkaErrorCode::from(error)))
}
