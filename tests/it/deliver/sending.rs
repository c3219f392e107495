//! A real daemon sends to a real server, which checks every signature.

use std::process::Command;

use paylatch_tests::cluster::output;
use paylatch_tests::daemon::Setup;
use paylatch_tests::process::paylatchd;
use paylatch_tests::wait::SOON;
use paylatch_tests::{Database, eventually};

use super::add_endpoint;
use super::receiver::{Message, Receiver};

async fn received(receiver: &Receiver, count: usize) -> Vec<Message> {
    eventually(&format!("{count} messages"), SOON, async || {
        let received = receiver.received();
        (received.len() >= count).then_some(received)
    })
    .await
}

async fn database() -> Database {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db
}

#[tokio::test]
async fn a_payment_is_told_signed_and_in_order() {
    let db = database().await;
    let receiver = Receiver::start().await;
    let (_, secret) = add_endpoint(&db, &receiver.url, "null").await;
    receiver.knows(&[&secret]);
    let _daemon = Setup::of(&db).null_wallet("sim").webhooks("").start().await;
    let flow = db.create_flow("topup", "alice", "k").await;
    let messages = eventually("the payment's end", SOON, async || {
        let received = receiver.received();
        received.iter().any(|m| m.envelope["type"] == "order.paid").then_some(received)
    })
    .await;
    assert!(messages.iter().all(|m| m.signed_by == Some(0) && m.envelope["event_id"] == m.id.as_str()), "{messages:?}");
    let types: Vec<_> =
        messages.iter().filter_map(|m| m.envelope["type"].as_str()).filter(|t| t.starts_with("flow.")).collect();
    assert_eq!(types, ["flow.wait_pay", "flow.paying", "flow.payed", "flow.biz_success"]);
    assert!(messages.iter().all(|m| m.envelope["key"] == flow.to_string().as_str()));
    eventually("all is settled", SOON, async || {
        db.value::<bool>("select bool_and(status = 'delivered') from paylatch.delivery").await.then_some(())
    })
    .await;
}

/// It fails, hangs past the time-out, redirects; each is tried again later under the same id, and another is not held up.
#[tokio::test]
async fn what_is_not_taken_is_sent_again() {
    let db = database().await;
    let (bad, good) = (Receiver::start().await, Receiver::start().await);
    let (bad_id, bad_secret) = add_endpoint(&db, &bad.url, "'{flow.wait_pay}'").await;
    let (_, good_secret) = add_endpoint(&db, &good.url, "'{flow.wait_pay}'").await;
    bad.knows(&[&bad_secret]);
    good.knows(&[&good_secret]);
    bad.answers(&[Some(500), None, Some(302)]);
    let _daemon = Setup::of(&db).null_wallet("sim").webhooks("call_timeout_ms = 500").start().await;
    let first = db.create_flow("topup", "alice", "k").await;
    for tried in 1..=4_usize {
        let messages = received(&bad, tried).await;
        assert!(messages.iter().all(|m| m.id == format!("evt_{first}_f{first}_0") && m.signed_by == Some(0)));
        // Its time has come, and the endpoint has rested.
        eventually("it is settled", SOON, async || {
            let settled = format!("select tries = {tried} from paylatch.delivery where endpoint_id = {bad_id}");
            db.value::<bool>(&settled).await.then_some(())
        })
        .await;
        db.execute(&format!("update paylatch.delivery set due_at = paylatch.clock() where endpoint_id = {bad_id} and status = 'pending';
                             update paylatch.webhook_endpoint set paused_until = null")).await;
    }
    let said =
        "select array_agg(coalesce(a.status::text, a.error) order by a.attempt_id) from paylatch.delivery_attempt a
                join paylatch.delivery d using (delivery_id) where d.endpoint_id = ";
    let said: Vec<String> = db.value(&format!("{said}{bad_id}")).await;
    assert_eq!(said, ["500", "timed_out", "302", "200"]);
    assert_eq!(received(&good, 1).await.len(), 1);
}

#[tokio::test]
async fn a_secret_is_replaced_while_both_sign() {
    let db = database().await;
    let receiver = Receiver::start().await;
    let (endpoint, old) = add_endpoint(&db, &receiver.url, "'{flow.wait_pay}'").await;
    let new: String = db.value(&format!("select paylatch.rotate_webhook_secret({endpoint}, 1)")).await;
    let _daemon = Setup::of(&db).null_wallet("sim").webhooks("").start().await;
    // Who knows only the old one, and who knows only the new one.
    for (n, known) in [&old, &new].into_iter().enumerate() {
        receiver.knows(&[known]);
        db.create_flow("topup", &format!("u{n}"), "k").await;
        let message = received(&receiver, n + 1).await.remove(n);
        assert_eq!((message.signed_by, message.signatures), (Some(0), 2));
    }
    db.execute("update paylatch.webhook_endpoint set previous_until = paylatch.clock()").await;
    receiver.knows(&[&old, &new]);
    db.create_flow("topup", "u3", "k").await;
    let message = received(&receiver, 3).await.remove(2);
    assert_eq!((message.signed_by, message.signatures), (Some(1), 1), "the old one is over");
}

#[tokio::test]
async fn gone_stops_and_plain_http_is_refused_unless_allowed() {
    let db = database().await;
    let receiver = Receiver::start().await;
    add_endpoint(&db, &receiver.url, "'{flow.wait_pay}'").await;
    {
        let _daemon = Setup::of(&db).null_wallet("sim").webhooks("allow_http = false").start().await;
        db.create_flow("topup", "alice", "k").await;
        eventually("it is refused", SOON, async || {
            let refused = "select exists (select from paylatch.delivery_attempt where error = 'http_not_allowed')";
            db.value::<bool>(refused).await.then_some(())
        })
        .await;
        assert!(receiver.received().is_empty());
    }
    receiver.answers(&[Some(410)]);
    db.execute("update paylatch.delivery set due_at = paylatch.clock(); update paylatch.webhook_endpoint set paused_until = null").await;
    let _daemon = Setup::of(&db).null_wallet("sim").webhooks("").start().await;
    received(&receiver, 1).await;
    eventually("it is disabled", SOON, async || {
        db.value::<bool>("select disabled_at is not null from paylatch.webhook_endpoint").await.then_some(())
    })
    .await;
}

/// The same by the command line, as an operator.
#[tokio::test]
async fn an_operator_keeps_endpoints_by_command() {
    let db = database().await;
    let run = |arguments: &str| {
        let mut command = Command::new(paylatchd());
        command.arg("webhook").args(arguments.split(' ')).env("PAYLATCH_DATABASE_URL", db.url_as("operator"));
        output(&mut command)
    };
    let secret = run("add --merchant default --url https://a.example/hook --event order.paid --event refund.*");
    assert!(paylatch_core::signature::Key::parse(&secret).is_some(), "{secret}");
    let listed = run("list");
    assert!(listed.contains("https://a.example/hook") && listed.contains("order.paid refund.*"), "{listed}");
    assert!(!listed.contains(&secret));
    assert_ne!(run("rotate 1 --overlap-hours 2"), secret);
    run("disable 1 --why moved");
    assert!(run("list").contains("disabled: moved"));
    run("enable 1");
    assert!(run("deliveries --endpoint 1 --status dead").contains("event"));
    assert_eq!(run("redeliver --event evt_1_o1_3"), "0 to be sent");
}
