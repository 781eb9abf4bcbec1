//! Publication of a plan: passes that compare the etcd with the plan and write the difference. Keys
//! that belong to another cluster, by their name or by their identity, are not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::StreamExt;
use futures_util::stream::iter;
use tokio::sync::Notify;

use super::plan::{ClusterPlan, DesiredKeys, Resource};
use crate::model::IdentityScope;
use crate::wire::keys::{HEARTBEAT, watched_prefix};
use crate::wire::{ip_identity, time_text};
use cilium_kvstore::allocator::{AllocateError, Allocator, AllocatorEvent, AllocatorEventKind, AllocatorKey, EtcdBackend};
use cilium_kvstore::{Condition, EventKind, KeyLifetime, KeyValue, KeyValueEvent, KvstoreError, Session, Write};

/// Maximum number of concurrent writes. etcd syncs its log once for all waiting writes, so a larger
/// number gains little (docs/develop/measurements.md).
const WRITES_MAX: usize = 16;

/// The reason why a pass was incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    /// A request to the etcd failed.
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
    /// Some workloads have no identity and are not announced. Everything else is.
    #[error("{count} sets of labels have no identity, so their workloads are not announced: {cause}")]
    Identities {
        /// Number of label sets without an identity.
        count: usize,
        /// Error of the first of them.
        cause: AllocateError,
    },
    /// Identities in use are missing in the etcd and cannot be written again, so the canaries have
    /// to wait.
    #[error("identities in use were deleted from the etcd and cannot be written again yet")]
    IdentitiesGone,
}

pub(super) struct PlanPublisher {
    session: Session,
    allocator: Allocator<EtcdBackend>,
    numbers: Mutex<BTreeMap<AllocatorKey, u32>>,
    /// Expected values by key, from the last pass. `None` accepts any value.
    expected: Mutex<BTreeMap<Vec<u8>, Option<Vec<u8>>>>,
    /// Notified when the etcd may differ from the plan.
    pub(super) pass_requested: Arc<Notify>,
}

impl PlanPublisher {
    pub(super) fn new(session: Session, allocator: Allocator<EtcdBackend>) -> Self {
        let pass_requested = Arc::new(Notify::new());
        let observer = Arc::clone(&pass_requested);
        session.on_lease_lost(b"cilium/", move |_| observer.notify_one());
        Self { session, allocator, numbers: Mutex::default(), expected: Mutex::default(), pass_requested }
    }

    /// Runs one pass: writes everything that differs from the plan and deletes everything that the
    /// plan does not have. Readers can always resolve references: identities are written before
    /// addresses, all entries before the canaries, and the canaries before the cluster config.
    pub(super) async fn pass(&self, plan: &ClusterPlan) -> Result<(), PublishError> {
        self.write_heartbeat().await?;
        let identity_error = self.allocate_identities(plan).await;
        self.restore_identities(plan).await?;
        let numbers = self.numbers().clone();
        let mut desired = Vec::new();
        for resource in [Resource::Nodes, Resource::Ips, Resource::Services] {
            desired.push((resource, plan.keys(resource, &numbers)));
        }
        self.set_expected(plan, &desired);
        let mut surplus = Vec::new();
        for (resource, keys) in desired {
            surplus.extend(self.write_keys(plan, resource, keys).await?);
        }
        // services are deleted before the addresses behind them
        for existing in surplus.into_iter().rev() {
            self.session.write_if(&[Condition::WrittenAt(&existing.key, existing.mod_revision)], &[Write::Delete(&existing.key)]).await?;
        }
        self.release_identities(plan).await;
        for resource in Resource::ALL {
            self.write_canary(&plan.canary(resource)).await?;
        }
        let (key, value) = plan.config();
        self.session.update_if_different(key.as_bytes(), &value, KeyLifetime::Leased).await?;
        identity_error.map_or(Ok(()), Err)
    }

    pub(super) async fn write_heartbeat(&self) -> Result<(), KvstoreError> {
        self.session.update(HEARTBEAT.as_bytes(), time_text(SystemTime::now()).as_bytes(), KeyLifetime::Leased).await?;
        Ok(())
    }

    /// Allocates a number for each set of labels that has none yet. Workloads with the same labels
    /// share one number.
    async fn allocate_identities(&self, plan: &ClusterPlan) -> Option<PublishError> {
        let missing: Vec<_> = plan.identities().into_iter().filter(|key| !self.numbers().contains_key(key)).collect();
        let allocations = iter(missing).map(|key| async move { (self.allocator.allocate(&key).await, key) });
        let mut allocations = std::pin::pin!(allocations.buffer_unordered(WRITES_MAX));
        let (mut count, mut first) = (0, None);
        while let Some((result, key)) = allocations.next().await {
            match result.map(|allocation| u32::try_from(allocation.id.number())) {
                Ok(Ok(number)) => {
                    self.numbers().insert(key, number);
                }
                Ok(Err(_)) => unreachable!("the identities of a cluster have at most 32 bits"),
                Err(error) => {
                    count += 1;
                    first.get_or_insert(error);
                }
            }
        }
        first.map(|cause| PublishError::Identities { count, cause })
    }

