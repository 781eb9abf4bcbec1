//! Listening: TCP and unix addresses, and the connections that they accept.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::admission::Client;
use crate::model::ListenAddress;

/// The mode of a unix socket: its owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// How much the kernel takes for a connection beyond what is on its way (tcp(7), `TCP_NOTSENT_LOWAT`): two chunks of a stream, so that one
/// is there when another was sent. What more it would take (4 MB by Linux' default) is old by the time a slow reader gets it, and memory.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// How many connections may wait to be accepted: what Linux allows at most unless told otherwise (`net.core.somaxconn`). Above it the kernel
/// drops what comes, and whoever came tries again a second later: strangers that come back at once must be many more to bring that about.
const BACKLOG: u32 = 4_096;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system refuses the address.
    #[error("cannot listen on {address}: {cause}")]
    Address {
        /// The address.
        address: ListenAddress,
        /// The system's error.
        cause: io::Error,
    },
    /// Another process accepts connections on the unix socket.
    #[error("cannot listen on unix://{}: another process answers there", path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The file at the path is not a socket.
    #[error("cannot listen on unix://{}: there is a file of another kind, remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
}

/// One bound address.
#[derive(Debug)]
pub(crate) enum Listener {
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
pub(crate) struct SocketFile {
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

impl Listener {
    /// Binds the address.
    ///
    /// # Errors
    /// [`ListenError`], naming the address or the path.
    pub(crate) async fn bind(address: &ListenAddress) -> Result<Self, ListenError> {
        let failed = |cause| ListenError::Address { address: address.clone(), cause };
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

    /// The bound address as a URL.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match self {
            Self::Tcp(_, address) => format!("{scheme}://{address}"),
            Self::Unix(_, file) => format!("unix://{}", file.path.display()),
        }
    }

    /// The bound address of TCP.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
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
async fn clear_stale_socket(path: &Path) -> Result<(), ListenError> {
    let failed = |cause| ListenError::Address { address: ListenAddress::Unix(path.to_owned()), cause };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ListenError::SocketInUse { path: path.to_owned() }),
        // so many wait to be accepted that there is no room for one more
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ListenError::SocketInUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
