//! One snapshot and everything that can be read from it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use super::ClusterBoard;
use crate::commit::{DecodedBudget, DecodedRoom, NoDecodedRoom, Published};
use crate::feed::TrimmedCounts;
use crate::model::{
    ClusterId, ClusterName, ClusterRecord, ClusterStatus, EntryKey, Kind, MaxConnectedClusters, Object, PackedSlice, Phase, Position,
    Record, RefusedKey, Revision, Scope, Sequence,
};
use crate::view::{LookupMatch, Rank};

/// How many keys that cannot be used are counted of a kind of a cluster: more say no more, and each takes some 50 ns.
pub const REJECTED_COUNTED_MAX: usize = 1_000;

/// An immutable moment of the mirror, with what each cluster's task says about itself.
#[derive(Debug, Clone)]
pub struct Reading {
    published: Arc<Published>,
    board: ClusterBoard,
    own_cluster: Option<ClusterName>,
    max_connected_clusters: MaxConnectedClusters,
    decoded: DecodedBudget,
    now: Instant,
}

/// Whether the source has confirmed something since meshkeep started. The least certain comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nothing was ever read of it.
    NeverRead,
    /// From the store, not confirmed yet.
    Restored,
    /// Confirmed by the source.
    Live,
}

impl Origin {
    /// What sources are as a whole: live only if all are, restored if any is. `None` of no sources at all.
    pub fn of_all(origins: impl Iterator<Item = Self>) -> Option<Self> {
        origins.reduce(|all, one| if all == Self::Restored || one == Self::Restored { Self::Restored } else { all.min(one) })
    }
}

/// Where an answer comes from and how old it is (docs/develop/invariants.md, 10).
#[derive(Debug, Clone, PartialEq)]
pub struct SourceMeta {
    /// The cluster.
    pub cluster: ClusterName,
    /// The kind.
    pub kind: Kind,
    /// Restored as long as anything of it is unconfirmed.
    pub origin: Origin,
    /// Where the cluster is in its life; `None` where it is not known.
    pub phase: Option<Phase>,
    /// When the source's etcd last answered.
    pub last_contact: Option<SystemTime>,
    /// When the source's writer last put a heartbeat. `None` if it put none since meshkeep started.
    pub last_heartbeat: Option<SystemTime>,
    /// How long ago the last contact was, on the monotonic clock where it was in this process; never negative. Once the writer is silent, how long ago its
    /// last heartbeat was.
    pub age: Option<Duration>,
    /// The source's revision that the kind is complete up to.
    pub revision: Option<Revision>,
    /// Whether the source is itself a copy, made by a KVStoreMesh: then its own age is not known.
    pub cached: bool,
    /// Of a single record: the source has lost it, and it is kept all the same (docs/develop/invariants.md, 4).
    pub held: bool,
}

/// How much is mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Keys, usable or not.
    pub entries: u64,
    /// Usable nodes.
    pub nodes: u64,
    /// Usable services.
    pub services: u64,
    /// Names that some cluster shares or exports a service under.
    pub global_services: u64,
    /// Usable service exports.
    pub service_exports: u64,
    /// Usable endpoint slices.
    pub endpoint_slices: u64,
    /// Usable identities.
    pub identities: u64,
    /// Usable ip entries, those derived from nodes included.
    pub ipcache: u64,
    /// Keys whose newest bytes could not be used, cluster configs and keys that are no entries among them.
    pub rejected: u64,
}

/// How far back positions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedReading {
    /// The sequence of the newest change.
    pub head: Sequence,
    /// The oldest position that can be served.
    pub floor: Sequence,
    /// How many deleted keys are remembered.
    pub tombstone_count: usize,
    /// When the oldest of them was deleted.
    pub oldest_tombstone: Option<SystemTime>,
    /// Which bound took earlier ones away.
    pub trimmed: TrimmedCounts,
}

/// One cluster as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterReading {
    /// Its name.
    pub name: ClusterName,
    /// Whether it is the own cluster (`--local-etcd`).
    pub is_local: bool,
    /// Where it is in its life at this position, as the change stream tells it; `None` where no task has said so since the start.
    pub phase: Option<Phase>,
    /// The newest word of its task; `None` where it has no file at the moment.
    pub status: Option<ClusterStatus>,
    /// What is remembered of it.
    pub record: ClusterRecord,
    /// One for each kind, in the order of [`Kind::ALL`].
    pub resources: Vec<ResourceReading>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceReading {
    /// The kind.
    pub kind: Kind,
    /// Keys that are held.
    pub entry_count: u64,
    /// Of these, from the store and not confirmed yet.
    pub restored_count: u64,
    /// How old the kind is.
    pub source: SourceMeta,
}

impl Reading {
    pub(crate) fn new(published: Arc<Published>, board: ClusterBoard) -> Self {
        let (max_connected_clusters, decoded) = (MaxConnectedClusters::default(), DecodedBudget::default());
        Self { published, board, own_cluster: None, max_connected_clusters, decoded, now: Instant::now() }
    }

