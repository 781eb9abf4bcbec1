//! Why a command fails, and the exit code that says so: 1 not found or not healthy, 2 used wrongly, 3 cannot be reached.

use std::process::ExitCode;

/// The exit code where something is not there, or not well.
const EXIT_NOT_FOUND: u8 = 1;

/// The exit code of a command that was used wrongly, as clap and most of Unix have it.
pub(super) const EXIT_USAGE: u8 = 2;

/// The exit code where no sidecar answers.
const EXIT_UNREACHABLE: u8 = 3;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
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
