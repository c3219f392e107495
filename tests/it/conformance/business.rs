//! The business suite.

use std::time::Duration;

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::daemon::free_address;
use paylatch_tests::wait::SOON;
use paylatch_tests::{LocalSimulator, eventually};
use paylatchd::business::{BusinessAdapter, carry_out, open};
use paylatchd::clock;
use paylatchd::evidence::{Answer, Handout};
use paylatchd::simulate::{Fault, Op};

use super::{Counterparty, HASTY, PATIENT, Payment, settings};

const ACTIONS: [Action; 3] = [Action::ExecuteBusiness, Action::QueryBusiness, Action::CloseBusiness];

async fn ask(simulator: &LocalSimulator, handout: &Handout, call_timeout: Duration) -> Answer {
    let settings = settings(&simulator.base_url(), call_timeout);
    let business = open(BusinessAdapter::Http, Some(&settings)).expect("the adapter opens");
    carry_out(&*business, handout).await
}

async fn is(simulator: &LocalSimulator, payment: &Payment, action: Action, outcome: Outcome) -> Answer {
    let answer = ask(simulator, &payment.handout(action), PATIENT).await;
    assert_eq!(answer.outcome, outcome, "{action}: {answer:?}");
    answer
}

async fn provoked(
    simulator: &LocalSimulator,
    payment: &Payment,
    action: Action,
    fault: Fault,
    arg: Option<u64>,
) -> Answer {
    let op = match action {
        Action::ExecuteBusiness => Op::Execute,
        Action::QueryBusiness => Op::Fact,
        _ => Op::CloseBusiness,
    };
    simulator.provoke(op, fault, arg).await;
    let call_timeout = if matches!(fault, Fault::Trickle | Fault::Slow) { HASTY } else { PATIENT };
    ask(simulator, &payment.handout(action), call_timeout).await
}

