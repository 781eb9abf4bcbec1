//! Serving of connections: listeners, TLS, the accept loop, connection limits, time-outs and
//! reloadable files.
//!
//! This module knows HTTP only as a transport. The HTTP API and the etcd API are both served here;
//! each of them passes an [`Endpoint`] with its routes.

mod accept;
mod connection_limiter;
mod exchange;
mod framed_body;
mod listen;
mod reloadable_file;
mod tls;
mod write_timeout;

pub(crate) use accept::{Endpoint, serve};
pub(crate) use connection_limiter::ConnectionLimiter;
pub(crate) use exchange::{BodyTimeout, HttpExchange, Transport};
pub(crate) use listen::Listener;
pub(crate) use reloadable_file::{Reloadable, ReloadableFile, ReloadableFiles};
pub(crate) use tls::{TLS_CERTIFICATE, TlsConfig, open_tls};
pub(crate) use write_timeout::WRITE_TIMEOUT;

pub use connection_limiter::{ConnectionLimits, HEALTH_CONNECTION_COUNT_MAX};
pub use listen::ListenError;

pub use tls::{TlsError, TlsFiles};
