//! The naive world: what a wallet, a business, a network and drivers do, and what the database does with one row.

use std::collections::BTreeSet;

use paylatch_core::backoff::Curve;
use paylatch_core::decide::{Evidence, Facts, Reason};
use paylatch_core::flow::Status;
use paylatch_core::outcome::Action::{self, *};
use paylatch_core::outcome::Outcome::{self, *};
use paylatch_core::policy::{BusinessMode, Policy};
use paylatch_core::step::{Leave, step};
use paylatch_core::{MS, Micros};

use crate::wallet::{Held, Ledger};

pub(crate) const SECOND: Micros = 1_000 * MS;
pub(crate) const START: Micros = 1_000_000 * SECOND;
const NUMBER: &str = "h2r_u6_p1";
const REFUND_NUMBER: &str = "r_h2r_u6_p1";
const RIVAL: &str = "h2r_u6_p2";
const LEASE: Micros = 5 * SECOND;
const CALL_TIMEOUT: Micros = 2 * SECOND;
const GRACE: Micros = 3 * SECOND;
/// A run of a healthy world takes no more steps than this, however deep the hole that it starts from.
const HEALTHY_STEPS: usize = 200;

/// What one run is about. Spans in seconds.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) mode: BusinessMode,
    pub(crate) can_resend: bool,
    pub(crate) can_close_charge: bool,
    pub(crate) business_can_close: bool,
    pub(crate) final_after: Option<i64>,
    pub(crate) resend_window: i64,
    pub(crate) max_auto_retries: i32,
    pub(crate) deadline: i64,
    pub(crate) cancel_at: Option<i64>,
    pub(crate) rival_at: Option<i64>,
    /// So many calls to wallet and business go unanswered, one after the other (F8, F13).
    pub(crate) silent: [u8; 2],
    pub(crate) tape: Vec<u16>,
}

impl Scenario {
    fn policy(&self) -> Policy {
        Policy {
            business_mode: self.mode,
            business_can_close: self.business_can_close,
            biz_grace_ms: GRACE / MS,
            curve: Curve { base_ms: 1_000, factor_percent: 200, max_ms: 10_000, jitter_percent: 20 },
            max_auto_retries: self.max_auto_retries,
            slow_interval_ms: 30_000,
            refund_max_failures: 3,
            can_resend: self.can_resend,
            can_close_charge: self.can_close_charge,
            resend_window_ms: self.resend_window * 1_000,
            not_found_final_after_ms: self.final_after.map(|span| span * 1_000),
        }
    }

