//! Refunds that are rows of their own: every kind x state x answer x circumstance.
//!
//! The rules are those of a flow in REFUNDING, so they are held against it: wherever the wallet does not refuse, a refund
//! and a flow with the same columns must come out alike. What is a refund's own is checked by itself.

use paylatch_core::backoff::Curve;
use paylatch_core::decide::{self, Evidence, Reason};
use paylatch_core::flow;
use paylatch_core::outcome::Action::{self, QueryRefund, Refund};
use paylatch_core::outcome::Outcome::{self, *};
use paylatch_core::policy::{BusinessMode, Policy};
use paylatch_core::refund::{self, Facts, Kind, Status};
use paylatch_core::step::{self, Leave, Step};
use paylatch_core::{Micros, NEVER};

const SECOND: Micros = 1_000_000;
const NOW: Micros = 1_000_000 * SECOND;
const CHARGE: &str = "h2r_u6_p1";
/// A refund bears the compensation's number here, so that a flow's answers fit it too.
const NUMBER: &str = "r_h2r_u6_p1";

fn policies() -> impl Iterator<Item = Policy> {
    (0..4).map(|bits| Policy {
        business_mode: BusinessMode::Http,
        business_can_close: false,
        biz_grace_ms: 20_000,
        curve: Curve { base_ms: 1_000, factor_percent: 200, max_ms: 60_000, jitter_percent: 20 },
        max_auto_retries: 10,
        slow_interval_ms: 300_000,
        refund_max_failures: 3,
        can_resend: bits & 1 != 0,
        can_close_charge: false,
        resend_window_ms: if bits & 2 != 0 { 3_600_000 } else { 10_000 },
        not_found_final_after_ms: Some(400_000),
    })
}

fn evidences() -> Vec<Option<Evidence<'static>>> {
    let mut all = vec![None];
    for &action in Action::ALL {
        for &outcome in Outcome::ALL {
            for asked_at in [NOW - SECOND, NOW - 45 * SECOND] {
                let bare =
                    Evidence { action, outcome, asked_at, number: None, amount: None, currency: None, owner: None };
                let full = Evidence { number: Some(NUMBER), amount: Some(500), currency: Some("CNY"), ..bare };
                all.extend([Some(full), Some(bare)]);
                if outcome == Succeeded {
                    all.push(Some(Evidence { number: Some(CHARGE), ..full }));
                    all.push(Some(Evidence { amount: Some(501), ..full }));
                    all.push(Some(Evidence { currency: Some("JPY"), ..full }));
                }
            }
        }
    }
    all
}

fn leaves() -> [Leave; 4] {
    let freely = Leave { lease_until: Some(NOW + 30 * SECOND), questions_only: false, wallet_may_leave: true };
    [
        freely,
        Leave { lease_until: None, ..freely },
        Leave { questions_only: true, ..freely },
        Leave { wallet_may_leave: false, ..freely },
    ]
}

/// What a PENDING refund can look like on its way.
fn circumstances() -> Vec<Facts<'static>> {
    let mut all = Vec::new();
    for lease in [None, Some(NOW - 30 * SECOND), Some(NOW + 5 * SECOND)] {
        for act_unread in [true, false] {
            for (retry_count, negative_count) in [(0, 0), (9, 1), (10, 2), (1_000, 2)] {
                for frozen in [false, true] {
                    all.push(Facts {
                        refund_id: 901,
                        number: NUMBER,
                        amount: 500,
                        currency: "CNY",
                        kind: Kind::AfterSale,
                        status: Status::Pending,
                        frozen,
                        retry_count,
                        act_unread: act_unread && lease.is_some(),
                        act_sent_at: lease.map(|end| end.min(NOW) - 60 * SECOND),
                        act_lease_until: lease,
                        negative_count,
                        negative_since: None,
                        last_outcome: None,
                    });
                }
            }
        }
    }
    all
}

fn every_case(mut visit: impl FnMut(&Facts<'static>, &Policy, Option<&Evidence<'static>>, Leave)) {
    let evidences = evidences();
    for facts in circumstances() {
        for kind in [Kind::AfterSale, Kind::Recon] {
            for status in Status::ALL {
                let facts = Facts { kind, status: *status, ..facts };
                for policy in policies() {
                    for told in &evidences {
                        for leave in leaves() {
                            visit(&facts, &policy, told.as_ref(), leave);
                        }
                    }
                }
            }
        }
    }
}

