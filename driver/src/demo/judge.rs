//! The end of the demo: everything that can be counted in two places is, and the two must agree.

use super::Stage;
use super::after_sale::Raced;
use super::compare::{Comparison, compare};
use super::report;
use super::subscriber::{Events, Heard};
use crate::cli::verify;
use crate::db::{Standing, Webhooks};
use crate::error::Error;
use crate::simulate::NoticeCount;

/// One thing that was counted in two places.
pub struct Count {
    /// What.
    pub what: &'static str,
    /// Outside.
    pub there: String,
    /// In the database.
    pub here: String,
    /// What does not agree, in words.
    pub differences: Vec<String>,
}

impl Stage {
    /// Compares, verifies, tells one story; an error if anything is wrong.
    pub(super) async fn judge(&self, heard: Option<Heard>) -> Result<(), Error> {
        let standing: Vec<Standing> = self.db.demo_standing(self.first_flow_id).await?;
        let effects = self.admin.effects().await?;
        let refunds = self.db.demo_refunds(self.first_flow_id).await?;
        let found = compare(&self.db.demo_payments(self.first_flow_id).await?, &refunds, &effects);
        let raced = self.after_sale.raced(&refunds);
        report::standing_table(&standing);
        report::hardship(&effects, &self.db.demo_lost_answers(self.first_flow_id).await?);
        report::after_sale(&self.after_sale, &raced, &refunds);
        report::money_table(&found);
        let mut counts = Vec::from(payments(&found, raced, self.created));
        counts.extend(webhooks(self.admin.webhook_count().await?, self.db.demo_webhooks(self.first_flow_id).await?));
        if let Some(heard) = &heard {
            counts.push(events(heard.beside(&self.db.demo_events_due(self.first_flow_id).await?)));
        }
        report::counts_table(&counts);
        let rules = self.db.verify().await?;
        println!("\nWhat must never happen");
        verify::print_rules(&rules);
        self.tell_one(self.db.demo_lost_answer(self.first_flow_id).await?, "One payment whose answer was lost").await?;
        verify::judge(&rules)?;
        let differences: usize = counts.iter().map(|count| count.differences.len()).sum();
        if differences > 0 {
            return Err(Error::Broken(format!("{differences} differences between the two counts")));
        }
        println!(
            "\nAll {} payments ended as they should, in {:.0} s; nothing charged or refunded twice, every rule holds{}.",
            self.created,
            self.begun.elapsed().as_secs_f64(),
            if heard.is_some() { ", every event was heard" } else { "; no nats-server here, so nobody heard an event" }
        );
        Ok(())
    }
}

fn payments(found: &Comparison, raced: Raced, created: usize) -> [Count; 3] {
    let mut differences = found.differences.clone();
    if found.compared != created {
        differences.push(format!("{created} payments were created, {} are there", found.compared));
    }
    let most = |what: &str, most: u32| (most > 1).then(|| format!("one number was {what} {most} times"));
    differences.extend(most("charged", found.most_charges));
    let mut refund_differences = found.refund_differences.clone();
    refund_differences.extend(most("refunded", found.most_refunds));
    [
        Count {
            what: "charges, one by one",
            there: format!("{} at the wallet", found.moved.0),
            here: format!("{} of {} payments", found.charged, found.compared),
            differences,
        },
        Count {
            what: "refunds, one by one",
            there: format!("{} at the wallet", found.moved.1),
            here: format!("{} succeeded", found.refunds),
            differences: refund_differences,
        },
        Count {
            what: "racing refunds",
            there: format!("{} fit", raced.fits),
            here: match raced.released {
                0 => format!("{} of {} accepted", raced.accepted, raced.requests),
                more => format!("{} of {} accepted, {more} after a refusal", raced.accepted, raced.requests),
            },
            differences: raced.differences,
        },
    ]
}

fn webhooks(sent: NoticeCount, kept: Webhooks) -> [Count; 3] {
    let NoticeCount { told, pending, delivered, forged_refused, forged_taken } = sent;
    let (events, received) = (kept.events.unsigned_abs(), kept.received.unsigned_abs());
    let said = |wrong: bool, says: String| if wrong { vec![says] } else { Vec::new() };
    [
        Count {
            what: "webhooks",
            there: format!("{told} sent"),
            here: format!("{events} kept and applied"),
            differences: said(
                events != told || pending > 0,
                format!("{pending} of {told} sent are not delivered, {events} are kept"),
            ),
        },
        Count {
            what: "the same, with copies",
            // An answer that got lost is a copy that the wallet does not count.
            there: format!("{delivered} answered"),
            here: format!("{received} received, {} of them copies", received.saturating_sub(events)),
            differences: said(received < delivered, format!("{delivered} were answered as taken, {received} were")),
        },
        Count {
            what: "forged webhooks",
            there: format!("{} sent", forged_refused + forged_taken),
            here: format!("{forged_refused} refused"),
            differences: said(forged_taken > 0, format!("{forged_taken} forged webhooks were taken")),
        },
    ]
}

fn events(found: Events) -> Count {
    Count {
        what: "events, one by one",
        there: format!("{} heard, {} came twice", found.heard, found.again),
        here: format!("{} in the log", found.due),
        differences: found.differences,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: NoticeCount = NoticeCount { told: 10, pending: 0, delivered: 14, forged_refused: 2, forged_taken: 0 };

    fn differences(sent: NoticeCount, events: i64, received: i64) -> Vec<String> {
        webhooks(sent, Webhooks { events, received }).into_iter().flat_map(|count| count.differences).collect()
    }

    #[test]
    fn webhooks_may_come_more_often_than_their_answers_do() {
        assert!(differences(SENT, 10, 14).is_empty());
        assert!(differences(SENT, 10, 15).is_empty());
        assert_eq!(differences(SENT, 10, 13).len(), 1);
        assert_eq!(differences(SENT, 9, 14).len(), 1);
        assert_eq!(differences(NoticeCount { pending: 1, ..SENT }, 10, 14).len(), 1);
        assert_eq!(differences(NoticeCount { forged_taken: 1, ..SENT }, 10, 14).len(), 1);
    }
}
