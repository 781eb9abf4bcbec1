//! Commands that compare the mirror: with one agent (`diff`), with its own past (`history`), with
//! the same mesh without a cluster or a namespace (`impact`), and with its sources or another
//! meshkeep (`verify`).

pub(super) mod diff;
pub(super) mod history;
pub(super) mod impact;
pub(super) mod verify;

use super::terminal::output::joined;

/// Maximum number of names in a line.
const NAMES_MAX: usize = 10;

/// Returns the names in a line: the first [`NAMES_MAX`], or all of them.
fn list_names(names: &[String], all: bool) -> String {
    match names.len().checked_sub(NAMES_MAX).filter(|more| *more > 0 && !all) {
        Some(more) => format!("{} and {more} more", joined(&names[..NAMES_MAX])),
        None => joined(names),
    }
}
