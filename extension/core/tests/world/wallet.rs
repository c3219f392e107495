//! The naive wallet's books: one number, one effect, sometimes later than anybody can see.

use paylatch_core::Micros;
use paylatch_core::outcome::Outcome::{self, *};

/// What a wallet holds under one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    /// Takes effect at `at`; before `seen_at` nobody can see it.
    Pending {
        seen_at: Micros,
        at: Micros,
    },
    Moved,
    Refused,
    Closed,
}

/// One number's page in the wallet's books.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) held: Held,
    pub(crate) first_seen: Option<Micros>,
    /// How often money really moved under this number.
    pub(crate) effects: u32,
}

impl Ledger {
    pub(crate) const NEW: Self = Self { held: Held::Nothing, first_seen: None, effects: 0 };

    pub(crate) fn pass(&mut self, now: Micros) {
        if let Held::Pending { at, .. } = self.held
            && at <= now
        {
            self.held = Held::Moved;
            self.effects += 1;
        }
    }

    pub(crate) fn answer(&self, now: Micros) -> Outcome {
        match self.held {
            Held::Nothing => NotFound,
            Held::Pending { seen_at, .. } if now < seen_at => NotFound,
            Held::Pending { .. } => Processing,
            Held::Moved => Succeeded,
            Held::Refused => Failed,
            Held::Closed => Failed,
        }
    }
}
