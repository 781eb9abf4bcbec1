//! Reading the mirror.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{
    ClusterName, ClusterRecord, EntryKey, IdentityLabels, Kind, MaxConnectedClusters, ObjectPrefix, Record, Scope, ScopeSize, Sequence,
    Size, SourceStamp,
};
use crate::view::base::location::RecordLocation;
use crate::view::index::Within;
use crate::view::{Rank, ScopeState, View};
use crate::wire::{self, Context};

/// One ipcache entry that answers a lookup, with what it names.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupMatch {
    /// The record of the entry.
    pub record: Arc<Record>,
    /// The labels of its identity, where that identity is known: of the same cluster if it is there.
    pub labels: Option<IdentityLabels>,
    /// The node that has the entry's host address, where one is known: of the same cluster if there is one.
    pub node_name: Option<String>,
}

/// Labels that take more are decoded each time: Cilium's own have some 300 B, and a value may have 1.5 MB.
const KEPT_LABELS_BYTES_MAX: usize = 4 << 10;

/// A key that exists. It means something to the view alone that gave it.
#[derive(Debug, Clone)]
pub struct Live(Alive);

#[derive(Debug, Clone)]
enum Alive {
    Entry(RecordLocation),
    /// A cluster, a finding or a notice: it has no record.
    Made(EntryKey),
}

impl Live {
    /// The key.
    #[must_use]
    pub fn key(&self) -> EntryKey {
        match &self.0 {
            Alive::Entry(place) => place.key(),
            Alive::Made(key) => key.clone(),
        }
    }

    /// The cluster of the key.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        match &self.0 {
            Alive::Entry(place) => place.cluster(),
            Alive::Made(key) => &key.cluster,
        }
    }

    /// The place of a record; `None` of what is no record.
    pub(in crate::view) fn place(&self) -> Option<&RecordLocation> {
        match &self.0 {
            Alive::Entry(place) => Some(place),
            Alive::Made(_) => None,
        }
    }

    /// The kind of the key.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Alive::Entry(place) => place.kind(),
            Alive::Made(key) => key.kind,
        }
    }
}