    /// How long after its lease's end a wallet call may still take effect.
    fn latest(&self) -> Micros {
        self.final_after.map_or(60 * SECOND, |span| span * SECOND - MS)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    action: Action,
    lease_until: Micros,
    valid_until: Micros,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A call reaches the counterparty; its answer is on its way back for so long, unless it is lost.
    Arrives {
        call: Call,
        token: u64,
        asked_at: Micros,
        back: Option<Micros>,
    },
    /// A driver reports.
    Reports {
        token: u64,
        evidence: Evidence<'static>,
    },
    Cancel,
    Rival,
}

pub(crate) struct World {
    scenario: Scenario,
    policy: Policy,
    pub(crate) now: Micros,
    at: usize,
    pub(crate) charge: Ledger,
    refund: Ledger,
    /// Whose the target is.
    owner: Option<&'static str>,
    rejected: bool,
    closed: bool,
    events: Vec<(Micros, Event)>,
    pub(crate) facts: Facts<'static>,
    pub(crate) token: u64,
    out: bool,
    due_at: Micros,
    pub(crate) froze: Option<Reason>,
    lied: BTreeSet<Reason>,
    /// Until when the last charge, and the last refund, could still leave.
    may_leave: [Micros; 2],
    pub(crate) steps: usize,
    healthy_steps: usize,
    pub(crate) trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, traced: bool) -> Self {
        let facts = Facts {
            flow_id: 901,
            trade_order_no: NUMBER,
            amount: 500,
            currency: "CNY",
            deadline: START + scenario.deadline * SECOND,
            cancelled: false,
            status: Status::WaitPay,
            frozen: false,
            retry_count: 0,
            act_unread: false,
            act_sent_at: None,
            act_lease_until: None,
            negative_count: 0,
            negative_since: None,
            last_outcome: None,
            refund: None,
        };
        let mut world = Self {
            scenario: scenario.clone(),
            policy: scenario.policy(),
            now: START,
            at: 0,
            charge: Ledger::NEW,
            refund: Ledger::NEW,
            owner: None,
            rejected: false,
            closed: false,
            events: Vec::new(),
            facts,
            token: 0,
            out: false,
            due_at: START,
            froze: None,
            lied: BTreeSet::new(),
            may_leave: [0, 0],
            steps: 0,
            healthy_steps: 0,
            trace: traced.then(Vec::new),
        };
        world.events.extend(scenario.cancel_at.map(|at| (START + at * SECOND, Event::Cancel)));
        world.events.extend(scenario.rival_at.map(|at| (START + at * SECOND, Event::Rival)));
        world
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9.3} s  {}", (self.now - START) as f64 / SECOND as f64, text(self));
            self.trace.iter_mut().for_each(|trace| trace.push(line.clone()));
        }
    }

    // The tape: 0 is good luck.

    fn pick(&mut self, sides: u16) -> u16 {
        let die = self.scenario.tape.get(self.at).map_or(0, |die| die % sides);
        self.at += 1;
        die
    }

    /// 0 or more; 0 in good luck.
    fn span(&mut self, most: Micros) -> Micros {
        i64::from(self.pick(100)) * most / 99
    }

    const fn is_healthy(&self) -> bool {
        self.at >= self.scenario.tape.len() && matches!(self.scenario.silent, [0, 0])
    }

    // The database: one row, one job, one lease.

    fn leave(&mut self) -> Leave {
        let luck = self.pick(12);
        Leave {
            lease_until: (luck != 11).then_some(self.now + LEASE),
            questions_only: luck == 10,
            wallet_may_leave: luck != 9,
        }
    }

    /// Steps until nothing more follows without anything from outside, as the database does it in one transaction.
    fn advance(&mut self, told: Option<Evidence<'static>>) -> Result<(), String> {
        let mut told = told;
        let leave = self.leave();
        for _ in 0..8 {
            let step = step(&self.facts, &self.policy, told.as_ref(), self.now, leave);
            let (from, to) = (self.facts.status, step.facts.status);
            self.note(|_| {
                format!(
                    "step: {from} {told:?} -> {to} {:?}, due in {} s",
                    step.action,
                    (step.due_at.saturating_sub(START)) / SECOND
                )
            });
            if from != to && !from.can_become(to) {
                return Err(format!("{from} -> {to} is no edge"));
            }
            if step.changed {
                self.facts = step.facts;
            } else if step.facts != (Facts { last_outcome: step.facts.last_outcome, ..self.facts }) {
                return Err("a change that is not written".into());
            }
            self.froze = self.froze.or(step.froze);
            told = None;
            match step.action {
                Some(action) if !action.is_wallet() && self.policy.business_mode == BusinessMode::Sql => {
                    self.watch(action, self.now)?;
                    told = Some(self.in_place(action));
                    continue;
                }
                Some(action) => {
                    self.watch(action, step.due_at)?;
                    self.token += 1;
                    self.out = true;
                    self.carry_out(action, step.due_at);
                }
                None if step.again => continue,
                None => self.out = false,
            }
            // A row that is due at once and has nothing to do waits for the next look.
            self.due_at = step.due_at.max(self.now + MS);
            return Ok(());
        }
        Err("goes round in circles".into())
    }

    /// No act leaves that nobody wants any more, none beside one whose fate is open, and no close that nobody offers.
    fn watch(&mut self, action: Action, lease_until: Micros) -> Result<(), String> {
        let unwanted = self.facts.cancelled || self.now >= self.facts.deadline;
        let open = match action {
            Charge => Some(0),
            Refund => Some(1),
            _ => None,
        };
        if let Some(which) = open {
            if self.now <= self.may_leave[which] {
                return Err(format!("a second {action} while the first could still leave"));
            }
            self.may_leave[which] = lease_until;
        }
        let closes = self.scenario.can_close_charge || action != CloseCharge;
        let business_closes = self.scenario.business_can_close || action != CloseBusiness;
        let wanted = !unwanted || !matches!(action, Charge | ExecuteBusiness);
        if closes && business_closes && wanted { Ok(()) } else { Err(format!("{action} must not leave")) }
    }

    fn in_place(&mut self, action: Action) -> Evidence<'static> {
        let call = Call { action, lease_until: self.now, valid_until: self.facts.deadline };
        if action == ExecuteBusiness {
            self.business(call);
        }
        let action = if action == CloseBusiness { CloseBusiness } else { QueryBusiness };
        let answer = self.business(Call { action, ..call });
        let outcome = if self.pick(8) == 7 || self.is_silent(action) { Unknown } else { answer.0 };
        Evidence { action, outcome, asked_at: self.now, number: None, amount: None, currency: None, owner: answer.1 }
    }

    // The driver and the network.

    fn carry_out(&mut self, action: Action, lease_until: Micros) {
        let call = Call { action, lease_until, valid_until: self.facts.deadline };
        let token = self.token;
        let sent_at = self.now + self.span(lease_until - CALL_TIMEOUT - self.now);
        let asked_at = sent_at - self.span(sent_at - self.now);
        let told =
            |outcome| Evidence { action, outcome, asked_at, number: None, amount: None, currency: None, owner: None };
        let arrives = |at, back| (at, Event::Arrives { call, token, asked_at, back });
        let gave_up = (sent_at + CALL_TIMEOUT, Event::Reports { token, evidence: told(Unknown) });
        let fate = self.pick(20);
        if self.is_silent(action) {
            self.events.push(gave_up);
            return;
        }
        match fate {
            // Killed before it sent.
            19 => {}
            // Refused before a byte was sent; or too late to send.
            18 => self.events.push((sent_at, Event::Reports { token, evidence: told(Unavailable) })),
            _ if action == ExecuteBusiness && sent_at >= call.valid_until => {
                self.events.push((sent_at, Event::Reports { token, evidence: told(Unavailable) }));
            }
            // F1, F3, F4: the answer is lost.
            17 => self.events.extend([arrives(sent_at + MS, None), gave_up]),
            // F2: killed after it sent.
            16 => self.events.push(arrives(sent_at + MS, None)),
            // Lost on the way out.
            15 => self.events.push(gave_up),
            // F11: paused past its lease.
            14 => {
                let late = lease_until - sent_at + self.span(40 * SECOND);
                self.events.push(arrives(sent_at + MS, Some(late)));
            }
            // Held up on the way out, beyond the timeout and perhaps beyond the lease.
            10..=13 if action.is_act() => {
                let bound = match action.is_wallet() {
                    true => self.scenario.latest(),
                    // A business that closes numbers need not be done with them when the grace is over.
                    false if self.scenario.business_can_close => 60 * SECOND,
                    false => GRACE - MS,
                };
                let at = sent_at + CALL_TIMEOUT + self.span(lease_until + bound - sent_at - CALL_TIMEOUT);
                self.events.extend([arrives(at, None), gave_up]);
            }
            _ => self.events.push(arrives(sent_at + MS, Some(MS))),
        }
    }

    fn is_silent(&mut self, action: Action) -> bool {
        let left = &mut self.scenario.silent[usize::from(!action.is_wallet())];
        *left = left.saturating_sub(1);
        *left > 0
    }

    fn arrive(&mut self, call: Call, token: u64, asked_at: Micros, back: Option<Micros>) -> Result<(), String> {
        let mut told = Evidence {
            action: call.action,
            outcome: Unknown,
            asked_at,
            number: None,
            amount: None,
            currency: None,
            owner: None,
        };
        if call.action.is_wallet() {
            told.outcome = self.wallet(call)?;
            if told.outcome == Succeeded {
                let refund = matches!(call.action, Refund | QueryRefund);
                told.number = Some(if refund { REFUND_NUMBER } else { NUMBER });
                (told.amount, told.currency) = (Some(500), Some("CNY"));
                match self.pick(40) {
                    // F17.
                    39 => {
                        told.amount = Some(501);
                        self.lied.insert(Reason::EvidenceMismatch);
                    }
                    38 if matches!(call.action, Charge | Refund) => {
                        told.outcome = Conflict;
                        self.lied.insert(Reason::ParameterConflict);
                    }
                    _ => {}
                }
            }
        } else {
            (told.outcome, told.owner) = self.business(call);
        }
        if !call.action.may_report(told.outcome) {
            told.outcome = Unknown;
        }
        self.note(|_| format!("{} arrives: {}", call.action, told.outcome));
        self.events.extend(back.map(|back| (self.now + back, Event::Reports { token, evidence: told })));
        Ok(())
    }

    // The wallet.

    fn wallet(&mut self, call: Call) -> Result<Outcome, String> {
        self.charge.pass(self.now);
        self.refund.pass(self.now);
        match call.action {
            Charge => Ok(self.send(call, false)),
            Refund if self.charge.effects == 0 => Err("a refund of what was never charged".into()),
            Refund => Ok(self.send(call, true)),
            QueryCharge if self.charge.held == Held::Closed && self.pick(2) == 1 => Ok(NotFound),
            QueryCharge => Ok(self.charge.answer(self.now)),
            QueryRefund => Ok(self.refund.answer(self.now)),
            CloseCharge => Ok(self.close()),
            _ => Err(format!("{} is not for wallets", call.action)),
        }
    }

    /// A charge or refund comes in.
    fn send(&mut self, call: Call, refund: bool) -> Outcome {
        let (now, latest) = (self.now, self.scenario.latest());
        let remembered = self.scenario.resend_window * SECOND + LEASE + latest;
        let luck = self.pick(10);
        let wait = self.span(90 * SECOND);
        let hidden = self.span((call.lease_until + latest - now).max(0));
        let can_resend = self.scenario.can_resend;
        let ledger = if refund { &mut self.refund } else { &mut self.charge };
        let forgotten = ledger.first_seen.is_some_and(|first| now > first + remembered);
        let open = ledger.held == Held::Nothing || (refund && ledger.held == Held::Refused);
        if ledger.held == Held::Closed || (!open && can_resend && !forgotten) {
            return if ledger.answer(now) == NotFound { Processing } else { ledger.answer(now) };
        }
        if !open {
            // No key protects this number (any more): the provider does it once more.
            ledger.effects += 1;
            return Succeeded;
        }
        ledger.first_seen = ledger.first_seen.or(Some(now));
        ledger.held = match luck {
            6 => Held::Pending { seen_at: now, at: now + wait },
            // F14: nobody sees it yet.
            7 | 8 => Held::Pending { seen_at: now + hidden, at: now + hidden },
            9 => Held::Refused,
            _ => Held::Pending { seen_at: now, at: now },
        };
        ledger.pass(now);
        if ledger.answer(now) == NotFound { Unknown } else { ledger.answer(now) }
    }

    fn close(&mut self) -> Outcome {
        let answer = self.charge.answer(self.now);
        if matches!(answer, Succeeded | Processing) {
            // F15: "ok", though the customer has paid or is paying.
            let lies = self.pick(2) == 1;
            return if lies { Closed } else { answer };
        }
        if self.charge.held != Held::Refused {
            self.charge.held = Held::Closed;
        }
        Closed
    }

    // The business.

    fn business(&mut self, call: Call) -> (Outcome, Option<&'static str>) {
        match call.action {
            ExecuteBusiness => {
                let luck = self.pick(8);
                let refuses = self.rejected || self.closed || self.now > call.valid_until;
                if refuses || self.owner.is_some() || luck == 7 {
                    return (NotDone, None);
                }
                if luck == 6 {
                    self.rejected = true;
                } else {
                    self.owner = Some(NUMBER);
                }
                (if luck == 5 { Rejected } else { Done }, None)
            }
            CloseBusiness if self.owner.is_none() => {
                self.closed = true;
                (Closed, None)
            }
            _ => match (self.pick(60), self.owner) {
                (58, Some(_)) => {
                    self.lied.insert(Reason::Unattributed);
                    (Done, None)
                }
                (59, _) => {
                    self.lied.insert(Reason::BusinessContradictory);
                    (Contradictory, None)
                }
                (_, Some(owner)) => (Done, Some(owner)),
                (_, None) if self.rejected => (Rejected, None),
                (_, None) => (NotDone, None),
            },
        }
    }

    // Time.

    fn is_over(&self) -> bool {
        self.facts.frozen || self.facts.status.is_terminal()
    }

    /// Lets the world run until the flow ends or waits for a person, and then until nothing is on its way any more.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        while !self.is_over() {
            self.steps += 1;
            self.healthy_steps += usize::from(self.is_healthy());
            if self.healthy_steps > HEALTHY_STEPS {
                return Err("never ends".into());
            }
            match self.next_event(self.due_at) {
                Some(event) => self.happens(event)?,
                None => {
                    self.now = self.now.max(self.due_at);
                    self.advance(None)?;
                }
            }
        }
        while let Some(event) = self.next_event(Micros::MAX) {
            if matches!(event, Event::Arrives { .. }) {
                self.happens(event)?;
            }
        }
        self.charge.pass(Micros::MAX);
        self.refund.pass(Micros::MAX);
        Ok(())
    }

    /// The next thing to happen before `until`, if any; the clock moves there.
    fn next_event(&mut self, until: Micros) -> Option<Event> {
        let first = (0..self.events.len()).min_by_key(|&n| self.events[n].0)?;
        if self.events[first].0 > until {
            return None;
        }
        let (at, event) = self.events.remove(first);
        self.now = self.now.max(at);
        Some(event)
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrives { call, token, asked_at, back } => self.arrive(call, token, asked_at, back),
            // The token fences: only the present lease decides.
            Event::Reports { token, evidence } if self.out && token == self.token => {
                self.out = false;
                if evidence.outcome == Failed {
                    self.may_leave = [0, 0];
                }
                self.advance(Some(evidence))?;
                let mismatch = evidence.outcome == Succeeded && evidence.amount != Some(500);
                match mismatch && self.froze != Some(Reason::EvidenceMismatch) {
                    true => Err("another amount was taken for ours".into()),
                    false => Ok(()),
                }
            }
            Event::Reports { .. } => Ok(()),
            Event::Cancel => {
                self.note(|_| "cancelled".into());
                self.facts.cancelled = true;
                if !self.out {
                    self.due_at = self.now;
                }
                Ok(())
            }
            Event::Rival => {
                self.owner = self.owner.or(Some(RIVAL));
                Ok(())
            }
        }
    }

    /// What must be true of the world when all is over.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let (charged, refunded) = (self.charge.effects, self.refund.effects);
        let rule = |holds: bool, says: &str| if holds { Ok(()) } else { Err(says.to_owned()) };
        rule(charged <= 1, "charged twice")?;
        rule(refunded <= 1, "refunded twice")?;
        rule(refunded <= charged, "refunded what was not charged")?;
        let ours = self.owner == Some(NUMBER);
        match self.facts.status {
            Status::BizSuccess => {
                rule(charged == 1, "BIZ_SUCCESS without a charge")?;
                rule(refunded == 0, "BIZ_SUCCESS and refunded")?;
                rule(ours || self.scenario.mode == BusinessMode::None, "BIZ_SUCCESS and not ours")
            }
            Status::Refunded => {
                rule(charged == 1 && refunded == 1, "REFUNDED without a charge and a refund")?;
                rule(!ours, "REFUNDED and done for this attempt")
            }
            Status::PayFail => rule(charged == 0 && refunded == 0, "PAY_FAIL and charged"),
            Status::Refunding => rule(!ours, "REFUNDING and done for this attempt"),
            Status::WaitPay => rule(false, "frozen before anything was sent"),
            Status::Paying => rule(!ours && refunded == 0, "PAYING, yet the business is done or money went back"),
            Status::Payed => rule(charged == 1 && refunded == 0, "PAYED without a charge, or refunded"),
        }?;
        match self.froze {
            None => rule(self.facts.status.is_terminal(), "not over"),
            Some(Reason::ChargeUnresolved) => {
                let unresolvable = self.scenario.final_after.is_none() && !self.scenario.can_close_charge;
                rule(unresolvable && self.facts.status == Status::Paying, "a person is asked needlessly")
            }
            Some(Reason::BusinessUnresolved) => rule(self.facts.status == Status::Payed, "frozen in the wrong state"),
            Some(Reason::RefundFailed | Reason::RefundUnresolved) => {
                rule(self.facts.status == Status::Refunding, "frozen in the wrong state")
            }
            Some(reason) => rule(self.lied.contains(&reason), "frozen though nobody lied"),
        }
    }
}
