//! Every state x every answer x every circumstance: nothing that step() does may break a rule of "Never".
//!
//! The enumeration is complete in status, evidence (with every way to echo), cancel, unread, deadline, lease, channel
//! abilities and business mode. The remaining circumstances (retries, negatives, last outcome, what may leave ...) are
//! dealt out by a fixed scramble of the case's number, so that each meets each many times and every run is the same.

use std::collections::BTreeMap;

use paylatch_core::backoff::Curve;
use paylatch_core::decide::{Decision, Evidence, Facts, Reason, decide};
use paylatch_core::flow::Status::{self, *};
use paylatch_core::late;
use paylatch_core::outcome::Action::{self, *};
use paylatch_core::outcome::Outcome::{self, *};
use paylatch_core::policy::{BusinessMode, Policy};
use paylatch_core::step::{Leave, Step, step};
use paylatch_core::{MS, Micros, NEVER};

const SECOND: Micros = 1_000_000;
const NOW: Micros = 1_000_000 * SECOND;
const GRACE: Micros = 20 * SECOND;
const WINDOW: Micros = 3_600 * SECOND;
const NUMBER: &str = "h2r_u6_p1";
const REFUND_NUMBER: &str = "r_h2r_u6_p1";

#[derive(Debug, Clone, Copy)]
struct Case {
    facts: Facts<'static>,
    policy: Policy,
    told: Option<Evidence<'static>>,
    leave: Leave,
}

impl Case {
    fn step(&self) -> Step<'static> {
        step(&self.facts, &self.policy, self.told.as_ref(), NOW, self.leave)
    }

    /// What the answer may be taken for.
    fn taken(&self) -> Option<(Action, Outcome)> {
        let told = self.told?;
        Some((told.action, if told.action.may_report(told.outcome) { told.outcome } else { Unknown }))
    }

    fn unsent(&self) -> bool {
        self.facts.act_sent_at.is_none() && !self.facts.act_unread
    }

    /// Asked after the last lease in which this state's act could have left.
    fn asked_after_lease(&self) -> bool {
        self.told.is_some_and(|told| self.facts.act_lease_until.is_none_or(|end| told.asked_at > end))
    }

    fn expired(&self) -> bool {
        self.facts.cancelled || NOW >= self.facts.deadline
    }
}

