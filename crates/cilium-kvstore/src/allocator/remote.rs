//! Copies of the numbers of remote stores, which are found beside the own ones (`RemoteCache`, `pkg/allocator`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::backend::{Backend, Id, Mutation};
use super::cache::Cache;
use super::event::{Event, EventKind};
use super::key::AllocatorKey;
use super::options::AllocatorOptions;
use super::state::accepts;

/// How many changes wait to be taken over: a page of a list (`etcd.limit`, 256).
const MUTATIONS_MAX: usize = 256;

/// The copies that an allocator has.
#[derive(Clone, Default)]
pub(super) struct Remotes(Arc<Mutex<Vec<Arc<RemoteCopy>>>>);

/// One copy.
struct RemoteCopy {
    cache: Mutex<Cache>,
    options: AllocatorOptions,
}

/// A copy of the numbers of a remote store. Without a connection it stays as it was; dropping it takes it away.
pub struct RemoteCache {
    copy: Arc<RemoteCopy>,
    remotes: Remotes,
}

impl Remotes {
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

    /// Follows the store; returns what is to be told.
    fn apply(&self, mutation: Mutation) -> Vec<Event> {
        let event = |kind| move |(id, key)| Event { kind, id, key };
        match mutation {
            Mutation::ListDone => self.cache().finish_list().into_iter().map(event(EventKind::Delete)).collect(),
            Mutation::Upsert(id, key, revision) if accepts(self.options.validator.as_ref(), id, Some(&key)) => {
                let known = self.cache().insert(id, &key, revision).is_some();
                vec![Event { kind: if known { EventKind::Modify } else { EventKind::Create }, id, key }]
            }
            Mutation::Delete(id) if accepts(self.options.validator.as_ref(), id, None) => {
                let gone = self.cache().remove(id);
                gone.map(|key| Event { kind: EventKind::Delete, id, key }).into_iter().collect()
            }
            Mutation::Upsert(..) | Mutation::Delete(_) | Mutation::Relisting | Mutation::Relisted => Vec::new(),
        }
    }
}

impl RemoteCache {
    /// Follows a store over one connection, until `stop` is cancelled or the backend has no more to say. What stood before answers until
    /// the first list is complete; then what that did not have is gone. A list that breaks off leaves nothing.
    pub async fn watch(&self, backend: &impl Backend, stop: CancellationToken) {
        self.copy.cache().begin_list();
        let (sender, mut mutations) = mpsc::channel(MUTATIONS_MAX);
        let take = async {
            while let Some(mutation) = mutations.recv().await {
                self.tell(self.copy.apply(mutation)).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(backend.list_and_watch(sender, stop.clone()), take) }).await;
        let dropped = self.copy.cache().abort_list();
        self.tell(dropped.into_iter().map(|(id, key)| Event { kind: EventKind::Delete, id, key }).collect()).await;
    }

    /// How many numbers there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.copy.cache().len()
    }

    async fn tell(&self, told: Vec<Event>) {
        if let Some(events) = &self.copy.options.events {
            for event in told {
                // a caller that does not want to know any more has dropped the other end
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
