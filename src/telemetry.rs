//! The log: one line for each transition, on standard error, as text or JSON.
//!
//! Deliberately lacks: metrics, which are read from the handle when somebody asks for them.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{LogFormat, LogLevel};

/// The environment variable with which a filter finer than a level is given.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not one.
    #[error("{FILTER_VARIABLE} is not a log filter, such as meshkeep=debug")]
    Filter(#[source] ParseError),
    /// Somebody has set up a log in this process before.
    #[error("a log is set up already")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the log of this process. A filter in `RUST_LOG` wins over the level.
///
/// # Errors
/// [`TelemetryError`]: a bad filter, or a second call.
pub fn init(format: LogFormat, level: LogLevel) -> Result<(), TelemetryError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(filter).map_err(TelemetryError::Filter)?,
        Ok(_) | Err(_) => EnvFilter::new(filter_for(level)),
    };
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Twice)
}

/// Ours at the level, the libraries' warnings only: their debug lines are about frames and would drown ours.
fn filter_for(level: LogLevel) -> String {
    let libraries = match level {
        LogLevel::Error => LogLevel::Error,
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => LogLevel::Warn,
        LogLevel::Trace => LogLevel::Trace,
    };
    format!("{},meshkeep={}", libraries.as_str(), level.as_str())
}
