//! Where the face listens: addresses, binding, and what can go wrong with it at the start.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

use super::ApiOptions;
use super::guard::{Guard, Hosts, Token};
use super::kept::{Kept, KeptFiles, Look};
use super::tls::{self, TlsError};
use crate::model::ListenAddress;

/// The mode of a unix socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

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
}

/// A face that holds its addresses and serves nothing yet.
pub struct Bound {
    pub(super) listeners: Vec<Listener>,
    pub(super) guard: Guard,
    pub(super) tls: Option<Arc<Kept<ServerConfig>>>,
    /// The token and the certificates.
    pub(super) files: KeptFiles,
    pub(super) reread: Arc<Notify>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// One bound address.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

/// A unix socket's file; removed when dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the socket was gone already");
        }
    }
}

impl Bound {
    /// Takes every address and reads every file that serving needs, so that nothing of it can fail later.
    ///
    /// # Errors
    /// [`BindError`], naming the address or file; nothing stays bound then.
    pub async fn bind(listen: &[ListenAddress], options: &ApiOptions) -> Result<Self, BindError> {
        let tls = options.tls.as_ref().map(tls::keep).transpose()?.map(Arc::new);
        let token = options.token_file.as_deref().map(keep_token).transpose()?.map(Arc::new);
        let kept = [tls.clone().map(|tls| tls as Arc<dyn Look>), token.clone().map(|token| token as Arc<dyn Look>)];
        let mut listeners = Vec::with_capacity(listen.len());
        for address in listen {
            listeners.push(Listener::bind(address).await?);
        }
        let bound: Vec<IpAddr> = listeners.iter().filter_map(Listener::ip).collect();
        let guard = Guard::new(Hosts::new(&bound, &options.allowed_hosts), token);
        let (files, reread) = (KeptFiles::new(kept.into_iter().flatten()), Arc::clone(&options.reread));
        Ok(Self { guard, listeners, tls, files, reread })
    }

    /// What was bound, as URLs: `http://127.0.0.1:PORT`, `https://…` with TLS, `unix:///path`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = |listener: &Listener| match listener {
            Listener::Tcp(_, address) => format!("{scheme}://{address}"),
            Listener::Unix(_, SocketFile(path)) => format!("unix://{}", path.display()),
        };
        self.listeners.iter().map(url).collect()
    }
}

fn keep_token(path: &Path) -> Result<Kept<Token>, BindError> {
    Token::keep(path).map_err(|reason| BindError::Token { path: path.to_owned(), reason })
}

impl Listener {
    async fn bind(address: &ListenAddress) -> Result<Self, BindError> {
        let failed = |cause| BindError::Address { address: address.clone(), cause };
        match address {
            ListenAddress::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok(Self::Tcp(listener, bound))
            }
            ListenAddress::Unix(path) => {
                clear_stale_socket(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                let file = SocketFile(path.clone());
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, address) => Some(address.ip()),
            Self::Unix(..) => None,
        }
    }
}

/// Removes a socket that a process left behind; one on which something answers is not touched.
fn clear_stale_socket(path: &Path) -> Result<(), BindError> {
    let failed = |cause| BindError::Address { address: ListenAddress::Unix(path.to_owned()), cause };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(BindError::SocketInUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
