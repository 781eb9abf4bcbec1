//! Listeners on TCP addresses and unix sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::admission::Client;
use crate::model::ListenAddress;

/// Mode of a unix socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// Maximum number of unsent bytes in the kernel per connection (tcp(7), `TCP_NOTSENT_LOWAT`).
///
/// Two chunks of a stream fit, so that one is ready when the other was sent. Linux would buffer up
/// to 4 MB by default: memory for data that is old by the time a slow reader receives it.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Length of the accept queue: Linux's default maximum (`net.core.somaxconn`).
///
/// The kernel drops connection attempts beyond it, and their clients try again a second later. The
/// queue is long enough for many anonymous clients that reconnect at the same time.
const BACKLOG: u32 = 4_096;

/// Error from binding an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system refused the address.
    #[error("cannot listen on {address}: {cause}")]
    Address {
        /// Address to listen on.
        address: ListenAddress,
        /// Error of the system.
        cause: io::Error,
    },
    /// Another process accepts connections on the unix socket.
    #[error("cannot listen on unix://{}: another process uses it", path.display())]
    SocketInUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The file at the path is not a socket.
    #[error("cannot listen on unix://{}: the file is not a socket; remove it or choose another path", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
}

/// A bound TCP address or unix socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

/// An accepted connection.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// File of a unix socket. Removed on drop, unless another process has put its own socket there.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    file_id: Option<(u64, u64)>,
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

impl SocketFile {
    fn created(path: &Path) -> Self {
        Self { path: path.to_owned(), file_id: file_id(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_id(&self.path) != self.file_id {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the socket was already removed");
        }
    }
}

impl Listener {
    /// Binds the address.
    ///
    /// # Errors
    /// Returns a [`ListenError`] that names the address or the path.
    pub(crate) async fn bind(address: &ListenAddress) -> Result<Self, ListenError> {
        let failed = |cause| ListenError::Address { address: address.clone(), cause };
        match address {
            ListenAddress::Tcp(requested) => {
                let listener = bind_tcp(*requested).map_err(failed)?;
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

    /// Accepts the next connection and returns it with its client.
    pub(super) async fn accept(&self) -> io::Result<(Socket, Client)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                // errors are ignored: a closed connection ends by itself, and `TCP_NOTSENT_LOWAT`
                // is optional
                drop(stream.set_nodelay(true));
                drop(SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
                Ok((Socket::Tcp(stream), Client::from_ip(peer.ip())))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| (Socket::Unix(stream), Client::Local)),
        }
    }

    /// Returns the bound address as a URL.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match self {
            Self::Tcp(_, address) => format!("{scheme}://{address}"),
            Self::Unix(_, file) => format!("unix://{}", file.path.display()),
        }
    }

    /// Returns the IP address of a TCP listener; `None` for a unix socket.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, address) => Some(address.ip()),
            Self::Unix(..) => None,
        }
    }
}

/// Binds a TCP address as tokio does, but with [`BACKLOG`].
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Creates a unix socket at a free path. Clients can connect only after its mode is set, because it
/// listens last.
fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    let file = SocketFile::created(path);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG.cast_signed())?;
    socket.set_nonblocking(true)?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

/// Removes a socket that a dead process left behind.
///
/// # Errors
/// Returns [`ListenError::SocketInUse`] if a process listens on it, even one that is too busy to
/// accept.
async fn clear_stale_socket(path: &Path) -> Result<(), ListenError> {
    let failed = |cause| ListenError::Address { address: ListenAddress::Unix(path.to_owned()), cause };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ListenError::SocketInUse { path: path.to_owned() }),
        // the accept queue of the other process is full
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ListenError::SocketInUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
