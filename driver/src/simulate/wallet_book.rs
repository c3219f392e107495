//! What the simulated wallet knows: charges and refunds by number, and how often each took effect.
//!
//! Every change is an entry. A method looks at the books and says what it would answer and what entry that takes;
//! [`WalletBook::apply`] is the only thing that changes anything durable, and replaying the ledger is nothing but that.
//!
//! It is a faithful wallet: one number, one effect, whatever is repeated; other parameters under the same number are a
//! conflict; a closed number is never charged; refunds never exceed their charge. Only the faults `forget_key` and
//! `excess` make it break that, so that a test can show that it would notice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Charge or refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Money taken, under an order number.
    Charge,
    /// Money given back, under a refund number.
    Refund,
}

/// What has to be the same whenever a number is repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The charge's number, for a refund too.
    pub order_no: String,
    /// In the minor unit.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// Who pays; charges only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
}

/// Where a charge or refund stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Standing {
    /// Accepted, without effect yet.
    Processing,
    /// It took effect.
    Succeeded,
    /// Refused.
    Failed,
    /// Closed before it took effect.
    Closed,
}

/// A change of the wallet's books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum WalletEntry {
    /// A number was accepted or refused.
    Begun {
        /// Charge or refund.
        kind: Kind,
        /// The order or refund number.
        number: String,
        /// Its parameters.
        terms: Terms,
        /// Where that leaves it.
        standing: Standing,
        /// Why it was refused.
        code: Option<String>,
        /// PROCESSING is answered to so many questions.
        asks_left: u64,
        /// Nobody sees it before this time, in ms since 1970.
        visible_at_ms: Option<i64>,
    },
    /// What was in process took effect.
    Settled {
        /// Charge or refund.
        kind: Kind,
        /// The number.
        number: String,
    },
    /// The number was forgotten and took effect once more.
    Repeated {
        /// Charge or refund.
        kind: Kind,
        /// The number.
        number: String,
    },
    /// A charge was closed.
    Closed {
        /// Its number.
        order_no: String,
    },
    /// A charge that had failed or was closed took effect after all.
    ChargedLate {
        /// Its number.
        order_no: String,
    },
    /// Somebody gave money back by hand, under a name of the wallet's own.
    RefundedByHand {
        /// That name.
        external_no: String,
        /// The charge, how much and in what.
        terms: Terms,
    },
}

/// How the wallet treats a number that it has not seen; the first is the faithful way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Takes effect at once.
    Prompt,
    /// Refuses.
    Refuse,
    /// Takes effect after this many questions.
    Processing(u64),
    /// Takes effect at once, and shows it this many ms later.
    Late(u64),
    /// Takes effect even if it has seen the number.
    Forget,
    /// Takes effect even if that exceeds the charge.
    Excess,
}

/// What the wallet has to say about a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It stands there, under these terms.
    Stands(Standing, Option<Terms>, Option<String>),
    /// It is known under other terms.
    Conflict,
    /// It is accepted already, and not visible yet.
    InProgress,
    /// It is not known.
    NotFound,
}

/// One charge or refund.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Its parameters; none if it was closed before it was begun.
    pub terms: Option<Terms>,
    /// Where it stands.
    pub standing: Standing,
    /// How often it took effect.
    pub count: u32,
    code: Option<String>,
    asks_left: u64,
    visible_at_ms: Option<i64>,
}

impl Transfer {
    fn is_visible(&self, now_ms: i64) -> bool {
        self.visible_at_ms.is_none_or(|at| at <= now_ms)
    }

    fn said(&self) -> Said {
        Said::Stands(self.standing, self.terms.clone(), self.code.clone())
    }
}

/// The books.
#[derive(Debug, Default)]
pub struct WalletBook {
    charges: BTreeMap<String, Transfer>,
    refunds: BTreeMap<String, Transfer>,
    by_hand: BTreeMap<String, Transfer>,
    /// By charge: what was given back or promised.
    given_back: BTreeMap<String, i64>,
}

