//! One snapshot and the queries on it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use super::ClusterStatuses;
use super::status_version::StatusVersion;
use super::summary::SummaryCache;
use crate::commit::{DecodedBudget, DecodedBudgetError, DecodedPermit, MirrorSnapshot};
use crate::feed::TrimmedCounts;
use crate::history::HistorySnapshot;
use crate::model::{
    ClusterId, ClusterName, ClusterRecord, ClusterStatus, EntryKey, Kind, MaxConnectedClusters, Object, Origin, PackedSlice, Phase,
    Position, Record, RefusedKey, Revision, Scope, Sequence,
};
use crate::view::{EntryRank, LookupMatch};

/// Maximum number of rejected keys that are counted per kind and cluster. Higher counts say nothing
/// more, and each key takes about 50 ns.
pub const REJECTED_COUNTED_MAX: usize = 1_000;

/// Immutable snapshot of the mirror, with the status of each cluster.
#[derive(Debug, Clone)]
pub struct Reading {
    pub(super) published: Arc<MirrorSnapshot>,
    pub(super) statuses: ClusterStatuses,
    pub(super) own_cluster: Option<ClusterName>,
    pub(super) max_connected_clusters: MaxConnectedClusters,
    /// Memory for large decoded values.
    pub(super) decoded: DecodedBudget,
    /// True if the mirror was filled from a dump.
    pub(super) is_dump: bool,
    /// Time at which the request began.
    pub(super) now: Instant,
    /// Shared with other readings of the same mirror.
    pub(super) summary: SummaryCache,
    /// Counter of the statuses' changes, shared with other readings.
    pub(super) status_version: StatusVersion,
    /// History with the exact times of old changes, for answers about an earlier time.
    pub(super) exact_times: Option<Arc<HistorySnapshot>>,
}

/// Source and age of an answer (docs/develop/invariants.md, 10).
#[derive(Debug, Clone, PartialEq)]
pub struct SourceMeta {
    /// Cluster of the source.
    pub cluster: ClusterName,
    /// Mirrored kind.
    pub kind: Kind,
    /// Origin, which is `Restored` while any of the data is unconfirmed.
    pub origin: Origin,
    /// Phase of the cluster, if known.
    pub phase: Option<Phase>,
    /// Time of the last answer of the source's etcd.
    pub last_contact: Option<SystemTime>,
    /// Time of the last heartbeat of the source's writer. `None` if it put none since meshkeep
    /// started.
    pub last_heartbeat: Option<SystemTime>,
    /// Time since the last contact; never negative. Measured with the monotonic clock if the
    /// contact was in this process. Once the writer is silent, the time since its last heartbeat.
    pub age: Option<Duration>,
    /// Revision of the source up to which the kind is complete.
    pub revision: Option<Revision>,
    /// True if the source is a KVStoreMesh's copy, whose own age is not known.
    pub cached: bool,
    /// True for a record that the source has lost and that is held (docs/develop/invariants.md, 4).
    pub held: bool,
}

/// Range of the positions that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRange {
    /// Sequence of the newest change.
    pub head: Sequence,
    /// Oldest position that can be served.
    pub floor: Sequence,
    /// Number of tombstones.
    pub tombstone_count: usize,
    /// Time of the oldest tombstone.
    pub oldest_tombstone: Option<SystemTime>,
    /// Number of tombstones that each limit has removed.
    pub trimmed: TrimmedCounts,
}

/// State of one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterReading {
    /// Name of the cluster.
    pub name: ClusterName,
    /// True for the own cluster (`--local-etcd`).
    pub is_local: bool,
    /// Phase at this position, as in the change stream. `None` if no task has reported one since
    /// the start.
    pub phase: Option<Phase>,
    /// Current status of the cluster's task. `None` if the cluster has no client file at the
    /// moment.
    pub status: Option<ClusterStatus>,
    /// Stored record of the cluster.
    pub record: ClusterRecord,
    /// State of each kind, in the order of [`Kind::ALL`].
    pub resources: Vec<ResourceReading>,
}

/// State of one kind of one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceReading {
    /// Mirrored kind.
    pub kind: Kind,
    /// Number of keys in the mirror.
    pub entry_count: u64,
    /// Number of keys in the mirror that are restored and not confirmed yet.
    pub restored_count: u64,
    /// Source and age of the kind.
    pub source: SourceMeta,
}

