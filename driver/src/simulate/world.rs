//! Everything the simulator knows, behind one lock.
//!
//! Invariant: under the lock, an entry goes to the ledger first and into the books second. Nothing waits while the lock
//! is held, so a request costs microseconds of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::business_book::{BusinessBook, BusinessEntry, Word};
use super::effects::{Effects, TransferEffect};
use super::fault::{Fault, FaultRates, Op, Plan};
use super::ledger::{Entry, Ledger};
use super::notice_book::{Notice, NoticeBook, NoticeCount, NoticeEntry};
use super::notices;
use super::script::Script;
use super::sender::WebhookTarget;
use super::wallet_book::{Said, Transfer, WalletBook, WalletEntry};
use crate::clock;

/// The world as requests share it.
#[derive(Debug)]
pub struct Shared {
    world: Mutex<World>,
    queued: Notify,
}

impl Shared {
    /// A world that starts from what the ledger holds.
    pub fn new(
        seed: u64,
        rates: FaultRates,
        ledger: Option<(Ledger, Vec<Entry>)>,
        webhooks: Option<WebhookTarget>,
    ) -> Self {
        let mut world = World {
            seed,
            rates,
            script: Script::default(),
            wallet: WalletBook::default(),
            business: BusinessBook::default(),
            notices: NoticeBook::default(),
            webhooks: webhooks.map(Arc::new),
            hold_ms: 0,
            ledger: None,
            is_shut: false,
            outage_until_ms: i64::MIN,
            clock_offset_ms: 0,
            requests: BTreeMap::new(),
            calls: BTreeMap::new(),
            exchanges: 0,
        };
        if let Some((ledger, entries)) = ledger {
            entries.into_iter().for_each(|entry| world.apply(entry));
            world.ledger = Some(ledger);
        }
        Self { world: Mutex::new(world), queued: Notify::new() }
    }

    /// The world, for a moment. A handler that panicked left whole entries behind, so its lock may be taken over.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told whenever a webhook may have become due.
    pub const fn queued(&self) -> &Notify {
        &self.queued
    }
}

/// All state.
#[derive(Debug)]
pub struct World {
    /// What random faults are drawn from.
    pub seed: u64,
    /// How often they strike.
    pub rates: FaultRates,
    /// Scripted faults.
    pub script: Script,
    wallet: WalletBook,
    business: BusinessBook,
    notices: NoticeBook,
    webhooks: Option<Arc<WebhookTarget>>,
    /// How long the present answer waits for its webhook to be first.
    hold_ms: u64,
    ledger: Option<Ledger>,
    is_shut: bool,
    outage_until_ms: i64,
    clock_offset_ms: i64,
    requests: BTreeMap<Op, u64>,
    calls: BTreeMap<String, BTreeMap<Op, u32>>,
    exchanges: u64,
}

impl World {
    /// The simulator's time, in ms since 1970.
    pub fn now_ms(&self) -> i64 {
        let now_ms = clock::now().unix_timestamp_nanos() / 1_000_000;
        i64::try_from(now_ms).unwrap_or(i64::MAX).saturating_add(self.clock_offset_ms)
    }

    /// Moves the simulator's time.
    pub const fn set_clock_offset(&mut self, offset_ms: i64) {
        self.clock_offset_ms = offset_ms;
    }

    /// Cuts every wallet request for `ms` from now.
    pub fn start_outage(&mut self, ms: u64) {
        self.outage_until_ms = self.now_ms().saturating_add_unsigned(ms);
    }

    /// A name for one exchange.
    pub fn request_id(&mut self) -> String {
        self.exchanges += 1;
        format!("sim-{}", self.exchanges)
    }

