//! What can go wrong with the face at the start.

use std::path::PathBuf;

use crate::findings::OnProblemError;
use crate::server::{ListenError, TlsError};

/// Why the face cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The token file cannot be used.
    #[error("cannot use the token file {}: {reason}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The certificate, key or client CA cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nothing can be posted to the URL of `--on-problem`.
    #[error(transparent)]
    OnProblem(#[from] OnProblemError),
}