/// The rules. Each gets the case and what step() made of it; `None` is silence, a text is the broken rule.
fn broken(case: &Case, step: &Step<'_>) -> Option<&'static str> {
    let (was, is) = (&case.facts, &step.facts);
    let moved = was.status != is.status;
    let resting = is.frozen || is.status.is_terminal();
    let told = case.told;
    let rule = |holds: bool, says: &'static str| (!holds).then_some(says);
    let identity = |f: &Facts<'_>| (f.flow_id, f.amount, f.deadline, f.cancelled);

    // Edges.
    rule(!moved || was.status.can_become(is.status), "an edge that does not exist")
        .or(rule(!moved || step.changed, "an edge without a version"))
        .or(rule(identity(was) == identity(is), "identity changed"))
        .or(rule(was.trade_order_no == is.trade_order_no && was.currency == is.currency, "identity changed"))
        .or(rule(!was.frozen || (is.frozen && !moved), "a frozen row moved"))
        .or(rule(!was.status.is_terminal() || !moved, "an ended row moved"))
        .or(rule(is.frozen == (was.frozen || step.froze.is_some()), "frozen without a reason"))
        .or(rule(step.froze.is_none() || (!moved && step.changed && told.is_some()), "froze and moved, or blindly"))
        .or(rule(!resting || (step.action.is_none() && !step.again), "a resting row goes on"))
        .or(rule(resting == (step.due_at == NEVER), "unfinished work without a due time, or the reverse"))
        .or(rule(step.due_at >= NOW, "due in the past"))
        .or(rule(!step.again || (moved && step.action.is_none()), "again without an edge"))
        .or(edge(case, step).filter(|_| moved))
        .or(step.action.and_then(|action| handed_out(case, step, action)))
        .or(unchanged(was, step).filter(|_| !step.changed))
}

/// What each edge needs.
fn edge(case: &Case, step: &Step<'_>) -> Option<&'static str> {
    let rule = |holds: bool, says: &'static str| (!holds).then_some(says);
    let full_echo = |number: &str| {
        case.told
            .is_some_and(|told| (told.number, told.amount, told.currency) == (Some(number), Some(500), Some("CNY")))
    };
    let owner = case.told.and_then(|told| told.owner);
    let cutoff = match (case.facts.cancelled, case.facts.act_lease_until) {
        (true, None) => Micros::MIN,
        (true, Some(end)) => end.min(case.facts.deadline) + GRACE,
        (false, _) => case.facts.deadline + GRACE,
    };
    let holds = match (step.facts.status, case.taken()) {
        (Paying, _) => case.expired() || step.action == Some(Charge),
        (PayFail, Some((Charge | QueryCharge, Failed))) => true,
        (PayFail, Some((QueryCharge, NotFound))) => {
            let closed = case.facts.last_outcome == Some(Closed);
            let lease_end = case.facts.act_lease_until.unwrap_or(NOW);
            let spanned = case.policy.not_found_final_after_ms.is_some_and(|span| NOW - lease_end >= span * MS);
            let expired = case.expired() && case.facts.negative_count >= 2 && !case.policy.can_close_charge;
            (case.asked_after_lease() && (closed || (spanned && expired))) || never_sent_nor_wanted(case)
        }
        (PayFail, _) => never_sent_nor_wanted(case),
        (Payed, Some((Charge | QueryCharge | CloseCharge, Succeeded))) => full_echo(NUMBER),
        (Refunded, Some((Refund | QueryRefund, Succeeded))) => full_echo(REFUND_NUMBER),
        (BizSuccess, Some((QueryBusiness | CloseBusiness, Done))) if owner == Some(NUMBER) => true,
        (BizSuccess, _) => case.policy.business_mode == BusinessMode::None,
        (Refunding, Some((QueryBusiness | CloseBusiness, Done))) => owner.is_some_and(|owner| owner != NUMBER),
        (Refunding, Some((QueryBusiness, Rejected)) | Some((CloseBusiness, Closed))) => true,
        (Refunding, Some((QueryBusiness, NotDone))) => {
            !case.policy.business_can_close && case.told.is_some_and(|told| told.asked_at > cutoff)
        }
        _ => false,
    };
    rule(holds, "an edge that this evidence does not prove")
}

fn never_sent_nor_wanted(case: &Case) -> bool {
    case.unsent() && case.expired()
}

/// What may be handed out, and what must be announced.
fn handed_out(case: &Case, step: &Step<'_>, action: Action) -> Option<&'static str> {
    let rule = |holds: bool, says: &'static str| (!holds).then_some(says);
    let is = &step.facts;
    let of_state = match action {
        Charge | QueryCharge | CloseCharge => is.status == Paying,
        ExecuteBusiness | QueryBusiness | CloseBusiness => is.status == Payed,
        Refund | QueryRefund => is.status == Refunding,
    };
    let in_place = !action.is_wallet() && case.policy.business_mode == BusinessMode::Sql;
    let announces = matches!(action, Charge | ExecuteBusiness | Refund) && !in_place;
    let announced = step.changed
        && is.act_unread
        && is.act_lease_until == case.leave.lease_until
        && is.act_sent_at == if moved_into(case, step) { Some(NOW) } else { case.facts.act_sent_at.or(Some(NOW)) };
    let first = moved_into(case, step) || case.facts.act_sent_at.is_none();
    let may_resend = case.policy.can_resend && case.facts.act_sent_at.is_none_or(|sent| NOW < sent + WINDOW);
    // An act whose fate is open is asked about before anything else leaves; this answer may have settled it.
    let open = case.facts.act_unread && !moved_into(case, step);
    let settles = matches!(
        case.taken(),
        Some((QueryCharge | QueryRefund, NotFound) | (QueryBusiness, NotDone) | (Refund | QueryRefund, Failed))
    );
    let negative = matches!(case.taken(), Some((QueryCharge | QueryRefund, NotFound)));
    rule(of_state, "an action of another state")
        .or(rule(in_place || case.leave.lease_until.is_some(), "an action without a lease"))
        .or(rule(in_place || step.due_at == NOW + 30 * SECOND, "not due at the lease's end"))
        .or(rule(!in_place || step.due_at == NOW, "in place, and due later"))
        .or(rule(!action.is_wallet() || case.leave.wallet_may_leave, "a wallet call past the queue"))
        .or(rule(
            !case.leave.questions_only || !action.is_act() || !action.is_wallet(),
            "a wallet act where only questions may leave",
        ))
        .or(rule(!announces || announced, "an act that no row announces"))
        .or(rule(announces || in_place || is.act_lease_until == now_of(case, step).1, "a question announced itself"))
        .or(rule(!action.is_act() || !open || settles, "an act while the last one's fate is open"))
        .or(rule(!action.is_act() || !open || !negative || case.asked_after_lease(), "sent on a worthless NOT_FOUND"))
        .or(rule(action != Charge || !case.expired(), "charged though expired or cancelled"))
        .or(rule(!matches!(action, Charge | Refund) || first || may_resend, "sent again past the resend window"))
        .or(rule(action != ExecuteBusiness || !case.expired(), "executed after the deadline or a cancel"))
        .or(rule(action != CloseCharge || (case.expired() && case.policy.can_close_charge), "closed a wanted charge"))
        .or(rule(action != CloseBusiness || case.policy.business_can_close, "closed a business that cannot"))
        .or(rule(case.policy.business_mode != BusinessMode::None || action.is_wallet(), "asked no business"))
}

fn moved_into(case: &Case, step: &Step<'_>) -> bool {
    case.facts.status != step.facts.status
}

/// The announcement that the row should carry if nothing new is announced.
fn now_of(case: &Case, step: &Step<'_>) -> (Option<Micros>, Option<Micros>) {
    if moved_into(case, step) { (None, None) } else { (case.facts.act_sent_at, case.facts.act_lease_until) }
}

/// A row that does not change is not written: all but the newest outcome must be as it was.
fn unchanged(was: &Facts<'_>, step: &Step<'_>) -> Option<&'static str> {
    let same = step.facts == Facts { last_outcome: step.facts.last_outcome, ..*was };
    (!same).then_some("a change that is not written")
}

// The cases.

fn evidences() -> Vec<Option<Evidence<'static>>> {
    let mut all = vec![None];
    for &action in Action::ALL {
        let number = if matches!(action, Refund | QueryRefund) { REFUND_NUMBER } else { NUMBER };
        let other = if number == NUMBER { REFUND_NUMBER } else { NUMBER };
        for &outcome in Outcome::ALL {
            let bare =
                Evidence { action, outcome, asked_at: NOW, number: None, amount: None, currency: None, owner: None };
            let full = Evidence { number: Some(number), amount: Some(500), currency: Some("CNY"), ..bare };
            match outcome {
                Succeeded => all.extend([
                    Some(full),
                    Some(bare),
                    Some(Evidence { number: Some(other), ..full }),
                    Some(Evidence { number: None, ..full }),
                    Some(Evidence { amount: Some(499), ..full }),
                    Some(Evidence { amount: None, ..full }),
                    Some(Evidence { currency: Some("JPY"), ..full }),
                    Some(Evidence { currency: None, ..full }),
                ]),
                Done => all.extend([
                    Some(Evidence { owner: Some(NUMBER), ..bare }),
                    Some(Evidence { owner: Some("h2r_u6_p2"), ..full }),
                    Some(full),
                ]),
                _ => all.push(Some(bare)),
            }
        }
    }
    all
}

fn policies() -> Vec<Policy> {
    let mut all = Vec::new();
    for business_mode in BusinessMode::ALL {
        for bits in 0..8 {
            all.push(Policy {
                business_mode: *business_mode,
                can_resend: bits & 1 != 0,
                can_close_charge: bits & 2 != 0,
                business_can_close: bits & 4 != 0,
                biz_grace_ms: GRACE / MS,
                curve: Curve { base_ms: 1_000, factor_percent: 200, max_ms: 60_000, jitter_percent: 20 },
                max_auto_retries: 10,
                slow_interval_ms: 300_000,
                refund_max_failures: 3,
                resend_window_ms: WINDOW / MS,
                not_found_final_after_ms: Some(400_000),
            });
        }
    }
    all
}

/// SplitMix64's finaliser: the case's number, scrambled.
fn scramble(n: u64) -> u64 {
    let z = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (n >> 7)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Dice(u64);

impl Dice {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let n = of.len() as u64;
        let at = self.0 % n;
        self.0 = scramble(self.0 / n + 0x51_7CC1);
        of[at as usize]
    }
}

const LEASES: [Option<Micros>; 4] = [None, Some(NOW - 900 * SECOND), Some(NOW - 30 * SECOND), Some(NOW + 5 * SECOND)];
const DEADLINES: [Micros; 4] = [NOW + 600 * SECOND, NOW, NOW - 10 * SECOND, NOW - 60 * SECOND];

/// Calls `visit` with every case.
fn every_case(mut visit: impl FnMut(&Case)) {
    let (evidences, policies) = (evidences(), policies());
    let mut number = 0u64;
    for &status in Status::ALL {
        for told in &evidences {
            for policy in &policies {
                for bits in 0..4 * DEADLINES.len() {
                    let (cancelled, unread, deadline) = (bits & 1 != 0, bits & 2 != 0, DEADLINES[bits / 4]);
                    number += 1;
                    let mut dice = Dice(scramble(number));
                    visit(&deal(&mut dice, status, *told, *policy, (cancelled, unread, deadline)));
                }
            }
        }
    }
}

fn deal(
    dice: &mut Dice,
    status: Status,
    told: Option<Evidence<'static>>,
    policy: Policy,
    (cancelled, unread, deadline): (bool, bool, Micros),
) -> Case {
    let act_lease_until = if status == WaitPay { None } else { dice.pick(&LEASES) };
    // Only an act that was announced is unread; business in place is unread without an announcement, at most.
    let in_place = status == Payed && policy.business_mode == BusinessMode::Sql;
    let act_unread = unread && (act_lease_until.is_some() || in_place);
    let sent_before = dice.pick(&[SECOND, 60 * SECOND, WINDOW]);
    let negative_since = dice.pick(&[None, Some(NOW - 800 * SECOND), Some(NOW - 35 * SECOND), Some(NOW - SECOND)]);
    let facts = Facts {
        flow_id: 901,
        trade_order_no: NUMBER,
        amount: 500,
        currency: "CNY",
        deadline,
        cancelled,
        status,
        frozen: dice.pick(&[false, false, false, false, false, false, true]) && !status.is_terminal(),
        retry_count: dice.pick(&[0, 1, 9, 10, 1_000]),
        act_unread,
        act_sent_at: act_lease_until.map(|end| (end - SECOND).min(NOW) - sent_before),
        act_lease_until,
        negative_count: if negative_since.is_some() { dice.pick(&[1, 2, 3, 10]) } else { 0 },
        negative_since,
        last_outcome: dice.pick(&[None, Some(Closed), Some(NotDone), Some(Unknown), Some(NotFound)]),
        refund: None,
    };
    let asked_at = dice.pick(&[NOW, NOW - SECOND, NOW - 29 * SECOND, NOW - 45 * SECOND]);
    let leave = Leave {
        lease_until: dice.pick(&[Some(NOW + 30 * SECOND), Some(NOW + 30 * SECOND), None]),
        questions_only: dice.pick(&[false, false, true]),
        wallet_may_leave: dice.pick(&[true, true, false]),
    };
    let not_found_final_after_ms = dice.pick(&[policy.not_found_final_after_ms, None]);
    let told = told.map(|told| Evidence { asked_at, ..told });
    Case { facts, policy: Policy { not_found_final_after_ms, ..policy }, told, leave }
}

#[test]
fn no_step_breaks_a_rule() {
    let mut cases = 0u64;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    every_case(|case| {
        cases += 1;
        let step = case.step();
        if let Some(rule) = broken(case, &step) {
            panic!("{rule}\n{case:#?}\n{step:#?}");
        }
        let mut count = |what: String| *seen.entry(what).or_default() += 1;
        if step.facts.status != case.facts.status {
            count(format!("{} -> {}", case.facts.status, step.facts.status));
        }
        if let Some(reason) = step.froze {
            count(format!("froze {reason}"));
        }
        if let Some(action) = step.action {
            count(format!("hands out {action}"));
        }
    });
    // A rule about something that never happens would hold of anything.
    assert!(cases > 400_000, "{cases} cases only");
    let decided = |reason: &&Reason| !matches!(reason, Reason::ExcludedBranch | Reason::Poison | Reason::Operator);
    let edges = paylatch_core::flow::EDGES.iter().map(|(from, to)| format!("{from} -> {to}"));
    let reasons = Reason::ALL.iter().filter(decided).map(|reason| format!("froze {reason}"));
    let actions = Action::ALL.iter().map(|action| format!("hands out {action}"));
    for what in edges.chain(reasons).chain(actions) {
        assert!(seen.get(&what).is_some_and(|times| *times >= 10), "{what} hardly happens in {cases} cases");
    }
}

/// A row that is written again with nothing told settles: `again` never runs in a circle.
#[test]
fn again_ends_within_three_steps() {
    every_case(|case| {
        let mut step = case.step();
        let mut rounds = 1;
        while step.again {
            step = Case { facts: step.facts, told: None, ..*case }.step();
            rounds += 1;
            assert!(rounds <= 3, "{case:#?}");
        }
    });
}

/// Late evidence is judged by the state that it would have led to; that must be the state that it does lead to.
#[test]
fn late_evidence_implies_what_it_would_have_decided() {
    let mut edges = 0;
    every_case(|case| {
        let Some(told) = case.told else { return };
        let Decision::Become(status) = decide(&case.facts, &case.policy, &told) else { return };
        let (action, outcome) = (told.action, told.outcome);
        let owned = told.owner == Some(NUMBER);
        // Two negative answers prove something only together with the row that they were asked for.
        let by_the_row = matches!(outcome, NotFound | NotDone);
        let implied = late::implied(action, outcome, owned);
        assert_eq!(implied, (!by_the_row).then_some(status), "{action} {outcome} leads to {status}");
        let before = late::late(case.facts.status, action, outcome, owned);
        assert_eq!(before, late::Disposition::Stale, "{action} {outcome} at {}", case.facts.status);
        if !by_the_row {
            assert_eq!(late::late(status, action, outcome, owned), late::Disposition::Replayed);
            for excluded in Status::ALL.iter().filter(|s| !s.leads_to(status) && !status.leads_to(**s)) {
                let late = late::late(*excluded, action, outcome, owned);
                assert_eq!(late, late::Disposition::Conflict, "{action} {outcome} at {excluded}");
            }
        }
        edges += 1;
    });
    assert!(edges > 1_000, "{edges}");
}

/// The extremes that a configuration or a clock may hold: an answer, not an overflow.
#[test]
fn extremes_do_not_overflow() {
    let far = [Micros::MIN / 4, -1, 0, NOW, Micros::MAX / 4, NEVER];
    for policy in policies() {
        for span in [0, 1, 86_400_000, i64::MAX / 1_000, i64::MAX] {
            let policy = Policy {
                biz_grace_ms: span,
                resend_window_ms: span,
                not_found_final_after_ms: Some(span),
                slow_interval_ms: span.min(1_000 * 365 * 86_400_000),
                ..policy
            };
            for told in evidences() {
                for deadline in far {
                    for retry_count in [0, i32::MAX] {
                        let mut dice = Dice(scramble(retry_count as u64 ^ deadline as u64));
                        for status in [WaitPay, Paying, Payed, Refunding] {
                            let case = deal(&mut dice, status, told, policy, (false, true, deadline));
                            let facts = Facts { retry_count, negative_count: retry_count, frozen: false, ..case.facts };
                            let case = Case { facts, policy, ..case };
                            let step = case.step();
                            assert_eq!(step.due_at == NEVER, step.facts.frozen || step.facts.status.is_terminal());
                        }
                    }
                }
            }
        }
    }
}
