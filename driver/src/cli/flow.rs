//! `paylatchd flow show`: one payment, for a person.

use paylatch_core::order_no::{self, Names};

use crate::config::Config;
use crate::db::{Db, Explanation};
use crate::error::Error;

/// Prints what is known of the flow that `which` names.
pub async fn show(config: &Config, which: &str) -> Result<(), Error> {
    let db = Db::connect(&config.database, "flow show").await?;
    let missing = || Error::NotFound(format!("there is no payment {which}"));
    let flow_id = match Name::of(which) {
        Some(Name::Id(flow_id)) => flow_id,
        Some(Name::Number(number)) => db.find_pay_flow(number).await?.ok_or_else(missing)?,
        None => {
            return Err(Error::NotFound(format!("{which:?} is neither a flow's id nor one of our order numbers")));
        }
    };
    print!("{}", readable(&db.explain(flow_id).await?));
    Ok(())
}

/// What a person may call a payment.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    Id(i64),
    /// Its charge's number.
    Number(&'a str),
}

impl<'a> Name<'a> {
    /// A refund's number is its charge's behind a prefix.
    fn of(which: &'a str) -> Option<Self> {
        if let Ok(flow_id) = which.parse() {
            return (flow_id > 0).then_some(Self::Id(flow_id));
        }
        let decoded = order_no::decode(which)?;
        let charge = if decoded.names == Names::Charge { which } else { which.split_once('_')?.1 };
        Some(Self::Number(charge))
    }
}

/// Topics aligned, each named once; the timeline apart.
pub fn readable(lines: &[Explanation]) -> String {
    let width = lines.iter().map(|line| line.topic.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut last = "";
    for line in lines {
        if line.topic == "timeline" && last != "timeline" && !last.is_empty() {
            text.push('\n');
        }
        let topic = if line.topic == last { "" } else { &line.topic };
        let indent = format!("\n{:width$}  ", "");
        text.push_str(&format!("{topic:width$}  {}\n", line.says.trim_end().replace('\n', &indent)));
        last = &line.topic;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_a_flow_leads_to_it() {
        let number = order_no::trade("sh", "1", 901);
        assert_eq!(Name::of("901"), Some(Name::Id(901)));
        let further = [order_no::nth_refund(&number, 12), order_no::nth_external(&number, 1)];
        let refunds = [order_no::compensation(&number)].into_iter().chain(further.into_iter().flatten());
        for name in refunds.chain([number.clone()]) {
            assert_eq!(Name::of(&name), Some(Name::Number(&number)), "{name}");
        }
        for bad in ["", "0", "-3", "nothing", "901 "] {
            assert_eq!(Name::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn topics_are_aligned_and_named_once() {
        let line = |topic: &str, says: &str| Explanation { topic: topic.into(), says: says.into() };
        let lines = [line("flow", "a"), line("charge", "b\nc"), line("timeline", "1"), line("timeline", "2")];
        assert_eq!(readable(&lines), "flow      a\ncharge    b\n          c\n\ntimeline  1\n          2\n");
    }
}
