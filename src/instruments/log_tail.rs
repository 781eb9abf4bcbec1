//! Newest lines of the log in memory, for clients that cannot read the log's destination.
//!
//! The number of lines, the length of each and the total size are limited. Callers write the log
//! elsewhere, and never pass secrets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of lines: some hours of a quiet mesh, minutes of a mesh in trouble.
const LINES_MAX: usize = 1_000;

/// Maximum bytes of a line. Usual lines have 200 bytes; one with a long key or error has some
/// kilobytes.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Maximum bytes of all lines: enough for a quarter of [`LINES_MAX`] lines of maximum length, or
/// for five times [`LINES_MAX`] usual ones.
const BYTES_MAX: usize = 1 << 20;

/// Marker at the end of a truncated line.
const TRUNCATED: &str = "…";

/// The newest log lines. Clones are cheap and share the lines.
#[derive(Debug, Clone, Default)]
pub struct LogTail(Arc<Mutex<LogLines>>);

#[derive(Debug, Default)]
struct LogLines {
    newest: VecDeque<String>,
    bytes: usize,
    dropped: u64,
}

impl LogTail {
    /// Appends a line, which may contain colours and end with a line feed. Drops the oldest lines
    /// above the limits.
    pub fn push(&self, line: &[u8]) {
        let line = plain(line);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.bytes += line.len();
        lines.newest.push_back(line);
        while lines.newest.len() > LINES_MAX || lines.bytes > BYTES_MAX {
            let Some(oldest) = lines.newest.pop_front() else { break };
            lines.bytes -= oldest.len();
            lines.dropped += 1;
        }
    }

    /// Returns the lines, oldest first, and the number of older lines that were dropped.
    #[must_use]
    pub fn lines(&self) -> (Vec<String>, u64) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (lines.newest.iter().cloned().collect(), lines.dropped)
    }
}

/// Returns a line as text, without colours (ECMA-48: `ESC [`, parameters, a letter) and truncated.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut pieces = text.trim_end().split("\x1b[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain += piece.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').get(1..).unwrap_or_default();
    }
    if plain.len() > LINE_BYTES_MAX {
        plain.truncate(plain.floor_char_boundary(LINE_BYTES_MAX - TRUNCATED.len()));
        plain += TRUNCATED;
    }
    // a string keeps its capacity after truncation
    plain.shrink_to_fit();
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_the_bytes_of_lines_are_limited() {
        let tail = LogTail::default();
        (0..1_500).for_each(|number| tail.push(format!("line {number}\n").as_bytes()));
        let (lines, dropped) = tail.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[999].as_str(), dropped), (1_000, "line 500", "line 1499", 500));
        (0..1_000).for_each(|_| tail.push("é".repeat(100_000).as_bytes()));
        let (lines, dropped) = tail.lines();
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!(bytes <= BYTES_MAX && bytes > BYTES_MAX - 2 * LINE_BYTES_MAX, "{bytes}");
        assert!(lines.iter().all(|line| line.len() <= LINE_BYTES_MAX && line.ends_with("éé…")));
        assert_eq!(dropped + lines.len() as u64, 2_500);
    }

    #[test]
    fn colours_are_left_out() {
        assert_eq!(plain(b"\x1b[2m2026\x1b[0m \x1b[1;33m WARN\x1b[0m a [b] \xff\n"), "2026  WARN a [b] \u{fffd}");
    }
}