impl View {
    /// The record of a key, decoded where it is packed: some microseconds.
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        self.place(key).map(|place| self.record_at(&place))
    }

    /// Whether a key is held.
    #[must_use]
    pub fn contains(&self, key: &EntryKey) -> bool {
        self.place(key).is_some()
    }

    /// The listing in which the source last confirmed a key, if it is held; 0 means not since meshkeep started.
    #[must_use]
    pub fn generation(&self, key: &EntryKey) -> Option<u64> {
        self.place(key).map(|place| self.generation_at(&place))
    }

    /// All records from a key on, that one included, in key order.
    #[cfg(test)]
    pub fn records_from(&self, start: &EntryKey) -> impl Iterator<Item = Arc<Record>> {
        self.places_from(start).map(|place| self.record_at(&place))
    }

    /// All records of a scope, in key order.
    #[cfg(test)]
    pub fn in_scope(&self, scope: &Scope) -> impl Iterator<Item = Arc<Record>> {
        self.places_in(scope).map(|place| self.record_at(&place))
    }

    /// The keys of a scope, in order.
    pub fn keys_in_scope(&self, scope: &Scope) -> impl Iterator<Item = EntryKey> {
        self.places_in(scope).map(|place| place.key())
    }

    /// The keys of a scope that its last list, and the changes since, did not confirm, in order.
    pub fn unconfirmed_in(&self, scope: &Scope) -> impl Iterator<Item = EntryKey> {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation.into());
        self.places_in(scope).filter(move |place| self.generation_at(place) < generation).map(|place| place.key())
    }

    /// How much is held of a scope, looked at row by row: names and values.
    #[must_use]
    pub fn size_of(&self, scope: &Scope) -> ScopeSize {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation.into());
        self.places_in(scope).fold(ScopeSize::default(), |size, place| {
            let one = Size { keys: 1, bytes: place.raw_length() as u64 };
            let is_confirmed = self.generation_at(&place) >= generation;
            ScopeSize { confirmed: if is_confirmed { size.confirmed + one } else { size.confirmed }, all: size.all + one }
        })
    }

    /// The records of a scope in key order, none decoded.
    pub(super) fn places_in(&self, scope: &Scope) -> impl Iterator<Item = RecordLocation> {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        self.places_from(&start).take_while(move |place| place.is_in(scope))
    }

    /// The keys whose newest bytes could not be used, from a key on.
    pub fn rejected_from(&self, start: &EntryKey) -> impl Iterator<Item = &EntryKey> + use<'_> {
        self.indices.rejected.range(start.clone()..)
    }

    /// Whether a key is held whose newest bytes could not be used.
    #[must_use]
    pub fn is_rejected(&self, key: &EntryKey) -> bool {
        self.indices.rejected.contains(key)
    }

    /// How many keys could not be used.
    #[must_use]
    pub fn rejected_count(&self) -> usize {
        self.indices.rejected.len()
    }

    /// The identity that a refused key names though its cluster may not have it in a mesh of that size, and those that it may have.
    #[must_use]
    pub fn identity_out_of_range(&self, key: &EntryKey, max: MaxConnectedClusters) -> Option<(u32, RangeInclusive<u32>)> {
        if !self.is_rejected(key) {
            return None;
        }
        let cluster_id = self.clusters.get(&key.cluster)?.config.as_ref()?.id;
        let context = Context { cluster: &key.cluster, cluster_id, max_connected_clusters: max };
        wire::identity_out_of_range(key, &self.record(key)?.value, &context)
    }

    /// The identities of that number, one for each cluster that has it: of several keys that mean it the one that the source wrote last.
    pub fn identities(&self, id: u32) -> impl Iterator<Item = Arc<Record>> {
        let keys = self.indices.identities(id);
        let newest = |keys: &[EntryKey]| {
            let records = keys.iter().filter_map(|key| self.record(key));
            records.max_by_key(|record| (record.source.mod_revision, record.last_sequence))
        };
        keys.chunk_by(|left, right| left.cluster == right.cluster).filter_map(newest).collect::<Vec<_>>().into_iter()
    }

    /// The ip entries that name an identity, from a key on.
    pub fn ips_of_identity(&self, id: u32, start: &EntryKey) -> impl Iterator<Item = Arc<Record>> {
        let mut packed = self.base.naming(id, start).peekable();
        let mut fresh = self.overlay.of_identity(id, start).peekable();
        std::iter::from_fn(move || {
            let packed_first = match (packed.peek(), fresh.peek()) {
                (Some((key, _)), Some(record)) => *key < record.key,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if packed_first {
                packed.next().map(|(_, place)| self.record_at(&place))
            } else {
                fresh.next().map(|record| self.record_at(&RecordLocation::Fresh(Arc::clone(record))))
            }
        })
    }

    /// The nodes that have an address.
    pub fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = Arc<Record>> {
        self.indices.nodes_at(ip).into_iter().filter_map(|key| self.record(&key))
    }

    /// The keys of the nodes that have an address, in order.
    #[must_use]
    pub fn node_keys_at(&self, ip: IpAddr) -> Vec<EntryKey> {
        self.indices.nodes_at(ip)
    }

    /// The ip entries that lie inside a network, where they are so many at most, or the clusters that have them.
    #[must_use]
    pub fn ips_within(&self, net: IpNet, count_max: usize) -> Within {
        self.indices.ips_within(net, count_max)
    }

    /// The ip entries for exactly this prefix, host entries first.
    pub fn ips_at(&self, net: IpNet) -> impl Iterator<Item = Arc<Record>> {
        self.indices.ips_at(net).into_iter().filter_map(|key| self.record(&key))
    }

    /// The entries for the longest prefix that covers an address, strongest first as the agents of a cluster have them ([`Rank`]).
    #[must_use]
    pub fn lookup(&self, ip: IpAddr, own: Option<&ClusterName>) -> Vec<LookupMatch> {
        let Some(prefix) = self.indices.longest_match(ip) else { return Vec::new() };
        let mut found: Vec<Arc<Record>> = self.indices.ips_of(prefix).iter().filter_map(|key| self.record(key)).collect();
        found.sort_by_key(|record| Rank::of(record, own));
        found.iter().filter_map(|record| self.join(record)).collect()
    }

    /// An ip entry with its identity's labels and its node's name.
    #[must_use]
    pub fn join(&self, record: &Arc<Record>) -> Option<LookupMatch> {
        let entry = record.object.as_deref()?.as_ip()?;
        let cluster = &record.key.cluster;
        let labels = self.labels_of(entry.identity, cluster);
        let node_name = match record.key.derived_from() {
            Some(node) => Some(node.to_owned()),
            None => entry.host_ip.and_then(|ip| self.indices.node_at(ip, cluster)).map(ToString::to_string),
        };
        Some(LookupMatch { record: Arc::clone(record), labels, node_name })
    }

    /// The labels of an identity: of the same cluster if it is there. They are decoded for the first caller and kept for others, unless they
    /// are large: some 400 B each, 16 MB where every one of 40,000 identities was asked for.
    fn labels_of(&self, identity: u32, cluster: &ClusterName) -> Option<IdentityLabels> {
        let Some(kept) = self.indices.labels(identity, cluster) else { return self.labels_elsewhere(identity, cluster) };
        if let Some(labels) = kept.get() {
            return Some(labels.clone());
        }
        let record = self.record(&EntryKey::new(Kind::Identity, cluster.clone(), identity.to_string()))?;
        let labels = labels_in(&record)?;
        if labels.footprint() <= KEPT_LABELS_BYTES_MAX {
            // somebody else may have been quicker, with the same
            let _ = kept.set(labels.clone());
        }
        Some(labels)
    }

    /// The labels of an identity where the cluster has none of that number, or several keys of it.
    fn labels_elsewhere(&self, identity: u32, cluster: &ClusterName) -> Option<IdentityLabels> {
        let keys = self.indices.identities(identity);
        let cluster = &keys.iter().find(|key| key.cluster == *cluster).or(keys.first())?.cluster;
        let record = match keys.iter().filter(|key| key.cluster == *cluster).collect::<Vec<_>>()[..] {
            [key] => self.record(key),
            _ => self.identities(identity).find(|record| record.key.cluster == *cluster),
        };
        labels_in(&*record?)
    }

    /// The keys, those of clusters and findings included, that exist and last changed after a position, `count` of them at most, in order of sequence.
    #[must_use]
    pub fn live_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, Live)> {
        let mut found = self.base.live_after(position, count);
        let last = found.get(..count).and_then(|found| found.iter().map(|(sequence, _)| *sequence).max()).unwrap_or(Sequence(u64::MAX));
        found.extend(self.overlay.within(position, last).map(|(sequence, record)| (sequence, RecordLocation::Fresh(Arc::clone(record)))));
        let entries = found.into_iter().map(|(sequence, place)| (sequence, Live(Alive::Entry(place))));
        let made = self.made_after(position).take(count).chain(self.notices_after(position));
        let made = made.map(|(sequence, key)| (sequence, Live(Alive::Made(key))));
        let mut found: Vec<(Sequence, Live)> = entries.chain(made).collect();
        found.sort_unstable_by_key(|(sequence, _)| *sequence);
        found.truncate(count);
        found
    }

    /// What may be an ipcache entry on one of these hosts, from a key on, in key order, and a few others, so that a scan can pause there.
    pub fn live_on(&self, start: &EntryKey, hosts: &[IpAddr]) -> impl Iterator<Item = Live> {
        self.places_on(start, hosts).map(|place| Live(Alive::Entry(place)))
    }

    /// Everything that exists from a key on, in key order, what is made here left out; nothing is decoded.
    pub fn live_from(&self, start: &EntryKey) -> impl Iterator<Item = Live> {
        self.places_from(start).map(|place| Live(Alive::Entry(place)))
    }

    /// The record of a key that exists and passes a test, decoded where it is packed; `None` of a cluster or finding.
    pub fn record_passing(&self, live: &Live, test: impl Fn(&EntryKey) -> bool) -> Option<Arc<Record>> {
        match &live.0 {
            Alive::Entry(place) => self.record_where(place, test),
            Alive::Made(_) => None,
        }
    }

    /// Whether a cluster announces an identity.
    #[must_use]
    pub fn has_identity(&self, id: u32, cluster: &ClusterName) -> bool {
        self.indices.identities(id).iter().any(|key| key.cluster == *cluster)
    }

    /// Whether a node of any cluster has an address.
    #[must_use]
    pub fn has_any_node_at(&self, ip: IpAddr) -> bool {
        !self.indices.nodes_at(ip).is_empty()
    }

    /// The clusters that have an entry for exactly a prefix, other than as a pod CIDR of a node: those only stand in for what is not announced.
    #[must_use]
    pub fn clusters_at(&self, prefix: ObjectPrefix) -> BTreeSet<ClusterName> {
        self.indices.ips_of(prefix).into_iter().filter(|key| !key.is_fallback()).map(|key| key.cluster).collect()
    }

    /// Every prefix that has several entries, of several clusters or of one, pod CIDRs of nodes left out, in no particular order; some that have
    /// one, or come twice, are among them. Looks at addresses alone: some milliseconds for a million.
    #[must_use]
    pub fn prefixes_of_several(&self) -> Vec<ObjectPrefix> {
        self.indices.prefixes_of_several()
    }

    /// The keys of the ip entries of every prefix that covers an address, most specific first, a host before a CIDR of full length.
    pub fn covering(&self, ip: IpAddr) -> impl Iterator<Item = EntryKey> {
        let full = IpNet::from(ip).prefix_len();
        let nets = (0..=full).rev().filter_map(move |length| IpNet::new(ip, length).ok());
        nets.flat_map(|net| self.indices.ips_at(net.trunc()))
    }

    /// The state of a scope; its cursor is [`View::cursor`].
    #[must_use]
    pub fn scope(&self, scope: &Scope) -> Option<ScopeState> {
        self.scopes.get(scope)
    }

    /// What is remembered of a cluster.
    #[must_use]
    pub fn cluster(&self, cluster: &ClusterName) -> Option<&ClusterRecord> {
        self.clusters.get(cluster)
    }

    /// Every cluster that anything is known of, in order.
    #[must_use]
    pub fn cluster_names(&self) -> BTreeSet<ClusterName> {
        self.clusters.keys().chain(self.made.clusters()).chain(self.scopes.clusters()).cloned().collect()
    }

    /// How many keys are mirrored, usable or not.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// How many keys of a scope the source has lost, and are held (invariant 4). Looks at few chunks as a rule, but at every row of those.
    #[must_use]
    pub fn held_count(&self, scope: &Scope) -> usize {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        let fresh = self.overlay.from(&start).map(|(_, record)| record);
        let fresh = fresh.take_while(|record| record.key.kind == scope.kind && record.key.cluster == scope.cluster);
        self.base.held_count(scope) + fresh.filter(|record| record.source.held).count()
    }

    /// How many objects of a kind there are, as lists know it.
    #[must_use]
    pub fn object_count(&self, kind: Kind) -> u64 {
        Kind::STORED.into_iter().filter(|stored| stored.listed_as() == kind).map(|stored| self.indices.object_counts[stored as usize]).sum()
    }

    /// Where the newest bytes of a record's key come from, or those of the node that it is derived from.
    #[must_use]
    pub fn origin_of(&self, record: &Record) -> SourceStamp {
        let node = if record.key.kind.is_mirrored() { None } else { self.place(&record.key.origin()) };
        node.map_or(record.source, |node| self.source_at(&node))
    }

    /// Whether the source has confirmed a record, or the node that it is derived from, since meshkeep started.
    #[must_use]
    pub fn is_confirmed(&self, record: &Record) -> bool {
        let origin = record.key.origin();
        let generation = if origin == record.key { Some(record.generation) } else { self.generation(&origin) };
        let scope = Scope { cluster: origin.cluster, kind: origin.kind };
        generation > Some(0) || self.scopes.get(&scope).is_some_and(|state| state.confirmed)
    }
}

fn labels_in(identity: &Record) -> Option<IdentityLabels> {
    identity.object.as_deref()?.as_identity().map(|identity| identity.labels.clone())
}
