//! What the simulator tells by webhook, in the words of our own protocol.

use std::io;

use serde_json::{Map, Value, json};

use super::wallet_book::{Kind, Standing, Terms, WalletEntry};
use super::world::World;

/// Tells of an entry of the wallet's books, if that is something to tell of.
///
/// # Errors
/// The ledger could not be written.
pub fn of(world: &mut World, entry: &WalletEntry) -> io::Result<()> {
    match entry {
        WalletEntry::Begun { kind, number, terms, standing, visible_at_ms, .. } => {
            let word = match standing {
                Standing::Succeeded => "succeeded",
                Standing::Failed => "failed",
                Standing::Processing => "processing",
                Standing::Closed => return Ok(()),
            };
            told(world, *kind, number, terms, word, *visible_at_ms)
        }
        WalletEntry::Settled { kind, number } => settled(world, *kind, number),
        WalletEntry::ChargedLate { order_no } => settled(world, Kind::Charge, order_no),
        WalletEntry::RefundedByHand { external_no, terms } => {
            let mut body = about("refund.external", terms);
            body.insert("external_no".to_owned(), json!(external_no));
            world.notify(&terms.order_no, external_no, body, None)
        }
        WalletEntry::Repeated { .. } | WalletEntry::Closed { .. } => Ok(()),
    }
}

fn settled(world: &mut World, kind: Kind, number: &str) -> io::Result<()> {
    let books = match kind {
        Kind::Charge => world.wallet().charges(),
        Kind::Refund => world.wallet().refunds(),
    };
    let Some(terms) = books.get(number).and_then(|known| known.terms.clone()) else { return Ok(()) };
    told(world, kind, number, &terms, "succeeded", None)
}

fn told(
    world: &mut World,
    kind: Kind,
    number: &str,
    terms: &Terms,
    word: &str,
    due_at_ms: Option<i64>,
) -> io::Result<()> {
    let noun = match kind {
        Kind::Charge => "charge",
        Kind::Refund => "refund",
    };
    let mut body = about(&format!("{noun}.{word}"), terms);
    if kind == Kind::Refund {
        body.insert("refund_no".to_owned(), json!(number));
    }
    world.notify(number, &terms.order_no, body, due_at_ms)
}

/// Tells of a dispute; `word` is opened, won or lost. False where the charge is not known.
///
/// # Errors
/// The ledger could not be written.
pub fn dispute(world: &mut World, order_no: &str, dispute_no: &str, amount: i64, word: &str) -> io::Result<bool> {
    let Some(terms) = world.wallet().charges().get(order_no).and_then(|known| known.terms.clone()) else {
        return Ok(false);
    };
    let mut body = about(&format!("dispute.{word}"), &Terms { amount, ..terms });
    body.insert("external_no".to_owned(), json!(dispute_no));
    world.notify(order_no, dispute_no, body, None)?;
    Ok(true)
}

fn about(event_type: &str, terms: &Terms) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("type".to_owned(), json!(event_type));
    body.insert("order_no".to_owned(), json!(terms.order_no));
    body.insert("amount".to_owned(), json!(terms.amount));
    body.insert("currency".to_owned(), json!(terms.currency));
    body
}