impl WalletBook {
    /// Charges by number.
    pub const fn charges(&self) -> &BTreeMap<String, Transfer> {
        &self.charges
    }

    /// Refunds by number.
    pub const fn refunds(&self) -> &BTreeMap<String, Transfer> {
        &self.refunds
    }

    /// Refunds made by hand, by the wallet's own name.
    pub const fn by_hand(&self) -> &BTreeMap<String, Transfer> {
        &self.by_hand
    }

    fn of(&mut self, kind: Kind) -> &mut BTreeMap<String, Transfer> {
        match kind {
            Kind::Charge => &mut self.charges,
            Kind::Refund => &mut self.refunds,
        }
    }

    /// A charge or refund is asked for.
    pub fn begin(
        &mut self,
        kind: Kind,
        number: &str,
        terms: Terms,
        manner: Manner,
        now_ms: i64,
    ) -> (Said, Option<WalletEntry>) {
        if let Some(known) = self.of(kind).get(number) {
            if known.terms.as_ref().is_some_and(|held| *held != terms) {
                return (Said::Conflict, None);
            }
            if manner == Manner::Forget && known.standing == Standing::Succeeded {
                return (known.said(), Some(WalletEntry::Repeated { kind, number: number.to_owned() }));
            }
            if !known.is_visible(now_ms) {
                return (Said::InProgress, None);
            }
            // A refund that was refused may be tried again under its number; a charge that was refused never.
            if kind == Kind::Charge || known.standing != Standing::Failed {
                return (known.said(), None);
            }
        }
        let refusal = match (manner, kind) {
            (Manner::Refuse, _) => Some("refused"),
            (_, Kind::Charge) => None,
            (_, Kind::Refund) => self.refund_refusal(&terms, manner == Manner::Excess, now_ms),
        };
        let (standing, asks_left, visible_at_ms) = match manner {
            _ if refusal.is_some() => (Standing::Failed, 0, None),
            Manner::Processing(asks) => (Standing::Processing, asks, None),
            Manner::Late(ms) => (Standing::Succeeded, 0, Some(now_ms.saturating_add_unsigned(ms))),
            _ => (Standing::Succeeded, 0, None),
        };
        let code = refusal.map(str::to_owned);
        let said = Said::Stands(standing, Some(terms.clone()), code.clone());
        let number = number.to_owned();
        (said, Some(WalletEntry::Begun { kind, number, terms, standing, code, asks_left, visible_at_ms }))
    }

