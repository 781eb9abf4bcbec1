//! Where the face listens: addresses, binding, and what can go wrong with it at the start.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;

use super::ApiOptions;
use super::bind_error::BindError;
use super::etcd::EtcdService;
use super::guard::{Guard, Hosts, Token};
use super::kept::{Kept, KeptFiles, Look};
use super::posts::Poster;
use super::seats::ConnectionLimits;
use super::tls::{self, Serving};
use crate::admission::{Client, Scans};
use crate::model::ListenAddress;

/// The mode of a unix socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// How much the kernel takes for a connection beyond what is on its way (tcp(7), `TCP_NOTSENT_LOWAT`): two chunks of a stream, so that one
/// is there when another was sent. What more it would take (4 MB by Linux' default) is old by the time a slow reader gets it, and memory.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// How many connections may wait to be accepted: what Linux allows at most unless told otherwise (`net.core.somaxconn`). Above it the kernel
/// drops what comes, and whoever came tries again a second later: strangers that come back at once must be many more to bring that about.
const BACKLOG: u32 = 4_096;

/// A face that holds its addresses and serves nothing yet.
pub struct Bound {
    pub(super) listeners: Vec<Listener>,
    /// Where probes and metrics alone are served.
    pub(super) health: Option<Listener>,
    /// Where the mirror is served as an etcd, and what answers there.
    pub(super) etcd: Option<Listener>,
    pub(super) etcd_service: Option<EtcdService>,
    /// Where both do what takes long.
    pub(super) scans: Scans,
    pub(super) guard: Guard,
    pub(super) health_guard: Guard,
    pub(super) etcd_guard: Guard,
    pub(super) tls: Option<Arc<Kept<Serving>>>,
    /// The token and the certificates.
    pub(super) files: KeptFiles,
    pub(super) reread: Arc<Notify>,
    pub(super) limits: ConnectionLimits,
    /// Posts findings.
    pub(super) poster: Option<Poster>,
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

/// A connection that was accepted.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A unix socket's file; removed when dropped, if it is still the one that was made: another process may have put its own there.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    place: Option<(u64, u64)>,
}

fn place(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

impl SocketFile {
    fn made(path: &Path) -> Self {
        Self { path: path.to_owned(), place: place(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if place(&self.path) != self.place {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the socket was gone already");
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
        let poster = options.on_problem.as_ref().map(Poster::new).transpose()?;
        let mut listeners = Vec::with_capacity(listen.len());
        for address in listen {
            listeners.push(Listener::bind(address).await?);
        }
        let health = match &options.health_listen {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        let etcd = match &options.etcd_listen {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        let without_token = |address: &Option<ListenAddress>| match address {
            // a page in a browser of this machine must not read it through a name of its own
            Some(address) if address.is_local() => Guard::new(Hosts::new(&[], &options.allowed_hosts), None),
            _ => Guard::open_to_all(),
        };
        let (health_guard, etcd_guard) = (without_token(&options.health_listen), without_token(&options.etcd_listen));
        // who asks there has neither token nor certificate
        let is_protected = token.is_some() || options.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let health_guard = if is_protected { health_guard.of_anonymous() } else { health_guard };
        let bound: Vec<IpAddr> = listeners.iter().filter_map(Listener::ip).collect();
        let guard = Guard::new(Hosts::new(&bound, &options.allowed_hosts), token);
        let (files, reread) = (KeptFiles::new(kept.into_iter().flatten()), Arc::clone(&options.reread));
        let limits = options.limits;
        let (etcd_service, scans) = (None, Scans::default());
        Ok(Self { guard, health_guard, etcd_guard, listeners, health, etcd, etcd_service, scans, tls, files, reread, limits, poster })
    }

    /// What was bound, as URLs: `http://127.0.0.1:PORT`, `https://…` with TLS, `unix:///path`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.listeners.iter().map(|listener| listener.url(scheme)).collect()
    }

    /// Where the mirror is served as an etcd, as a URL.
    #[must_use]
    pub fn etcd_address(&self) -> Option<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.etcd.as_ref().map(|listener| listener.url(scheme))
    }

    /// Where it does what takes long, for another face to share.
    #[must_use]
    pub fn scans(&self) -> Scans {
        self.scans.clone()
    }

    /// The bound face, with what answers where the mirror is served as an etcd.
    #[must_use]
    pub fn with_etcd(self, service: EtcdService) -> Self {
        Self { etcd_service: Some(service), ..self }
    }

    /// Where probes and metrics alone are served, as a URL.
    #[must_use]
    pub fn health_address(&self) -> Option<String> {
        self.health.as_ref().map(|listener| listener.url("http"))
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
                let listener = bind_tcp(*wanted).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok(Self::Tcp(listener, bound))
            }
            ListenAddress::Unix(path) => {
                clear_stale_socket(path).await?;
                let (listener, file) = bind_unix(path).map_err(failed)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The next connection, and whose it is.
    pub(super) async fn accept(&self) -> io::Result<(Socket, Client)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                // one that is gone already ends by itself, and a system without the second serves all the same
                drop(stream.set_nodelay(true));
                drop(SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
                Ok((Socket::Tcp(stream), Client::at(peer.ip())))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| (Socket::Unix(stream), Client::Local)),
        }
    }

    fn url(&self, scheme: &str) -> String {
        match self {
            Self::Tcp(_, address) => format!("{scheme}://{address}"),
            Self::Unix(_, file) => format!("unix://{}", file.path.display()),
        }
    }

    fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, address) => Some(address.ip()),
            Self::Unix(..) => None,
        }
    }
}

/// As tokio's own `bind`, but with our backlog.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A unix socket at a path where nothing is. Nobody can connect before its mode is set, for it listens only then.
fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    let file = SocketFile::made(path);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG.cast_signed())?;
    socket.set_nonblocking(true)?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

/// Removes a socket that a process left behind; one on which something answers, or would if it had the time, is not touched.
async fn clear_stale_socket(path: &Path) -> Result<(), BindError> {
    let failed = |cause| BindError::Address { address: ListenAddress::Unix(path.to_owned()), cause };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(BindError::SocketInUse { path: path.to_owned() }),
        // so many wait to be accepted that there is no room for one more
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(BindError::SocketInUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
