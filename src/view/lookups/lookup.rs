//! Queries of the mirror: lookups, records, keys in order, and counts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{
    ClusterName, ClusterRecord, EntryKey, IdentityLabels, Kind, MaxConnectedClusters, ObjectPrefix, Record, Scope, ScopeSize, Sequence,
    Size, SourceStamp,
};
use crate::pack::RowFilter;
use crate::view::index::NetworkEntries;
use crate::view::records::location::RecordLocation;
use crate::view::records::scan::ScanStep;
use crate::view::{EntryRank, ScopeState, View};
use crate::wire::{self, Context};

/// Ipcache entry that answers a lookup, with its labels and node.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupMatch {
    /// Record of the entry.
    pub record: Arc<Record>,
    /// Labels of the entry's identity, if it is known: the identity of the same cluster if
    /// possible.
    pub labels: Option<IdentityLabels>,
    /// Node that has the entry's host address, if one is known: one of the same cluster if
    /// possible.
    pub node_name: Option<String>,
}

/// Maximum size of labels that stay decoded, in bytes. Usual labels have about 300 bytes; a value
/// may have 1.5 MB.
const CACHED_LABELS_BYTES_MAX: usize = 4 << 10;

/// An existing key. Valid only for the view that returned it.
///
/// Contains the location of the key's record, or the key itself if it has no record. That is the
/// case for clusters, findings, notices and chunks that a scan skipped.
#[derive(Debug, Clone)]
pub struct LiveKey(Result<RecordLocation, EntryKey>);

impl LiveKey {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> EntryKey {
        self.0.as_ref().map_or_else(EntryKey::clone, RecordLocation::key)
    }

    /// Returns the cluster of the key.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        self.0.as_ref().map_or_else(|key| &key.cluster, RecordLocation::cluster)
    }

    /// Returns the location of the record; `None` if the key has no record.
    pub(in crate::view) fn location(&self) -> Option<&RecordLocation> {
        self.0.as_ref().ok()
    }

    /// Returns the kind of the key.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.as_ref().map_or_else(|key| key.kind, RecordLocation::kind)
    }
}

