//! Result of a command and its exit code: 0 success; 1 failed, not found or not healthy; 2
//! incorrect usage; 3 a server or store is not available.
//!
//! Every command returns a [`CommandResult`]. `?` turns any error into a [`Failure`] with exit
//! code 1.

use std::error::Error;
use std::fmt::{self, Display};
use std::process::ExitCode;

/// Exit code of a failure that has no code of its own, or if something does not exist or is not
/// healthy.
const EXIT_FAILURE: u8 = 1;

/// Exit code for incorrect usage, the same as clap's and most of Unix.
pub(super) const EXIT_USAGE: u8 = 2;

/// Exit code if a server cannot be reached, refuses the command or does not answer as a meshkeep,
/// or if another process uses the store.
const EXIT_UNAVAILABLE: u8 = 3;

pub(super) type CommandResult = Result<ExitStatus, Failure>;

/// Error of a command, with its exit code. It does not implement [`Error`], so that every error can
/// be converted into it.
#[derive(Debug)]
pub(super) struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// Creates a failure with exit code 1, for each reason without an exit code of its own. For
    /// example, something does not exist or is not healthy.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_FAILURE }
    }

    /// Creates a failure for incorrect usage. Exit code 2.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_USAGE }
    }

    /// Creates a failure for a server that cannot be reached, refuses the command or does not
    /// answer as a meshkeep, or for a store that another process uses. Exit code 3.
    pub(super) fn unavailable(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_UNAVAILABLE }
    }

    /// Puts a context in front of the text. The exit code stays the same.
    pub(super) fn in_context(self, context: impl Display) -> Self {
        Self { text: format!("{context}: {}", self.text), code: self.code }
    }

    /// Returns whether the server or the store was not available, so that a retry may help.
    pub(super) fn is_unavailable(&self) -> bool {
        self.code == EXIT_UNAVAILABLE
    }

    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: Error> From<E> for Failure {
    /// Converts an error and its sources, with exit code 1.
    fn from(error: E) -> Self {
        Self::new(with_sources(&error))
    }
}

/// Conversion of an error into a [`Failure`] with context.
pub(super) trait ResultExt<T> {
    /// Turns an error into a [`Failure`] with exit code 1 whose text begins with `context`.
    fn or_fail(self, context: impl Display) -> Result<T, Failure>;
}

impl<T, E: Error> ResultExt<T> for Result<T, E> {
    fn or_fail(self, context: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{context}: {}", with_sources(&error))))
    }
}

/// Joins the texts of an error and its sources.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Exit status of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// Exit code 0.
    Success,
    /// Exit code 1. The command has already printed the reason.
    Failed,
}

impl ExitStatus {
    pub(super) fn from_success(success: bool) -> Self {
        if success { Self::Success } else { Self::Failed }
    }

    pub(super) fn code(self) -> ExitCode {
        match self {
            Self::Success => ExitCode::SUCCESS,
            Self::Failed => ExitCode::from(EXIT_FAILURE),
        }
    }
}
