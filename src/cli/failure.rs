//! Outcome of a command and its exit code: 0 fine; 1 failed, not found or not healthy; 2 used wrongly;
//! 3 cannot be reached, or in use.
//!
//! Every command returns an [`Outcome`]. `?` turns any error into a [`Failure`] with exit code 1.

use std::error::Error;
use std::fmt::{self, Display};
use std::process::ExitCode;

/// The exit code where something is not there, or not well.
const EXIT_NOT_FOUND: u8 = 1;

/// The exit code of a command that was used wrongly, as clap and most of Unix have it.
pub(super) const EXIT_USAGE: u8 = 2;

/// The exit code where no sidecar answers.
const EXIT_UNREACHABLE: u8 = 3;

/// Outcome of a command.
pub(super) type Outcome = Result<Verdict, Failure>;

/// A command that failed. It is no [`Error`] itself, so that every error can become one.
#[derive(Debug)]
pub(super) struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// What was asked for is not there, or not healthy.
    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_NOT_FOUND }
    }

    /// The command was used wrongly.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_USAGE }
    }

    /// Nobody answers, or not as a meshkeep does.
    pub(super) fn unreachable(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: EXIT_UNREACHABLE }
    }

    /// Whether trying again may help.
    pub(super) fn is_unreachable(&self) -> bool {
        self.code == EXIT_UNREACHABLE
    }

    /// The exit code.
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
    /// An error and its sources, with exit code 1.
    fn from(error: E) -> Self {
        Self::not_found(with_sources(&error))
    }
}

/// Says what failed in front of an error.
pub(super) trait OrFail<T> {
    /// Turns an error into a [`Failure`] with exit code 1 whose text begins with `what`.
    fn or_fail(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Error> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::not_found(format!("{what}: {}", with_sources(&error))))
    }
}

/// The text of an error and of those that caused it.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// What a command found: well, or something that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Exit code 0.
    Fine,
    /// Exit code 1, said by what was printed already.
    NotFine,
}

impl Verdict {
    pub(super) fn of(fine: bool) -> Self {
        if fine { Self::Fine } else { Self::NotFine }
    }

    pub(super) fn code(self) -> ExitCode {
        match self {
            Self::Fine => ExitCode::SUCCESS,
            Self::NotFine => ExitCode::from(EXIT_NOT_FOUND),
        }
    }
}