impl Reading {
    /// Creates a reading of a snapshot, with the default limits.
    #[must_use]
    pub fn new(published: Arc<MirrorSnapshot>, statuses: ClusterStatuses) -> Self {
        let (max_connected_clusters, decoded) = (MaxConnectedClusters::default(), DecodedBudget::default());
        let (own_cluster, is_dump, now) = (None, false, Instant::now());
        let (summary, status_version) = (SummaryCache::default(), StatusVersion::default());
        let exact_times = None;
        Self { published, statuses, own_cluster, max_connected_clusters, decoded, is_dump, now, summary, status_version, exact_times }
    }

    /// Waits for the memory of a decoded record. Must be called on a thread that may block.
    ///
    /// # Errors
    /// [`DecodedBudgetError`] if the record is too large or the wait too long.
    pub fn reserve_memory_for(&self, record: &Record) -> Result<DecodedPermit, DecodedBudgetError> {
        let slice = record.object.as_deref().and_then(Object::as_endpoint_slice);
        self.decoded.reserve_blocking(slice.map_or(0, PackedSlice::decoded_bytes))
    }

    /// Returns the own cluster, if it is set (`--cluster-name`).
    #[must_use]
    pub fn own_cluster(&self) -> Option<&ClusterName> {
        self.own_cluster.as_ref()
    }

    /// Returns the position of this snapshot.
    #[must_use]
    pub fn position(&self) -> Position {
        self.published.position()
    }

    /// Returns a number that changes whenever answers about these kinds in these clusters may
    /// change. An empty list means all kinds or all clusters.
    ///
    /// The number covers objects, their sources and the phases. Within one process, a number is
    /// never used again.
    #[must_use]
    pub fn content_version(&self, clusters: &[ClusterName], kinds: &[Kind]) -> u64 {
        self.published.view.content_version(clusters, kinds)
    }

    /// Returns a number that changes whenever a status of a cluster changes, except for times. A
    /// status that is read afterwards is at least as new.
    #[must_use]
    pub fn status_version(&self) -> u64 {
        self.status_version.get(&self.statuses)
    }