    /// Why a refund cannot be given, if so.
    fn refund_refusal(&self, terms: &Terms, may_exceed: bool, now_ms: i64) -> Option<&'static str> {
        let charge = self.charges.get(&terms.order_no).filter(|charge| charge.is_visible(now_ms));
        let Some(Transfer { standing: Standing::Succeeded, terms: Some(charged), .. }) = charge else {
            return Some("charge_not_found");
        };
        if charged.currency != terms.currency {
            return Some("currency_mismatch");
        }
        let given = self.given_back.get(&terms.order_no).copied().unwrap_or(0);
        let fits = given.checked_add(terms.amount).is_some_and(|sum| sum <= charged.amount);
        (!fits && !may_exceed).then_some("exceeds_charge")
    }

    /// A charge or refund is asked about.
    pub fn query(&mut self, kind: Kind, number: &str, now_ms: i64) -> (Said, Option<WalletEntry>) {
        let Some(known) = self.of(kind).get_mut(number).filter(|known| known.is_visible(now_ms)) else {
            return (Said::NotFound, None);
        };
        if known.standing != Standing::Processing {
            return (known.said(), None);
        }
        if known.asks_left > 0 {
            // Not in the ledger: a wallet that starts again may well take longer.
            known.asks_left -= 1;
            return (known.said(), None);
        }
        let said = Said::Stands(Standing::Succeeded, known.terms.clone(), None);
        (said, Some(WalletEntry::Settled { kind, number: number.to_owned() }))
    }

    /// A charge is to be closed. What it does not know yet is closed too: it will be refused when it comes.
    pub fn close(&mut self, order_no: &str, now_ms: i64) -> (Said, Option<WalletEntry>) {
        let entry = || Some(WalletEntry::Closed { order_no: order_no.to_owned() });
        match self.charges.get(order_no) {
            None => (Said::Stands(Standing::Closed, None, None), entry()),
            // Accepted but not there yet: it can be neither closed nor admitted.
            Some(known) if !known.is_visible(now_ms) => (Said::NotFound, None),
            Some(known) => match known.standing {
                Standing::Processing => (Said::Stands(Standing::Closed, known.terms.clone(), None), entry()),
                Standing::Failed => (Said::Stands(Standing::Closed, known.terms.clone(), None), None),
                Standing::Succeeded | Standing::Closed => (known.said(), None),
            },
        }
    }

    /// A charge that failed is to take effect after all.
    pub fn charge_late(&self, order_no: &str) -> Option<WalletEntry> {
        let known = self.charges.get(order_no)?;
        let may = known.terms.is_some() && matches!(known.standing, Standing::Failed | Standing::Closed);
        may.then(|| WalletEntry::ChargedLate { order_no: order_no.to_owned() })
    }

    /// Money is to be given back by hand; only of what was charged.
    pub fn refund_by_hand(&self, external_no: &str, order_no: &str, amount: i64) -> Option<WalletEntry> {
        let charge = self.charges.get(order_no).filter(|charge| charge.standing == Standing::Succeeded)?;
        let charged = charge.terms.as_ref()?;
        let terms = Terms { order_no: order_no.to_owned(), amount, currency: charged.currency.clone(), user_id: None };
        if amount <= 0
            || self.by_hand.contains_key(external_no)
            || self.refund_refusal(&terms, false, i64::MAX).is_some()
        {
            return None;
        }
        Some(WalletEntry::RefundedByHand { external_no: external_no.to_owned(), terms })
    }

    /// Makes an entry true.
    pub fn apply(&mut self, entry: WalletEntry) {
        match entry {
            WalletEntry::Begun { kind, number, terms, standing, code, asks_left, visible_at_ms } => {
                if kind == Kind::Refund && standing != Standing::Failed {
                    let given = self.given_back.entry(terms.order_no.clone()).or_default();
                    *given = given.saturating_add(terms.amount);
                }
                let count = u32::from(standing == Standing::Succeeded);
                let terms = Some(terms);
                let transfer = Transfer { terms, standing, count, code, asks_left, visible_at_ms };
                self.of(kind).insert(number, transfer);
            }
            WalletEntry::Settled { kind, number } => {
                if let Some(known) = self.of(kind).get_mut(&number) {
                    known.standing = Standing::Succeeded;
                    known.count += 1;
                }
            }
            WalletEntry::Repeated { kind, number } => {
                if let Some(known) = self.of(kind).get_mut(&number) {
                    known.count += 1;
                }
            }
            WalletEntry::Closed { order_no } => {
                let known = self.charges.entry(order_no).or_insert(Transfer {
                    terms: None,
                    standing: Standing::Closed,
                    count: 0,
                    code: None,
                    asks_left: 0,
                    visible_at_ms: None,
                });
                known.standing = Standing::Closed;
            }
            WalletEntry::ChargedLate { order_no } => {
                if let Some(known) = self.charges.get_mut(&order_no) {
                    known.standing = Standing::Succeeded;
                    known.count += 1;
                    known.code = None;
                }
            }
            WalletEntry::RefundedByHand { external_no, terms } => {
                let given = self.given_back.entry(terms.order_no.clone()).or_default();
                *given = given.saturating_add(terms.amount);
                let (standing, terms) = (Standing::Succeeded, Some(terms));
                let refund = Transfer { terms, standing, count: 1, code: None, asks_left: 0, visible_at_ms: None };
                self.by_hand.insert(external_no, refund);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(order_no: &str, amount: i64) -> Terms {
        Terms { order_no: order_no.into(), amount, currency: "CNY".into(), user_id: None }
    }

    fn begin(book: &mut WalletBook, kind: Kind, number: &str, amount: i64, manner: Manner) -> Said {
        let order_no = if kind == Kind::Charge { number } else { "sh_1_1" };
        let (said, entry) = book.begin(kind, number, terms(order_no, amount), manner, 0);
        entry.into_iter().for_each(|entry| book.apply(entry));
        said
    }

    fn query(book: &mut WalletBook, kind: Kind, number: &str, now_ms: i64) -> Said {
        let (said, entry) = book.query(kind, number, now_ms);
        entry.into_iter().for_each(|entry| book.apply(entry));
        said
    }

    fn standing(said: &Said) -> Option<Standing> {
        match said {
            Said::Stands(standing, ..) => Some(*standing),
            _ => None,
        }
    }

    #[test]
    fn one_number_has_one_effect() {
        let mut book = WalletBook::default();
        for _ in 0..3 {
            let said = begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Prompt);
            assert_eq!(standing(&said), Some(Standing::Succeeded));
        }
        assert_eq!(begin(&mut book, Kind::Charge, "sh_1_1", 101, Manner::Prompt), Said::Conflict);
        assert_eq!(book.charges()["sh_1_1"].count, 1);
        begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Forget);
        assert_eq!(book.charges()["sh_1_1"].count, 2, "a double charge would be seen");
    }

    #[test]
    fn refunds_stay_within_their_charge() {
        let mut book = WalletBook::default();
        let unknown = begin(&mut book, Kind::Refund, "r1", 60, Manner::Prompt);
        assert_eq!(standing(&unknown), Some(Standing::Failed));
        begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Prompt);
        for (number, manner, expected) in [
            ("r1", Manner::Prompt, Standing::Succeeded),
            ("r2", Manner::Prompt, Standing::Failed),
            ("r2", Manner::Excess, Standing::Succeeded),
            ("r3", Manner::Prompt, Standing::Failed),
        ] {
            let said = begin(&mut book, Kind::Refund, number, 60, manner);
            assert_eq!(standing(&said), Some(expected), "{number} {manner:?}");
        }
    }

    #[test]
    fn processing_takes_effect_after_its_questions() {
        let mut book = WalletBook::default();
        begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Processing(1));
        assert_eq!(standing(&query(&mut book, Kind::Charge, "sh_1_1", 0)), Some(Standing::Processing));
        assert_eq!(book.charges()["sh_1_1"].count, 0);
        assert_eq!(standing(&query(&mut book, Kind::Charge, "sh_1_1", 0)), Some(Standing::Succeeded));
        assert_eq!(book.charges()["sh_1_1"].count, 1);
    }

    #[test]
    fn a_late_effect_shows_when_its_time_has_come() {
        let mut book = WalletBook::default();
        begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Late(50));
        assert_eq!(query(&mut book, Kind::Charge, "sh_1_1", 49), Said::NotFound);
        assert_eq!(book.close("sh_1_1", 49), (Said::NotFound, None));
        assert_eq!(begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Prompt), Said::InProgress);
        assert_eq!(standing(&query(&mut book, Kind::Charge, "sh_1_1", 50)), Some(Standing::Succeeded));
        assert_eq!(book.charges()["sh_1_1"].count, 1);
    }

    #[test]
    fn a_closed_number_is_never_charged() {
        let mut book = WalletBook::default();
        let (said, entry) = book.close("sh_1_1", 0);
        assert_eq!(standing(&said), Some(Standing::Closed));
        entry.into_iter().for_each(|entry| book.apply(entry));
        let said = begin(&mut book, Kind::Charge, "sh_1_1", 100, Manner::Prompt);
        assert_eq!(standing(&said), Some(Standing::Closed));
        assert_eq!(book.charges()["sh_1_1"].count, 0);
        begin(&mut book, Kind::Charge, "sh_1_2", 100, Manner::Prompt);
        assert_eq!(standing(&book.close("sh_1_2", 0).0), Some(Standing::Succeeded), "it was paid");
    }
}
