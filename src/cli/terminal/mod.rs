//! Output on the terminal: tables, documents and progress lines.

pub(super) mod json_path;
pub(super) mod list_output;
pub(super) mod output;
pub(super) mod progress;
mod table_cells;
