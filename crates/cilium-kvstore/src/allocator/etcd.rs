//! Backend that stores numbers in an etcd, below a base path such as `cilium/state/identities/v1`
//! (`pkg/kvstore/allocator`).
//!
//! A number's entry is `id/<number>` with its labels, and stays until it is collected. A node's
//! reference is `value/<labels>/<node>` with the number, and is attached to the node's lease. Locks
//! are below `locks/`; allocations lock the labels, collectors lock the number.
//!
//! The keys have the names and values that Cilium uses. The transactions check more than Cilium's:
//! a reference is written only if the entry has the reference's labels, and a number is deleted
//! only if no reference names it at that moment. Our collector is therefore safe with our
//! allocators. With Cilium's allocators it is as safe as Cilium's own collector.

mod collect;
mod names;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::names::KeyNames;
use super::backend::{
    Backend, BackendError, CollectionLimits, CollectionRound, Id, LockCollection, Locker, Mutation, StaleIds, StaleLocks, UpdateOutcome,
};
use super::key::AllocatorKey;
use crate::{Condition, EventKind, KeyLifetime, KeyValue, KeyValueEvent, KvLocker, KvstoreError, Session, Write};

/// Capacity of the queue of etcd events: one page of a list (`etcd.limit`, 256).
const EVENTS_MAX: usize = 256;

/// An etcd as a store of numbers, for one node.
pub struct EtcdBackend {
    session: Session,
    names: KeyNames,
    /// Number of times that references were lost with their lease.
    loss_count: Arc<watch::Sender<u64>>,
}

impl EtcdBackend {
    /// Creates a backend for numbers below a base path. The keys of the node's references end with
    /// the node's name; Cilium uses the node's address. A session can serve only one backend per
    /// base path, because it has only one observer of lost leases per prefix.
    #[must_use]
    pub fn new(session: Session, base: &str, node: &str) -> Self {
        let names = KeyNames::new(base, node);
        let loss_count = Arc::new(watch::Sender::new(0));
        let observer = Arc::clone(&loss_count);
        session.on_lease_lost(&names.references(), move |_| observer.send_modify(|count| *count += 1));
        Self { session, names, loss_count }
    }

    /// Deletes this node's reference to a key. Returns false if it has none.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn delete_reference(&self, key: &AllocatorKey) -> Result<bool, BackendError> {
        Ok(self.session.delete(&self.names.reference(key)).await?)
    }

    /// Returns the number that the first of the given references names. Ignores references to
    /// longer keys that start with the same prefix.
    fn first_referenced_id(&self, key: &AllocatorKey, found: impl IntoIterator<Item = KeyValue>) -> Option<Id> {
        found.into_iter().find_map(|found| self.reference_to(key, &found))
    }

    fn reference_to(&self, key: &AllocatorKey, found: &KeyValue) -> Option<Id> {
        let node = found.key.strip_prefix(&*self.names.references_to(key))?;
        if node.is_empty() || node.contains(&b'/') { None } else { Id::parse(str::from_utf8(&found.value).ok()?) }
    }

    /// Converts an etcd event below the prefix of entries.
    fn mutation(&self, event: &KeyValueEvent) -> Option<Mutation> {
        match event.kind {
            EventKind::ListDone => return Some(Mutation::ListDone),
            EventKind::Relisting => return Some(Mutation::Relisting),
            EventKind::Relisted => return Some(Mutation::Relisted),
            EventKind::Create | EventKind::Modify | EventKind::Delete => {}
        }
        let shown = String::from_utf8_lossy(&event.key);
        let Some(id) = self.names.id_of(&event.key) else {
            tracing::warn!(key = %shown, "ignoring a key that is not an identity");
            return None;
        };
        if event.kind == EventKind::Delete {
            return Some(Mutation::Delete(id));
        }
        if event.value.is_empty() {
            tracing::warn!(key = %shown, "ignoring an identity without labels");
            return None;
        }
        Some(Mutation::Upsert(id, AllocatorKey::from_text(&String::from_utf8_lossy(&event.value)), event.mod_revision))
    }

    /// Finds out why a conditional write was refused: returns an error if the lock is lost, and
    /// otherwise `written`. False then means that the condition on the entry was not met.
    async fn check_lock(&self, lock: &KvLocker, written: bool) -> Result<bool, BackendError> {
        if !written && self.session.get_if_locked(&self.names.locks(), lock).await.is_err_and(|error| is_lock_lost(&error)) {
            return Err(BackendError::LockLost);
        }
        Ok(written)
    }
}

