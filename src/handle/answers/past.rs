//! The mirror at an earlier time, from the history.
//!
//! A time may mean several states: while a scope was not observed, its entries may have changed
//! before or after the time, and after a jump of the clock the same time occurred twice. So a
//! [`PastTime`] has two states for each key: the last one that was observed before the time, and
//! the first one after it. Answers are about the former. If the latter has another entry, both are
//! candidates.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use super::explain::EntryRole;
use super::history::{EntryVersion, PastReading};
use crate::handle::LookupMatch;
use crate::history::{PageLimits, PastCovering, PastState, SequenceAt, VersionPage, VersionSelection, with_object};
use crate::model::{ClusterName, EntryKey, IdentityLabels, Kind, ObjectPrefix, ObservationGap, Record, Scope, Sequence};

/// Kinds that a lookup reads: some entries are derived from nodes.
pub const LOOKUP_KINDS: [Kind; 3] = [Kind::Ip, Kind::Node, Kind::Identity];

/// Limits of one step of a search in the versions of an identity.
const SEARCH_COUNT_MAX: usize = 100;
const SEARCH_BYTES_MAX: usize = 1 << 20;

/// An earlier time, with the states of the mirror that it may mean.
#[derive(Debug, Clone)]
pub struct PastTime {
    time: SystemTime,
    at: SequenceAt,
    /// Sequences of the two states of the scopes that were not observed at the time.
    ranges: BTreeMap<Scope, (Sequence, Sequence)>,
    /// Lowest sequence of a state before the time.
    earliest: Sequence,
    not_observed: Vec<(Scope, ObservationGap)>,
}

/// Entries at an earlier time.
#[derive(Debug)]
pub struct PastRecords {
    /// The entries that existed, with their objects. The answer is the first one.
    pub records: Vec<Arc<Record>>,
    /// The versions that the first one may be, if the time may mean several.
    pub candidates: Vec<EntryVersion>,
    /// False if the time may mean several states, or if the history lost changes since then.
    pub is_certain: bool,
    /// Scopes that were not observed at the time, newest gap first.
    pub not_observed: Vec<(Scope, ObservationGap)>,
}

impl PastRecords {
    /// Returns false if the entries may be wrong.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_certain && self.not_observed.is_empty()
    }

    /// Returns the entry of the answer, or the first version that it may be.
    #[must_use]
    pub fn first(&self) -> Option<&Arc<Record>> {
        self.records.first().or(self.candidates.first().map(|version| &version.record))
    }
}

/// Answer of a lookup at an earlier time.
#[derive(Debug)]
pub struct PastLookup {
    /// Entries of the longest prefix, the one that an agent would have used first.
    pub matches: Vec<LookupMatch>,
    /// All entries that covered the address.
    pub covering: PastRecords,
}

/// Explanation of an address or a network at an earlier time.
#[derive(Debug)]
pub struct PastExplanation {
    /// The entries that covered it, strongest first, with their roles.
    pub entries: Vec<(LookupMatch, EntryRole)>,
    /// The node with the host address of the first entry.
    pub node: Option<Arc<Record>>,
    /// All entries that covered it.
    pub covering: PastRecords,
}

/// One of the two states that a time may mean.
#[derive(Debug, Clone, Copy)]
enum StateAt {
    /// The last state that was observed before the time.
    Before,
    /// The first state that was observed after the time.
    After,
}

impl PastTime {
    /// Returns the time.
    #[must_use]
    pub const fn time(&self) -> SystemTime {
        self.time
    }

    /// Returns the scopes that were not observed at the time, newest gap first.
    #[must_use]
    pub fn not_observed(&self) -> &[(Scope, ObservationGap)] {
        &self.not_observed
    }

    /// Returns the sequence of a state of a key.
    fn sequence(&self, key: &EntryKey, state: StateAt) -> Sequence {
        let scope = Scope { cluster: key.cluster.clone(), kind: key.origin_kind() };
        let (before, after) = self.ranges.get(&scope).copied().unwrap_or((self.at.sequence, self.at.latest));
        match state {
            StateAt::Before => before,
            StateAt::After => after,
        }
    }

    /// Returns a sequence that no key's sequence of a state precedes.
    const fn earliest(&self, state: StateAt) -> Sequence {
        match state {
            StateAt::Before => self.earliest,
            StateAt::After => self.at.latest,
        }
    }

