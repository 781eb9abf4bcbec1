//! The mirror as a read-only etcd v3 over gRPC, for agents and tools that speak nothing else: the keys that a KVStoreMesh would write, straight
//! from memory, with our sequences as revisions.
//!
//! Receives a [`Handle`] and asks it for readings. The only importer of tonic's server; etcd's own messages come compiled with `etcd-client`.
//! Deliberately lacks: sockets, TLS and the accept loop, which are the HTTP face's (`api`), and any way to write: what would is refused with
//! etcd's own error.

mod answers;
mod face;
mod heart;
mod kv;
mod lease;
mod maintenance;
mod moment;
mod no_users;
mod pins;
mod range;
mod range_stream;
mod refusal;
mod revisions;
mod rights;
mod span;
#[cfg(test)]
mod tests;
mod txn;
mod watch;
mod window;

use std::convert::Infallible;
use std::sync::Arc;

use etcd_client::proto::{PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer};
use http::{Request, Response};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::{Service, ServiceExt};

use crate::handle::Handle;
use answers::HeldBody;
use face::Face;
use kv::Keys;
use no_users::NoUsers;
use watch::Watches;

pub use heart::beat;

/// What the face needs beside the mirror.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    /// Who asks has shown a certificate, and may read what etcd's role `local` may.
    pub restricted: bool,
    /// Where it is served, as URLs.
    pub urls: Vec<String>,
    /// Ends every stream.
    pub stop: CancellationToken,
}

/// The face as a service of HTTP/2 requests.
pub fn service<B>(
    handle: Handle,
    options: EtcdOptions,
) -> impl Service<Request<B>, Response = Response<HeldBody>, Error = Infallible, Future: Send> + Clone + Send + Sync
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let face = Arc::new(Face::new(handle, options));
    let routes = Routes::new(PbKvServer::new(Keys(Arc::clone(&face))))
        .add_service(PbWatchServer::new(Watches(Arc::clone(&face))))
        .add_service(PbLeaseServer::from_arc(Arc::clone(&face)))
        .add_service(PbClusterServer::from_arc(Arc::clone(&face)))
        .add_service(PbMaintenanceServer::from_arc(face))
        .add_service(NoUsers);
    ServiceExt::<Request<B>>::map_response(routes, HeldBody::of)
}