fn is_lock_lost(error: &KvstoreError) -> bool {
    matches!(error, KvstoreError::LockLost { .. })
}

/// Converts the result of an operation under a lock.
fn locked<T>(result: Result<T, KvstoreError>) -> Result<T, BackendError> {
    result.map_err(|error| if is_lock_lost(&error) { BackendError::LockLost } else { error.into() })
}

impl Locker for KvLocker {
    async fn unlock(self) {
        if let Err(error) = Self::unlock(self).await {
            tracing::debug!(%error, "cannot release the lock of an identity: trying again");
        }
    }
}

impl Backend for EtcdBackend {
    type Lock = KvLocker;

    async fn lock(&self, key: &AllocatorKey) -> Result<KvLocker, BackendError> {
        Ok(self.session.lock_path(&self.names.lock_of(key)).await?)
    }

    async fn get(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        let prefix = self.names.references_to(key);
        // usually the first reference is sufficient
        let first = self.session.get_prefix(&prefix).await?;
        match first.as_ref().map(|first| self.reference_to(key, first)) {
            None => Ok(None),
            Some(Some(id)) => Ok(Some(id)),
            Some(None) => Ok(self.first_referenced_id(key, self.session.list_prefix(&prefix).await?)),
        }
    }

    async fn get_if_locked(&self, key: &AllocatorKey, lock: &KvLocker) -> Result<Option<Id>, BackendError> {
        let prefix = self.names.references_to(key);
        let first = locked(self.session.get_prefix_if_locked(&prefix, lock).await)?;
        match first.as_ref().map(|first| self.reference_to(key, first)) {
            None => Ok(None),
            Some(Some(id)) => Ok(Some(id)),
            Some(None) => Ok(self.first_referenced_id(key, locked(self.session.list_prefix_if_locked(&prefix, lock).await)?)),
        }
    }

    async fn get_by_id(&self, id: Id) -> Result<Option<AllocatorKey>, BackendError> {
        let entry = self.session.get(&self.names.entry(id)).await?;
        Ok(entry.map(|entry| AllocatorKey::from_text(&String::from_utf8_lossy(&entry.value))))
    }

