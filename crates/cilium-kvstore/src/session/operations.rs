//! Operations on an etcd. Each makes one or two calls, waits for the rate limit, and is not
//! retried.

use std::future::Future;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::time::Instant;

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Connection, KeyValue, KvstoreError, LeaseId, PagedList, Revision, keys, prefix_end};

/// Lifetime of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLifetime {
    /// The key exists until it is deleted.
    Permanent,
    /// The key exists until its lease expires, one TTL after the session ends.
    Leased,
}

impl Session {
    /// Reads a key.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, KvstoreError> {
        self.traced("get", key, async { Ok(self.read(key, self.shared.read_options()).await?.into_iter().next()) }).await
    }

    /// Reads the first key with a prefix.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn get_prefix(&self, prefix: &[u8]) -> Result<Option<KeyValue>, KvstoreError> {
        let options = self.shared.read_options().with_range(prefix_end(prefix)).with_limit(1);
        self.traced("get_prefix", prefix, async { Ok(self.read(prefix, options).await?.into_iter().next()) }).await
    }

    /// Reads all keys with a prefix, ascending, in one call. Uses pages only if the keys do not fit
    /// into one message.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn list_prefix(&self, prefix: &[u8]) -> Result<Vec<KeyValue>, KvstoreError> {
        let listing = async {
            let mut list = self.shared.list_without_page_limit(prefix).await?;
            let mut key_values = Vec::new();
            while let Some(page) = list.next_page().await? {
                key_values.extend(page.key_values);
            }
            Ok(key_values)
        };
        self.traced("list_prefix", prefix, listing).await
    }

    /// Lists the keys below a prefix page by page, as of one revision. Only the first page waits
    /// for the rate limit.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn list_pages(&self, prefix: &[u8]) -> Result<PagedList, KvstoreError> {
        Ok(self.shared.connection(|| format!("listing {}", printable(prefix))).await?.list(prefix))
    }

    /// Writes a key.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn update(&self, key: &[u8], value: &[u8], lifetime: KeyLifetime) -> Result<Revision, KvstoreError> {
        self.traced("update", key, self.put(key, value, lifetime)).await
    }

    /// Writes a key, unless it already has this value and, if `lifetime` is
    /// [`KeyLifetime::Leased`], this session's lease. Returns whether it wrote. If the read fails,
    /// the key is written.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn update_if_different(&self, key: &[u8], value: &[u8], lifetime: KeyLifetime) -> Result<bool, KvstoreError> {
        let updating = async {
            if let Ok(key_values) = self.read(key, GetOptions::new()).await
                && self.is_up_to_date(key_values.first(), value, lifetime)
            {
                return Ok(false);
            }
            self.put(key, value, lifetime).await?;
            Ok(true)
        };
        self.traced("update_if_different", key, updating).await
    }

    /// Writes a key that does not exist. Returns whether it wrote.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn create_only(&self, key: &[u8], value: &[u8], lifetime: KeyLifetime) -> Result<bool, KvstoreError> {
        let creating = async {
            let operation = || format!("creating {}", printable(key));
            let (connection, lease) = self.shared.connection_and_lease(key, lifetime, operation).await?;
            let txn = Txn::new().when([absent(key)]).and_then([put_op(key, value, lease)]);
            let result = connection.transact(operation, txn).await;
            let (reply, _) = self.shared.forget_lost_lease(result, lease)?;
            if !reply.succeeded {
                self.shared.release_unwritten(key, lifetime);
            }
            Ok(reply.succeeded)
        };
        self.traced("create_only", key, creating).await
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, KvstoreError> {
        let deleting = async {
            let connection = self.shared.paced_connection(|| format!("deleting {}", printable(key))).await?;
            let (count, _) = connection.delete(key, None).await?;
            self.shared.key_leases.release(key);
            Ok(count > 0)
        };
        self.traced("delete", key, deleting).await
    }

    /// Deletes all keys with a prefix. Returns their number.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn delete_prefix(&self, prefix: &[u8]) -> Result<u64, KvstoreError> {
        let deleting = async {
            let connection = self.shared.paced_connection(|| format!("deleting below {}", printable(prefix))).await?;
            let (count, revision) = connection.delete(prefix, Some(&prefix_end(prefix))).await?;
            self.shared.release_deleted(&connection, prefix, count, revision).await;
            Ok(count)
        };
        self.traced("delete_prefix", prefix, deleting).await
    }

    /// Reads a key or a range, without tracing.
    pub(super) async fn read(&self, key: &[u8], options: GetOptions) -> Result<Vec<KeyValue>, KvstoreError> {
        let connection = self.shared.paced_connection(|| format!("reading {}", printable(key))).await?;
        let (reply, _) = connection.range(key, options).await?;
        Ok(reply.kvs.into_iter().map(KeyValue::from).collect())
    }

    async fn put(&self, key: &[u8], value: &[u8], lifetime: KeyLifetime) -> Result<Revision, KvstoreError> {
        let (connection, lease) = self.shared.connection_and_lease(key, lifetime, || format!("writing {}", printable(key))).await?;
        let result = connection.put(key, value, lease).await;
        self.shared.forget_lost_lease(result, lease)
    }

    /// Returns whether no write is needed: the key has the value and, if `lifetime` is
    /// [`KeyLifetime::Leased`], our lease. (Cilium also writes nothing if the key has no lease and
    /// Cilium knows no lease for it, because it then compares 0 with 0.)
    pub(super) fn is_up_to_date(&self, key_value: Option<&KeyValue>, value: &[u8], lifetime: KeyLifetime) -> bool {
        key_value.is_some_and(|key_value| {
            let leased = lifetime == KeyLifetime::Permanent || self.shared.key_leases.lease_of(&key_value.key) == Some(key_value.lease);
            leased && *key_value.value == *value
        })
    }

    /// Runs an operation, and logs its result and duration (level trace).
    pub(super) async fn traced<T>(
        &self,
        operation: &'static str,
        key: &[u8],
        run: impl Future<Output = Result<T, KvstoreError>>,
    ) -> Result<T, KvstoreError> {
        let started = Instant::now();
        let result = run.await;
        if tracing::enabled!(tracing::Level::TRACE) {
            let error = result.as_ref().err().map(ToString::to_string);
            let scope = keys::scope_of(&String::from_utf8_lossy(key));
            let took_s = started.elapsed().as_secs_f64();
            tracing::trace!(operation, key = printable(key), scope, took_s, error, "the operation {operation} of the kvstore ended");
        }
        result
    }
}

