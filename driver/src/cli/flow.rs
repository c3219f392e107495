//! `paylatchd flow show`: one payment, for a person.

use paylatch_core::order_no;

use crate::config::Config;
use crate::db::{Db, Explanation};
use crate::error::Error;

/// Prints what is known of the flow that `which` names.
pub async fn show(config: &Config, which: &str) -> Result<(), Error> {
    let flow_id = flow_id(which)
        .ok_or_else(|| Error::NotFound(format!("{which:?} is neither a flow's id nor one of our order numbers")))?;
    let db = Db::open(&config.database, "flow show")?;
    let lines = db.explain(flow_id).await?;
    if lines.is_empty() {
        return Err(Error::NotFound(format!("there is no flow {flow_id}")));
    }
    print!("{}", readable(&lines));
    Ok(())
}

/// An id as it is; an order number, also a refund's, holds its flow's id.
fn flow_id(which: &str) -> Option<i64> {
    which.parse().ok().filter(|id| *id > 0).or_else(|| Some(order_no::decode(which)?.flow_id))
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
        assert_eq!(flow_id("901"), Some(901));
        assert_eq!(flow_id(&number), Some(901));
        assert_eq!(flow_id(&order_no::compensation(&number)), Some(901));
        for bad in ["", "0", "-3", "nothing", "901 "] {
            assert_eq!(flow_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn topics_are_aligned_and_named_once() {
        let line = |topic: &str, says: &str| Explanation { topic: topic.into(), says: says.into() };
        let lines = [line("flow", "a"), line("charge", "b\nc"), line("timeline", "1"), line("timeline", "2")];
        assert_eq!(readable(&lines), "flow      a\ncharge    b\n          c\n\ntimeline  1\n          2\n");
    }
}
