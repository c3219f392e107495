//! Comparing long texts line by line.

use std::collections::BTreeMap;

/// Panics unless both have the same lines in the same order; shows only the lines that differ.
pub fn assert_same_lines(left: &[String], right: &[String]) {
    if left == right {
        return;
    }
    let mut surplus: BTreeMap<&str, i64> = BTreeMap::new();
    left.iter().for_each(|line| *surplus.entry(line).or_default() += 1);
    right.iter().for_each(|line| *surplus.entry(line).or_default() -= 1);
    let differing = surplus.iter().filter(|(_, count)| **count != 0);
    let shown: Vec<_> = differing.map(|(line, count)| format!("{count:+} {line}")).collect();
    panic!("+ only on the left, - only on the right (nothing here: only the order differs):\n{}", shown.join("\n"));
}
