//! A child process under test. Its output goes to a file, which a failing test prints; it never outlives its owner.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The `paylatchd` under test: `$PAYLATCHD`, or the one that cargo built beside this test binary.
pub fn paylatchd() -> PathBuf {
    if let Some(path) = std::env::var_os("PAYLATCHD") {
        return path.into();
    }
    let test = std::env::current_exe().expect("own path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let path = profile.join("paylatchd");
    assert!(path.exists(), "{} is missing: run scripts/build-driver, or set PAYLATCHD", path.display());
    path
}

/// A running process and its log.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it prints is appended to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).expect("log file");
        let err = out.try_clone().expect("log file");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Self { name: name.to_owned(), child, log: log.to_owned() }
    }

    /// Everything it has printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait for child").is_none()
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The most memory that it has had so far, in KiB.
    pub fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a running process");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        peak.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// SIGKILL: no goodbye. Returns once it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("wait for child");
    }

    /// SIGSTOP: it stands still, holding whatever it holds.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// SIGTERM, then waits for its own end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let what = format!("{} ends on SIGTERM", self.name);
        crate::eventually(&what, crate::wait::SOON, async || self.child.try_wait().expect("wait for child")).await
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid is an i32"));
        kill(pid, signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.name));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("---- log of {} ----\n{}---- end ----", self.name, last_lines(&self.log(), 200));
        }
    }
}

fn last_lines(text: &str, count: usize) -> &str {
    match text.trim_end().rmatch_indices('\n').nth(count.saturating_sub(1)) {
        Some((at, _)) => &text[at + 1..],
        None => text,
    }
}