    async fn write_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &KvLocker) -> Result<bool, BackendError> {
        let entry = self.names.entry(id);
        let conditions = [Condition::Locked(lock), Condition::Absent(&entry)];
        let written = self.session.write_if(&conditions, &[Write::Put(&entry, key.as_str().as_bytes(), KeyLifetime::Permanent)]).await?;
        self.check_lock(lock, written).await
    }

    async fn allocate_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &KvLocker) -> Result<bool, BackendError> {
        let (entry, reference, number) = (self.names.entry(id), self.names.reference(key), id.to_string());
        let conditions = [Condition::Locked(lock), Condition::Absent(&entry)];
        let writes = [
            Write::Put(&entry, key.as_str().as_bytes(), KeyLifetime::Permanent),
            Write::Put(&reference, number.as_bytes(), KeyLifetime::Leased),
        ];
        let written = self.session.write_if(&conditions, &writes).await?;
        self.check_lock(lock, written).await
    }

    async fn delete_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &KvLocker) -> Result<(), BackendError> {
        let entry = self.names.entry(id);
        let conditions = [Condition::Locked(lock), Condition::HasValue(&entry, key.as_str().as_bytes())];
        self.session.write_if(&conditions, &[Write::Delete(&entry)]).await?;
        Ok(())
    }

    async fn acquire_reference(&self, id: Id, key: &AllocatorKey, lock: &KvLocker) -> Result<bool, BackendError> {
        let (entry, reference, number) = (self.names.entry(id), self.names.reference(key), id.to_string());
        let conditions = [Condition::Locked(lock), Condition::HasValue(&entry, key.as_str().as_bytes())];
        let written = self.session.write_if(&conditions, &[Write::Put(&reference, number.as_bytes(), KeyLifetime::Leased)]).await?;
        self.check_lock(lock, written).await
    }

    async fn update_key(&self, id: Id, key: &AllocatorKey) -> Result<UpdateOutcome, BackendError> {
        let (entry, reference, number) = (self.names.entry(id), self.names.reference(key), id.to_string());
        let entry_exists = self.session.get(&entry).await?.is_some_and(|found| *found.value == *key.as_str().as_bytes());
        let reference_exists = self
            .session
            .get(&reference)
            .await?
            .is_some_and(|found| *found.value == *number.as_bytes() && self.session.lease_of(&reference) == Some(found.lease));
        if entry_exists && reference_exists {
            return Ok(UpdateOutcome::Unchanged);
        }
        let lock = self.lock(key).await?;
        let result = self.rewrite(id, key, &lock).await;
        Locker::unlock(lock).await;
        result
    }

    async fn release(&self, _: Id, key: &AllocatorKey) -> Result<(), BackendError> {
        self.delete_reference(key).await.map(drop)
    }

    fn references_lost(&self) -> impl Future<Output = ()> + Send {
        let mut losses = self.loss_count.subscribe();
        async move {
            let _ = losses.changed().await;
        }
    }

    async fn list_and_watch(&self, mutations: mpsc::Sender<Mutation>, stop: CancellationToken) {
        let mut watcher = self.session.list_and_watch(&self.names.entries(), EVENTS_MAX);
        let forward = async {
            while let Some(event) = watcher.next().await {
                if let Some(mutation) = self.mutation(&event)
                    && mutations.send(mutation).await.is_err()
                {
                    return;
                }
            }
        };
        stop.run_until_cancelled(forward).await;
    }

    async fn run_gc(&self, last_round: &StaleIds, limits: &CollectionLimits) -> Result<CollectionRound, BackendError> {
        self.collect(last_round, limits).await
    }

    async fn run_locks_gc(&self, last_round: &StaleLocks) -> Result<LockCollection, BackendError> {
        self.collect_locks(last_round).await
    }

    async fn delete_all_keys(&self) -> Result<(), BackendError> {
        self.session.delete_prefix(&self.names.all()).await?;
        Ok(())
    }

    async fn status(&self) -> String {
        self.session.status().to_string()
    }
}

impl EtcdBackend {
    /// Writes a number's entry and this node's reference again. Returns `Lost` if the key has
    /// another number now, or if the number belongs to another key.
    async fn rewrite(&self, id: Id, key: &AllocatorKey, lock: &KvLocker) -> Result<UpdateOutcome, BackendError> {
        let own = self.names.reference(key);
        let users = locked(self.session.list_prefix_if_locked(&self.names.references_to(key), lock).await)?;
        let other = users.iter().filter(|user| user.key != own).find_map(|user| self.reference_to(key, user).filter(|other| *other != id));
        if other.is_some() {
            return Ok(UpdateOutcome::Lost);
        }
        let written = self.acquire_reference(id, key, lock).await? || self.allocate_id_if_locked(id, key, lock).await?;
        if !written {
            self.session.delete(&own).await?;
        }
        Ok(if written { UpdateOutcome::Rewritten } else { UpdateOutcome::Lost })
    }
}
