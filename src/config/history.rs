//! Settings of the history.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::parse_bytes;
use crate::model::parse_duration;

/// Limits of the history.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct HistorySettings {
    /// Keep earlier versions of entries: on or off
    #[arg(long = "history", value_name = "MODE", default_value = "on")]
    pub mode: HistoryMode,

    /// Maximum age of the history
    #[arg(long = "history-max-age", value_name = "TIME", default_value = "7d", value_parser = parse_duration)]
    pub age_max: Duration,

    /// Maximum size of the history on disk: the oldest part is removed first
    #[arg(long = "history-max-bytes", value_name = "BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub bytes_max: u64,
}

/// Whether meshkeep keeps the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HistoryMode {
    /// It keeps earlier versions.
    On,
    /// It keeps only the current versions.
    Off,
}
