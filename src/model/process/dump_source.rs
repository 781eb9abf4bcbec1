//! The dump that a process serves instead of remote clusters.

use std::time::SystemTime;

use crate::model::api_enum::api_enum;

/// File or directory that `meshkeep load` serves, and the time of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpSource {
    /// Path that the user gave.
    pub path: String,
    /// Command or tool that wrote the dump.
    pub form: &'static str,
    /// Time at which the dump was made.
    pub time: SystemTime,
    /// Source of `time`.
    pub time_from: DumpTimeSource,
}

api_enum! {
    /// Source of the time of a dump.
    pub enum DumpTimeSource {
        /// The option `--time`.
        CommandLine = "option",
        /// The bundle names its time.
        Bundle = "bundle",
        /// The newest heartbeat in the dump.
        Heartbeat = "heartbeat",
        /// The last change of the file.
        File = "file",
    }
}
