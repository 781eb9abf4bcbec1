//! In-memory store that the nodes of a test share. It behaves like etcd, and can fail before or
//! after a write.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedMutexGuard, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::Revision;
use crate::allocator::backend::{
    Backend, BackendError, CollectionLimits, CollectionRound, Id, LockCollection, Locker, Mutation, StaleIds, StaleLocks, UpdateOutcome,
};
use crate::allocator::key::AllocatorKey;

/// Capacity of a watch: more than the changes that any test makes before they are applied.
const WATCH_MAX: usize = 100_000;

#[derive(Clone, Default)]
pub(super) struct MemoryStore(Arc<Mutex<MemoryContent>>);

#[derive(Default)]
pub(super) struct MemoryContent {
    revision: i64,
    pub(super) ids: BTreeMap<Id, (AllocatorKey, i64)>,
    /// Indexed by key and node.
    pub(super) references: BTreeMap<(AllocatorKey, &'static str), Id>,
    watchers: Vec<mpsc::Sender<Mutation>>,
    locks: HashMap<AllocatorKey, Arc<tokio::sync::Mutex<()>>>,
    /// Failures of the next writes. The last element is used first.
    failures: Vec<WriteFailure>,
    pub(super) writes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteFailure {
    /// The write is not executed.
    Before,
    /// The write is executed, but the response is lost.
    After,
}

/// One node's view of the store.
#[derive(Clone)]
pub(super) struct MemoryNode {
    pub(super) memory: MemoryStore,
    name: &'static str,
    /// Number of times that the node's references were lost.
    loss_count: Arc<watch::Sender<u64>>,
    /// True if the node's events are held back.
    holds_back_events: Arc<watch::Sender<bool>>,
}

pub(super) struct MemoryLock(#[expect(dead_code, reason = "locked until it is dropped")] OwnedMutexGuard<()>);

impl Locker for MemoryLock {
    async fn unlock(self) {}
}

impl MemoryStore {
    pub(super) fn node(&self, name: &'static str) -> MemoryNode {
        MemoryNode {
            memory: self.clone(),
            name,
            loss_count: Arc::new(watch::Sender::new(0)),
            holds_back_events: Arc::new(watch::Sender::new(false)),
        }
    }

    pub(super) fn content(&self) -> MutexGuard<'_, MemoryContent> {
        self.0.lock().unwrap()
    }

    pub(super) fn fail(&self, failures: impl IntoIterator<Item = WriteFailure>) {
        self.content().failures.extend(failures);
    }

    /// Writes a number's entry as another process would.
    pub(super) fn put(&self, id: Id, key: &AllocatorKey) {
        self.content().put(id, key);
    }

    /// Deletes a number's entry as another process would.
    pub(super) fn delete(&self, id: Id) {
        self.content().delete(id);
    }
}

impl MemoryNode {
    /// Ends the node's lease: its references are deleted, and it is notified.
    pub(super) fn lose_references(&self) {
        self.lose_references_without_event();
        self.loss_count.send_modify(|count| *count += 1);
    }

    /// Holds back the node's events, or delivers the events that were held back.
    pub(super) fn set_holds_back_events(&self, holds_back_events: bool) {
        self.holds_back_events.send_replace(holds_back_events);
    }

    /// Ends the node's lease without notifying it.
    pub(super) fn lose_references_without_event(&self) {
        self.memory.content().references.retain(|(_, node), _| *node != self.name);
    }

    /// Runs one write, with the next planned failure.
    fn write<T>(&self, write: impl FnOnce(&mut MemoryContent) -> T) -> Result<T, BackendError> {
        let mut content = self.memory.content();
        content.writes += 1;
        match content.failures.pop() {
            Some(WriteFailure::Before) => Err(BackendError::LockLost),
            Some(WriteFailure::After) => {
                write(&mut content);
                Err(BackendError::LockLost)
            }
            None => Ok(write(&mut content)),
        }
    }
}

impl MemoryContent {
    fn put(&mut self, id: Id, key: &AllocatorKey) {
        self.revision += 1;
        self.ids.insert(id, (key.clone(), self.revision));
        self.publish(&Mutation::Upsert(id, key.clone(), Revision(self.revision)));
    }

    fn delete(&mut self, id: Id) {
        self.revision += 1;
        if self.ids.remove(&id).is_some() {
            self.publish(&Mutation::Delete(id));
        }
    }

    fn publish(&mut self, mutation: &Mutation) {
        self.watchers.retain(|watcher| watcher.try_send(mutation.clone()).is_ok());
    }

    fn users(&self, key: &AllocatorKey) -> impl Iterator<Item = Id> {
        self.references.iter().filter(move |((other, _), _)| other == key).map(|(_, id)| *id)
    }

    fn has_entry(&self, id: Id, key: &AllocatorKey) -> bool {
        self.ids.get(&id).is_some_and(|(other, _)| other == key)
    }

    fn allocate(&mut self, id: Id, key: &AllocatorKey, node: &'static str) -> bool {
        let free = !self.ids.contains_key(&id);
        if free {
            self.put(id, key);
            self.references.insert((key.clone(), node), id);
        }
        free
    }
}

impl Backend for MemoryNode {
    type Lock = MemoryLock;

    async fn lock(&self, key: &AllocatorKey) -> Result<MemoryLock, BackendError> {
        let lock = Arc::clone(self.memory.content().locks.entry(key.clone()).or_default());
        Ok(MemoryLock(lock.lock_owned().await))
    }

    async fn get(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        tokio::task::yield_now().await;
        Ok(self.memory.content().users(key).next())
    }

    async fn get_if_locked(&self, key: &AllocatorKey, _: &MemoryLock) -> Result<Option<Id>, BackendError> {
        self.get(key).await
    }

    async fn get_by_id(&self, id: Id) -> Result<Option<AllocatorKey>, BackendError> {
        Ok(self.memory.content().ids.get(&id).map(|(key, _)| key.clone()))
    }

    async fn write_id_if_locked(&self, id: Id, key: &AllocatorKey, _: &MemoryLock) -> Result<bool, BackendError> {
        tokio::task::yield_now().await;
        self.write(|content| {
            let free = !content.ids.contains_key(&id);
            if free {
                content.put(id, key);
            }
            free
        })
    }

    async fn allocate_id_if_locked(&self, id: Id, key: &AllocatorKey, _: &MemoryLock) -> Result<bool, BackendError> {
        tokio::task::yield_now().await;
        self.write(|content| content.allocate(id, key, self.name))
    }

    async fn delete_id_if_locked(&self, id: Id, key: &AllocatorKey, _: &MemoryLock) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        self.write(|content| {
            if content.has_entry(id, key) {
                content.delete(id);
            }
        })
    }

    async fn acquire_reference(&self, id: Id, key: &AllocatorKey, _: &MemoryLock) -> Result<bool, BackendError> {
        tokio::task::yield_now().await;
        self.write(|content| {
            let has_entry = content.has_entry(id, key);
            if has_entry {
                content.references.insert((key.clone(), self.name), id);
            }
            has_entry
        })
    }

    async fn update_key(&self, id: Id, key: &AllocatorKey) -> Result<UpdateOutcome, BackendError> {
        let own_reference = (key.clone(), self.name);
        if self.memory.content().has_entry(id, key) && self.memory.content().references.get(&own_reference) == Some(&id) {
            return Ok(UpdateOutcome::Unchanged);
        }
        let lock = self.lock(key).await?;
        let others = |content: &MemoryContent| content.users(key).any(|other| other != id);
        if others(&self.memory.content()) {
            return Ok(UpdateOutcome::Lost);
        }
        let written = self.acquire_reference(id, key, &lock).await? || self.allocate_id_if_locked(id, key, &lock).await?;
        Ok(if written { UpdateOutcome::Rewritten } else { UpdateOutcome::Lost })
    }

    async fn release(&self, _: Id, key: &AllocatorKey) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        self.write(|content| {
            content.references.remove(&(key.clone(), self.name));
        })
    }

