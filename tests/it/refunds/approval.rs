//! A second person: above the scene's limit a refund waits, and whoever asked for it does not decide.

use paylatch_core::outcome::Outcome;
use paylatch_tests::Database;
use paylatch_tests::database::{refused, run};
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::refunds::{Asked, ask};
use sqlx::{Connection, PgConnection};

async fn limited(above: i64) -> (Database, i64) {
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute(&format!("update paylatch.scene set refund_approval_above = {above}")).await;
    let flow_id = db.settled_flow("alice", "one").await;
    (db, flow_id)
}

fn stands(asked: &Asked) -> (&str, Option<&str>) {
    (&asked.outcome, asked.status.as_deref())
}

#[tokio::test]
async fn above_the_limit_a_refund_waits_and_holds_its_money() {
    let (db, flow_id) = limited(500).await;
    let mut app = db.session_as("app").await;
    let large = ask(&mut app, flow_id, 501).await;
    assert_eq!((stands(&large), large.refundable), (("needs_approval", Some("REQUESTED")), 999));
    let mut driver = db.session().await;
    assert!(claim(&mut driver, 10).await.is_empty(), "nothing leaves before it is approved");
    let due = "select due_at = 'infinity' from paylatch.unfinished_refund";
    assert!(db.value::<bool>(due).await);
    assert_verified(&db).await;

    let mut approver = db.session_as("approver").await;
    run(&mut approver, "select paylatch.approve_refund(1, 'spoke to the customer')").await;
    let handout = claim(&mut driver, 10).await.remove(0);
    assert_eq!((handout.action.as_str(), handout.amount), ("REFUND", 501));
    report(&mut driver, &[handout.evidence(Outcome::Succeeded)]).await;
    let decided: String = db.value("select decided_by from paylatch.get_refund(1)").await;
    assert_eq!((decided.as_str(), db.refunds(flow_id).await[0].status.as_str()), ("test_approver", "SUCCEEDED"));
    assert_verified(&db).await;
}

/// Many small refunds need what one large one needs.
#[tokio::test]
async fn splitting_does_not_evade_the_limit() {
    let (db, flow_id) = limited(500).await;
    assert_eq!(stands(&db.ask_refund(flow_id, 300).await), ("reserved", Some("PENDING")));
    assert_eq!(stands(&db.ask_refund(flow_id, 200).await), ("reserved", Some("PENDING")), "500 is not above 500");
    assert_eq!(stands(&db.ask_refund(flow_id, 1).await), ("needs_approval", Some("REQUESTED")));
    let (db, flow_id) = limited(0).await;
    assert_eq!(stands(&db.ask_refund(flow_id, 1).await), ("needs_approval", Some("REQUESTED")), "0: every one");
    assert_verified(&db).await;
}

#[tokio::test]
async fn a_rejected_refund_gives_back_what_it_held() {
    let (db, flow_id) = limited(100).await;
    assert_eq!(db.ask_refund(flow_id, 1500).await.outcome, "needs_approval");
    assert_eq!(db.ask_refund(flow_id, 1).await.outcome, "over_limit");
    let mut approver = db.session_as("approver").await;
    run(&mut approver, "select paylatch.reject_refund(1, 'not within 30 days')").await;
    assert_eq!(db.flow(flow_id).await.refunded_amount, 0);
    assert_eq!(db.value::<i64>("select count(*) from paylatch.job").await, 0);
    for decide in ["approve_refund", "reject_refund"] {
        let (code, message) = refused(&mut approver, &format!("select paylatch.{decide}(1, 'again')")).await;
        assert_eq!(code, "PL003", "{message}");
    }
    assert_eq!(db.ask_refund(flow_id, 100).await.refund_order_no.map(|n| n[..3].to_owned()).as_deref(), Some("r2_"));
    assert_verified(&db).await;
}

/// A breaker that is open long enough probes with a question; a refund that waits for a person gives none, and must not
/// keep new charges out for ever.
#[tokio::test]
async fn a_refund_that_waits_keeps_no_breaker_open() {
    let (db, flow_id) = limited(0).await;
    assert_eq!(db.ask_refund(flow_id, 100).await.outcome, "needs_approval");
    let waiting = db.create_flow("topup", "bob", "new").await;
    db.execute(
        "update paylatch.channel_state set breaker = 'open', failures = 20, moved_at = paylatch.clock() - interval '1 hour'",
    )
    .await;
    let mut session = db.session().await;
    claim(&mut session, 10).await; // closes it, into the ramp
    run(&mut session, "set paylatch.clock_offset_ms = 1000").await;
    let handouts = claim(&mut session, 10).await;
    assert_eq!(handouts.iter().map(|h| h.flow_id).collect::<Vec<_>>(), [waiting]);
}

/// Neither the login that asked nor the name it asked for; not by changing the session's role, either.
#[tokio::test]
async fn whoever_asked_does_not_decide() {
    let (db, flow_id) = limited(0).await;
    db.execute(
        "do $$ begin create role test_both login; exception when duplicate_object then null; end $$;
         do $$ begin create role test_second login; exception when duplicate_object then null; end $$;
         grant paylatch_app, paylatch_approver to test_both; grant paylatch_approver to test_second;",
    )
    .await;
    let login = async |name: &str| {
        PgConnection::connect(&db.url().replacen("postgres@", &format!("{name}@"), 1)).await.unwrap()
    };
    let mut both = login("test_both").await;
    ask(&mut both, flow_id, 100).await;
    let in_the_name_of = "select outcome from paylatch.request_refund($1, 100, 'why', requested_by => 'test_second')";
    let mut app = db.session_as("app").await;
    sqlx::query(in_the_name_of).bind(flow_id).execute(&mut app).await.unwrap();

    let mut second = login("test_second").await;
    for (session, refund_id) in [(&mut both, 1), (&mut second, 2)] {
        for decide in ["approve_refund", "reject_refund"] {
            for role in ["none", "paylatch_approver"] {
                let decide = format!("set role {role}; select paylatch.{decide}({refund_id}, 'looks fine')");
                let (code, message) = refused(&mut *session, &decide).await;
                assert_eq!(code, "PL009", "{message}");
            }
        }
    }
    run(&mut second, "reset role; select paylatch.approve_refund(1, 'looks fine')").await;
    run(&mut both, "reset role; select paylatch.approve_refund(2, 'looks fine')").await;
    for (call, code) in
        [("approve_refund(99, 'x')", "PL008"), ("approve_refund(1, '')", "PL004"), ("reject_refund(1, null)", "PL004")]
    {
        assert_eq!(refused(&mut second, &format!("select paylatch.{call}")).await.0, code, "{call}");
    }
    for call in [
        "approve_refund(1, 'x')",
        "reject_refund(1, 'x')",
        "resume_refund(1, 'x')",
        "report_dispute(1, 'd', 1, 'OPEN')",
    ] {
        assert_eq!(refused(&mut app, &format!("select paylatch.{call}")).await.0, "42501", "{call}");
    }
    assert_verified(&db).await;
}
