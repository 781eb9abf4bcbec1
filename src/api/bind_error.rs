//! What can go wrong with the face at the start.

use std::io;
use std::path::PathBuf;

use super::tls::TlsError;
use crate::model::ListenAddress;

/// Why the face cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Address {
        /// Which.
        address: ListenAddress,
        /// Why.
        cause: io::Error,
    },
    /// Something answers on a unix socket.
    #[error("cannot listen on unix://{}: another process answers there", path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// There is something at the path that is no socket.
    #[error("cannot listen on unix://{}: there is a file of another kind, remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
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
    /// Nothing can be posted to where `--on-problem` says.
    #[error("cannot use --on-problem {shown}: {reason}")]
    OnProblem {
        /// What of it may be shown.
        shown: String,
        /// Why.
        reason: String,
    },
}