    fn references_lost(&self) -> impl Future<Output = ()> + Send {
        let mut losses = self.loss_count.subscribe();
        async move {
            let _ = losses.changed().await;
        }
    }

    async fn list_and_watch(&self, mutations: mpsc::Sender<Mutation>, stop: CancellationToken) {
        let (watcher, mut changes) = mpsc::channel(WATCH_MAX);
        let list: Vec<_> = {
            let mut content = self.memory.content();
            content.watchers.push(watcher);
            content
                .ids
                .iter()
                .map(|(id, (key, revision))| Mutation::Upsert(*id, key.clone(), Revision(*revision)))
                .chain([Mutation::ListDone])
                .collect()
        };
        let forward = async {
            for mutation in list {
                if mutations.send(mutation).await.is_err() {
                    return;
                }
            }
            let mut held_back = self.holds_back_events.subscribe();
            while let Some(mutation) = changes.recv().await {
                if held_back.wait_for(|holds_back_events| !holds_back_events).await.is_err() {
                    return;
                }
                if mutations.send(mutation).await.is_err() {
                    return;
                }
            }
        };
        stop.run_until_cancelled(forward).await;
    }

    async fn run_gc(&self, last_round: &StaleIds, limits: &CollectionLimits) -> Result<CollectionRound, BackendError> {
        let all: Vec<_> = self.memory.content().ids.iter().map(|(id, entry)| (*id, entry.clone())).collect();
        let mut round = CollectionRound::default();
        for (id, (key, revision)) in all.into_iter().filter(|(id, _)| limits.range.contains(*id)) {
            tokio::task::yield_now().await;
            let mut content = self.memory.content();
            let used = content.users(&key).any(|used| used == id);
            match last_round.get(&id) {
                _ if used => {}
                Some(seen) if *seen == Revision(revision) => {
                    content.delete(id);
                    round.deleted.push(id);
                    continue;
                }
                Some(_) => {}
                None => {
                    round.stale.insert(id, Revision(revision));
                }
            }
            round.alive += 1;
        }
        Ok(round)
    }

    async fn run_locks_gc(&self, _: &StaleLocks) -> Result<LockCollection, BackendError> {
        Ok(LockCollection::default())
    }

    async fn delete_all_keys(&self) -> Result<(), BackendError> {
        let mut content = self.memory.content();
        content.references.clear();
        let ids: Vec<_> = content.ids.keys().copied().collect();
        ids.into_iter().for_each(|id| content.delete(id));
        Ok(())
    }

    async fn status(&self) -> String {
        "in memory".into()
    }
}
