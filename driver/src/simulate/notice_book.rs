//! Webhooks that the simulator has still to deliver.
//!
//! Entries and [`NoticeBook::apply`] as in the wallet's book: what was queued is delivered after a restart too, and as
//! often as it takes. A kill between an effect and its notice loses the notice, as a wallet may.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most notices on their way at once.
const OUT_LIMIT: usize = 64;

/// A change of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum NoticeEntry {
    /// Something is to be told.
    Queued {
        /// Its place in the queue, for ever.
        notice_no: u64,
        /// What is to be told.
        notice: Notice,
    },
    /// One copy was answered 2xx.
    Delivered {
        /// Which notice.
        notice_no: u64,
    },
}

/// One webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The event's identity, the same for every copy and try.
    pub event_id: String,
    /// The body, byte for byte.
    pub body: String,
    /// Not sent before, in ms since 1970.
    pub due_at_ms: i64,
    /// How many copies are still to be delivered.
    pub copies: u32,
    /// A copy that a stranger signed goes ahead of it.
    pub forged: bool,
}

#[derive(Debug)]
struct Pending {
    notice: Notice,
    tries: u32,
    is_out: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub struct NoticeBook {
    pending: BTreeMap<u64, Pending>,
    next_no: u64,
    delivered: u64,
    forged_refused: u64,
    forged_taken: u64,
}

/// How the queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeCount {
    /// All that were ever to be delivered.
    pub told: u64,
    /// Still to be delivered.
    pub pending: u64,
    /// Copies that were answered 2xx.
    pub delivered: u64,
    /// Forged copies that were answered 401, since the simulator started.
    pub forged_refused: u64,
    /// Forged copies that were answered 2xx, which should not be.
    pub forged_taken: u64,
}

impl NoticeBook {
    /// The number of the next notice.
    pub const fn next_no(&self) -> u64 {
        self.next_no
    }

    /// How it stands.
    pub fn count(&self) -> NoticeCount {
        NoticeCount {
            told: self.next_no,
            pending: self.pending.len() as u64,
            delivered: self.delivered,
            forged_refused: self.forged_refused,
            forged_taken: self.forged_taken,
        }
    }

    /// Makes an entry true.
    pub fn apply(&mut self, entry: NoticeEntry) {
        match entry {
            NoticeEntry::Queued { notice_no, notice } => {
                self.next_no = self.next_no.max(notice_no + 1);
                self.pending.insert(notice_no, Pending { notice, tries: 0, is_out: false });
            }
            NoticeEntry::Delivered { notice_no } => {
                self.delivered += 1;
                if let Some(pending) = self.pending.get_mut(&notice_no) {
                    pending.notice.copies = pending.notice.copies.saturating_sub(1);
                    if pending.notice.copies == 0 {
                        self.pending.remove(&notice_no);
                    }
                }
            }
        }
    }

    /// What may go out now; it counts as out until [`NoticeBook::came_back`].
    pub fn take_due(&mut self, now_ms: i64) -> Vec<(u64, Notice)> {
        let out = self.pending.values().filter(|pending| pending.is_out).count();
        let mut due: Vec<_> =
            self.pending.iter_mut().filter(|(_, p)| !p.is_out && p.notice.due_at_ms <= now_ms).collect();
        due.sort_by_key(|(notice_no, pending)| (pending.notice.due_at_ms, **notice_no));
        let room = OUT_LIMIT.saturating_sub(out);
        let taken = due.into_iter().take(room).map(|(notice_no, pending)| {
            pending.is_out = true;
            (*notice_no, pending.notice.clone())
        });
        taken.collect()
    }

    /// When the next one is due, if any waits.
    pub fn next_due_at_ms(&self) -> Option<i64> {
        self.pending.values().filter(|pending| !pending.is_out).map(|pending| pending.notice.due_at_ms).min()
    }

    /// A forged copy was answered.
    pub const fn forged_came_back(&mut self, taken: bool) {
        if taken {
            self.forged_taken += 1;
        } else {
            self.forged_refused += 1;
        }
    }

    /// A try is over; copies that were not delivered are tried again, later each time.
    pub fn came_back(&mut self, notice_no: u64, now_ms: i64) {
        if let Some(pending) = self.pending.get_mut(&notice_no) {
            pending.is_out = false;
            pending.forged_is_done();
            pending.tries += 1;
            pending.notice.due_at_ms = now_ms.saturating_add(50 << pending.tries.min(6));
        }
    }
}

impl Pending {
    const fn forged_is_done(&mut self) {
        self.notice.forged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(notice_no: u64, due_at_ms: i64, copies: u32) -> NoticeEntry {
        let notice = Notice { event_id: "e".into(), body: "{}".into(), due_at_ms, copies, forged: false };
        NoticeEntry::Queued { notice_no, notice }
    }

    #[test]
    fn a_notice_stays_until_every_copy_is_delivered() {
        let mut book = NoticeBook::default();
        book.apply(queued(0, 10, 2));
        assert!(book.take_due(9).is_empty());
        assert_eq!(book.take_due(10).len(), 1);
        assert!(book.take_due(10).is_empty(), "it is out");
        book.apply(NoticeEntry::Delivered { notice_no: 0 });
        book.came_back(0, 10);
        assert_eq!(book.next_due_at_ms(), Some(110));
        book.apply(NoticeEntry::Delivered { notice_no: 0 });
        book.forged_came_back(false);
        let count = NoticeCount { told: 1, pending: 0, delivered: 2, forged_refused: 1, forged_taken: 0 };
        assert_eq!(book.count(), count);
        assert_eq!(book.next_no(), 1);
    }

    #[test]
    fn what_is_due_first_goes_first() {
        let mut book = NoticeBook::default();
        book.apply(queued(0, 20, 1));
        book.apply(queued(1, 10, 1));
        assert_eq!(book.take_due(20).iter().map(|(no, _)| *no).collect::<Vec<_>>(), [1, 0]);
    }
}
