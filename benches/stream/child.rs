//! A child process that reads orders from standard input and answers each with one line.

use crate::processes::child_of;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::Outcome;

/// Unit of processor time that Linux reports to programs: hundredths of a second (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// A process of this binary in another role.
pub(crate) struct RoleProcess {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl RoleProcess {
    /// Starts a role and waits for its first line.
    pub(crate) fn start(arguments: &[&str]) -> Outcome<(Self, String)> {
        let mut command = child_of("stream")?;
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no standard input")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut role = Self { child, orders, answers };
        let first = role.answer()?;
        Ok((role, first))
    }

    /// Sends an order and waits for its answer.
    pub(crate) fn ask(&mut self, order: &str) -> Outcome<String> {
        self.send(order)?;
        self.answer()
    }

    pub(crate) fn send(&mut self, order: &str) -> Outcome<()> {
        writeln!(self.orders, "{order}")?;
        Ok(self.orders.flush()?)
    }

    pub(crate) fn answer(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("a child process ended".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Returns the user and system time so far, except that of the thread that reads orders. That
    /// thread makes the changes, which in a real sidecar come from remote clusters.
    pub(crate) fn cpu(&self) -> Outcome<Duration> {
        let id = self.child.id();
        Ok(Self::cpu_in(&format!("/proc/{id}/stat"))?.saturating_sub(Self::cpu_in(&format!("/proc/{id}/task/{id}/stat"))?))
    }

    fn cpu_in(path: &str) -> Outcome<Duration> {
        let stat = std::fs::read_to_string(path)?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().filter_map(|index| fields.get(*index)?.parse::<f64>().ok()).sum();
        Ok(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> Outcome<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Iterates over the orders on standard input.
pub(crate) fn orders() -> impl Iterator<Item = Vec<String>> {
    let lines = std::io::stdin().lines().map_while(Result::ok);
    lines.map(|line| line.split_whitespace().map(str::to_owned).collect())
}

pub(crate) fn answer(line: &str) {
    let mut output = std::io::stdout().lock();
    drop(writeln!(output, "{line}").and_then(|()| output.flush()));
}

/// Parses a word of an order as a number.
pub(crate) fn number(words: &[String], index: usize) -> Outcome<u64> {
    Ok(words.get(index).ok_or("a number is missing")?.parse()?)
}

/// Returns microseconds since 1970, which are comparable between processes.
pub(crate) fn now_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
