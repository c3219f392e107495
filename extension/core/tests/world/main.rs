//! step() against a naive world: a wallet, a business, a network and drivers that fail in every way that the faults
//! page lists, with time passing. The world keeps its own count of what really happened; only that count is asserted.
//!
//! Every misfortune is read off a tape of dice. Where the tape ends the world is healthy, so each run must end, and
//! proptest shrinks a failure to the few misfortunes that cause it. The world breaks no promise that a channel or a
//! scene makes: late effects stay within `not_found_final_after` (or the channel's close kills them), idempotency keys
//! are remembered for the resend window, the business refuses what comes after `valid_until`, and a call that outlives
//! its lease is over within the grace.

mod model;
mod wallet;

use std::cell::RefCell;
use std::collections::BTreeMap;

use model::{SECOND, START, Scenario, World};
use paylatch_core::flow::Status;
use paylatch_core::policy::BusinessMode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn scenarios() -> impl Strategy<Value = Scenario> {
    let mode = prop_oneof![3 => Just(BusinessMode::Http), 2 => Just(BusinessMode::Sql), 1 => Just(BusinessMode::None)];
    let channel = (prop::bool::weighted(0.7), any::<bool>(), any::<bool>(), prop::option::weighted(0.7, 20..100i64));
    let patience = (5..60i64, 3..20i32);
    let seconds = || prop_oneof![2 => 0..10i64, 1 => 0..30i64, 1 => 0..600i64];
    let life = (seconds(), prop::option::weighted(0.4, seconds()), prop::option::weighted(0.15, seconds()));
    let silence = || prop_oneof![4 => Just(0), 1 => 1..30u8];
    let tape = prop::collection::vec(any::<u16>(), 0..150);
    (mode, channel, patience, life, [silence(), silence()], tape).prop_map(
        |(mode, channel, (resend_window, max_auto_retries), (deadline, cancel_at, rival_at), silent, tape)| Scenario {
            mode,
            can_resend: channel.0,
            can_close_charge: channel.1,
            business_can_close: channel.2,
            final_after: channel.3,
            resend_window,
            max_auto_retries,
            deadline,
            cancel_at,
            rival_at,
            silent,
            tape,
        },
    )
}

/// Runs a scenario; a failure tells the story.
fn live(scenario: &Scenario) -> Result<World, String> {
    let run = |traced| {
        let mut world = World::new(scenario, traced);
        let end = world.run().and_then(|()| world.verdict());
        (world, end)
    };
    let (world, end) = run(false);
    end.map(|()| world).map_err(|says| format!("{says}\n{}", run(true).0.trace.unwrap_or_default().join("\n")))
}

#[test]
fn every_run_ends_and_nothing_is_charged_or_refunded_wrongly() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 8_000, failure_persistence: None, ..ProptestConfig::default() });
    let ends: RefCell<BTreeMap<String, u32>> = RefCell::default();
    let run = runner.run(&scenarios(), |scenario| {
        let world = live(&scenario).map_err(TestCaseError::fail)?;
        let end = world.froze.map_or(world.facts.status.as_str(), |reason| reason.as_str());
        *ends.borrow_mut().entry(end.to_owned()).or_default() += 1;
        Ok(())
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    // A world in which something never happens proves nothing about it.
    let ends = ends.into_inner();
    println!("{ends:?}");
    for (end, least) in [
        ("BIZ_SUCCESS", 400),
        ("PAY_FAIL", 400),
        ("REFUNDED", 200),
        ("CHARGE_UNRESOLVED", 100),
        ("BUSINESS_UNRESOLVED", 50),
        ("EVIDENCE_MISMATCH", 40),
        ("PARAMETER_CONFLICT", 20),
        ("BUSINESS_CONTRADICTORY", 20),
        ("UNATTRIBUTED", 3),
        ("REFUND_FAILED", 20),
        ("REFUND_UNRESOLVED", 30),
    ] {
        assert!(ends.get(end).is_some_and(|times| *times >= least), "{end} hardly happens: {ends:?}");
    }
}

fn healthy() -> Scenario {
    Scenario {
        mode: BusinessMode::Http,
        can_resend: true,
        can_close_charge: false,
        business_can_close: false,
        final_after: Some(30),
        resend_window: 60,
        max_auto_retries: 10,
        deadline: 600,
        cancel_at: None,
        rival_at: None,
        silent: [0, 0],
        tape: Vec::new(),
    }
}

#[test]
fn a_healthy_world_takes_the_straight_road() {
    for (mode, most) in [(BusinessMode::Http, 7), (BusinessMode::Sql, 3), (BusinessMode::None, 3)] {
        for bits in 0..8 {
            let (can_resend, can_close_charge, business_can_close) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            let scenario = Scenario { mode, can_resend, can_close_charge, business_can_close, ..healthy() };
            let world = live(&scenario).unwrap_or_else(|says| panic!("{says}\n{scenario:?}"));
            assert_eq!(world.facts.status, Status::BizSuccess, "{scenario:?}");
            assert!(world.steps <= most, "{mode}: {} steps", world.steps);
            assert!(world.now - START < SECOND, "{mode}: {} us", world.now - START);
        }
    }
}

#[test]
fn a_healthy_world_refunds_what_another_attempt_owns() {
    for can_resend in [true, false] {
        let scenario = Scenario { rival_at: Some(0), can_resend, ..healthy() };
        let world = live(&scenario).unwrap_or_else(|says| panic!("{says}"));
        assert_eq!((world.facts.status, world.froze), (Status::Refunded, None), "F6");
    }
}

#[test]
fn a_healthy_world_charges_nobody_who_does_not_want_it() {
    for scenario in [Scenario { cancel_at: Some(0), ..healthy() }, Scenario { deadline: 0, ..healthy() }] {
        let world = live(&scenario).unwrap_or_else(|says| panic!("{says}"));
        assert_eq!((world.facts.status, world.charge.first_seen, world.token), (Status::PayFail, None, 0));
    }
}