    /// This reading, taking room for large decoded values from what the process has.
    pub(super) fn with_decoded(self, decoded: DecodedBudget) -> Self {
        Self { decoded, ..self }
    }

    /// Waits for the room that a record takes once it is decoded; on a thread that may block.
    ///
    /// # Errors
    /// [`NoDecodedRoom`].
    pub fn room_for(&self, record: &Record) -> Result<DecodedRoom, NoDecodedRoom> {
        let slice = record.object.as_deref().and_then(Object::as_endpoint_slice);
        self.decoded.hold_blocking(slice.map_or(0, PackedSlice::decoded_bytes))
    }

    /// Memory for large decoded values.
    pub(super) const fn decoded(&self) -> &DecodedBudget {
        &self.decoded
    }

    /// The reading as a sidecar of this cluster in a mesh of this size reads it.
    pub(super) fn within(self, own_cluster: Option<ClusterName>, max_connected_clusters: MaxConnectedClusters) -> Self {
        Self { own_cluster, max_connected_clusters, ..self }
    }

    /// The own cluster, where it is named (`--cluster-name`).
    #[must_use]
    pub fn own_cluster(&self) -> Option<&ClusterName> {
        self.own_cluster.as_ref()
    }

    /// How many clusters the mesh can have (`--max-connected-clusters`).
    pub(super) const fn max_connected_clusters(&self) -> MaxConnectedClusters {
        self.max_connected_clusters
    }

    pub(super) fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// The position of this moment.
    #[must_use]
    pub fn position(&self) -> Position {
        self.published.position()
    }

    /// A number that moves with whatever answers tell of these kinds in these clusters, of all where none is named: objects, where they come from,
    /// phases. Within one process it never comes back.
    #[must_use]
    pub fn moved(&self, clusters: &[ClusterName], kinds: &[Kind]) -> u64 {
        self.published.view.moved(clusters, kinds)
    }

