//! Everything the simulator knows, behind one lock.
//!
//! Invariant: under the lock, an entry goes to the ledger first and into the books second. Nothing waits while the lock
//! is held, so a request costs microseconds of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::business_book::{BusinessBook, BusinessEntry, Word};
use super::effects::{Effects, TransferEffect};
use super::fault::{Fault, FaultRates, Op, Plan};
use super::ledger::{Entry, Ledger};
use super::script::Script;
use super::wallet_book::{Said, Transfer, WalletBook, WalletEntry};
use crate::clock;

/// The world as requests share it.
#[derive(Debug)]
pub struct Shared(Mutex<World>);

impl Shared {
    /// A world that starts from what the ledger holds.
    pub fn new(seed: u64, rates: FaultRates, ledger: Option<(Ledger, Vec<Entry>)>) -> Self {
        let mut world = World {
            seed,
            rates,
            script: Script::default(),
            wallet: WalletBook::default(),
            business: BusinessBook::default(),
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
        Self(Mutex::new(world))
    }

    /// The world, for a moment. A handler that panicked left whole entries behind, so its lock may be taken over.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        entry.map_or(Ok(()), |entry| self.record(Entry::Wallet(entry)))?;
        Ok(said)
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
        }
    }
}

fn told(transfers: &BTreeMap<String, Transfer>) -> BTreeMap<String, TransferEffect> {
    transfers.iter().filter_map(|(number, transfer)| Some((number.clone(), TransferEffect::of(transfer)?))).collect()
}