    /// Returns whether the time means one state.
    fn is_exact(&self) -> bool {
        self.at.sequence == self.at.latest && self.ranges.values().all(|range| *range == (self.at.sequence, self.at.latest))
    }
}

/// Returns whether a time is in a gap. If the clock was set back in the gap, all times between its
/// ends count.
fn is_in_gap(time: SystemTime, gap: &ObservationGap) -> bool {
    let Some(end) = gap.end else { return gap.from <= Some(time) };
    let (start, end) = gap.from.map_or((None, end.time), |from| (Some(from.min(end.time)), from.max(end.time)));
    start <= Some(time) && time < end
}

impl PastReading {
    /// Returns the scopes of some kinds in some clusters that were not observed at a time, newest
    /// gap first. No cluster means all.
    #[must_use]
    pub fn gaps_at(&self, time: SystemTime, kinds: &[Kind], clusters: &[ClusterName]) -> Vec<(Scope, ObservationGap)> {
        let mut gaps = self.observation_gaps(kinds, clusters);
        gaps.retain(|(_, gap)| is_in_gap(time, gap));
        gaps
    }

    /// Returns an earlier time for answers about some kinds in some clusters. No cluster means all.
    /// `None` if the history begins later. Reads files, so it needs a thread that may block.
    #[must_use]
    pub fn time_at(&self, time: SystemTime, kinds: &[Kind], clusters: &[ClusterName]) -> Option<PastTime> {
        let at = self.history.sequence_at(time)?;
        let not_observed = self.gaps_at(time, kinds, clusters);
        let mut ranges: BTreeMap<Scope, (Sequence, Sequence)> = BTreeMap::new();
        for (scope, gap) in &not_observed {
            let (before, after) = ranges.entry(scope.clone()).or_insert((at.sequence, at.latest));
            *before = (*before).min(Sequence(gap.first.0.saturating_sub(1)));
            *after = gap.end.map_or(*after, |end| end.last.max(*after));
        }
        let earliest = ranges.values().map(|(before, _)| *before).min().unwrap_or(at.sequence);
        Some(PastTime { time, at, ranges, earliest, not_observed })
    }

    /// Returns the entry of a key at a time.
    #[must_use]
    pub fn object_at(&self, key: &EntryKey, time: &PastTime) -> PastRecords {
        self.records_at(time, |state| self.versions_at(std::slice::from_ref(key), time, state))
    }

    /// Returns the identities with a number at a time, in these clusters, newest first. No cluster
    /// means all.
    #[must_use]
    pub fn identities_at(&self, id: u32, clusters: &[ClusterName], time: &PastTime) -> PastRecords {
        let mut keys: BTreeSet<EntryKey> = self.reading.identities(id).map(|record| record.key.clone()).collect();
        self.visit_versions_of_identity(id, |version| {
            keys.insert(version.record.key.clone());
            // the versions that ended before the time are not needed
            version.end.is_none_or(|(end, _)| end > time.earliest)
        });
        keys.retain(|key| clusters.is_empty() || clusters.contains(&key.cluster));
        let keys: Vec<EntryKey> = keys.into_iter().collect();
        self.records_at(time, |state| {
            let mut found = self.versions_at(&keys, time, state);
            // of several keys in a cluster, the one that the source wrote last counts
            found.records.sort_by_key(|record| (record.key.cluster.clone(), Reverse((record.source.mod_revision, record.last_sequence))));
            found.records.dedup_by(|next, first| next.key.cluster == first.key.cluster);
            found.records.sort_by_key(|record| Reverse(record.last_sequence));
            found
        })
    }

    /// Returns the newest version of an identity that ended, in these clusters. No cluster means
    /// all. Reads files, so it needs a thread that may block.
    #[must_use]
    pub fn last_version_of_identity(&self, id: u32, clusters: &[ClusterName]) -> Option<EntryVersion> {
        let mut last = None;
        self.visit_versions_of_identity(id, |version| {
            if clusters.is_empty() || clusters.contains(&version.record.key.cluster) {
                last = Some(version.clone());
            }
            last.is_none()
        });
        last
    }

    /// Returns the entries for exactly a network at a time, in these clusters, strongest first. No
    /// cluster means all.
    #[must_use]
    pub fn ips_at(&self, net: IpNet, clusters: &[ClusterName], time: &PastTime) -> PastRecords {
        let is_wanted = |record: &Record| clusters.is_empty() || clusters.contains(&record.key.cluster);
        self.entries_at(net, time, |prefix, record| prefix.net == net && is_wanted(record))
    }

