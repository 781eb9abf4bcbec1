//! The mirror as a read-only etcd v3 over gRPC, for agents and tools that only read from an etcd.
//!
//! It has the keys that a KVStoreMesh would write, served from memory, with sequences as revisions.
//! All data comes from a [`Handle`]. Writes are refused with etcd's own error. The `server` module
//! provides the sockets, TLS and the accept loop. The compiled messages of etcd's API come from
//! `etcd-client`. No other module imports tonic's server.

mod errors;
mod heartbeat;
mod key_interval;
mod kv;
mod permissions;
mod pinned_snapshots;
mod recent_changes;
mod request_body;
mod responses;
mod revisions;
mod state;
mod stubs;
#[cfg(test)]
mod tests;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use etcd_client::proto::{PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer};
use http::{Request, Response};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::{Service, ServiceExt};

use crate::admission::ScanExecutor;
use crate::handle::Handle;
use kv::KvService;
use request_body::RequestBody;
use responses::ResponseBody;
use state::EtcdApi;
use stubs::auth::AuthStub;
use watch::WatchService;

pub use heartbeat::write_heartbeats;

/// Maximum bytes of a message that contains neither keys nor values, only a few numbers and
/// addresses.
const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Options of the etcd API.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    /// Set if clients present certificates. They may then read only the keys that etcd's role
    /// `local` may read.
    pub restricted: bool,
    /// URLs of the etcd API.
    pub urls: Vec<String>,
    /// Scheduler of long requests, shared with the HTTP API.
    pub scans: ScanExecutor,
    /// Ends every stream when it is cancelled.
    pub stop: CancellationToken,
}

/// Creates the etcd API as a tower service that answers HTTP/2 requests.
pub fn service<B>(
    handle: Handle,
    options: EtcdOptions,
) -> impl Service<Request<B>, Response = Response<ResponseBody>, Error = Infallible, Future: Send> + Clone + Send + Sync
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + Send + 'static,
{
    let api = Arc::new(EtcdApi::new(handle, options));
    let routes = Routes::new(PbKvServer::new(KvService(Arc::clone(&api))))
        .add_service(PbWatchServer::new(WatchService(Arc::clone(&api))))
        .add_service(PbLeaseServer::from_arc(Arc::clone(&api)).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX))
        .add_service(PbClusterServer::from_arc(Arc::clone(&api)).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX))
        .add_service(PbMaintenanceServer::from_arc(Arc::clone(&api)).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX))
        .add_service(AuthStub);
    let routes = ServiceExt::<Request<RequestBody<B>>>::map_response(routes, ResponseBody::from_response);
    ServiceExt::<Request<RequestBody<B>>>::map_request(routes, move |request: Request<B>| RequestBody::wrap_request(&api, request))
}
