//! The `Lease` service: harmless stubs.
//!
//! Agents before 1.18 keep a lease on every etcd that they read from, but attach no key to it. An
//! answer with a TTL of 0, or "not found", would make them assume that their keys are gone
//! (docs/develop/protocol.md §9.2).

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest,
    PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse,
};
use futures_util::{StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use crate::admission::StreamPermit;
use crate::etcd_api::responses::MessageStream;
use crate::etcd_api::state::{EtcdApi, client_of, newest_header};

/// TTL that every keep-alive returns, in seconds. Leases are not stored, so the TTL that the client
/// requested is not known.
///
/// It is the shorter of the two that Cilium requests (docs/develop/protocol.md §7.3), so that no
/// client renews its lease too seldom.
const KEEP_ALIVE_TTL_SECONDS: i64 = 25;

#[tonic::async_trait]
impl PbLeaseService for EtcdApi {
    type LeaseKeepAliveStream = MessageStream<PbLeaseKeepAliveResponse>;

    async fn lease_grant(&self, request: Request<PbLeaseGrantRequest>) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let PbLeaseGrantRequest { id, ttl } = request.into_inner();
        let id = if id == 0 { i64::from(rand::random::<u32>()) + 1 } else { id };
        Ok(Response::new(PbLeaseGrantResponse { header: self.current_header().await?, id, ttl, error: String::new() }))
    }

    async fn lease_revoke(&self, _: Request<PbLeaseRevokeRequest>) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        Ok(Response::new(PbLeaseRevokeResponse { header: self.current_header().await? }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (handle, stop) = (self.handle.clone(), self.options.stop.clone());
        let permit = self.open_stream(client_of(&request))?;
        let answer = move |(mut requests, permit): (Streaming<PbLeaseKeepAliveRequest>, StreamPermit)| {
            let (handle, stop) = (handle.clone(), stop.clone());
            async move {
                let request = stop.run_until_cancelled(requests.next()).await??.ok()?;
                let reading = handle.try_reading()?;
                let header = Some(newest_header(&reading));
                Some((Ok(PbLeaseKeepAliveResponse { header, id: request.id, ttl: KEEP_ALIVE_TTL_SECONDS }), (requests, permit)))
            }
        };
        Ok(Response::new(Box::pin(stream::unfold((request.into_inner(), permit), answer))))
    }

    /// Reports that there is no such lease, because no key is attached to any.
    async fn lease_time_to_live(&self, request: Request<PbLeaseTimeToLiveRequest>) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let (id, header) = (request.into_inner().id, self.current_header().await?);
        Ok(Response::new(PbLeaseTimeToLiveResponse { header, id, ttl: -1, granted_ttl: 0, keys: Vec::new() }))
    }

    async fn lease_leases(&self, _: Request<PbLeaseLeasesRequest>) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        Ok(Response::new(PbLeaseLeasesResponse { header: self.current_header().await?, leases: Vec::new() }))
    }
}
