//! Output on the terminal: tables, documents and progress lines.

pub(super) mod change_age;
mod colour;
pub(super) mod json_path;
pub(super) mod layout;
pub(super) mod list_output;
pub(super) mod output;
pub(super) mod past_notes;
pub(super) mod progress;
pub(super) mod route_commands;
mod table_cells;
