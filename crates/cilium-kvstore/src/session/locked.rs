//! Operations under a lock: transactions that have no effect unless the lock is held.

use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use etcd_client::{GetOptions, Txn, TxnOp};

use super::mutex::range_reply;
use super::operations::{absent, put_op};
use super::{KeyLifetime, KvLocker, Session};
use crate::error::printable;
use crate::{KeyValue, KvstoreError, LeaseId, Revision, prefix_end};

impl Session {
    /// [`Session::get`] under a lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn get_if_locked(&self, key: &[u8], lock: &KvLocker) -> Result<Option<KeyValue>, KvstoreError> {
        self.traced("get_if_locked", key, async { Ok(self.read_locked(key, GetOptions::new(), lock).await?.into_iter().next()) }).await
    }

    /// [`Session::get_prefix`] under a lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn get_prefix_if_locked(&self, prefix: &[u8], lock: &KvLocker) -> Result<Option<KeyValue>, KvstoreError> {
        let options = GetOptions::new().with_range(prefix_end(prefix)).with_limit(1);
        self.traced("get_prefix_if_locked", prefix, async { Ok(self.read_locked(prefix, options, lock).await?.into_iter().next()) }).await
    }

    /// [`Session::list_prefix`] under a lock. The keys always come in one message, without pages.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn list_prefix_if_locked(&self, prefix: &[u8], lock: &KvLocker) -> Result<Vec<KeyValue>, KvstoreError> {
        let options = GetOptions::new().with_range(prefix_end(prefix));
        self.traced("list_prefix_if_locked", prefix, self.read_locked(prefix, options, lock)).await
    }

    /// [`Session::update`] under a lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn update_if_locked(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: KeyLifetime,
        lock: &KvLocker,
    ) -> Result<Revision, KvstoreError> {
        self.traced("update_if_locked", key, self.put_locked(key, value, lifetime, lock)).await
    }

    /// [`Session::update_if_different`] under a lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn update_if_different_if_locked(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: KeyLifetime,
        lock: &KvLocker,
    ) -> Result<bool, KvstoreError> {
        let updating = async {
            match self.read_locked(key, GetOptions::new(), lock).await {
                Ok(key_values) if self.is_up_to_date(key_values.first(), value, lifetime) => return Ok(false),
                Err(error @ KvstoreError::LockLost { .. }) => return Err(error),
                Ok(_) | Err(_) => {}
            }
            self.put_locked(key, value, lifetime, lock).await?;
            Ok(true)
        };
        self.traced("update_if_different_if_locked", key, updating).await
    }

    /// [`Session::create_only`] under a lock. Returns `false` if the key exists, even if the lock
    /// is lost.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the key does not exist and the lock is not held.
    pub async fn create_only_if_locked(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: KeyLifetime,
        lock: &KvLocker,
    ) -> Result<bool, KvstoreError> {
        let creating = async {
            let operation = || format!("creating {}", printable(key));
            let (connection, lease) = self.shared.connection_and_lease(key, lifetime, operation).await?;
            let put = [put_op(key, value, lease)];
            let txn = Txn::new().when([absent(key), lock.comparator().comparison()]).and_then(put).or_else([TxnOp::get(key, None)]);
            let result = connection.transact(operation, txn).await;
            let (reply, _) = self.shared.forget_lost_lease(result, lease)?;
            if reply.succeeded {
                return Ok(true);
            }
            self.shared.release_unwritten(key, lifetime);
            if range_reply(&reply, 0)?.kvs.is_empty() { Err(lock_lost(&operation())) } else { Ok(false) }
        };
        self.traced("create_only_if_locked", key, creating).await
    }

    /// [`Session::delete`] under a lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; `LockLost` if the lock is not held.
    pub async fn delete_if_locked(&self, key: &[u8], lock: &KvLocker) -> Result<bool, KvstoreError> {
        let deleting = async {
            let (reply, _) = self.transact_if_locked(|| format!("deleting {}", printable(key)), lock, TxnOp::delete(key, None)).await?;
            self.shared.key_leases.release(key);
            Ok(deleted_count(&reply)? > 0)
        };
        self.traced("delete_if_locked", key, deleting).await
    }

    async fn read_locked(&self, key: &[u8], options: GetOptions, lock: &KvLocker) -> Result<Vec<KeyValue>, KvstoreError> {
        let (reply, _) = self.transact_if_locked(|| format!("reading {}", printable(key)), lock, TxnOp::get(key, Some(options))).await?;
        Ok(range_reply(&reply, 0)?.kvs.iter().cloned().map(KeyValue::from).collect())
    }

    async fn put_locked(&self, key: &[u8], value: &[u8], lifetime: KeyLifetime, lock: &KvLocker) -> Result<Revision, KvstoreError> {
        let operation = || format!("writing {}", printable(key));
        let (connection, lease) = self.shared.connection_and_lease(key, lifetime, operation).await?;
        let txn = Txn::new().when([lock.comparator().comparison()]).and_then([put_op(key, value, lease)]);
        let (reply, revision) = self.shared.forget_lost_lease(connection.transact(operation, txn).await, lease)?;
        if reply.succeeded { Ok(revision) } else { Err(lock_lost(&operation())) }
    }

    async fn transact_if_locked(
        &self,
        operation: impl Fn() -> String,
        lock: &KvLocker,
        request: TxnOp,
    ) -> Result<(PbTxnResponse, Revision), KvstoreError> {
        let connection = self.shared.paced_connection(&operation).await?;
        let txn = Txn::new().when([lock.comparator().comparison()]).and_then([request]);
        let (reply, revision) = self.shared.forget_lost_lease(connection.transact(&operation, txn).await, LeaseId(0))?;
        if reply.succeeded { Ok((reply, revision)) } else { Err(lock_lost(&operation())) }
    }
}

/// Returns the number of keys that the first operation of a transaction deleted.
fn deleted_count(reply: &PbTxnResponse) -> Result<u64, KvstoreError> {
    match reply.responses.first().and_then(|response| response.response.as_ref()) {
        Some(PbTxnOpResponse::ResponseDeleteRange(range)) => Ok(u64::try_from(range.deleted).unwrap_or(0)),
        _ => Err(KvstoreError::Malformed { reason: "a delete in a transaction got the answer of another request".into() }),
    }
}

fn lock_lost(operation: &str) -> KvstoreError {
    KvstoreError::LockLost { operation: operation.to_owned() }
}
