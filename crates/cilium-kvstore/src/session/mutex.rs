//! Etcd's own mutex (`client/v3/concurrency/mutex.go`): the session whose key below a path is the
//! oldest has the lock.

use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbTxnOpResponse, PbTxnResponse};
use etcd_client::{Compare, CompareOp, GetOptions, SortOrder, SortTarget, Txn, TxnOp};

use crate::error::printable;
use crate::{Connection, Disposition, Event, KvstoreError, LeaseId, Revision, WatchMessage, prefix_end};

/// Key of a lock. The lock is held while the key has this create revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockKey {
    /// Path, `/` and the lease in hexadecimal digits.
    pub key: Vec<u8>,
    /// Revision at which the key was created.
    pub create_revision: Revision,
}

impl LockKey {
    /// Returns the condition of a transaction under this lock.
    pub(super) fn comparison(&self) -> Compare {
        Compare::create_revision(&*self.key, CompareOp::Equal, self.create_revision.0)
    }
}

/// Returns the key of a lease that locks a path.
pub(super) fn key_of(path: &[u8], lease: LeaseId) -> Vec<u8> {
    [path, format!("/{:x}", lease.0).as_bytes()].concat()
}

/// Waits for the lock. If the caller stops waiting or gets an error, it must delete the key.
pub(super) async fn acquire(connection: &Connection, path: &[u8], lease: LeaseId) -> Result<LockKey, KvstoreError> {
    let key = key_of(path, lease);
    let prefix = [path, b"/"].concat();
    let operation = || format!("locking {}", printable(path));
    let oldest_key = TxnOp::get(&*prefix, Some(prefix_options(&prefix).with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1)));
    let put = TxnOp::put(&*key, "", Some(etcd_client::PutOptions::new().with_lease(lease.0)));
    let txn = Txn::new()
        .when([Compare::create_revision(&*key, CompareOp::Equal, 0)])
        .and_then([put, oldest_key.clone()])
        .or_else([TxnOp::get(&*key, None), oldest_key]);
    let (reply, revision) = connection.transact_without_permit(operation, txn).await?;
    let create_revision = if reply.succeeded { revision } else { create_revision_of(&own_key(&reply)?)? };
    let owner = range_reply(&reply, 1)?.kvs.first().map(|owner| owner.create_revision);
    if owner.is_none_or(|owner| owner == create_revision.0) {
        return Ok(LockKey { key, create_revision });
    }
    wait_for_older_keys(connection, &prefix, create_revision).await?;
    // the lease may have expired during the wait
    let (reread, _) = connection.range_without_permit(&key, GetOptions::new()).await?;
    match reread.kvs.first() {
        Some(key_value) if key_value.create_revision == create_revision.0 => Ok(LockKey { key, create_revision }),
        _ => Err(KvstoreError::LockLost { operation: format!("{}: session is expired", operation()) }),
    }
}

/// Waits until no key below the prefix is older than ours. Waits for the deletion of the youngest
/// older key, then looks for the next one.
async fn wait_for_older_keys(connection: &Connection, prefix: &[u8], own_revision: Revision) -> Result<(), KvstoreError> {
    let older_keys = prefix_options(prefix).with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
    let older_keys = older_keys.with_max_create_revision(own_revision.previous().0);
    loop {
        let (reply, revision) = connection.range_without_permit(prefix, older_keys.clone()).await?;
        let Some(holder) = reply.kvs.first() else { return Ok(()) };
        match wait_for_delete(connection, &holder.key, revision).await {
            // compacted during the wait: read again
            Err(error) if error.disposition() == Disposition::Resync => {}
            result => result?,
        }
    }
}

async fn wait_for_delete(connection: &Connection, key: &[u8], after: Revision) -> Result<(), KvstoreError> {
    let mut watch = connection.watch_unlimited(key, None, after).await?;
    loop {
        if let WatchMessage::Events { events, .. } = watch.next().await?
            && events.iter().any(|event| matches!(event, Event::Delete { .. }))
        {
            return Ok(());
        }
    }
}

fn prefix_options(prefix: &[u8]) -> GetOptions {
    GetOptions::new().with_range(prefix_end(prefix))
}

/// Returns our own key from the reply to the lock transaction.
fn own_key(reply: &PbTxnResponse) -> Result<PbKeyValue, KvstoreError> {
    range_reply(reply, 0)?.kvs.first().cloned().ok_or_else(|| malformed("a lock key that exists, but is not in the reply"))
}

fn create_revision_of(key_value: &PbKeyValue) -> Result<Revision, KvstoreError> {
    if key_value.create_revision > 0 { Ok(Revision(key_value.create_revision)) } else { Err(malformed("a key that was never created")) }
}

/// Returns the reply to the read at this index of a transaction.
pub(super) fn range_reply(reply: &PbTxnResponse, index: usize) -> Result<&PbRangeResponse, KvstoreError> {
    match reply.responses.get(index).and_then(|response| response.response.as_ref()) {
        Some(PbTxnOpResponse::ResponseRange(range)) => Ok(range),
        _ => Err(malformed("a read in a transaction got the answer of another request")),
    }
}

fn malformed(reason: &str) -> KvstoreError {
    KvstoreError::Malformed { reason: reason.to_owned() }
}