    /// The record of a key, usable or not.
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        self.published.view.record(key)
    }

    /// What of the sources could not be used beside their entries, in order.
    #[must_use]
    pub fn refused(&self, clusters: &[ClusterName]) -> Vec<(ClusterName, RefusedKey)> {
        let wanted = self.board.iter().filter(|(name, _)| clusters.is_empty() || clusters.contains(name));
        wanted
            .flat_map(|(name, status)| status.borrow().refused.iter().map(|refused| (name.clone(), refused.clone())).collect::<Vec<_>>())
            .collect()
    }

    /// The entries for the longest prefix that covers an address; the first one answers.
    #[must_use]
    pub fn lookup(&self, ip: IpAddr) -> Vec<LookupMatch> {
        self.published.view.lookup(ip, self.own_cluster.as_ref())
    }

    /// How strong an ip entry is among those for its prefix.
    #[must_use]
    pub fn rank(&self, record: &Record) -> Rank {
        Rank::of(record, self.own_cluster.as_ref())
    }

    /// The ip entries for exactly this prefix, host entries first.
    pub fn ips_at(&self, net: IpNet) -> impl Iterator<Item = Arc<Record>> {
        self.published.view.ips_at(net)
    }

    /// The identities of that number, one for each cluster that has it.
    pub fn identities(&self, id: u32) -> impl Iterator<Item = Arc<Record>> {
        self.published.view.identities(id)
    }

    /// The cluster that may have allocated a number, by its bits, and its name where a cluster of that id is known.
    #[must_use]
    pub fn owner_of_identity(&self, id: u32) -> Option<(ClusterId, Option<ClusterName>)> {
        let owner = self.max_connected_clusters.cluster_of_identity(id).filter(|owner| *owner != ClusterId(0))?;
        let view = &self.published.view;
        let has_id =
            |name: &ClusterName| view.cluster(name).and_then(|record| record.config.as_ref()).is_some_and(|config| config.id == owner);
        Some((owner, view.cluster_names().into_iter().find(has_id)))
    }

    /// The addresses of every node of that name, each with its cluster: what `node=` means for ip entries.
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

    /// How much is mirrored.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let view = &self.published.view;
        Counts {
            entries: view.entry_count() as u64,
            nodes: view.object_count(Kind::Node),
            services: view.object_count(Kind::Service),
            global_services: view.global_service_count(),
            service_exports: view.object_count(Kind::ServiceExport),
            endpoint_slices: view.object_count(Kind::EndpointSlice),
            identities: view.object_count(Kind::Identity),
            ipcache: view.object_count(Kind::Ip),
            rejected: view.rejected_count() as u64 + self.board.values().map(|status| status.borrow().refused.len() as u64).sum::<u64>(),
        }
    }

    /// How far back positions reach.
    #[must_use]
    pub fn feed(&self) -> FeedReading {
        let feed = &self.published.feed;
        FeedReading {
            head: feed.head(),
            floor: feed.floor(),
            tombstone_count: feed.tombstone_count(),
            oldest_tombstone: feed.oldest_tombstone(),
            trimmed: feed.trimmed(),
        }
    }

    /// Every cluster that has a file, in order.
    #[must_use]
    pub fn configured_clusters(&self) -> Vec<ClusterName> {
        self.board.keys().cloned().collect()
    }

    /// Every cluster that is known at this position, in order.
    #[must_use]
    pub fn cluster_names(&self) -> Vec<ClusterName> {
        self.published.view.cluster_names().into_iter().collect()
    }

    /// One cluster as a whole, if it has a file or anything is held of it.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<ClusterReading> {
        let view = &self.published.view;
        let status = self.status(name);
        let known =
            status.is_some() || view.cluster(name).is_some() || Kind::ALL.into_iter().any(|kind| view.scope(&scope(name, kind)).is_some());
        known.then(|| ClusterReading {
            name: name.clone(),
            is_local: self.own_cluster.as_ref() == Some(name),
            // its task has begun before the writer has heard of it
            phase: view.phase(name).or(status.as_ref().map(|status| status.phase)),
            status,
            record: view.cluster(name).cloned().unwrap_or_default(),
            resources: Kind::ALL.into_iter().map(|kind| self.resource(name, kind)).collect(),
        })
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

    /// How many keys of a cluster could not be used, [`REJECTED_COUNTED_MAX`] of each kind at most, and the first of them.
    #[must_use]
    pub fn rejected_of(&self, cluster: &ClusterName) -> (usize, Option<EntryKey>) {
        let (mut count, mut first) = (0, None);
        for kind in Kind::ALL {
            let start = EntryKey::new(kind, cluster.clone(), "");
            let of_kind = self.published.view.rejected_from(&start).take_while(|key| key.kind == kind && key.cluster == *cluster);
            for key in of_kind.take(REJECTED_COUNTED_MAX) {
                count += 1;
                first.get_or_insert_with(|| key.clone());
            }
        }
        (count, first)
    }

    /// Where everything of one mirrored kind of one cluster comes from and how old it is.
    #[must_use]
    pub fn source(&self, cluster: &ClusterName, kind: Kind) -> SourceMeta {
        let [source] = self.sources(cluster, [kind]);
        source
    }

    /// Where everything of several kinds of one cluster comes from and how old it is.
    #[must_use]
    pub fn sources<const COUNT: usize>(&self, cluster: &ClusterName, kinds: [Kind; COUNT]) -> [SourceMeta; COUNT] {
        let view = &self.published.view;
        let (record, phase) = (view.cluster(cluster), view.phase(cluster));
        // what else a status has may be long, and an answer may use hundreds
        let contacts = self.board.get(cluster).map(|status| {
            let status = status.borrow();
            let age = status.last_contact.map(|contact| status.writer.age(contact, self.now));
            (age, status.last_contact_time, status.writer.last_heartbeat())
        });
        let (age, contact_time, last_heartbeat) = contacts.unwrap_or_default();
        let stored_contact = record.and_then(|record| record.last_contact);
        let last_contact = contact_time.or(stored_contact);
        let age = age.or_else(|| stored_contact.map(|time| SystemTime::now().duration_since(time).unwrap_or(Duration::ZERO)));
        let cached = record.and_then(|record| record.config.as_ref()).is_some_and(|config| config.cached);
        kinds.map(|kind| {
            let scope = scope(cluster, kind);
            let cursor = view.cursor(&scope);
            let origin = match (view.scope(&scope), cursor) {
                (Some(state), _) if state.confirmed => Origin::Live,
                (None, None) => Origin::NeverRead,
                (Some(state), None) if state.entry_count == 0 => Origin::NeverRead,
                (_, _) => Origin::Restored,
            };
            // while a list is being settled the cursor claims nothing
            let revision = cursor.map(|cursor| cursor.revision).filter(|revision| revision.0 > 0);
            SourceMeta { cluster: cluster.clone(), kind, origin, phase, last_contact, last_heartbeat, age, revision, cached, held: false }
        })
    }

    /// Whether everything of a kind of a cluster was read once, so that what is absent means something.
    #[must_use]
    pub fn is_complete(&self, cluster: &ClusterName, kind: Kind) -> bool {
        self.source(cluster, kind).revision.is_some()
    }

    /// Where one record comes from and how old it is: one that is derived from a node is as its node is.
    #[must_use]
    pub fn source_of(&self, record: &Record) -> SourceMeta {
        let origin = if self.published.view.is_confirmed(record) { Origin::Live } else { Origin::Restored };
        let stamp = self.published.view.origin_of(record);
        let (held, revision) = (stamp.held, Some(stamp.mod_revision));
        SourceMeta { origin, revision, held, ..self.source(&record.key.cluster, record.key.origin().kind) }
    }

    fn status(&self, cluster: &ClusterName) -> Option<ClusterStatus> {
        self.board.get(cluster).map(|status| status.borrow().clone())
    }
}

fn scope(cluster: &ClusterName, kind: Kind) -> Scope {
    Scope { cluster: cluster.clone(), kind }
}
