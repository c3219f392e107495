//! Kafka: librdkafka's own mock cluster, which speaks the protocol over TCP and can be told to fail.

use std::collections::HashMap;
use std::time::Duration;

use paylatch_tests::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;

use super::{PATIENCE, assert_told, connected, create, database, published, setup};

const PARTITIONS: i32 = 3;

struct Broker(MockCluster<'static, DefaultProducerContext>);

impl Broker {
    fn start() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("paylatch", PARTITIONS, 1).unwrap();
        Self(cluster)
    }

    fn section(&self) -> String {
        format!("adapter = \"kafka\"\nbrokers = \"{}\"", self.0.bootstrap_servers())
    }

    /// Everything in the topic, in the order of each partition.
    async fn told(&self) -> Vec<Value> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.0.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap();
        let (mut all, mut left) = (TopicPartitionList::new(), 0);
        for partition in 0..PARTITIONS {
            all.add_partition_offset("paylatch", partition, Offset::Beginning).unwrap();
            left += consumer.fetch_watermarks("paylatch", partition, Duration::from_secs(30)).unwrap().1;
        }
        consumer.assign(&all).unwrap();
        let (mut told, mut partition_of) = (Vec::new(), HashMap::new());
        eventually("the topic is read to its end", PATIENCE, async || {
            while let Some(message) = consumer.poll(Duration::ZERO) {
                let message = message.unwrap();
                let envelope: Value = serde_json::from_slice(message.payload().unwrap()).unwrap();
                let key = std::str::from_utf8(message.key().unwrap()).unwrap().to_owned();
                assert_eq!(envelope["key"], key);
                let id = message.headers().unwrap().iter().find(|h| h.key == "event_id").unwrap().value.unwrap();
                assert_eq!(envelope["event_id"], std::str::from_utf8(id).unwrap());
                let partition = *partition_of.entry(key).or_insert(message.partition());
                assert_eq!(partition, message.partition(), "a flow stays in one partition");
                told.push(envelope);
                left -= 1;
            }
            (left <= 0).then_some(())
        })
        .await;
        told
    }
}

#[tokio::test]
async fn every_event_comes_in_order() {
    let (db, kafka) = (database().await, Broker::start());
    let daemon = setup(&db, &kafka.section()).start().await;
    create(&db, 0, 60).await;
    published(&db).await;
    let told = kafka.told().await;
    assert_eq!(told.len(), 60 * 6, "nothing failed, so nothing comes twice");
    assert_told(&db, &told).await;
    assert!(daemon.metrics().await.contains("paylatch_relay_events_total{result=\"published\",sink=\"bus\"} 360"));
}

#[tokio::test]
async fn killing_the_relay_and_losing_the_broker_loses_and_reorders_nothing() {
    let (db, kafka) = (database().await, Broker::start());
    let mut daemon = setup(&db, &kafka.section()).start().await;
    for round in 0..4 {
        create(&db, round * 100, 60).await;
        let some = db.lag("bus").await.behind;
        eventually("publishing is under way", PATIENCE, async || {
            let lag = db.lag("bus").await.behind;
            (lag < some || lag == 0).then_some(())
        })
        .await;
        if round % 2 == 0 {
            daemon.kill();
            create(&db, round * 100 + 60, 10).await;
            daemon.restart().await;
        } else {
            kafka.0.broker_down(1).unwrap();
            create(&db, round * 100 + 60, 10).await;
            connected(&daemon, false).await;
            kafka.0.broker_up(1).unwrap();
        }
    }
    published(&db).await;
    assert_told(&db, &kafka.told().await).await;
    assert_eq!(db.lag("bus").await.dead, 0, "a broker that is down refuses nothing");
}

/// What the broker refuses as such is tried again later, in its place within its flow.
#[tokio::test]
async fn a_refused_event_is_tried_again_in_its_place() {
    let (db, kafka) = (database().await, Broker::start());
    db.execute("update paylatch.outbox_sink set retry_base_ms = 100").await;
    let errors = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 3];
    kafka.0.request_errors(RDKafkaApiKey::Produce, &errors);
    let daemon = setup(&db, &kafka.section()).start().await;
    create(&db, 0, 30).await;
    published(&db).await;
    assert!(daemon.metrics().await.contains("result=\"refused\""));
    assert_eq!(db.lag("bus").await.dead, 0);
    assert_told(&db, &kafka.told().await).await;
}