    /// Makes sure that the identities in use exist. After a wipe of the etcd the allocator writes
    /// them again, but on its own schedule. A reader that sees the canaries before that would treat
    /// the missing identities as deleted.
    async fn restore_identities(&self, plan: &ClusterPlan) -> Result<(), PublishError> {
        let prefix = watched_prefix(Resource::Identities.kind(), &plan.cluster, false);
        let existing = self.session.list_prefix(prefix.as_bytes()).await?;
        let labels_by_key: BTreeMap<&[u8], &[u8]> = existing.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
        let exists = |(key, number): (&AllocatorKey, &u32)| {
            let entry = format!("{prefix}{number}");
            labels_by_key.get(entry.as_bytes()).is_some_and(|labels| *labels == key.as_str().as_bytes())
        };
        let all = self.numbers().iter().all(exists);
        if all || self.allocator.check_all().await { Ok(()) } else { Err(PublishError::IdentitiesGone) }
    }

    /// Releases identities that the plan no longer needs.
    async fn release_identities(&self, plan: &ClusterPlan) {
        let needed = plan.identities();
        let surplus: Vec<_> = self.numbers().keys().filter(|key| !needed.contains(*key)).cloned().collect();
        for key in surplus {
            self.numbers().remove(&key);
            if let Err(error) = self.allocator.release(&key).await {
                tracing::warn!(%key, %error, "cannot release an identity");
            }
        }
    }

    /// Writes the keys that differ from the plan. Returns the keys that the plan does not have.
    async fn write_keys(&self, plan: &ClusterPlan, resource: Resource, mut desired: DesiredKeys) -> Result<Vec<KeyValue>, PublishError> {
        let prefix = watched_prefix(resource.kind(), &plan.cluster, false);
        let (mut surplus, mut foreign) = (Vec::new(), BTreeSet::new());
        for existing in self.session.list_prefix(prefix.as_bytes()).await? {
            let Ok(key) = str::from_utf8(&existing.key) else { continue };
            // decoding the value is needed only if it is not the desired one
            let is_own = || is_own(plan, resource, &existing.value);
            match desired.get(key) {
                Some(value) if *value == *existing.value && self.session.lease_of(&existing.key) == Some(existing.lease) => {
                    desired.remove(key);
                }
                Some(_) if !is_own() => {
                    foreign.insert(key.to_owned());
                }
                Some(_) => {}
                None if is_own() => surplus.push(existing),
                None => {}
            }
        }
        if let Some(first) = foreign.first() {
            tracing::warn!(count = foreign.len(), first, "other writers already announce some addresses: their entries stay");
        }
        desired.retain(|key, _| !foreign.contains(key));
        let writes =
            iter(desired).map(|(key, value)| async move { self.session.update(key.as_bytes(), &value, KeyLifetime::Leased).await });
        let mut writes = std::pin::pin!(writes.buffer_unordered(WRITES_MAX));
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(surplus)
    }

    /// Writes a canary unless it exists on this session's lease. Its value is never read, so it is
    /// never refreshed.
    async fn write_canary(&self, canary: &str) -> Result<(), KvstoreError> {
        let existing = self.session.get(canary.as_bytes()).await?;
        if existing.is_none_or(|existing| self.session.lease_of(&existing.key) != Some(existing.lease)) {
            self.session.update(canary.as_bytes(), time_text(SystemTime::now()).as_bytes(), KeyLifetime::Leased).await?;
        }
        Ok(())
    }

    fn set_expected(&self, plan: &ClusterPlan, desired: &[(Resource, DesiredKeys)]) {
        let entries = desired.iter().flat_map(|(_, keys)| keys).map(|(key, value)| (key.clone().into_bytes(), Some(value.clone())));
        let canaries = Resource::ALL.into_iter().map(|resource| (plan.canary(resource).into_bytes(), None));
        let (config, value) = plan.config();
        let expected = entries.chain(canaries).chain([(config.into_bytes(), Some(value))]).collect();
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = expected;
    }

    /// Compares a change of the etcd with the expected values and requests a pass if it differs.
    /// Keys of other clusters have no expected value.
    pub(super) fn compare_event(&self, plan: &ClusterPlan, resource: Option<Resource>, event: &KeyValueEvent) {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let is_expected = match (event.kind, expected.get(&event.key)) {
            (EventKind::ListDone | EventKind::Relisting | EventKind::Relisted, _) => true,
            (EventKind::Delete, expected) => expected.is_none(),
            (EventKind::Create | EventKind::Modify, Some(value)) => value.as_ref().is_none_or(|value| **value == *event.value),
            (EventKind::Create | EventKind::Modify, None) => resource.is_none_or(|resource| !is_own(plan, resource, &event.value)),
        };
        drop(expected);
        if !is_expected {
            self.pass_requested.notify_one();
        }
    }

    /// Forgets the number of an identity that another process took over: the next pass allocates a
    /// new one.
    pub(super) fn forget_identity(&self, event: &AllocatorEvent) {
        if event.kind == AllocatorEventKind::Lost {
            self.numbers().remove(&event.key);
            self.pass_requested.notify_one();
        }
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeMap<AllocatorKey, u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether an entry belongs to the cluster. Keys of addresses do not contain a cluster's
/// name, so the identity in the value decides.
pub(super) fn is_own(plan: &ClusterPlan, resource: Resource, value: &[u8]) -> bool {
    match resource {
        Resource::Nodes | Resource::Identities | Resource::Services => true,
        Resource::Ips => ip_identity(value).is_some_and(|id| {
            IdentityScope::of(id) == IdentityScope::Global
                && plan.max_connected_clusters.identities_of(plan.id).is_some_and(|range| range.contains(&id))
        }),
    }
}