impl View {
    /// Returns the record of a key. Decoding a packed record takes some microseconds.
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        self.records.record_of(key)
    }

    /// Returns whether a key exists.
    #[must_use]
    pub fn contains(&self, key: &EntryKey) -> bool {
        self.records.locate(key).is_some()
    }

    /// Returns the number of the list in which the source last confirmed a key; 0 if it has not
    /// confirmed the key since meshkeep started.
    #[must_use]
    pub fn generation(&self, key: &EntryKey) -> Option<u64> {
        self.records.locate(key).map(|location| self.records.generation_at(&location))
    }

    /// Iterates over the records from a key on, in key order.
    #[cfg(test)]
    pub fn records_from(&self, start: &EntryKey) -> impl Iterator<Item = Arc<Record>> {
        self.records.scan_from(start).map(|location| self.records.record_at(&location))
    }

    /// Iterates over the records of a scope, in key order.
    #[cfg(test)]
    pub fn in_scope(&self, scope: &Scope) -> impl Iterator<Item = Arc<Record>> {
        self.records.scan_scope(scope).map(|location| self.records.record_at(&location))
    }

    /// Iterates over the keys of a scope, in order.
    pub fn keys_in_scope(&self, scope: &Scope) -> impl Iterator<Item = EntryKey> {
        self.records.scan_scope(scope).map(|location| location.key())
    }

    /// Iterates over the keys of a scope that neither its last list nor a later change confirmed,
    /// in order.
    pub fn unconfirmed_in(&self, scope: &Scope) -> impl Iterator<Item = EntryKey> {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation.into());
        self.records
            .scan_scope(scope)
            .filter(move |location| self.records.generation_at(location) < generation)
            .map(|location| location.key())
    }

    /// Returns the number of keys of a scope and the bytes of their names and values. Scans all of
    /// them.
    #[must_use]
    pub fn scope_size(&self, scope: &Scope) -> ScopeSize {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation.into());
        self.records.scan_scope(scope).fold(ScopeSize::default(), |size, location| {
            let one = Size { keys: 1, bytes: location.byte_count() as u64 };
            let is_confirmed = self.records.generation_at(&location) >= generation;
            ScopeSize { confirmed: if is_confirmed { size.confirmed + one } else { size.confirmed }, all: size.all + one }
        })
    }

    /// Iterates over the keys whose newest bytes cannot be used, from a key on.
    pub fn rejected_from(&self, start: &EntryKey) -> impl Iterator<Item = &EntryKey> + use<'_> {
        self.indices.rejected.range(start.clone()..)
    }

    /// Returns whether the newest bytes of a key cannot be used.
    #[must_use]
    pub fn is_rejected(&self, key: &EntryKey) -> bool {
        self.indices.rejected.contains(key)
    }

    /// Returns the number of keys whose newest bytes cannot be used.
    #[must_use]
    pub fn rejected_count(&self) -> usize {
        self.indices.rejected.len()
    }

    /// Returns the identity that a rejected key names outside the range of its cluster, and that
    /// range.
    #[must_use]
    pub fn identity_out_of_range(&self, key: &EntryKey, max: MaxConnectedClusters) -> Option<(u32, RangeInclusive<u32>)> {
        if !self.is_rejected(key) {
            return None;
        }
        let cluster_id = self.clusters.get(&key.cluster)?.config.as_ref()?.id;
        let context = Context { cluster: &key.cluster, cluster_id, max_connected_clusters: max };
        wire::identity_out_of_range(key, &self.record(key)?.value, &context)
    }

    /// Iterates over the identities with a number, one per cluster. If a cluster has several keys
    /// for it, the one that the source wrote last counts.
    pub fn identities(&self, id: u32) -> impl Iterator<Item = Arc<Record>> {
        let keys = self.indices.identities(id);
        let newest = |keys: &[EntryKey]| {
            let records = keys.iter().filter_map(|key| self.record(key));
            records.max_by_key(|record| (record.source.mod_revision, record.last_sequence))
        };
        keys.chunk_by(|left, right| left.cluster == right.cluster).filter_map(newest).collect::<Vec<_>>().into_iter()
    }

    /// Iterates over the ipcache entries that name an identity, from a key on, in key order.
    pub fn ips_of_identity(&self, id: u32, start: &EntryKey) -> impl Iterator<Item = Arc<Record>> {
        self.records.ip_entries_of_identity(id, start)
    }

    /// Iterates over the nodes that have an address.
    pub fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = Arc<Record>> {
        self.indices.nodes_at(ip).into_iter().filter_map(|key| self.record(&key))
    }

    /// Returns the keys of the nodes that have an address, in order.
    #[must_use]
    pub fn node_keys_at(&self, ip: IpAddr) -> Vec<EntryKey> {
        self.indices.nodes_at(ip)
    }

    /// Returns the ipcache entries inside a network if there are at most `count_max`, otherwise
    /// their clusters.
    #[must_use]
    pub fn ips_within(&self, net: IpNet, count_max: usize) -> NetworkEntries {
        self.indices.ips_within(net, count_max)
    }

    /// Iterates over the ipcache entries for exactly this network, hosts first.
    pub fn ips_at(&self, net: IpNet) -> impl Iterator<Item = Arc<Record>> {
        self.indices.ips_at(net).into_iter().filter_map(|key| self.record(&key))
    }

    /// Returns the entries for the longest prefix that covers an address, in the order of
    /// [`EntryRank`] for the agents of the cluster `own`.
    #[must_use]
    pub fn lookup(&self, ip: IpAddr, own: Option<&ClusterName>) -> Vec<LookupMatch> {
        let Some(prefix) = self.indices.longest_match(ip) else { return Vec::new() };
        let mut found: Vec<Arc<Record>> = self.indices.ip_keys_at(prefix).iter().filter_map(|key| self.record(key)).collect();
        found.sort_by_key(|record| EntryRank::of(record, own));
        found.iter().filter_map(|record| self.join_labels_and_node(record)).collect()
    }

    /// Adds to an ipcache entry the labels of its identity and the name of its node.
    #[must_use]
    pub fn join_labels_and_node(&self, record: &Arc<Record>) -> Option<LookupMatch> {
        let entry = record.object.as_deref()?.as_ip()?;
        let cluster = &record.key.cluster;
        let labels = self.labels_of(entry.identity, cluster);
        let node_name = match record.key.derived_from() {
            Some(node) => Some(node.to_owned()),
            None => entry.host_ip.and_then(|ip| self.indices.node_at(ip, cluster)).map(ToString::to_string),
        };
        Some(LookupMatch { record: Arc::clone(record), labels, node_name })
    }

    /// Returns the labels of an identity, if possible the one of `cluster`. Small labels stay
    /// decoded for later calls: about 400 bytes each, or 16 MB if all of 40,000 identities are
    /// used.
    fn labels_of(&self, identity: u32, cluster: &ClusterName) -> Option<IdentityLabels> {
        let Some(cached) = self.indices.labels(identity, cluster) else { return self.uncached_labels_of(identity, cluster) };
        if let Some(labels) = cached.get() {
            return Some(labels.clone());
        }
        let record = self.record(&EntryKey::new(Kind::Identity, cluster.clone(), identity.to_string()))?;
        let labels = labels_in(&record)?;
        if labels.footprint() <= CACHED_LABELS_BYTES_MAX {
            // another reader may have set the same labels meanwhile
            let _ = cached.set(labels.clone());
        }
        Some(labels)
    }

    /// Returns the labels of an identity without the cache. For an identity of which `cluster` has
    /// no key, or may have several. If `cluster` has none, returns the labels in the first cluster
    /// that has one.
    fn uncached_labels_of(&self, identity: u32, cluster: &ClusterName) -> Option<IdentityLabels> {
        let keys = self.indices.identities(identity);
        let cluster = &keys.iter().find(|key| key.cluster == *cluster).or(keys.first())?.cluster;
        let record = match keys.iter().filter(|key| key.cluster == *cluster).collect::<Vec<_>>()[..] {
            [key] => self.record(key),
            _ => self.identities(identity).find(|record| record.key.cluster == *cluster),
        };
        labels_in(&*record?)
    }

    /// Returns the first `count` existing keys that changed after a position, in order of sequence.
    /// Includes clusters, findings and notices.
    #[must_use]
    pub fn live_keys_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, LiveKey)> {
        let found = self.records.changed_after(position, count);
        let entries = found.into_iter().map(|(sequence, location)| (sequence, LiveKey(Ok(location))));
        let without_record = self.own_objects_after(position).take(count).chain(self.notices_after(position));
        let without_record = without_record.map(|(sequence, key)| (sequence, LiveKey(Err(key))));
        let mut found: Vec<(Sequence, LiveKey)> = entries.chain(without_record).collect();
        found.sort_unstable_by_key(|(sequence, _)| *sequence);
        found.truncate(count);
        found
    }

    /// Iterates over the keys from `start` on whose objects may match a filter, in key order,
    /// without decoding. `None` matches all. Also yields a key without a record for each skipped
    /// chunk, so that a long scan returns to its caller regularly.
    pub fn live_keys_matching<'a>(&'a self, start: &EntryKey, filter: Option<&'a RowFilter>) -> impl Iterator<Item = LiveKey> + use<'a> {
        let mut scan = self.records.scan_matching(start, filter);
        std::iter::from_fn(move || {
            Some(LiveKey(match scan.step()? {
                ScanStep::Record(location) => Ok(location),
                ScanStep::SkippedChunk(first) => Err(first),
            }))
        })
    }

    /// Iterates over all keys with records from `start` on, in key order, without decoding.
    pub fn live_keys_from(&self, start: &EntryKey) -> impl Iterator<Item = LiveKey> {
        self.records.scan_from(start).map(|location| LiveKey(Ok(location)))
    }

    /// Returns the record of a key that passes a test; `None` if the key has no record.
    pub fn record_if(&self, live: &LiveKey, test: impl Fn(&EntryKey) -> bool) -> Option<Arc<Record>> {
        self.records.record_at_if(live.location()?, test)
    }

    /// Returns whether a cluster announces an identity.
    #[must_use]
    pub fn has_identity(&self, id: u32, cluster: &ClusterName) -> bool {
        self.indices.identities(id).iter().any(|key| key.cluster == *cluster)
    }

    /// Returns whether a node of any cluster has an address.
    #[must_use]
    pub fn has_any_node_at(&self, ip: IpAddr) -> bool {
        !self.indices.nodes_at(ip).is_empty()
    }

    /// Returns the clusters with an entry for exactly this prefix. Ignores pod CIDRs of nodes,
    /// which are only a fallback.
    #[must_use]
    pub fn clusters_at(&self, prefix: ObjectPrefix) -> BTreeSet<ClusterName> {
        self.indices.ip_keys_at(prefix).into_iter().filter(|key| !key.is_fallback()).map(|key| key.cluster).collect()
    }

    /// Returns the prefixes with more than one entry, in no particular order, without pod CIDRs of
    /// nodes. The result may contain duplicates, and prefixes with one entry. Decodes nothing: a
    /// million entries take some milliseconds.
    #[must_use]
    pub fn duplicate_prefixes(&self) -> Vec<ObjectPrefix> {
        self.indices.duplicate_prefixes()
    }

    /// Returns the keys of all ipcache entries whose prefixes cover a whole network, most specific
    /// first. A host precedes a CIDR of full length.
    #[must_use]
    pub fn covering(&self, net: IpNet) -> Vec<EntryKey> {
        self.indices.covering(net)
    }

    /// Returns the state of a scope, without its cursor ([`View::cursor`]).
    #[must_use]
    pub fn scope(&self, scope: &Scope) -> Option<ScopeState> {
        self.scopes.get(scope)
    }

    /// Returns the stored record of a cluster.
    #[must_use]
    pub fn cluster(&self, cluster: &ClusterName) -> Option<&ClusterRecord> {
        self.clusters.get(cluster)
    }

    /// Returns all known clusters.
    #[must_use]
    pub fn cluster_names(&self) -> BTreeSet<ClusterName> {
        self.clusters.keys().chain(self.own_objects.clusters()).chain(self.scopes.clusters()).cloned().collect()
    }

    /// Returns the number of mirrored keys, usable or not.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// Returns the number of held keys of a scope (invariant 4). Skips most chunks, but scans every
    /// row of the others.
    #[must_use]
    pub fn held_count(&self, scope: &Scope) -> usize {
        self.records.held_count(scope)
    }

    /// Returns the number of usable objects of a kind. Entries derived from nodes count as ipcache
    /// entries, as in lists.
    #[must_use]
    pub fn object_count(&self, kind: Kind) -> u64 {
        Kind::STORED.into_iter().filter(|stored| stored.listed_as() == kind).map(|stored| self.indices.object_counts[stored as usize]).sum()
    }

    /// Returns the revision, lease and held mark of a record, or those of the node that it is
    /// derived from.
    #[must_use]
    pub fn source_stamp_of(&self, record: &Record) -> SourceStamp {
        let node = if record.key.kind.is_mirrored() { None } else { self.records.locate(&record.key.origin()) };
        node.map_or(record.source, |node| self.records.source_at(&node))
    }

    /// Returns whether the source has confirmed a record, or the node that it is derived from,
    /// since meshkeep started.
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