    /// Returns the entries that an agent would have used for an address at a time of
    /// [`LOOKUP_KINDS`].
    #[must_use]
    pub fn lookup_at(&self, ip: IpAddr, time: &PastTime) -> PastLookup {
        let net = IpNet::from(ip);
        let mut covering = self.entries_at(net, time, |prefix, _| prefix.net.contains(&net));
        let winner = covering.records.first().and_then(|record| prefix_of(record));
        let winners = covering.records.iter().filter(|record| prefix_of(record) == winner).map(Arc::clone).collect();
        let matches = self.with_labels(winners, time, &mut covering);
        PastLookup { matches, covering }
    }

    /// Explains an address or a network at a time of [`LOOKUP_KINDS`].
    #[must_use]
    pub fn explain_at(&self, net: IpNet, time: &PastTime) -> PastExplanation {
        let mut covering = self.entries_at(net, time, |prefix, _| prefix.net.contains(&net));
        let mut matches = self.with_labels(covering.records.clone(), time, &mut covering);
        let mut first_node = None;
        for (index, found) in matches.iter_mut().enumerate() {
            let node = self.hosting_node_at(&found.record, time);
            if let Some(node) = node.as_ref().filter(|_| found.node_name.is_none()) {
                found.node_name = Some(node.key.name.to_string());
            }
            first_node = if index == 0 { node } else { first_node };
        }
        let entries = self.reading.assign_roles(matches.into_iter().filter_map(|found| Some((prefix_of(&found.record)?, found))).collect());
        PastExplanation { entries, node: first_node, covering }
    }

    /// Returns the entries that cover the first address of a network and that `is_wanted` accepts,
    /// in the order of a lookup.
    fn entries_at(&self, net: IpNet, time: &PastTime, is_wanted: impl Fn(ObjectPrefix, &Record) -> bool) -> PastRecords {
        let current: Vec<Arc<Record>> =
            self.reading.covering(IpNet::from(net.addr())).iter().filter_map(|key| self.reading.record(key)).collect();
        let mut found = self.records_at(time, |state| {
            let sequence = |key: &EntryKey| time.sequence(key, state);
            let PastCovering { records, is_complete } = self.history.covering_at(net.addr(), time.earliest(state), sequence, &current);
            let records = records.iter().map(with_object).filter_map(|record| Some((prefix_of(&record)?, record)));
            let mut records: Vec<(ObjectPrefix, Arc<Record>)> = records.filter(|(prefix, record)| is_wanted(*prefix, record)).collect();
            // the longest prefix, a host entry first, as in a lookup now
            records.sort_by_key(|(prefix, record)| (Reverse(prefix.net.prefix_len()), !prefix.host, self.reading.rank(record)));
            PastCovering { records: records.into_iter().map(|(_, record)| record).collect(), is_complete }
        });
        // the labels are added later
        found.not_observed.retain(|(scope, _)| scope.kind != Kind::Identity);
        found
    }

    /// Returns the records that existed in the state before the time, and the candidates if the
    /// state after it begins with another version.
    fn records_at(&self, time: &PastTime, find: impl Fn(StateAt) -> PastCovering) -> PastRecords {
        let PastCovering { records, is_complete: mut is_certain } = find(StateAt::Before);
        let mut candidates = Vec::new();
        if !time.is_exact() {
            let after = find(StateAt::After);
            let version_of = |record: &Arc<Record>| (record.key.clone(), record.last_sequence);
            let is_same = records.iter().map(version_of).eq(after.records.iter().map(version_of));
            is_certain = is_certain && after.is_complete && is_same;
            let firsts = [records.first(), after.records.first()];
            if firsts[0].map(version_of) != firsts[1].map(version_of) {
                candidates.extend(firsts.into_iter().flatten().map(|record| self.version_with_end(record)));
            }
        }
        PastRecords { records, candidates, is_certain, not_observed: time.not_observed.clone() }
    }

