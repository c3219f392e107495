//! The simulator's memory: an append-only file of JSON lines, replayed at start.
//!
//! Invariant: an effect is in the file, handed to the operating system in one write, before it is in the books, and so
//! before anyone is told of it. A killed simulator therefore comes back knowing every effect it ever admitted to. The
//! machine's own crash is out of scope: nothing is synced, since this is no real wallet.
//!
//! A last line without an end is what a kill in the middle of a write leaves; nobody was told of it, so it is dropped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::business_book::BusinessEntry;
use super::notice_book::NoticeEntry;
use super::wallet_book::WalletEntry;

/// One line: something that happened and cannot be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "book", rename_all = "snake_case")]
pub enum Entry {
    /// In the wallet.
    Wallet(WalletEntry),
    /// In the business.
    Business(BusinessEntry),
    /// In the queue of webhooks.
    Notice(NoticeEntry),
}

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system refused.
    #[error("ledger {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another simulator has it open.
    #[error("ledger {0} is in use by another simulator")]
    InUse(PathBuf),
    /// A line that is not the last one is unreadable: this file was not written by a simulator alone.
    #[error("ledger {path}, line {line} is unreadable")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
}

/// An open ledger. Holds the file's lock, so that no two simulators write one file.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    length: u64,
}

impl Ledger {
    /// Opens or creates the file and returns what it holds.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn open(path: &Path) -> Result<(Self, Vec<Entry>), LedgerError> {
        let failed = |source| LedgerError::Io { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LedgerError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut entries = Vec::new();
        for (at, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let entry = serde_json::from_slice(line)
                .map_err(|_| LedgerError::Unreadable { path: path.to_owned(), line: at + 1 })?;
            entries.push(entry);
        }
        let mut ledger = Self { file, length: whole as u64 };
        ledger.rewind().map_err(failed)?;
        Ok((ledger, entries))
    }

    /// Writes one entry, whole or not at all.
    ///
    /// # Errors
    /// The file system refused; the entry is not in the file.
    pub fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        match self.file.write_all(&line) {
            Ok(()) => {
                self.length += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // The part that was written would soil the next line.
                self.rewind()?;
                Err(error)
            }
        }
    }

    /// Back to the end of the last whole line.
    fn rewind(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length)).map(drop)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(order_no: &str) -> Entry {
        Entry::Wallet(WalletEntry::Closed { order_no: order_no.into() })
    }

    #[test]
    fn what_was_appended_is_there_after_a_restart_and_a_torn_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let (mut ledger, entries) = Ledger::open(&path).unwrap();
        assert!(entries.is_empty());
        ledger.append(&entry("sh_1_1")).unwrap();
        assert!(matches!(Ledger::open(&path), Err(LedgerError::InUse(_))));
        drop(ledger);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"book\":\"wal").unwrap();

        let (mut ledger, entries) = Ledger::open(&path).unwrap();
        assert_eq!(entries, [entry("sh_1_1")]);
        ledger.append(&entry("sh_1_2")).unwrap();
        drop(ledger);
        assert_eq!(Ledger::open(&path).unwrap().1, [entry("sh_1_1"), entry("sh_1_2")]);
    }

    #[test]
    fn a_soiled_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(matches!(Ledger::open(&path), Err(LedgerError::Unreadable { line: 1, .. })));
    }
}