    /// Counts a request and says what it will meet. `number` is what it is about, `also` another name that it goes by.
    pub fn arrive(&mut self, op: Op, number: &str, also: Option<&str>) -> Plan {
        *self.requests.entry(op).or_default() += 1;
        let calls = self.calls.entry(number.to_owned()).or_default().entry(op).or_default();
        let call = *calls;
        *calls += 1;
        if op.is_wallet() && self.now_ms() < self.outage_until_ms {
            return Plan::of(Fault::DropBefore, None);
        }
        let seed = self.seed;
        let names = [number, also.unwrap_or(number)];
        self.script.next(op, &names).unwrap_or_else(|| self.rates.draw(seed, op, number, call))
    }

    /// Asks the wallet's books and records what comes of it.
    ///
    /// # Errors
    /// The ledger could not be written; nothing has happened.
    pub fn ask_wallet(
        &mut self,
        ask: impl FnOnce(&mut WalletBook, i64) -> (Said, Option<WalletEntry>),
    ) -> io::Result<Said> {
        let now_ms = self.now_ms();
        let (said, entry) = ask(&mut self.wallet, now_ms);
        entry.map_or(Ok(()), |entry| self.record_wallet(entry))?;
        Ok(said)
    }

    /// Something happens at the wallet that nobody asked for there; false where it cannot be.
    ///
    /// # Errors
    /// The ledger could not be written; nothing has happened.
    pub fn happens(&mut self, what: impl FnOnce(&WalletBook) -> Option<WalletEntry>) -> io::Result<bool> {
        let entry = what(&self.wallet);
        let happened = entry.is_some();
        entry.map_or(Ok(()), |entry| self.record_wallet(entry))?;
        Ok(happened)
    }

    fn record_wallet(&mut self, entry: WalletEntry) -> io::Result<()> {
        self.record(Entry::Wallet(entry.clone()))?;
        notices::of(self, &entry)
    }

    /// Where webhooks go from now on.
    pub fn set_webhooks(&mut self, target: WebhookTarget) {
        self.webhooks = Some(Arc::new(target));
    }

    /// The wallet's books.
    pub const fn wallet(&self) -> &WalletBook {
        &self.wallet
    }

    /// How long the answer that was just made waits, for its webhook to be first.
    pub const fn take_hold_ms(&mut self) -> u64 {
        std::mem::replace(&mut self.hold_ms, 0)
    }

    /// Queues a webhook about `number`, with the faults that it meets. `due_at_ms`: not before.
    ///
    /// # Errors
    /// The ledger could not be written.
    pub fn notify(
        &mut self,
        number: &str,
        also: &str,
        mut body: Map<String, Value>,
        due_at_ms: Option<i64>,
    ) -> io::Result<()> {
        if self.webhooks.is_none() {
            return Ok(());
        }
        let plan = self.arrive(Op::Webhook, number, Some(also));
        let notice_no = self.notices.next_no();
        let mut due_at_ms = due_at_ms.unwrap_or_else(|| self.now_ms());
        let mut copies = 1;
        match plan.fault {
            Fault::Never => return Ok(()),
            Fault::Late => due_at_ms = due_at_ms.saturating_add_unsigned(plan.arg),
            // As good as random, and the same in every run.
            Fault::Reordered => {
                due_at_ms = due_at_ms.saturating_add_unsigned(notice_no.wrapping_mul(2_654_435_761) % (plan.arg + 1));
            }
            Fault::Duplicate => copies = u32::try_from(plan.arg).unwrap_or(u32::MAX).clamp(2, 1000),
            Fault::Early => self.hold_ms = plan.arg,
            _ => {}
        }
        let event_type = body.get("type").and_then(Value::as_str).unwrap_or_default();
        let event_id = format!("evt_{number}_{event_type}_{notice_no}");
        body.insert("event_id".to_owned(), json!(event_id));
        let forged = plan.fault == Fault::Forged;
        let notice = Notice { event_id, body: Value::Object(body).to_string(), due_at_ms, copies, forged };
        self.record(Entry::Notice(NoticeEntry::Queued { notice_no, notice }))
    }

