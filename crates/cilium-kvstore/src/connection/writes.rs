//! Writes over a connection: puts, deletes, transactions, leases, users. Each operation is one call
//! and is not retried.

use std::time::Duration;

use etcd_client::proto::{PbRangeResponse, PbStatusResponse, PbTxnResponse};
use etcd_client::{DeleteOptions, GetOptions, PutOptions, Txn, UserAddOptions};
use tokio::time::timeout;
use tonic::Code;

use crate::error::printable;
use crate::{Connection, KvstoreError, LeaseId, Revision};

impl Connection {
    /// Puts a key. The key gets no lease if `lease` is 0.
    pub(crate) async fn put(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<Revision, KvstoreError> {
        let mut kv = self.shared.kv.clone();
        let options = (lease.0 != 0).then(|| PutOptions::new().with_lease(lease.0));
        let call = Box::pin(kv.put(key, value, options));
        Ok(self.shared.call(|| format!("writing {}", printable(key)), call, |reply| reply.0.header.as_ref()).await?.1)
    }

    /// Deletes a key, or the range `[key, range_end)`. Returns the number of deleted keys.
    pub(crate) async fn delete(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(u64, Revision), KvstoreError> {
        let mut kv = self.shared.kv.clone();
        let call = Box::pin(kv.delete(key, delete_options(range_end)));
        let (reply, revision) = self.shared.call(|| format!("deleting {}", printable(key)), call, |reply| reply.0.header.as_ref()).await?;
        let count =
            u64::try_from(reply.0.deleted).map_err(|_| KvstoreError::Malformed { reason: "a negative count of deletions".into() })?;
        Ok((count, revision))
    }

    pub(crate) async fn transact(&self, operation: impl Fn() -> String, txn: Txn) -> Result<(PbTxnResponse, Revision), KvstoreError> {
        let _permit = self.shared.permit().await;
        self.transact_without_permit(operation, txn).await
    }

    /// Runs a transaction for a lock, without waiting for a permit.
    pub(crate) async fn transact_without_permit(
        &self,
        operation: impl Fn() -> String,
        txn: Txn,
    ) -> Result<(PbTxnResponse, Revision), KvstoreError> {
        let mut kv = self.shared.kv.clone();
        let (reply, revision) = self.shared.call_without_permit(operation, Box::pin(kv.txn(txn)), |reply| reply.0.header.as_ref()).await?;
        Ok((reply.0, revision))
    }

    /// Reads a key or range for a lock, without waiting for a permit.
    pub(crate) async fn range_without_permit(&self, key: &[u8], options: GetOptions) -> Result<(PbRangeResponse, Revision), KvstoreError> {
        let mut kv = self.shared.kv.clone();
        let call = Box::pin(kv.get(key, Some(options)));
        let (reply, revision) =
            self.shared.call_without_permit(|| format!("reading {}", printable(key)), call, |reply| reply.0.header.as_ref()).await?;
        Ok((reply.0, revision))
    }

    /// Deletes the key of a lock, without waiting for a permit.
    pub(crate) async fn delete_without_permit(&self, key: &[u8]) -> Result<(), KvstoreError> {
        let mut kv = self.shared.kv.clone();
        let call = Box::pin(kv.delete(key, None));
        self.shared.call_without_permit(|| format!("deleting {}", printable(key)), call, |reply| reply.0.header.as_ref()).await?;
        Ok(())
    }

    pub(crate) async fn grant(&self, ttl: Duration) -> Result<LeaseId, KvstoreError> {
        let mut leases = self.shared.client.lease_client();
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let call = Box::pin(leases.grant(seconds, None));
        let (reply, _) = self.shared.call_without_permit(|| "requesting a lease".into(), call, |reply| reply.0.header.as_ref()).await?;
        match reply.0.id {
            0 => Err(KvstoreError::Malformed { reason: "a lease without an id".into() }),
            id => Ok(LeaseId(id)),
        }
    }

    /// Renews a lease. Returns false if etcd no longer has it. Opens a new stream for each renewal:
    /// a lease is renewed every five minutes, and with one stream per lease a thousand streams
    /// would stay open between renewals.
    pub(crate) async fn keep_alive(&self, lease: LeaseId, limit: Duration) -> Result<bool, KvstoreError> {
        let mut leases = self.shared.client.lease_client();
        let operation = || format!("renewing lease {:x}", lease.0);
        match timeout(limit, Box::pin(leases.keep_alive(lease.0))).await {
            Ok(Ok(_)) => Ok(true),
            // the client crate's error for a response whose TTL is 0 or less
            Ok(Err(etcd_client::Error::LeaseKeepAliveError(_))) => Ok(false),
            Ok(Err(etcd_client::Error::GRpcStatus(status))) if status.code() == Code::NotFound => Ok(false),
            Ok(Err(error)) => Err(KvstoreError::from_call(operation(), self.shared.options.message_bytes_max, &error)),
            Err(_) => Err(KvstoreError::Timeout { operation: operation(), limit }),
        }
    }

    /// Revokes a lease and thereby deletes all its keys.
    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<(), KvstoreError> {
        let mut leases = self.shared.client.lease_client();
        let operation = || format!("revoking lease {:x}", lease.0);
        match self.shared.call_without_permit(operation, Box::pin(leases.revoke(lease.0)), |reply| reply.0.header.as_ref()).await {
            Err(KvstoreError::Rpc { code: Code::NotFound, .. }) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Requests the status of this member (`Maintenance/Status`).
    pub(crate) async fn member_status(&self) -> Result<PbStatusResponse, KvstoreError> {
        let mut maintenance = self.shared.client.maintenance_client();
        let operation = || "reading the member's status".into();
        let (reply, _) =
            self.shared.call_without_permit(operation, Box::pin(maintenance.status()), |reply| reply.0.header.as_ref()).await?;
        Ok(reply.0)
    }

    /// Adds a user without a password, who authenticates with a certificate. Returns false if the
    /// user already exists.
    pub(crate) async fn add_user(&self, name: &str) -> Result<bool, KvstoreError> {
        let mut users = self.shared.client.auth_client();
        let call = Box::pin(users.user_add(name, "", Some(UserAddOptions::new().with_no_pwd())));
        match self.shared.call_without_permit(|| format!("adding user {name:?}"), call, |reply| reply.0.header.as_ref()).await {
            Ok(_) => Ok(true),
            Err(KvstoreError::Rpc { message, .. }) if message.contains("user name already exists") => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn roles_of(&self, name: &str) -> Result<Vec<String>, KvstoreError> {
        let mut users = self.shared.client.auth_client();
        let call = Box::pin(users.user_get(name));
        let (reply, _) =
            self.shared.call_without_permit(|| format!("reading user {name:?}"), call, |reply| reply.0.header.as_ref()).await?;
        Ok(reply.0.roles)
    }

    pub(crate) async fn grant_role(&self, name: &str, role: &str) -> Result<(), KvstoreError> {
        let mut users = self.shared.client.auth_client();
        let operation = || format!("granting role {role:?} to user {name:?}");
        self.shared.call_without_permit(operation, Box::pin(users.user_grant_role(name, role)), |reply| reply.0.header.as_ref()).await?;
        Ok(())
    }

    pub(crate) async fn revoke_role(&self, name: &str, role: &str) -> Result<(), KvstoreError> {
        let mut users = self.shared.client.auth_client();
        let operation = || format!("revoking role {role:?} from user {name:?}");
        self.shared.call_without_permit(operation, Box::pin(users.user_revoke_role(name, role)), |reply| reply.0.header.as_ref()).await?;
        Ok(())
    }

    /// Deletes a user. Returns false if it does not exist.
    pub(crate) async fn delete_user(&self, name: &str) -> Result<bool, KvstoreError> {
        let mut users = self.shared.client.auth_client();
        let call = Box::pin(users.user_delete(name));
        match self.shared.call_without_permit(|| format!("deleting user {name:?}"), call, |reply| reply.0.header.as_ref()).await {
            Ok(_) => Ok(true),
            Err(KvstoreError::Rpc { message, .. }) if message.contains("user name not found") => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn delete_options(range_end: Option<&[u8]>) -> Option<DeleteOptions> {
    range_end.map(|end| DeleteOptions::new().with_range(end))
}
