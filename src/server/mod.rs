//! Serving of connections: listeners, TLS, the accept loop, connection limits, time-outs and
//! reloadable files.
//!
//! This module knows HTTP only as a transport. The HTTP API and the etcd API are both served here;
//! each of them passes an [`Endpoint`] with its routes.

mod accept;
mod kept;
mod listen;
mod pieces;
mod seats;
mod stall;
mod tls;
mod visit;

pub(crate) use accept::{Endpoint, serve};
pub(crate) use kept::{Kept, KeptFiles, Look};
pub(crate) use listen::Listener;
pub(crate) use seats::Seats;
pub(crate) use stall::STALL_MAX;
pub(crate) use tls::{Serving, TLS_CERTIFICATE, keep_tls};
pub(crate) use visit::{BodyOverdue, Transport, Visit};

pub use listen::ListenError;
pub use seats::{ConnectionLimits, HEALTH_CONNECTION_COUNT_MAX};

pub use tls::{TlsError, TlsFiles};
