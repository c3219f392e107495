//! The simulator itself: tests lean on its count of effects, so that has to be right whatever becomes of it.

use std::io::Write;
use std::time::Duration;

use paylatch_core::outcome::{Action, Outcome};
use paylatch_tests::wait::SOON;
use paylatch_tests::{LocalSimulator, Simulator, eventually};
use paylatchd::business::{self, BusinessAdapter};
use paylatchd::evidence::Answer;
use paylatchd::simulate::{Fault, FaultRates, Op, Rule};
use paylatchd::wallet::{self, WalletAdapter};

use super::{Counterparty, PATIENT, Payment, settings};

async fn ask(base_url: &str, payment: &Payment, action: Action) -> Answer {
    let settings = settings(base_url, PATIENT);
    let handout = payment.handout(action);
    if action.is_wallet() {
        let wallet = wallet::open(WalletAdapter::Sim, Some(&settings), &[]).expect("the adapter opens");
        wallet::carry_out(&*wallet, &handout).await
    } else {
        let business = business::open(BusinessAdapter::Http, Some(&settings)).expect("the adapter opens");
        business::carry_out(&*business, &handout).await
    }
}

/// A bit of everything: charged, refunded, closed, refused, in process, done, closed for the business.
async fn a_day_at(base_url: &str, simulator: &impl Counterparty) {
    let payments: Vec<_> = (0..5).map(Payment::nth).collect();
    for action in [Action::Charge, Action::ExecuteBusiness, Action::Refund] {
        ask(base_url, &payments[0], action).await;
    }
    ask(base_url, &payments[1], Action::CloseCharge).await;
    ask(base_url, &payments[1], Action::CloseBusiness).await;
    for (payment, fault) in payments[2..].iter().zip([Fault::Refuse, Fault::Processing, Fault::DropAfter]) {
        simulator.provoke(Op::Charge, fault, None).await;
        ask(base_url, payment, Action::Charge).await;
    }
}

#[tokio::test]
async fn every_effect_survives_a_restart() {
    let mut simulator = LocalSimulator::start().await;
    a_day_at(&simulator.base_url(), &simulator).await;
    let before = simulator.effects().await;
    assert_eq!((before.charges.len(), before.closed.len(), before.business.len()), (4, 1, 2));
    simulator.stop().await;
    let refused = ask(&simulator.base_url(), &Payment::nth(0), Action::QueryCharge).await;
    assert_eq!(refused.outcome, Outcome::Unavailable, "{refused:?}");

    let mut ledger = std::fs::OpenOptions::new().append(true).open(simulator.ledger()).expect("the ledger");
    ledger.write_all(b"{\"book\":\"wallet\",\"ent").expect("half a line");
    simulator.restart().await;
    let after = simulator.effects().await;
    assert_eq!((&after.charges, &after.closed), (&before.charges, &before.closed));
    assert_eq!((&after.refunds, &after.business), (&before.refunds, &before.business));

    ask(&simulator.base_url(), &Payment::nth(3), Action::QueryCharge).await;
    ask(&simulator.base_url(), &Payment::nth(3), Action::QueryCharge).await;
    assert_eq!(simulator.charged(&Payment::nth(3)).await, 1, "what was in process ends after the restart");
}

/// kill -9 in the middle of many charges: every one that was answered is still there, and none twice.
#[tokio::test]
async fn what_was_admitted_survives_kill_9() {
    const CHARGES: u32 = 200;
    let mut simulator = Simulator::start().await;
    let base_url = simulator.base_url();
    let charges: Vec<_> = (0..CHARGES)
        .map(|n| {
            let base_url = base_url.clone();
            tokio::spawn(async move { ask(&base_url, &Payment::nth(n), Action::Charge).await.outcome })
        })
        .collect();
    let reached = async || (simulator.effects().await.charges.len() > 20).then_some(());
    eventually("some charges took effect", SOON, reached).await;
    simulator.kill();
    simulator.restart().await;
    let effects = simulator.effects().await;
    for (n, charge) in (0..CHARGES).zip(charges) {
        let outcome = charge.await.expect("no panic");
        let count = effects.charge_count(&Payment::nth(n).order_no);
        let fits = match outcome {
            Outcome::Succeeded => count == 1,
            _ => count <= 1,
        };
        assert!(fits, "charge {n} answered {outcome} and took effect {count} times");
    }
}

