//! Processor time of process families, from /proc.

use std::fs;

/// Seconds of processor time that these processes and their ended children have used.
pub fn seconds(pids: &[u32]) -> f64 {
    // Linux counts in hundredths of a second, whatever the kernel's own clock.
    pids.iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .filter_map(|stat| ticks(&stat))
        .sum::<f64>()
        / 100.0
}

/// The server's processes: the postmaster, and everything that it has started.
pub fn family(postmaster: u32) -> Vec<u32> {
    let mut pids = vec![postmaster];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if field(&stat, 1) == Some(f64::from(postmaster)) {
            pids.push(pid);
        }
    }
    pids
}

/// Who started a process.
pub fn parent(pid: u32) -> u32 {
    field(&fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default(), 1).map_or(0, |parent| parent as u32)
}

/// Own time and that of children who have been waited for: utime, stime, cutime, cstime.
fn ticks(stat: &str) -> Option<f64> {
    Some(field(stat, 11)? + field(stat, 12)? + field(stat, 13)? + field(stat, 14)?)
}

/// The nth field behind the name, which may contain blanks.
fn field(stat: &str, n: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(n)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_the_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5 6 7";
        assert_eq!((field(stat, 1), ticks(stat)), (Some(1.0), Some(100.0)));
    }
}
