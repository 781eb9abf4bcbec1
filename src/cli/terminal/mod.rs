//! Output on the terminal: tables, documents and progress lines.

pub(super) mod output;
pub(super) mod progress;
