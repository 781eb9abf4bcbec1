//! The `Maintenance` and `Cluster` services, which tools call first: one member, no alarms, nothing
//! to maintain.

use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbClusterService, PbDefragmentRequest, PbDefragmentResponse, PbDowngradeRequest, PbDowngradeResponse,
    PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse, PbMaintenanceService, PbMember, PbMemberAddRequest,
    PbMemberAddResponse, PbMemberListRequest, PbMemberListResponse, PbMemberPromoteRequest, PbMemberPromoteResponse, PbMemberRemoveRequest,
    PbMemberRemoveResponse, PbMemberUpdateRequest, PbMemberUpdateResponse, PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest,
    PbSnapshotResponse, PbStatusRequest, PbStatusResponse,
};
use tonic::{Request, Response, Status};

use crate::etcd_api::errors::permission_denied;
use crate::etcd_api::responses::MessageStream;
use crate::etcd_api::state::{EtcdApi, MEMBER_ID, RAFT_TERM, client_of, newest_header};
use crate::model::ETCD_VERSION;

/// Name of the only member.
const MEMBER_NAME: &str = "meshkeep";

/// Action that lists alarms. Setting and clearing alarms is refused.
const ALARM_GET: i32 = 0;

#[tonic::async_trait]
impl PbMaintenanceService for EtcdApi {
    type SnapshotStream = MessageStream<PbSnapshotResponse>;

    async fn alarm(&self, request: Request<PbAlarmRequest>) -> Result<Response<PbAlarmResponse>, Status> {
        if request.get_ref().action != ALARM_GET {
            return Err(permission_denied());
        }
        Ok(Response::new(PbAlarmResponse { header: self.current_header().await?, alarms: Vec::new() }))
    }

    async fn status(&self, request: Request<PbStatusRequest>) -> Result<Response<PbStatusResponse>, Status> {
        let reading = self.reading().await?;
        let head = reading.position().sequence;
        let handle = self.handle.clone();
        let scanner = self.acquire_scanner(client_of(&request))?;
        let bytes = scanner.run_once(move || handle.disk_bytes().iter().map(|(_, bytes)| *bytes).sum::<u64>()).await;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(Response::new(PbStatusResponse {
            header: Some(newest_header(&reading)),
            version: ETCD_VERSION.to_owned(),
            storage_version: ETCD_VERSION.to_owned(),
            db_size: bytes,
            db_size_in_use: bytes,
            leader: MEMBER_ID,
            raft_index: head.0,
            raft_term: RAFT_TERM,
            raft_applied_index: head.0,
            ..PbStatusResponse::default()
        }))
    }

    async fn defragment(&self, _: Request<PbDefragmentRequest>) -> Result<Response<PbDefragmentResponse>, Status> {
        Err(permission_denied())
    }

    async fn hash(&self, _: Request<PbHashRequest>) -> Result<Response<PbHashResponse>, Status> {
        Err(permission_denied())
    }

    async fn hash_kv(&self, _: Request<PbHashKvRequest>) -> Result<Response<PbHashKvResponse>, Status> {
        Err(permission_denied())
    }

    async fn snapshot(&self, _: Request<PbSnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(permission_denied())
    }

    async fn move_leader(&self, _: Request<PbMoveLeaderRequest>) -> Result<Response<PbMoveLeaderResponse>, Status> {
        Err(permission_denied())
    }

    async fn downgrade(&self, _: Request<PbDowngradeRequest>) -> Result<Response<PbDowngradeResponse>, Status> {
        Err(permission_denied())
    }
}

#[tonic::async_trait]
impl PbClusterService for EtcdApi {
    async fn member_add(&self, _: Request<PbMemberAddRequest>) -> Result<Response<PbMemberAddResponse>, Status> {
        Err(permission_denied())
    }

    async fn member_remove(&self, _: Request<PbMemberRemoveRequest>) -> Result<Response<PbMemberRemoveResponse>, Status> {
        Err(permission_denied())
    }

    async fn member_update(&self, _: Request<PbMemberUpdateRequest>) -> Result<Response<PbMemberUpdateResponse>, Status> {
        Err(permission_denied())
    }

    async fn member_list(&self, _: Request<PbMemberListRequest>) -> Result<Response<PbMemberListResponse>, Status> {
        let urls = self.options.urls.clone();
        let member = PbMember { id: MEMBER_ID, name: MEMBER_NAME.to_owned(), client_ur_ls: urls, ..PbMember::default() };
        Ok(Response::new(PbMemberListResponse { header: self.current_header().await?, members: vec![member] }))
    }

    async fn member_promote(&self, _: Request<PbMemberPromoteRequest>) -> Result<Response<PbMemberPromoteResponse>, Status> {
        Err(permission_denied())
    }
}
