//! docs/event.schema.json describes what is really published: a validator that we did not write takes every event, and
//! no field is there that the page does not name.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use paylatch_core::outcome::Outcome;
use paylatch_core::{flow, order, refund};
use paylatch_tests::Database;
use paylatch_tests::cluster::{output, root};
use paylatch_tests::events::drain;
use paylatch_tests::payments::{claim, report};
use serde_json::Value;
use tempfile::TempDir;

/// Lives that end in every way, so that most types occur.
async fn lives() -> Vec<Value> {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.add_sink("s", true).await;
    db.settled_flow("alice", "one").await;
    let undone = db.create_flow("shop", "bob", "two").await;
    let mut session = db.session().await;
    let charge = claim(&mut session, 10).await.remove(0);
    report(&mut session, &[charge.evidence(Outcome::Succeeded)]).await;
    db.execute(&format!(
        "select paylatch.freeze_pay_flow({undone}, 'why');
         select paylatch.resume_pay_flow({undone}, 'why');
         update paylatch.pay_flow set status = 'REFUNDING', refunded_amount = amount, version = version + 1 where flow_id = {undone};
         update paylatch.pay_flow set status = 'REFUNDED', version = version + 1 where flow_id = {undone}"
    ))
    .await;
    let cancelled = db.create_flow("topup", "carol", "three").await;
    db.execute(&format!("select paylatch.cancel_pay_flow({cancelled})")).await;
    drain(&mut session, "s").await.into_iter().map(|event| event.envelope).collect()
}

fn schema() -> Value {
    serde_json::from_str(&std::fs::read_to_string(root().join("docs/event.schema.json")).unwrap()).unwrap()
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn every_event_is_as_the_schema_says() {
    let (events, schema) = (lives().await, schema());
    let dir = TempDir::new().unwrap();
    let mut files = Vec::new();
    for event in &events {
        let kind = event["payload"]["kind"].as_str().unwrap();
        assert_eq!(keys(event), keys(&schema["properties"]));
        assert_eq!(keys(&event["payload"]), keys(&schema["$defs"][kind]["properties"]), "of {kind}");
        let file = dir.path().join(format!("{}.json", event["event_id"].as_str().unwrap()));
        std::fs::write(&file, event.to_string()).unwrap();
        files.push(file);
    }
    assert!(files.len() > 20, "{files:?}");
    let tools = output(&mut Command::new(root().join("scripts/venv")));
    let mut check = Command::new(Path::new(&tools).join("check-jsonschema"));
    output(check.arg("--schemafile").arg(root().join("docs/event.schema.json")).args(files));
}

/// The types are those that the vocabularies of the rules make, no more and no fewer; and the page names each.
#[test]
fn every_type_is_listed() {
    let named = |kind: &str, words: Vec<String>, freezes: bool| {
        let more: &[&str] = if freezes { &["frozen", "resumed"] } else { &[] };
        let all = words.into_iter().map(|word| word.to_lowercase()).chain(more.iter().map(|word| (*word).to_owned()));
        all.map(|word| format!("{kind}.{word}")).collect::<Vec<_>>()
    };
    let mut types = named("flow", flow::Status::ALL.iter().map(ToString::to_string).collect(), true);
    types.extend(named("order", order::Status::ALL.iter().map(ToString::to_string).collect(), false));
    types.extend(named("refund", refund::Status::ALL.iter().map(ToString::to_string).collect(), true));
    assert_eq!(schema()["properties"]["type"]["enum"], Value::from(types.clone()));
    let page = std::fs::read_to_string(root().join("docs/events.md")).unwrap();
    let missing: Vec<_> = types.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/events.md does not name {missing:?}");
}
