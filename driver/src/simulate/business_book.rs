//! What the simulated business knows: targets by key, and which order number completed each.
//!
//! Entries and [`BusinessBook::apply`] as in the wallet's book. It is a faithful business: the first number to execute
//! owns the target, no other work is done for it, and a number that is late, closed or rejected never executes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A change of the business's books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum BusinessEntry {
    /// The work was done.
    Executed {
        /// The target.
        biz_key: String,
        /// Who did it.
        order_no: String,
    },
    /// The work was taken on and will be done later.
    Accepted {
        /// The target.
        biz_key: String,
        /// Who will do it.
        order_no: String,
        /// When, in ms since 1970.
        lands_at_ms: i64,
    },
    /// A number was closed for a target.
    Closed {
        /// The target.
        biz_key: String,
        /// The number.
        order_no: String,
    },
    /// A number was refused for a target, for good.
    Rejected {
        /// The target.
        biz_key: String,
        /// The number.
        order_no: String,
    },
}

/// What the business has to say about a target and a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// Done, by this number.
    Done(String),
    /// Not done; why, where an act was refused.
    NotDone(Option<&'static str>),
    /// It will never be done for this number.
    Rejected(&'static str),
    /// Closed.
    Closed,
}

/// One target.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// Who completed it.
    pub owner: Option<String>,
    /// How often the work was done.
    pub count: u32,
    /// Numbers that it will not execute any more.
    pub closed: BTreeSet<String>,
    rejected: BTreeSet<String>,
    pending: BTreeSet<(i64, String)>,
}

impl Target {
    /// Why `order_no` may not execute, if so.
    fn bars(&self, order_no: &str) -> Option<Word> {
        if let Some(owner) = &self.owner {
            return Some(Word::Done(owner.clone()));
        }
        if self.closed.contains(order_no) {
            return Some(Word::Rejected("closed"));
        }
        self.rejected.contains(order_no).then_some(Word::Rejected("rejected"))
    }
}

/// One request to execute.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a> {
    /// The target.
    pub biz_key: &'a str,
    /// Who asks.
    pub order_no: &'a str,
    /// Refused later than this, in ms since 1970.
    pub valid_until_ms: Option<i64>,
}

/// The books.
#[derive(Debug, Default)]
pub struct BusinessBook {
    targets: BTreeMap<String, Target>,
}

impl BusinessBook {
    /// Targets by key.
    pub const fn targets(&self) -> &BTreeMap<String, Target> {
        &self.targets
    }

    /// Work that was taken on and whose time has come. Call until there is none, before anything else is answered.
    pub fn due(&self, biz_key: &str, now_ms: i64) -> Option<BusinessEntry> {
        let target = self.targets.get(biz_key)?;
        let landed = target.pending.iter().take_while(|(at, _)| *at <= now_ms);
        let (_, order_no) = landed.into_iter().find(|(_, order_no)| target.bars(order_no).is_none())?;
        Some(BusinessEntry::Executed { biz_key: biz_key.to_owned(), order_no: order_no.clone() })
    }

    /// The work is asked for; with `late_by_ms` it is taken on and done by then.
    pub fn execute(&self, asked: Execution, late_by_ms: Option<u64>, now_ms: i64) -> (Word, Option<BusinessEntry>) {
        if let Some(word) = self.targets.get(asked.biz_key).and_then(|target| target.bars(asked.order_no)) {
            return (word, None);
        }
        let done_at_ms = now_ms.saturating_add_unsigned(late_by_ms.unwrap_or(0));
        if asked.valid_until_ms.is_some_and(|valid_until| done_at_ms > valid_until) {
            return (Word::NotDone(Some("late")), None);
        }
        let (biz_key, order_no) = (asked.biz_key.to_owned(), asked.order_no.to_owned());
        match late_by_ms {
            None => (Word::Done(order_no.clone()), Some(BusinessEntry::Executed { biz_key, order_no })),
            Some(_) => {
                let entry = BusinessEntry::Accepted { biz_key, order_no, lands_at_ms: done_at_ms };
                (Word::NotDone(None), Some(entry))
            }
        }
    }

    /// The work is refused to a number for good, unless the target is done.
    pub fn reject(&self, biz_key: &str, order_no: &str) -> (Word, Option<BusinessEntry>) {
        if let Some(word) = self.targets.get(biz_key).and_then(|target| target.bars(order_no)) {
            return (word, None);
        }
        let entry = BusinessEntry::Rejected { biz_key: biz_key.to_owned(), order_no: order_no.to_owned() };
        (Word::Rejected("rejected"), Some(entry))
    }