#[tokio::test]
async fn the_first_number_owns_the_target() {
    let simulator = LocalSimulator::start().await;
    let first = Payment::nth(1);
    let second = Payment { biz_key: first.biz_key.clone(), ..Payment::nth(2) };
    is(&simulator, &first, Action::QueryBusiness, Outcome::NotDone).await;
    for payment in [&first, &first, &second] {
        for action in ACTIONS {
            let answer = is(&simulator, payment, action, Outcome::Done).await;
            assert_eq!(answer.owner.as_ref(), Some(&first.order_no), "{action}");
        }
    }
    assert_eq!(simulator.done(&first).await, (Some(first.order_no.clone()), 1));
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_fact_tells() {
    let simulator = LocalSimulator::start().await;
    for (n, (fault, arg)) in (0..).zip([
        (Fault::DropAfter, None),
        (Fault::ErrorAfter, None),
        (Fault::Truncate, None),
        (Fault::Garbage, None),
        (Fault::Oversized, None),
        (Fault::Trickle, Some(20)),
        (Fault::Slow, Some(400)),
    ]) {
        let payment = Payment::nth(n);
        let answer = provoked(&simulator, &payment, Action::ExecuteBusiness, fault, arg).await;
        assert_eq!(answer.outcome, Outcome::Unknown, "{fault:?}: {answer:?}");
        let expected = (Some(payment.order_no.clone()), 1);
        let done = async || (simulator.done(&payment).await == expected).then_some(());
        eventually("the work is done", SOON, done).await;
        is(&simulator, &payment, Action::QueryBusiness, Outcome::Done).await;
    }
}

#[tokio::test]
async fn without_an_answer_nothing_is_known() {
    let simulator = LocalSimulator::start().await;
    let payment = Payment::nth(1);
    for action in ACTIONS {
        for (fault, arg, outcome) in [
            (Fault::DropBefore, None, Outcome::Unknown),
            (Fault::ErrorBefore, None, Outcome::Unknown),
            (Fault::Conflict, None, Outcome::Unknown),
            (Fault::Status, Some(404), Outcome::Unknown),
            (Fault::Status, Some(204), Outcome::Unknown),
            (Fault::TooMany, None, Outcome::Unavailable),
        ] {
            let answer = provoked(&simulator, &payment, action, fault, arg).await;
            assert_eq!(answer.outcome, outcome, "{action} {fault:?}: {answer:?}");
        }
    }
    assert_eq!(simulator.done(&payment).await, (None, 0));
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let settings = settings(&format!("http://{}", free_address()), PATIENT);
    let business = open(BusinessAdapter::Http, Some(&settings)).expect("the adapter opens");
    for action in ACTIONS {
        let answer = carry_out(&*business, &Payment::nth(1).handout(action)).await;
        assert_eq!(answer.outcome, Outcome::Unavailable, "{action}: {answer:?}");
    }
}

#[tokio::test]
async fn work_asked_for_too_late_is_refused() {
    let simulator = LocalSimulator::start().await;
    let payment = Payment::nth(1);
    let late = Handout {
        valid_until: Some(clock::now() - Duration::from_secs(1)),
        ..payment.handout(Action::ExecuteBusiness)
    };
    let answer = ask(&simulator, &late, PATIENT).await;
    assert_eq!((answer.outcome, answer.code.as_deref()), (Outcome::NotDone, Some("late")));
    is(&simulator, &payment, Action::QueryBusiness, Outcome::NotDone).await;
    let whenever = Handout { valid_until: None, ..late };
    assert_eq!(ask(&simulator, &whenever, PATIENT).await.outcome, Outcome::Done);
}

#[tokio::test]
async fn a_closed_number_never_executes_and_another_may() {
    let simulator = LocalSimulator::start().await;
    let first = Payment::nth(1);
    let second = Payment { biz_key: first.biz_key.clone(), ..Payment::nth(2) };
    is(&simulator, &first, Action::CloseBusiness, Outcome::Closed).await;
    is(&simulator, &first, Action::ExecuteBusiness, Outcome::Rejected).await;
    is(&simulator, &first, Action::QueryBusiness, Outcome::Rejected).await;
    assert_eq!(simulator.done(&first).await, (None, 0));
    is(&simulator, &second, Action::ExecuteBusiness, Outcome::Done).await;
    assert_eq!(simulator.done(&first).await, (Some(second.order_no), 1));
}

#[tokio::test]
async fn a_rejected_number_stays_rejected() {
    let simulator = LocalSimulator::start().await;
    let payment = Payment::nth(1);
    let answer = provoked(&simulator, &payment, Action::ExecuteBusiness, Fault::Reject, None).await;
    assert_eq!(answer.outcome, Outcome::Rejected);
    is(&simulator, &payment, Action::ExecuteBusiness, Outcome::Rejected).await;
    is(&simulator, &payment, Action::QueryBusiness, Outcome::Rejected).await;
}

#[tokio::test]
async fn late_work_shows_when_it_is_done_unless_its_number_was_closed() {
    const LATE_MS: i64 = 300_000;
    let simulator = LocalSimulator::start().await;
    let (left_alone, closed) = (Payment::nth(1), Payment::nth(2));
    for payment in [&left_alone, &closed] {
        let late_ms = Some(LATE_MS.unsigned_abs());
        let answer = provoked(&simulator, payment, Action::ExecuteBusiness, Fault::LateEffect, late_ms).await;
        assert_eq!(answer.outcome, Outcome::Unknown);
        is(&simulator, payment, Action::QueryBusiness, Outcome::NotDone).await;
    }
    is(&simulator, &closed, Action::CloseBusiness, Outcome::Closed).await;
    simulator.ahead_by(LATE_MS).await;
    is(&simulator, &left_alone, Action::QueryBusiness, Outcome::Done).await;
    is(&simulator, &closed, Action::QueryBusiness, Outcome::Rejected).await;
    assert_eq!(simulator.done(&closed).await, (None, 0));
}

#[tokio::test]
async fn strange_facts_are_passed_on() {
    let simulator = LocalSimulator::start().await;
    let payment = Payment::nth(1);
    is(&simulator, &payment, Action::ExecuteBusiness, Outcome::Done).await;
    let fact = async |fault| provoked(&simulator, &payment, Action::QueryBusiness, fault, None).await;
    assert_eq!(fact(Fault::Contradictory).await.outcome, Outcome::Contradictory);
    let no_owner = fact(Fault::NoOwner).await;
    assert_eq!((no_owner.outcome, no_owner.owner), (Outcome::Done, None));
    let other_owner = fact(Fault::OtherOwner).await;
    assert_eq!((other_owner.outcome, other_owner.owner.as_deref()), (Outcome::Done, Some("other_owner_0")));
}

#[tokio::test]
async fn a_wallet_action_is_not_sent_to_a_business() {
    let simulator = LocalSimulator::start().await;
    let answer = ask(&simulator, &Payment::nth(1).handout(Action::Charge), PATIENT).await;
    assert_eq!(answer.outcome, Outcome::Unavailable);
    assert_eq!(simulator.effects().await.requests.len(), 0);
}
