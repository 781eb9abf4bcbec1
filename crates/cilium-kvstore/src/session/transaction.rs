//! Transactions with several conditions and several writes, for uses that Cilium's own operations
//! do not cover.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::operations::{absent, put_op};
use super::{KeyLifetime, KvLocker, Session};
use crate::error::printable;
use crate::{KvstoreError, LeaseId, Revision, prefix_end};

/// Condition of a transaction.
#[derive(Clone, Copy)]
pub enum Condition<'a> {
    /// The key does not exist.
    Absent(&'a [u8]),
    /// The key exists and has this value.
    HasValue(&'a [u8], &'a [u8]),
    /// The key was last written at this revision.
    WrittenAt(&'a [u8], Revision),
    /// No key has this prefix.
    NoKeysBelow(&'a [u8]),
    /// At least one key has this prefix, and none of them has this value.
    OnlyOtherValuesBelow(&'a [u8], &'a [u8]),
    /// The lock is held.
    Locked(&'a KvLocker),
}

/// Write of a transaction.
#[derive(Clone, Copy)]
pub enum Write<'a> {
    /// Puts a key with a value.
    Put(&'a [u8], &'a [u8], KeyLifetime),
    /// Deletes a key.
    Delete(&'a [u8]),
}

impl<'a> Write<'a> {
    fn key(&self) -> &'a [u8] {
        match self {
            Self::Put(key, ..) | Self::Delete(key) => key,
        }
    }
}

impl Condition<'_> {
    fn comparison(&self) -> Compare {
        match self {
            Self::Absent(key) => absent(key),
            Self::HasValue(key, value) => Compare::value(*key, CompareOp::Equal, *value),
            Self::WrittenAt(key, revision) => Compare::mod_revision(*key, CompareOp::Equal, revision.0),
            // etcd compares a range without keys like one missing key, so a comparison of values
            // would never succeed
            Self::NoKeysBelow(prefix) => Compare::create_revision(*prefix, CompareOp::Equal, 0).with_range(prefix_end(prefix)),
            Self::OnlyOtherValuesBelow(prefix, value) => {
                Compare::value(*prefix, CompareOp::NotEqual, *value).with_range(prefix_end(prefix))
            }
            Self::Locked(lock) => lock.comparator().comparison(),
        }
    }
}

impl Session {
    /// Executes all writes if all conditions are true, and otherwise none of them. Returns whether
    /// it wrote.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn write_if(&self, conditions: &[Condition<'_>], writes: &[Write<'_>]) -> Result<bool, KvstoreError> {
        let first = writes.first().map_or(&b""[..], Write::key);
        let writing = async {
            let operation = || format!("writing {}", printable(first));
            let connection = self.shared.connection(operation).await?;
            let (mut operations, mut leases) = (Vec::new(), Vec::new());
            for write in writes {
                operations.push(match write {
                    Write::Put(key, value, lifetime) => {
                        let lease = match lifetime {
                            KeyLifetime::Permanent => LeaseId(0),
                            KeyLifetime::Leased => self.shared.key_leases.lease_for(&connection, key).await?,
                        };
                        leases.push(lease);
                        put_op(key, value, lease)
                    }
                    Write::Delete(key) => TxnOp::delete(*key, None),
                });
            }
            connection.wait_for_rate_limit().await;
            let txn = Txn::new().when(conditions.iter().map(Condition::comparison).collect::<Vec<_>>()).and_then(operations);
            let result = connection.transact(operation, txn).await;
            // usually only one lease is used; etcd does not report which lease is lost
            let result =
                leases.into_iter().filter(|lease| lease.0 != 0).fold(result, |result, lease| self.shared.forget_lost_lease(result, lease));
            let (reply, _) = result?;
            for write in writes {
                match write {
                    Write::Put(key, _, lifetime) if !reply.succeeded => self.shared.release_unwritten(key, *lifetime),
                    Write::Delete(key) if reply.succeeded => self.shared.key_leases.release(key),
                    Write::Put(..) | Write::Delete(_) => {}
                }
            }
            Ok(reply.succeeded)
        };
        self.traced("write_if", first, writing).await
    }
}