    /// Webhooks that go out now, and where to.
    pub fn take_due_notices(&mut self) -> Vec<(Arc<WebhookTarget>, u64, Notice)> {
        let now_ms = self.now_ms();
        let Some(target) = self.webhooks.clone() else { return Vec::new() };
        let due = self.notices.take_due(now_ms);
        due.into_iter().map(|(notice_no, notice)| (Arc::clone(&target), notice_no, notice)).collect()
    }

    /// How long until the next webhook is due, if one waits.
    pub fn next_notice_in(&self) -> Option<Duration> {
        let due_at_ms = self.notices.next_due_at_ms()?;
        let left_ms = due_at_ms.saturating_sub(self.now_ms()).max(1);
        Some(Duration::from_millis(left_ms.unsigned_abs()))
    }

    /// So many copies of a webhook were answered 2xx; the rest is tried again.
    pub fn notice_came_back(&mut self, notice_no: u64, delivered: usize) {
        for _ in 0..delivered {
            // A ledger that cannot be written sends it once more after the next start.
            let _ = self.record(Entry::Notice(NoticeEntry::Delivered { notice_no }));
        }
        let now_ms = self.now_ms();
        self.notices.came_back(notice_no, now_ms);
    }

    /// A forged copy was answered, with 2xx or with a refusal.
    pub const fn forged_came_back(&mut self, taken: bool) {
        self.notices.forged_came_back(taken);
    }

    /// How many webhooks there are, wait and were delivered.
    pub fn notice_count(&self) -> NoticeCount {
        self.notices.count()
    }

    /// Asks the business's books about a target and records what comes of it.
    ///
    /// # Errors
    /// The ledger could not be written; nothing has happened.
    pub fn ask_business(
        &mut self,
        biz_key: &str,
        ask: impl FnOnce(&BusinessBook, i64) -> (Word, Option<BusinessEntry>),
    ) -> io::Result<Word> {
        let now_ms = self.now_ms();
        self.land(biz_key, now_ms)?;
        let (word, entry) = ask(&self.business, now_ms);
        entry.map_or(Ok(()), |entry| self.record(Entry::Business(entry)))?;
        Ok(word)
    }

    /// All that took effect so far.
    ///
    /// # Errors
    /// The ledger could not be written.
    pub fn effects(&mut self) -> io::Result<Effects> {
        let now_ms = self.now_ms();
        let keys: Vec<String> = self.business.targets().keys().cloned().collect();
        keys.iter().try_for_each(|biz_key| self.land(biz_key, now_ms))?;
        let charges = self.wallet.charges();
        let without_terms = charges.iter().filter(|(_, charge)| charge.terms.is_none());
        Ok(Effects {
            seed: self.seed,
            closed: without_terms.map(|(number, _)| number.clone()).collect(),
            charges: told(charges),
            refunds: told(self.wallet.refunds()),
            by_hand: told(self.wallet.by_hand()),
            business: self.business.targets().iter().map(|(key, target)| (key.clone(), target.into())).collect(),
            requests: self.requests.clone(),
            calls: self.calls.clone(),
        })
    }

    /// Nothing takes effect any more; the ledger is free for the next simulator.
    pub fn shut(&mut self) {
        self.is_shut = true;
        self.ledger = None;
    }

    fn land(&mut self, biz_key: &str, now_ms: i64) -> io::Result<()> {
        while let Some(entry) = self.business.due(biz_key, now_ms) {
            self.record(Entry::Business(entry))?;
        }
        Ok(())
    }

    fn record(&mut self, entry: Entry) -> io::Result<()> {
        if self.is_shut {
            return Err(io::Error::other("the simulator is shutting down"));
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.append(&entry)?;
        }
        self.apply(entry);
        Ok(())
    }

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Wallet(entry) => self.wallet.apply(entry),
            Entry::Business(entry) => self.business.apply(entry),
            Entry::Notice(entry) => self.notices.apply(entry),
        }
    }
}

fn told(transfers: &BTreeMap<String, Transfer>) -> BTreeMap<String, TransferEffect> {
    transfers.iter().filter_map(|(number, transfer)| Some((number.clone(), TransferEffect::of(transfer)?))).collect()
}
