//! Scripted faults: "the next two charges of this number are answered and lost".

use std::collections::VecDeque;

use globset::{Glob, GlobMatcher};
use serde::{Deserialize, Serialize};

use super::fault::{Fault, Op, Plan};

/// Most rules held at once.
const RULE_LIMIT: usize = 10_000;

/// One rule, as `POST /sim/script` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A glob on the order number, the refund number or the business key.
    #[serde(rename = "match", default = "everything")]
    pub pattern: String,
    /// An operation's name, or `*`: every one that the fault means anything for.
    #[serde(default = "everything")]
    pub op: String,
    /// What the request meets.
    pub fault: Fault,
    /// For how many requests; left out, for all of them.
    #[serde(default)]
    pub times: Option<u32>,
    /// The fault's argument; left out, the fault's own.
    #[serde(default)]
    pub arg: Option<u64>,
}

fn everything() -> String {
    "*".to_owned()
}

impl Rule {
    /// `fault` for every request of `op` that names `pattern`.
    pub fn new(pattern: impl Into<String>, op: impl Into<String>, fault: Fault) -> Self {
        Self { pattern: pattern.into(), op: op.into(), fault, times: None, arg: None }
    }

    /// Only for the next `times` requests.
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// With `arg`.
    pub fn arg(self, arg: u64) -> Self {
        Self { arg: Some(arg), ..self }
    }
}

/// Why a rule was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// `match` is no glob.
    #[error("match is no glob: {0}")]
    Pattern(#[from] globset::Error),
    /// `op` names no operation.
    #[error("op names no operation")]
    Op,
    /// The fault means nothing for the operation.
    #[error("this fault means nothing for this op")]
    NotApplicable,
    /// There are too many rules.
    #[error("there are {RULE_LIMIT} rules already")]
    TooMany,
}

#[derive(Debug)]
struct Line {
    rule: Rule,
    matcher: GlobMatcher,
    op: Option<Op>,
}

impl Line {
    fn is_spent(&self) -> bool {
        self.rule.times == Some(0)
    }
}

/// The rules, in the order they came. The first that fits a request decides.
#[derive(Debug, Default)]
pub struct Script {
    lines: VecDeque<Line>,
}

impl Script {
    /// Adds a rule behind the others.
    ///
    /// # Errors
    /// See [`ScriptError`].
    pub fn add(&mut self, rule: Rule) -> Result<(), ScriptError> {
        let op = match rule.op.as_str() {
            "*" => None,
            name => Some(serde_json::from_value(name.into()).map_err(|_| ScriptError::Op)?),
        };
        if op.is_some_and(|op| !rule.fault.applies_to(op)) {
            return Err(ScriptError::NotApplicable);
        }
        if self.lines.len() >= RULE_LIMIT {
            return Err(ScriptError::TooMany);
        }
        let matcher = Glob::new(&rule.pattern)?.compile_matcher();
        self.lines.push_back(Line { rule, matcher, op });
        Ok(())
    }

    /// Forgets every rule.
    pub fn clear(&mut self) {
        self.lines.clear();
    }

    /// The rules still in force, `times` being what is left.
    pub fn rules(&self) -> Vec<Rule> {
        self.lines.iter().map(|line| line.rule.clone()).collect()
    }

    /// What a request of kind `op` that goes by `names` meets, if the script says so; uses up one time of the rule.
    pub fn next(&mut self, op: Op, names: &[&str]) -> Option<Plan> {
        let at = self.lines.iter().position(|line| {
            line.op.is_none_or(|wanted| wanted == op)
                && line.rule.fault.applies_to(op)
                && names.iter().any(|name| line.matcher.is_match(name))
        })?;
        let line = self.lines.get_mut(at)?;
        let plan = Plan::of(line.rule.fault, line.rule.arg);
        line.rule.times = line.rule.times.map(|times| times.saturating_sub(1));
        if line.is_spent() {
            self.lines.remove(at);
        }
        Some(plan)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_used_up_in_order() {
        let mut script = Script::default();
        script.add(Rule::new("sh_*", "charge", Fault::DropAfter).times(1)).unwrap();
        script.add(Rule::new("*", "*", Fault::TooMany).times(1)).unwrap();
        assert_eq!(script.next(Op::QueryCharge, &["tp_1_1"]).unwrap().fault, Fault::TooMany);
        assert_eq!(script.next(Op::Charge, &["tp_1_1"]), None);
        assert_eq!(script.next(Op::Charge, &["r_1", "sh_1_1"]).unwrap().fault, Fault::DropAfter);
        assert_eq!(script.next(Op::Charge, &["sh_1_1"]), None);
        assert!(script.rules().is_empty());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let mut script = Script::default();
        assert!(matches!(script.add(Rule::new("*", "query", Fault::None)), Err(ScriptError::Op)));
        assert!(matches!(script.add(Rule::new("*", "charge", Fault::NoOwner)), Err(ScriptError::NotApplicable)));
        assert!(matches!(script.add(Rule::new("[", "*", Fault::None)), Err(ScriptError::Pattern(_))));
        assert!(matches!(script.add(Rule::new("*", "*", Fault::None).times(0)), Ok(())));
    }
}
