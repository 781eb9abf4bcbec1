//! Errors when the HTTP API starts.

use std::path::PathBuf;

use crate::findings::OnProblemError;
use crate::server::{ListenError, TlsError};

/// Reason why the HTTP API cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The token file cannot be used.
    #[error("cannot use the token file {}: {reason}", path.display())]
    Token {
        /// Path of the token file.
        path: PathBuf,
        /// Reason why it cannot be used.
        reason: String,
    },
    /// The certificate, key or client CA cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The URL of `--on-problem` cannot be used.
    #[error(transparent)]
    OnProblem(#[from] OnProblemError),
}