fn as_a_flow(facts: &Facts<'static>) -> decide::Facts<'static> {
    decide::Facts {
        flow_id: facts.refund_id,
        trade_order_no: CHARGE,
        amount: facts.amount,
        currency: facts.currency,
        deadline: NEVER,
        cancelled: false,
        status: flow::Status::Refunding,
        frozen: facts.frozen,
        retry_count: facts.retry_count,
        act_unread: facts.act_unread,
        act_sent_at: facts.act_sent_at,
        act_lease_until: facts.act_lease_until,
        negative_count: facts.negative_count,
        negative_since: facts.negative_since,
        last_outcome: facts.last_outcome,
        refund: None,
    }
}

/// What the database does with a step, without what a flow and a refund call differently.
fn essence(step: &Step<'_>) -> impl PartialEq + std::fmt::Debug {
    let decide::Facts {
        retry_count,
        act_unread,
        act_sent_at,
        act_lease_until,
        negative_count,
        last_outcome,
        frozen,
        ..
    } = step.facts;
    let columns = (retry_count, act_unread, act_sent_at, act_lease_until, negative_count, last_outcome, frozen);
    (columns, (step.froze, step.changed, step.action, step.due_at, step.again, step.logged_action))
}

/// The wallet's definite refusal of a refund, as it counts.
fn refuses(told: Option<&Evidence<'_>>) -> bool {
    told.is_some_and(|told| matches!((told.action, told.outcome), (Refund | QueryRefund, Failed)))
}

#[test]
fn a_pending_refund_is_decided_as_a_flow_that_is_refunding() {
    let mut alike = 0u64;
    every_case(|facts, policy, told, leave| {
        if facts.status != Status::Pending || (facts.kind == Kind::AfterSale && refuses(told)) {
            return;
        }
        let (status, step) = refund::step(facts, policy, told, NOW, leave);
        let flow = step::step(&as_a_flow(facts), policy, told, NOW, leave);
        if step.action.is_none() && flow.action == Some(Refund) {
            // An answer came before the refund was ever sent: it is announced apart from that.
            assert!(facts.act_sent_at.is_none() && told.is_some() && step.due_at == NOW, "{facts:?} {told:?}");
            return;
        }
        assert_eq!(essence(&step), essence(&flow), "{facts:?} {told:?}");
        assert_eq!(status == Status::Succeeded, flow.facts.status == flow::Status::Refunded, "{facts:?} {told:?}");
        assert!(matches!(status, Status::Pending | Status::Succeeded), "{facts:?} {told:?} -> {status}");
        alike += 1;
    });
    assert!(alike > 50_000, "{alike}");
}

#[test]
fn a_refusal_ends_what_a_person_asked_for_and_nothing_else() {
    let (mut ended, mut tried_again, mut froze) = (0u64, 0u64, 0u64);
    every_case(|facts, policy, told, leave| {
        let (status, step) = refund::step(facts, policy, told, NOW, leave);
        let open = facts.status == Status::Pending && !facts.frozen;
        assert_eq!(status == Status::Failed && facts.status != Status::Failed, step.refused, "{facts:?}");
        assert_eq!(step.refused, open && refuses(told) && facts.kind == Kind::AfterSale, "{facts:?} {told:?}");
        if step.refused {
            assert!(step.changed && step.action.is_none() && step.froze.is_none() && step.due_at == NEVER);
            assert!(!step.facts.act_unread, "nothing is open any more");
            ended += 1;
        } else if open && refuses(told) {
            assert_eq!(status, Status::Pending);
            tried_again += u64::from(step.froze.is_none());
            froze += u64::from(step.froze == Some(Reason::RefundFailed));
        }
    });
    assert!(ended > 100 && tried_again > 100 && froze > 100, "{ended} {tried_again} {froze}");
}

#[test]
fn every_change_is_an_edge_and_what_rests_stays() {
    every_case(|facts, policy, told, leave| {
        let (status, step) = refund::step(facts, policy, told, NOW, leave);
        assert!(status == facts.status || facts.status.can_become(status), "{} -> {status}", facts.status);
        let full = told.is_some_and(|told| told.echoes(NUMBER, 500, "CNY"));
        if status == Status::Succeeded && facts.status != status {
            assert!(
                full && told
                    .is_some_and(|told| matches!((told.action, told.outcome), (Refund | QueryRefund, Succeeded)))
            );
        }
        if facts.frozen || facts.status != Status::Pending {
            assert_eq!((status, step.action, step.due_at), (facts.status, None, NEVER), "{facts:?} {told:?}");
        }
        if step.action == Some(Refund) {
            assert!(step.changed && step.facts.act_unread, "sent without an announcement");
            // The version's log row must tell of the first one; a repetition may share its version with an answer.
            let told_in_log = (step.logged_action, step.facts.last_outcome) == (Some(Refund), None);
            assert!(facts.act_sent_at.is_some() || told_in_log, "{facts:?} {told:?}");
            assert!(
                !facts.act_unread || told.is_some_and(|told| matches!(told.outcome, NotFound | Failed)),
                "{told:?}"
            );
        }
        assert!(step.action.is_none_or(|action| matches!(action, Refund | QueryRefund)));
    });
}