    /// The fact is asked for.
    pub fn fact(&self, biz_key: &str, order_no: &str) -> Word {
        self.targets.get(biz_key).and_then(|target| target.bars(order_no)).unwrap_or(Word::NotDone(None))
    }

    /// A number is to be closed for a target.
    pub fn close(&self, biz_key: &str, order_no: &str) -> (Word, Option<BusinessEntry>) {
        let target = self.targets.get(biz_key);
        if let Some(owner) = target.and_then(|target| target.owner.clone()) {
            return (Word::Done(owner), None);
        }
        if target.is_some_and(|target| target.closed.contains(order_no)) {
            return (Word::Closed, None);
        }
        let entry = BusinessEntry::Closed { biz_key: biz_key.to_owned(), order_no: order_no.to_owned() };
        (Word::Closed, Some(entry))
    }

    /// Makes an entry true.
    pub fn apply(&mut self, entry: BusinessEntry) {
        let biz_key = match &entry {
            BusinessEntry::Executed { biz_key, .. }
            | BusinessEntry::Accepted { biz_key, .. }
            | BusinessEntry::Closed { biz_key, .. }
            | BusinessEntry::Rejected { biz_key, .. } => biz_key.clone(),
        };
        let target = self.targets.entry(biz_key).or_default();
        match entry {
            BusinessEntry::Executed { order_no, .. } => {
                target.count += 1;
                target.pending.retain(|(_, pending)| *pending != order_no);
                target.owner.get_or_insert(order_no);
            }
            BusinessEntry::Accepted { order_no, lands_at_ms, .. } => {
                target.pending.insert((lands_at_ms, order_no));
            }
            BusinessEntry::Closed { order_no, .. } => {
                target.closed.insert(order_no);
            }
            BusinessEntry::Rejected { order_no, .. } => {
                target.rejected.insert(order_no);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute(book: &mut BusinessBook, order_no: &str, late_by_ms: Option<u64>, now_ms: i64) -> Word {
        let asked = Execution { biz_key: "day", order_no, valid_until_ms: Some(100) };
        let (word, entry) = book.execute(asked, late_by_ms, now_ms);
        entry.into_iter().for_each(|entry| book.apply(entry));
        word
    }

    fn land(book: &mut BusinessBook, now_ms: i64) {
        while let Some(entry) = book.due("day", now_ms) {
            book.apply(entry);
        }
    }

    fn close(book: &mut BusinessBook, order_no: &str) -> Word {
        let (word, entry) = book.close("day", order_no);
        entry.into_iter().for_each(|entry| book.apply(entry));
        word
    }

    #[test]
    fn the_first_owns_it_and_the_work_is_done_once() {
        let mut book = BusinessBook::default();
        for order_no in ["a", "a", "b"] {
            assert_eq!(execute(&mut book, order_no, None, 0), Word::Done("a".into()));
        }
        assert_eq!(book.fact("day", "b"), Word::Done("a".into()));
        assert_eq!(close(&mut book, "b"), Word::Done("a".into()));
        assert_eq!(book.targets()["day"].count, 1);
    }

    #[test]
    fn late_and_closed_numbers_are_refused() {
        let mut book = BusinessBook::default();
        assert_eq!(execute(&mut book, "a", None, 101), Word::NotDone(Some("late")));
        assert_eq!(close(&mut book, "a"), Word::Closed);
        assert_eq!(execute(&mut book, "a", None, 0), Word::Rejected("closed"));
        assert_eq!(book.fact("day", "a"), Word::Rejected("closed"));
        assert_eq!(book.fact("day", "b"), Word::NotDone(None));
    }

    #[test]
    fn what_was_taken_on_lands_unless_it_was_closed_or_overtaken() {
        let mut book = BusinessBook::default();
        assert_eq!(execute(&mut book, "a", Some(50), 0), Word::NotDone(None));
        assert_eq!(execute(&mut book, "b", Some(60), 0), Word::NotDone(None));
        assert_eq!(execute(&mut book, "c", Some(101), 0), Word::NotDone(Some("late")));
        land(&mut book, 49);
        assert_eq!(book.fact("day", "a"), Word::NotDone(None));
        assert_eq!(close(&mut book, "a"), Word::Closed);
        land(&mut book, 200);
        assert_eq!(book.fact("day", "a"), Word::Done("b".into()));
        assert_eq!(book.targets()["day"].count, 1);
    }
}