    /// Returns the record of a key, usable or not.
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        self.published.view.record(key)
    }

    /// Returns the refused keys of these clusters' etcds, which are not entries of the mirror, in
    /// order. Returns those of all clusters if `clusters` is empty.
    #[must_use]
    pub fn refused(&self, clusters: &[ClusterName]) -> Vec<(ClusterName, RefusedKey)> {
        let wanted = self.statuses.iter().filter(|(name, _)| clusters.is_empty() || clusters.contains(name));
        wanted
            .flat_map(|(name, status)| status.borrow().refused.iter().map(|refused| (name.clone(), refused.clone())).collect::<Vec<_>>())
            .collect()
    }

    /// Returns the entries for the longest prefix that covers `ip`. The first one is the answer.
    #[must_use]
    pub fn lookup(&self, ip: IpAddr) -> Vec<LookupMatch> {
        self.published.view.lookup(ip, self.own_cluster.as_ref())
    }

    /// Returns the strength of an ipcache entry among those for its prefix.
    #[must_use]
    pub fn rank(&self, record: &Record) -> EntryRank {
        EntryRank::of(record, self.own_cluster.as_ref())
    }

    /// Returns the ipcache entries for exactly this prefix, host entries first.
    pub fn ips_at(&self, net: IpNet) -> impl Iterator<Item = Arc<Record>> {
        self.published.view.ips_at(net)
    }

    /// Returns the identities with this number, one for each cluster that has it.
    pub fn identities(&self, id: u32) -> impl Iterator<Item = Arc<Record>> {
        self.published.view.identities(id)
    }

    /// Returns the id of the cluster that may have allocated an identity, from the identity's bits,
    /// and the name of that cluster if it is known.
    #[must_use]
    pub fn owner_of_identity(&self, id: u32) -> Option<(ClusterId, Option<ClusterName>)> {
        let owner = self.max_connected_clusters.cluster_of_identity(id).filter(|owner| *owner != ClusterId(0))?;
        let view = &self.published.view;
        let has_id =
            |name: &ClusterName| view.cluster(name).and_then(|record| record.config.as_ref()).is_some_and(|config| config.id == owner);
        Some((owner, view.cluster_names().into_iter().find(has_id)))
    }

    /// Returns the addresses of every node with this name, with its cluster. The filter `node=`
    /// selects ipcache entries by these host addresses.
    #[must_use]
    pub fn node_host_ips(&self, name: &str) -> Vec<(Option<ClusterName>, IpAddr)> {
        let names = self.cluster_names().into_iter();
        let nodes = names.filter_map(|cluster| self.record(&EntryKey::new(Kind::Node, cluster, name)));
        let mut addresses = Vec::new();
        for record in nodes {
            if let Some(Object::Node(node)) = record.object.as_deref() {
                addresses.extend(node.addresses.iter().map(|address| (Some(record.key.cluster.clone()), address.ip)));
            }
        }
        addresses
    }

    /// Returns the number of keys, usable or not.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.published.view.entry_count() as u64
    }

    /// Returns the number of usable objects of a mirrored kind. Ipcache entries that are derived
    /// from nodes count as ipcache entries.
    #[must_use]
    pub fn object_count(&self, kind: Kind) -> u64 {
        self.published.view.object_count(kind)
    }

    /// Returns the number of services, by name, that at least one cluster shares or exports.
    #[must_use]
    pub fn global_service_count(&self) -> u64 {
        self.published.view.global_service_count()
    }

    /// Returns the number of keys whose newest value was rejected, including cluster configs and
    /// unreadable keys.
    #[must_use]
    pub fn rejected_count(&self) -> u64 {
        self.published.view.rejected_count() as u64 + self.status_version.refused_count(&self.statuses)
    }

    /// Returns the range of positions that can be served.
    #[must_use]
    pub fn feed(&self) -> PositionRange {
        let feed = &self.published.feed;
        PositionRange {
            head: feed.head(),
            floor: feed.floor(),
            tombstone_count: feed.tombstone_count(),
            oldest_tombstone: feed.oldest_tombstone(),
            trimmed: feed.trimmed(),
        }
    }

    /// Returns every cluster with a client file, in order.
    #[must_use]
    pub fn configured_clusters(&self) -> Vec<ClusterName> {
        self.statuses.keys().cloned().collect()
    }

    /// Returns every cluster that is known at this position, in order.
    #[must_use]
    pub fn cluster_names(&self) -> Vec<ClusterName> {
        self.summary().clusters.iter().map(|cluster| cluster.name.clone()).collect()
    }

    /// Returns the state of a cluster, if it has a client file or anything of it is in the mirror.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<ClusterReading> {
        let view = &self.published.view;
        let status = self.status(name);
        self.is_known(name).then(|| ClusterReading {
            name: name.clone(),
            is_local: self.own_cluster.as_ref() == Some(name),
            // the task may have started before the committer has received its phase
            phase: view.phase(name).or(status.as_ref().map(|status| status.phase)),
            status,
            record: view.cluster(name).cloned().unwrap_or_default(),
            resources: Kind::ALL.into_iter().map(|kind| self.resource(name, kind)).collect(),
        })
    }

    /// Returns whether a cluster has a client file, or anything of it is in the mirror.
    pub(super) fn is_known(&self, name: &ClusterName) -> bool {
        let view = &self.published.view;
        let has_scope = || Kind::ALL.into_iter().any(|kind| view.scope(&scope(name, kind)).is_some());
        self.status(name).is_some() || view.cluster(name).is_some() || has_scope()
    }

    fn resource(&self, name: &ClusterName, kind: Kind) -> ResourceReading {
        let state = self.published.view.scope(&scope(name, kind));
        ResourceReading {
            kind,
            entry_count: state.map_or(0, |state| state.entry_count.into()),
            restored_count: state.map_or(0, |state| state.restored_count.into()),
            source: self.source(name, kind),
        }
    }

    /// Returns the clusters with rejected keys of these kinds.
    #[must_use]
    pub fn clusters_with_rejected(&self, kinds: &[Kind]) -> BTreeSet<ClusterName> {
        let mut clusters = BTreeSet::new();
        for kind in kinds {
            let (mut start, mut found) = (EntryKey::lowest_of(*kind), BTreeSet::new());
            let in_kind = |start: &EntryKey, found: &BTreeSet<ClusterName>| {
                let mut keys = self.published.view.rejected_from(start).take_while(|key| key.kind == *kind);
                keys.find(|key| !found.contains(&key.cluster)).map(|key| key.cluster.clone())
            };
            while let Some(cluster) = in_kind(&start, &found) {
                // nearly all names of the cluster sort before this one, and are skipped
                start = EntryKey::new(*kind, cluster.clone(), "\u{10ffff}");
                found.insert(cluster);
            }
            clusters.append(&mut found);
        }
        clusters
    }

    /// Returns the id in the config of a cluster; `None` if it has no config, or an id of 0.
    #[must_use]
    pub fn cluster_id(&self, cluster: &ClusterName) -> Option<ClusterId> {
        let config = self.published.view.cluster(cluster)?.config.as_ref()?;
        Some(config.id).filter(|id| *id != ClusterId(0))
    }

    /// Returns the number of a cluster's rejected keys, up to [`REJECTED_COUNTED_MAX`] per kind,
    /// and the first of them.
    #[must_use]
    pub fn rejected_of(&self, cluster: &ClusterName) -> (usize, Option<EntryKey>) {
        let (mut count, mut first) = (0, None);
        for kind in Kind::ALL {
            let start = EntryKey::new(kind, cluster.clone(), "");
            let rejected = self.published.view.rejected_from(&start).take_while(|key| key.kind == kind && key.cluster == *cluster);
            for key in rejected.take(REJECTED_COUNTED_MAX) {
                count += 1;
                first.get_or_insert_with(|| key.clone());
            }
        }
        (count, first)
    }

    /// Returns source and age of one kind of a cluster.
    #[must_use]
    pub fn source(&self, cluster: &ClusterName, kind: Kind) -> SourceMeta {
        let [source] = self.sources(cluster, [kind]);
        source
    }

    /// Returns source and age of several kinds of a cluster.
    #[must_use]
    pub fn sources<const COUNT: usize>(&self, cluster: &ClusterName, kinds: [Kind; COUNT]) -> [SourceMeta; COUNT] {
        let view = &self.published.view;
        let (record, phase) = (view.cluster(cluster), view.phase(cluster));
        // copy only what is needed: the rest of a status may be large, and one answer may need the
        // status of hundreds of clusters
        let contacts = self.statuses.get(cluster).map(|status| {
            let status = status.borrow();
            let age = status.last_contact.map(|contact| status.writer.age(contact, self.now));
            (age, status.last_contact_time, status.writer.last_heartbeat())
        });
        let (age, contact_time, last_heartbeat) = contacts.unwrap_or_default();
        let stored_contact = record.and_then(|record| record.last_contact);
        let last_contact = contact_time.or(stored_contact);
        let age = age.or_else(|| stored_age(stored_contact));
        let cached = record.and_then(|record| record.config.as_ref()).is_some_and(|config| config.cached);
        kinds.map(|kind| {
            let origin = self.origin(cluster, kind);
            // between the end of a list and the check of the entries that the list did not confirm,
            // the cursor has no positive revision
            let revision = view.cursor(&scope(cluster, kind)).map(|cursor| cursor.revision).filter(|revision| revision.0 > 0);
            SourceMeta { cluster: cluster.clone(), kind, origin, phase, last_contact, last_heartbeat, age, revision, cached, held: false }
        })
    }

    /// Returns the origin of one kind of a cluster.
    pub(super) fn origin(&self, cluster: &ClusterName, kind: Kind) -> Origin {
        let (view, scope) = (&self.published.view, scope(cluster, kind));
        match (view.scope(&scope), view.cursor(&scope)) {
            (Some(state), _) if self.is_dump && state.entry_count > 0 => Origin::Dump,
            (Some(state), _) if state.confirmed => Origin::Live,
            (None, None) => Origin::NeverRead,
            (Some(state), None) if state.entry_count == 0 => Origin::NeverRead,
            (_, _) => Origin::Restored,
        }
    }

    /// Returns whether a kind of a cluster was read completely once. Only then does a missing key
    /// mean that the source does not have it.
    #[must_use]
    pub fn is_complete(&self, cluster: &ClusterName, kind: Kind) -> bool {
        self.source(cluster, kind).revision.is_some()
    }

    /// Returns source and age of one record. A record that is derived from a node has those of its
    /// node.
    #[must_use]
    pub fn source_of(&self, record: &Record) -> SourceMeta {
        self.source_with(record, self.source(&record.key.cluster, record.key.origin().kind))
    }

    /// Returns the source of one record, given the source of its cluster and kind.
    #[must_use]
    pub fn source_with(&self, record: &Record, source: SourceMeta) -> SourceMeta {
        let origin = match self.published.view.is_confirmed(record) {
            _ if self.is_dump => Origin::Dump,
            true => Origin::Live,
            false => Origin::Restored,
        };
        let stamp = self.published.view.source_stamp_of(record);
        let (held, revision) = (stamp.held, Some(stamp.mod_revision).filter(|revision| revision.0 > 0));
        SourceMeta { origin, revision, held, ..source }
    }

    fn status(&self, cluster: &ClusterName) -> Option<ClusterStatus> {
        self.statuses.get(cluster).map(|status| status.borrow().clone())
    }
}

fn scope(cluster: &ClusterName, kind: Kind) -> Scope {
    Scope { cluster: cluster.clone(), kind }
}

/// Returns the age of data whose source answered last in an earlier process.
pub(in crate::handle) fn stored_age(last_contact: Option<SystemTime>) -> Option<Duration> {
    last_contact.map(|time| SystemTime::now().duration_since(time).unwrap_or_default())
}