#[tokio::test]
async fn a_double_effect_would_be_counted() {
    let simulator = LocalSimulator::start().await;
    let payment = Payment::nth(1);
    ask(&simulator.base_url(), &payment, Action::Charge).await;
    simulator.provoke(Op::Charge, Fault::ForgetKey, None).await;
    ask(&simulator.base_url(), &payment, Action::Charge).await;
    ask(&simulator.base_url(), &payment, Action::Charge).await;
    assert_eq!(simulator.charged(&payment).await, 2);
}

#[tokio::test]
async fn an_outage_cuts_the_wallet_alone_and_ends() {
    let simulator = LocalSimulator::start().await;
    let (base_url, payment) = (simulator.base_url(), Payment::nth(1));
    simulator.admin().outage(Duration::from_secs(3600)).await.expect("the outage begins");
    assert_eq!(ask(&base_url, &payment, Action::Charge).await.outcome, Outcome::Unknown);
    assert_eq!(ask(&base_url, &payment, Action::ExecuteBusiness).await.outcome, Outcome::Done);
    assert_eq!(simulator.charged(&payment).await, 0);
    simulator.ahead_by(3_600_001).await;
    assert_eq!(ask(&base_url, &payment, Action::Charge).await.outcome, Outcome::Succeeded);
    assert_eq!(simulator.effects().await.calls(&payment.order_no, Op::Charge), 2);
}

/// The same seed meets the same payments with the same fate, whatever the order of their arrival.
#[tokio::test]
async fn random_faults_depend_on_the_seed_and_not_on_the_order() {
    // Only faults that show in the first answer and take no time.
    let mix = [Fault::DropAfter, Fault::ErrorBefore, Fault::TooMany, Fault::Refuse].map(|fault| (fault, 1));
    let rates = FaultRates { rate: 0.5, mix: mix.into_iter().collect() };
    let numbers: Vec<u32> = (0..40).collect();
    let mut fates = Vec::new();
    for reversed in [false, true] {
        let simulator = LocalSimulator::start().await;
        simulator.admin().faults(&rates).await.expect("the rates are taken");
        let order: Vec<u32> = if reversed { numbers.iter().rev().copied().collect() } else { numbers.clone() };
        let mut outcomes = std::collections::BTreeMap::new();
        for n in order {
            outcomes.insert(n, ask(&simulator.base_url(), &Payment::nth(n), Action::Charge).await.outcome);
        }
        fates.push(outcomes);
    }
    assert_eq!(fates[0], fates[1]);
    let struck = fates[0].values().filter(|outcome| **outcome != Outcome::Succeeded).count();
    assert!((8..=32).contains(&struck), "{struck} of 40");
}

#[tokio::test]
async fn a_script_strikes_whom_it_names_and_as_often() {
    let simulator = LocalSimulator::start().await;
    let admin = simulator.admin();
    let (named, other) = (Payment::nth(1), Payment::nth(2));
    admin.script(Rule::new("sh_*_1", "charge", Fault::TooMany).times(2)).await.expect("the rule is taken");
    for (payment, outcome) in [
        (&other, Outcome::Succeeded),
        (&named, Outcome::Unavailable),
        (&named, Outcome::Unavailable),
        (&named, Outcome::Succeeded),
    ] {
        assert_eq!(ask(&simulator.base_url(), payment, Action::Charge).await.outcome, outcome);
    }
    assert!(admin.rules().await.expect("the rules").is_empty());
    admin.script(Rule::new("*", "*", Fault::ErrorBefore)).await.expect("the rule is taken");
    admin.clear_script().await.expect("the script is cleared");
    assert_eq!(ask(&simulator.base_url(), &named, Action::QueryCharge).await.outcome, Outcome::Succeeded);
    let nonsense = admin.script(Rule::new("*", "charge", Fault::NoOwner)).await;
    assert!(nonsense.is_err_and(|error| error.to_string().contains("means nothing")));
}

#[test]
fn every_fault_is_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/adapters.md")).expect("the page");
    let (_, table) = page.split_once("### Its faults").expect("the table");
    for fault in Fault::ALL {
        let name = serde_json::to_value(fault).expect("a fault is a word");
        let cell = format!("`{}`", name.as_str().expect("a fault is a word"));
        assert!(table.contains(&cell), "{cell}");
    }
}
