//! Copies of the numbers of remote stores, which an allocator includes in addition to its own
//! numbers (`RemoteCache`, `pkg/allocator`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::backend::{Backend, Id, Mutation};
use super::cache::Cache;
use super::event::{AllocatorEvent, AllocatorEventKind};
use super::key::AllocatorKey;
use super::options::AllocatorOptions;
use super::state::accepts;

/// Capacity of the queue of changes to apply: one page of a list (`etcd.limit`, 256).
const MUTATIONS_MAX: usize = 256;

/// All remote copies of an allocator.
#[derive(Clone, Default)]
pub(super) struct RemoteCopies(Arc<Mutex<Vec<Arc<RemoteCopy>>>>);

struct RemoteCopy {
    cache: Mutex<Cache>,
    options: AllocatorOptions,
}

/// Copy of the numbers of a remote store. It keeps its entries while there is no connection.
/// Dropping it removes them.
pub struct RemoteCache {
    copy: Arc<RemoteCopy>,
    remotes: RemoteCopies,
}

impl RemoteCopies {
    pub(super) fn add(&self, options: AllocatorOptions) -> RemoteCache {
        let copy = Arc::new(RemoteCopy { cache: Mutex::default(), options });
        self.all().push(Arc::clone(&copy));
        RemoteCache { copy, remotes: self.clone() }
    }

    pub(super) fn for_each(&self, show: &mut impl FnMut(Id, &AllocatorKey)) {
        for copy in self.all().iter() {
            copy.cache().iter().for_each(|(id, key)| show(id, key));
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<RemoteCopy>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteCopy {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change of the store. Returns the events to publish.
    fn apply(&self, mutation: Mutation) -> Vec<AllocatorEvent> {
        let event = |kind| move |(id, key)| AllocatorEvent { kind, id, key };
        match mutation {
            Mutation::ListDone => self.cache().finish_list().into_iter().map(event(AllocatorEventKind::Delete)).collect(),
            Mutation::Upsert(id, key, revision) if accepts(self.options.validator.as_ref(), id, Some(&key)) => {
                let known = self.cache().insert(id, &key, revision).is_some();
                vec![AllocatorEvent { kind: if known { AllocatorEventKind::Modify } else { AllocatorEventKind::Create }, id, key }]
            }
            Mutation::Delete(id) if accepts(self.options.validator.as_ref(), id, None) => {
                let removed = self.cache().remove(id);
                removed.map(|key| AllocatorEvent { kind: AllocatorEventKind::Delete, id, key }).into_iter().collect()
            }
            Mutation::Upsert(..) | Mutation::Delete(_) | Mutation::Relisting | Mutation::Relisted => Vec::new(),
        }
    }
}

impl RemoteCache {
    /// Follows a store over one connection, until `stop` is cancelled or the backend ends the
    /// stream. Lookups use the entries of the previous connection until the list of this one is
    /// complete. Entries that are missing from the list are then removed. The entries of an
    /// incomplete list are dropped.
    pub async fn watch(&self, backend: &impl Backend, stop: CancellationToken) {
        self.copy.cache().begin_list();
        let (sender, mut mutations) = mpsc::channel(MUTATIONS_MAX);
        let apply_all = async {
            while let Some(mutation) = mutations.recv().await {
                self.publish(self.copy.apply(mutation)).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(backend.list_and_watch(sender, stop.clone()), apply_all) }).await;
        let dropped = self.copy.cache().abort_list();
        self.publish(dropped.into_iter().map(|(id, key)| AllocatorEvent { kind: AllocatorEventKind::Delete, id, key }).collect()).await;
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        self.copy.cache().len()
    }

    async fn publish(&self, changed: Vec<AllocatorEvent>) {
        if let Some(events) = &self.copy.options.events {
            for event in changed {
                // sending fails only if the receiver was dropped
                let _ = events.send(event).await;
            }
        }
    }
}

impl Drop for RemoteCache {
    fn drop(&mut self) {
        self.remotes.all().retain(|copy| !Arc::ptr_eq(copy, &self.copy));
    }
}
