//! The dump that a process serves instead of remote clusters.

use std::time::SystemTime;

/// File or directory that `meshkeep load` serves, and the time of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpSource {
    /// Path that the user gave.
    pub path: String,
    /// Command or tool that wrote the dump.
    pub form: &'static str,
    /// Time at which the dump was made.
    pub time: SystemTime,
    /// Source of `time`: `option`, `bundle`, `heartbeat` or `file`.
    pub time_from: &'static str,
}
