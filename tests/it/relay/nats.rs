//! NATS JetStream: a real server from Debian, which may be killed.

use std::time::Duration;

use async_nats::jetstream::stream;
use paylatch_tests::database::run;
use paylatch_tests::nats::NatsServer;
use paylatch_tests::{Database, eventually};
use serde_json::Value;

use super::{PATIENCE, assert_told, connected, create, database, published, setup};

fn section(nats: &NatsServer) -> String {
    format!("adapter = \"nats\"\nurl = \"{}\"", nats.url())
}

async fn told(nats: &NatsServer) -> Vec<Value> {
    nats.messages("paylatch").await.into_iter().map(|message| message.payload).collect()
}

#[tokio::test]
async fn every_event_comes_in_order() {
    let (db, nats) = (database().await, NatsServer::start("").await);
    let mut daemon = setup(&db, &section(&nats)).start().await;
    create(&db, 0, 60).await;
    published(&db).await;
    let messages = nats.messages("paylatch").await;
    assert_eq!(messages.len(), 60 * 6, "nothing failed, so nothing comes twice");
    for message in &messages {
        assert_eq!(message.message_id, message.payload["event_id"]);
        assert_eq!(message.subject, format!("paylatch.{}", message.payload["type"].as_str().unwrap()));
    }
    assert_told(&db, &told(&nats).await).await;
    assert!(daemon.metrics().await.contains("paylatch_relay_events_total{result=\"published\",sink=\"bus\"} 360"));
    let log = daemon.process().log();
    assert!(!log.contains("trade_order_no"), "no event's content is logged");
    assert!(daemon.terminate().await.success());
    // A graceful end leaves the lease to whoever comes next.
    let held: i64 = db.value("select count(*) from paylatch.stat_outbox where relay is not null").await;
    assert_eq!(held, 0);
}

/// The relay killed, the broker killed, both at their worst moments; the subscriber sees each event once after all.
#[tokio::test]
async fn killing_relay_and_broker_loses_and_reorders_nothing() {
    let (db, mut nats) = (database().await, NatsServer::start("").await);
    let mut daemon = setup(&db, &section(&nats)).start().await;
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
            nats.kill();
            create(&db, round * 100 + 60, 10).await;
            connected(&daemon, false).await;
            nats.restart().await;
        }
    }
    published(&db).await;
    assert_told(&db, &told(&nats).await).await;
}

/// Two daemons for one sink: one publishes, and when it stands still past its lease the other one does.
#[tokio::test]
async fn a_second_relay_takes_over_and_a_paused_one_spoils_nothing() {
    let (db, nats) = (database().await, NatsServer::start("").await);
    let mut one = setup(&db, &section(&nats)).name("one").start().await;
    let holder = "select coalesce((select relay from paylatch.stat_outbox), '')";
    create(&db, 0, 30).await;
    published(&db).await;
    let two = setup(&db, &section(&nats)).name("two").start().await;
    for round in 1..4 {
        create(&db, round * 100, 100).await;
        one.process().pause();
        create(&db, round * 100 + 50, 10).await;
        eventually("the other one publishes", PATIENCE, async || {
            db.value::<String>(holder).await.starts_with("two/").then_some(())
        })
        .await;
        one.process().resume();
        published(&db).await;
    }
    drop(two);
    assert_told(&db, &told(&nats).await).await;
}

/// What the broker refuses as such becomes a dead letter; everything else goes on.
#[tokio::test]
async fn an_event_too_large_becomes_a_dead_letter() {
    let (db, nats) = (database().await, NatsServer::start("max_payload: 1100").await);
    db.execute("update paylatch.outbox_sink set max_tries = 2, retry_base_ms = 100").await;
    let mut daemon = setup(&db, &section(&nats)).start().await;
    let large = "select flow_id from paylatch.create_pay_flow('bench', repeat('é', 128), repeat('é', 160), 100, 'USD')";
    let large: i64 = db.value(large).await;
    create(&db, 0, 20).await;
    published(&db).await;
    let told = told(&nats).await;
    assert_eq!(told.len(), 20 * 6);
    let dead: i64 = db
        .value(&format!("select count(*) from paylatch.undelivered where state = 'dead' and flow_id = {large}"))
        .await;
    assert_eq!((dead, db.lag("bus").await.dead), (6, 6), "each of its events, one after the other");
    assert!(daemon.metrics().await.contains("paylatch_relay_events_total{result=\"refused\",sink=\"bus\"} 12"));
    assert!(daemon.process().log().contains("the broker refuses an event"));
}

/// A broker that answers nothing: no event is lost, none is refused, and nothing is claimed meanwhile.
#[tokio::test]
async fn a_broker_that_stands_still_is_waited_for() {
    let (db, mut nats) = (database().await, NatsServer::start("").await);
    let daemon = setup(&db, &section(&nats)).start().await;
    create(&db, 0, 5).await;
    published(&db).await;
    nats.process().pause();
    create(&db, 100, 200).await;
    connected(&daemon, false).await;
    let claims = "select last_value from paylatch.relay_token_seq";
    let before: i64 = db.value(claims).await;
    create(&db, 400, 200).await;
    // Long enough for the daemon to have tried again, and again in vain.
    eventually("it tries again", PATIENCE, async || {
        let trouble = daemon.log().matches("the broker takes no events").count();
        (trouble >= 3).then_some(())
    })
    .await;
    assert_eq!(db.value::<i64>(claims).await, before, "it claims what it cannot publish");
    nats.process().resume();
    published(&db).await;
    assert_eq!(db.lag("bus").await.dead, 0);
    assert_told(&db, &told(&nats).await).await;
}

/// What is not set up is said, and mended without a restart.
#[tokio::test]
async fn a_missing_sink_and_a_foreign_stream_are_said_clearly() {
    let nats = NatsServer::start("").await;
    let db: Database = database().await;
    run(db.pool(), "select paylatch.drop_sink('bus')").await;
    let context = nats.context().await.unwrap();
    let foreign = stream::Config { name: "paylatch".into(), subjects: vec!["other".into()], ..Default::default() };
    context.create_stream(foreign.clone()).await.unwrap();
    let daemon = setup(&db, &section(&nats)).start().await;
    let says = async |what: &str| {
        eventually(what, PATIENCE, async || daemon.log().contains(what).then_some(())).await;
    };
    says("stream paylatch takes other, not paylatch.>: add that to its subjects").await;
    context
        .update_stream(stream::Config { subjects: vec!["other".into(), "paylatch.>".into()], ..foreign })
        .await
        .unwrap();
    says("there is no sink bus").await;
    says("select paylatch.add_sink('bus')").await;
    db.add_sink("bus", false).await;
    create(&db, 0, 3).await;
    tokio::time::timeout(Duration::from_secs(60), published(&db)).await.unwrap();
    assert_told(&db, &told(&nats).await).await;
}