    /// Returns the records of some keys in a state.
    fn versions_at(&self, keys: &[EntryKey], time: &PastTime, state: StateAt) -> PastCovering {
        let (mut records, mut is_complete) = (Vec::new(), true);
        for key in keys {
            match self.history.version_at(key, time.sequence(key, state), self.reading.record(key).as_ref()).state {
                PastState::Existed(record) => records.push(with_object(&record)),
                PastState::Absent => {}
                PastState::Unknown => is_complete = false,
            }
        }
        PastCovering { records, is_complete }
    }

    /// Returns a version with the change that ended it.
    fn version_with_end(&self, record: &Arc<Record>) -> EntryVersion {
        let current = self.reading.record(&record.key);
        let next = self.history.version_at(&record.key, record.last_sequence, current.as_ref()).next_change;
        let end = next.filter(|next| next.record.last_sequence == record.last_sequence);
        EntryVersion { record: Arc::clone(record), end: end.map(|next| (next.replaced_at, next.deleted)) }
    }

    /// Adds the labels that the entries' identities had, in their own clusters. `covering` is
    /// complete only if they are.
    fn with_labels(&self, records: Vec<Arc<Record>>, time: &PastTime, covering: &mut PastRecords) -> Vec<LookupMatch> {
        let clusters: BTreeSet<&ClusterName> = records.iter().map(|record| &record.key.cluster).collect();
        let of_labels = |scope: &Scope| scope.kind == Kind::Identity && clusters.contains(&scope.cluster);
        covering.not_observed.extend(time.not_observed.iter().filter(|(scope, _)| of_labels(scope)).cloned());
        let with_labels = records.into_iter().map(|record| {
            let (labels, is_certain) = self.labels_at(&record, time);
            covering.is_certain &= is_certain;
            LookupMatch { labels, node_name: record.key.derived_from().map(ToOwned::to_owned), record }
        });
        with_labels.collect()
    }

    /// Returns the labels of the identity of an ipcache entry, and whether they are certain.
    fn labels_at(&self, record: &Record, time: &PastTime) -> (Option<IdentityLabels>, bool) {
        let Some(entry) = record.object.as_deref().and_then(|object| object.as_ip()) else { return (None, true) };
        let key = EntryKey::new(Kind::Identity, record.key.cluster.clone(), entry.identity.to_string());
        let found = self.object_at(&key, time);
        let labels = found.records.first().and_then(|identity| Some(identity.object.as_deref()?.as_identity()?.labels.clone()));
        (labels, found.is_certain)
    }

    /// Returns the node with an entry's host address at a time, preferably one of the entry's
    /// cluster. Each address of a node has an entry that is derived from it.
    fn hosting_node_at(&self, record: &Record, time: &PastTime) -> Option<Arc<Record>> {
        let host_ip = record.object.as_deref()?.as_ip()?.host_ip?;
        let addresses = self.entries_at(IpNet::from(host_ip), time, |prefix, record| {
            prefix == ObjectPrefix::of_host(host_ip) && record.key.derived_from().is_some()
        });
        let nodes = addresses.records.iter().filter_map(|address| {
            let node = self.object_at(&address.key.origin(), time).records.into_iter().next()?;
            let has_address = |node: &Record| Some(node.object.as_deref()?.as_node()?.addresses.iter().any(|one| one.ip == host_ip));
            has_address(&node).unwrap_or_default().then_some(node)
        });
        let nodes: Vec<Arc<Record>> = nodes.collect();
        nodes.iter().find(|node| node.key.cluster == record.key.cluster).or(nodes.first()).cloned()
    }

    /// Calls `visit` with the ended versions of the identities with a number, newest first, until
    /// it returns false.
    fn visit_versions_of_identity(&self, id: u32, mut visit: impl FnMut(&EntryVersion) -> bool) {
        let (selection, mut before) = (VersionSelection::IdentityObjects(id), None);
        loop {
            let deadline = Instant::now() + Duration::from_secs(1);
            let limits = PageLimits { count_max: SEARCH_COUNT_MAX, bytes_max: SEARCH_BYTES_MAX, deadline };
            let VersionPage { versions, before: next, .. } = self.history.versions(&selection, before, limits);
            for version in versions {
                let version = EntryVersion { record: with_object(&version.record), end: Some((version.replaced_at, version.deleted)) };
                if !visit(&version) {
                    return;
                }
            }
            let Some(next) = next else { return };
            before = Some(next);
        }
    }
}

fn prefix_of(record: &Record) -> Option<ObjectPrefix> {
    Some(record.object.as_deref()?.as_ip()?.prefix)
}