impl SessionState {
    /// Returns the connection once the rate limit permits one more call.
    pub(super) async fn paced_connection(&self, operation: impl Fn() -> String) -> Result<Connection, KvstoreError> {
        let connection = self.connection(operation).await?;
        connection.wait_for_rate_limit().await;
        Ok(connection)
    }

    /// Returns the connection and the lease for a write. Chooses the lease before it waits for the
    /// rate limit.
    pub(super) async fn connection_and_lease(
        &self,
        key: &[u8],
        lifetime: KeyLifetime,
        operation: impl Fn() -> String,
    ) -> Result<(Connection, LeaseId), KvstoreError> {
        let connection = self.connection(operation).await?;
        let lease = match lifetime {
            KeyLifetime::Permanent => LeaseId(0),
            KeyLifetime::Leased => self.key_leases.lease_for(&connection, key).await?,
        };
        connection.wait_for_rate_limit().await;
        Ok((connection, lease))
    }

    /// Forgets a lease that etcd no longer has. The failed operation is not repeated; the next
    /// operation gets another lease.
    pub(super) fn forget_lost_lease<T>(&self, result: Result<T, KvstoreError>, lease: LeaseId) -> Result<T, KvstoreError> {
        result.inspect_err(|error| {
            if error.is_lease_not_found() {
                self.key_leases.mark_lost(&[lease]);
            }
        })
    }

    /// Stops counting a leased key among its lease's keys, because another process has created the
    /// key and this session has not written it.
    pub(super) fn release_unwritten(&self, key: &[u8], lifetime: KeyLifetime) {
        if lifetime == KeyLifetime::Leased {
            self.key_leases.release(key);
        }
    }

    /// Returns the options of single reads and lists.
    pub(super) fn read_options(&self) -> GetOptions {
        let options = GetOptions::new();
        if self.options.serializable_reads { options.with_serializable() } else { options }
    }

    async fn list_without_page_limit(&self, prefix: &[u8]) -> Result<PagedList, KvstoreError> {
        let connection = self.connection(|| format!("listing {}", printable(prefix))).await?;
        Ok(connection.list(prefix).with_page_limit(0).serializable(self.options.serializable_reads))
    }

    /// Stops counting the keys of a deleted prefix among the keys of their leases. Only hashes of
    /// keys are stored, so the names are read from the history. If that is compacted, the counts
    /// stay slightly too high until the leases end.
    pub(super) async fn release_deleted(&self, connection: &Connection, prefix: &[u8], count: u64, deleted_at: Revision) {
        if count == 0 || !self.key_leases.is_in_use() {
            return;
        }
        let mut list = connection.list(prefix).keys_at(deleted_at.previous());
        while let Ok(Some(page)) = list.next_page().await {
            page.key_values.iter().for_each(|key_value| self.key_leases.release(&key_value.key));
        }
    }
}

/// Returns the condition that a key does not exist.
pub(super) fn absent(key: &[u8]) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

/// Returns a put within a transaction.
pub(super) fn put_op(key: &[u8], value: &[u8], lease: LeaseId) -> TxnOp {
    TxnOp::put(key, value, (lease.0 != 0).then(|| etcd_client::PutOptions::new().with_lease(lease.0)))
}
