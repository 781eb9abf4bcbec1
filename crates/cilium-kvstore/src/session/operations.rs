//! Operations on an etcd. Each is one call (or two), is paced, and is not repeated on failure.

use std::future::Future;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::time::Instant;

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Connection, KeyValue, KvstoreError, LeaseId, PagedList, Revision, keys, prefix_end};

/// Lifetime of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The key stays until it is deleted.
    Lasting,
    /// The key stays until its lease expires, one TTL after the session ends.
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
            let mut list = self.shared.list_whole(prefix).await?;
            let mut found = Vec::new();
            while let Some(page) = list.next_page().await? {
                found.extend(page.key_values);
            }
            Ok(found)
        };
        self.traced("list_prefix", prefix, listing).await
    }

    /// Lists the keys below a prefix page by page, as of one revision. Paced like one call.
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
    pub async fn update(&self, key: &[u8], value: &[u8], life: Life) -> Result<Revision, KvstoreError> {
        self.traced("update", key, self.put(key, value, life)).await
    }

    /// Writes a key, unless it already has this value and, if `life` is [`Life::Leased`], this
    /// session's lease. Returns whether it wrote. If the read fails, the key is written.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn update_if_different(&self, key: &[u8], value: &[u8], life: Life) -> Result<bool, KvstoreError> {
        let updating = async {
            if let Ok(found) = self.read(key, GetOptions::new()).await
                && self.is_up_to_date(found.first(), value, life)
            {
                return Ok(false);
            }
            self.put(key, value, life).await?;
            Ok(true)
        };
        self.traced("update_if_different", key, updating).await
    }

    /// Writes a key that does not exist. Returns whether it wrote.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn create_only(&self, key: &[u8], value: &[u8], life: Life) -> Result<bool, KvstoreError> {
        let creating = async {
            let what = || format!("creating {}", printable(key));
            let (connection, lease) = self.shared.connection_and_lease(key, life, what).await?;
            let txn = Txn::new().when([absent(key)]).and_then([put_op(key, value, lease)]);
            let result = connection.transact(what, txn).await;
            let (reply, _) = self.shared.note_lost_lease(result, lease)?;
            if !reply.succeeded {
                self.shared.release_unwritten(key, life);
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
            self.shared.keys.release(key);
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

    /// Reads without tracing.
    pub(super) async fn read(&self, key: &[u8], options: GetOptions) -> Result<Vec<KeyValue>, KvstoreError> {
        let connection = self.shared.paced_connection(|| format!("reading {}", printable(key))).await?;
        let (reply, _) = connection.range(key, options).await?;
        Ok(reply.kvs.into_iter().map(KeyValue::from).collect())
    }

    async fn put(&self, key: &[u8], value: &[u8], life: Life) -> Result<Revision, KvstoreError> {
        let (connection, lease) = self.shared.connection_and_lease(key, life, || format!("writing {}", printable(key))).await?;
        let result = connection.put(key, value, lease).await;
        self.shared.note_lost_lease(result, lease)
    }

    /// Returns whether no write is needed: the key has the value and, if it needs a lease, our
    /// lease. (Cilium mistakes a key without a lease, if it does not know the key, for one with its
    /// own lease: 0 equals 0.)
    pub(super) fn is_up_to_date(&self, found: Option<&KeyValue>, value: &[u8], life: Life) -> bool {
        found.is_some_and(|found| {
            let leased = life == Life::Lasting || self.shared.keys.lease_of(&found.key) == Some(found.lease);
            leased && *found.value == *value
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
            tracing::trace!(operation, key = printable(key), scope, took = ?started.elapsed(), error, "kvstore");
        }
        result
    }
}

impl SessionState {
    /// Returns the connection when the pace allows one more call.
    pub(super) async fn paced_connection(&self, what: impl Fn() -> String) -> Result<Connection, KvstoreError> {
        let connection = self.connection(what).await?;
        connection.pace().await;
        Ok(connection)
    }

    /// Returns the connection and the lease for a write. Chooses the lease before it waits for the
    /// pace.
    pub(super) async fn connection_and_lease(
        &self,
        key: &[u8],
        life: Life,
        what: impl Fn() -> String,
    ) -> Result<(Connection, LeaseId), KvstoreError> {
        let connection = self.connection(what).await?;
        let lease = match life {
            Life::Lasting => LeaseId(0),
            Life::Leased => self.keys.lease_for(&connection, key).await?,
        };
        connection.pace().await;
        Ok((connection, lease))
    }

    /// Forgets a lease that etcd no longer has. The operation failed; the next one gets another
    /// lease.
    pub(super) fn note_lost_lease<T>(&self, result: Result<T, KvstoreError>, lease: LeaseId) -> Result<T, KvstoreError> {
        result.inspect_err(|error| {
            if error.is_about_a_lost_lease() {
                self.keys.lose(&[lease]);
            }
        })
    }

    /// Stops counting a leased key that another process has.
    pub(super) fn release_unwritten(&self, key: &[u8], life: Life) {
        if life == Life::Leased {
            self.keys.release(key);
        }
    }

    /// Returns the options of single reads and lists.
    pub(super) fn read_options(&self) -> GetOptions {
        let options = GetOptions::new();
        if self.options.serializable_reads { options.with_serializable() } else { options }
    }

    async fn list_whole(&self, prefix: &[u8]) -> Result<PagedList, KvstoreError> {
        let connection = self.connection(|| format!("listing {}", printable(prefix))).await?;
        Ok(connection.list(prefix).with_page_limit(0).serializable(self.options.serializable_reads))
    }

    /// Stops counting the keys of a deleted prefix on their leases. Only hashes of keys are stored,
    /// so the names are read from the history. If that is compacted, the counts stay slightly too
    /// high until the leases end.
    pub(super) async fn release_deleted(&self, connection: &Connection, prefix: &[u8], count: u64, at: Revision) {
        if count == 0 || !self.keys.is_in_use() {
            return;
        }
        let mut list = connection.list(prefix).keys_at(at.previous());
        while let Ok(Some(page)) = list.next_page().await {
            page.key_values.iter().for_each(|found| self.keys.release(&found.key));
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
