//! Lists at an earlier time: the current records that have not changed since, and the versions that
//! later changes ended, in key order.
//!
//! A page first reads the history from the time on, because a later change of any key may be
//! anywhere in it. It keeps the matching versions with the lowest keys, and then merges them with
//! the current records.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::history::PastReading;
use crate::handle::scan::list_plan::ListPlan;
use crate::handle::{Filter, Reading, ScanEnd, WorkSlice};
use crate::history::{EndedVersionScan, HistoryGap, PastState, SequenceAt, VersionSelection, with_object};
use crate::model::{ClusterName, EntryKey, Kind, Object, ObservationGap, Record, Scope};

/// Maximum number of ended versions that a list keeps at a time: twice as many as a page may have,
/// or so few that the lists of tests exceed it.
const VERSIONS_MAX: usize = if cfg!(test) { 8 } else { 20_000 };

/// Maximum memory of the ended versions that a list keeps at a time, in bytes. Clients share the
/// memory of all lists (`admission/executor.rs`).
pub const PAST_LIST_BYTES_MAX: usize = 16 << 20;

/// The mirror at an earlier time.
#[derive(Debug, Clone)]
pub struct PastMirror {
    past: PastReading,
    /// The time.
    pub time: SystemTime,
    /// The time as a sequence.
    pub at: SequenceAt,
}

/// List of the objects that existed at an earlier time.
#[derive(Debug)]
pub struct PastListScan {
    mirror: PastMirror,
    plan: ListPlan,
    selections: Vec<VersionSelection>,
    /// Scans of the history that are not complete, the current one last.
    scans: Vec<EndedVersionScan>,
    ended: EndedVersions,
    /// Key with which the list continues.
    start: EntryKey,
    /// Periods that the history lost since the time.
    lost: Vec<HistoryGap>,
    /// True if the list has passed objects and reads the history again for the next keys.
    is_rereading: bool,
}

/// Ended versions with the lowest keys, in key order.
#[derive(Debug, Default)]
struct EndedVersions {
    records: BTreeMap<EntryKey, Arc<Record>>,
    byte_count: usize,
    /// Lowest key that did not fit.
    first_dropped: Option<EntryKey>,
}

/// State of a list after a slice.
#[derive(Debug, PartialEq, Eq)]
pub enum PastListStep {
    /// The history is still being read for the first time, so there are no objects yet.
    ReadingHistory,
    /// The list of objects went on.
    Listed(ScanEnd),
}

impl EndedVersions {
    fn insert(&mut self, record: Arc<Record>) {
        if self.first_dropped.as_ref().is_some_and(|dropped| record.key >= *dropped) {
            return;
        }
        self.byte_count += record.footprint();
        self.records.insert(record.key.clone(), record);
        while self.records.len() > VERSIONS_MAX || (self.byte_count > PAST_LIST_BYTES_MAX && self.records.len() > 1) {
            let Some((key, record)) = self.records.pop_last() else { break };
            self.byte_count -= record.footprint();
            self.first_dropped = Some(key);
        }
    }

    /// Passes the versions whose keys are before `end`, or all, to `accept` until it returns false.
    /// Returns the key that was not accepted.
    fn pass_until(&mut self, end: Option<&EntryKey>, accept: &mut impl FnMut(&Record) -> bool) -> Option<EntryKey> {
        while let Some(first) = self.records.first_entry().filter(|first| end.is_none_or(|end| first.key() < end)) {
            if !accept(first.get()) {
                return Some(first.key().clone());
            }
            self.byte_count -= first.get().footprint();
            first.remove();
        }
        None
    }
}

impl PastReading {
    /// Returns the mirror at a time. `None` if the history begins later. Reads files, so it needs a
    /// thread that may block.
    #[must_use]
    pub fn mirror_at(&self, time: SystemTime) -> Option<PastMirror> {
        // the history may already have changes that the reading lacks
        let head = self.reading.position().sequence;
        let at = self.history.sequence_at(time)?;
        let at = SequenceAt { sequence: at.sequence.min(head), latest: at.latest.min(head) };
        Some(PastMirror { past: self.clone(), time, at })
    }

    /// Returns the mirror at a time whose sequence is known.
    #[must_use]
    pub fn mirror_at_sequence(&self, time: SystemTime, at: SequenceAt) -> PastMirror {
        PastMirror { past: self.clone(), time, at }
    }
}

impl PastMirror {
    /// Returns the current mirror.
    #[must_use]
    pub fn current(&self) -> &Reading {
        &self.past.reading
    }

    /// Returns the addresses that the nodes with a name had, each with the cluster of the node.
    #[must_use]
    pub fn node_host_ips(&self, name: &str) -> Vec<(Option<ClusterName>, IpAddr)> {
        let mut addresses = Vec::new();
        for cluster in self.current().cluster_names() {
            let key = EntryKey::new(Kind::Node, cluster, name);
            let current = self.current().record(&key);
            let PastState::Existed(record) = self.past.history.version_at(&key, self.at.sequence, current.as_ref()).state else { continue };
            if let Some(Object::Node(node)) = with_object(&record).object.as_deref() {
                addresses.extend(node.addresses.iter().map(|address| (Some(key.cluster.clone()), address.ip)));
            }
        }
        addresses
    }

    /// Returns the scopes of these kinds and clusters that were not observed at the time. No
    /// cluster means all.
    #[must_use]
    pub fn not_observed(&self, kinds: &[Kind], clusters: &[ClusterName]) -> Vec<(Scope, ObservationGap)> {
        self.past.gaps_at(self.time, kinds, clusters)
    }

    /// Begins a list of the objects of a kind that match a filter, from a key on.
    #[must_use]
    pub fn scan_list(self, kind: Kind, filter: &Filter, start: Option<EntryKey>) -> PastListScan {
        let plan = self.current().plan_list(kind, filter);
        let selections = self.selections(kind, filter);
        let mut list = PastListScan {
            mirror: self,
            plan,
            selections,
            scans: Vec::new(),
            ended: EndedVersions::default(),
            start: start.unwrap_or_else(EntryKey::lowest),
            lost: Vec::new(),
            is_rereading: false,
        };
        list.begin_scans();
        list
    }

    /// Returns the narrowest selections that have every matching version.
    fn selections(&self, kind: Kind, filter: &Filter) -> Vec<VersionSelection> {
        // a cluster that was removed since then is not known here
        let has_clusters = !filter.clusters.is_empty();
        let of_name = |name: String| {
            filter.clusters.iter().map(|cluster| VersionSelection::Key(EntryKey::new(kind, cluster.clone(), name.as_str()))).collect()
        };
        match (kind, filter) {
            (Kind::Ip, Filter { identity: Some(identity), .. }) => vec![VersionSelection::Identity(*identity)],
            (Kind::Ip, Filter { namespace: Some(namespace), pod: Some(name), .. }) => {
                vec![VersionSelection::Pod { namespace: namespace.clone(), name: name.clone() }]
            }
            (Kind::Node, Filter { name: Some(name), .. }) if has_clusters => of_name(name.clone()),
            (kind, Filter { namespace: Some(namespace), name: Some(name), .. }) if has_clusters && kind.is_namespaced() => {
                of_name(format!("{namespace}/{name}"))
            }
            _ => {
                let kinds = Kind::STORED.into_iter().filter(|stored| stored.listed_as() == kind).collect();
                vec![VersionSelection::Scopes { kinds, clusters: filter.clusters.clone() }]
            }
        }
    }
}

impl PastListScan {
    /// Returns the periods that the history lost since the time, oldest first. Known once the list
    /// has objects.
    #[must_use]
    pub fn lost_periods(&self) -> &[HistoryGap] {
        &self.lost
    }

    fn begin_scans(&mut self) {
        let (history, at, head) = (&self.mirror.past.history, self.mirror.at.sequence, self.mirror.current().position().sequence);
        let scan = |selection: &VersionSelection| EndedVersionScan::new(history.clone(), selection.clone(), at, head);
        self.scans = self.selections.iter().map(scan).collect();
        self.ended = EndedVersions::default();
    }

    /// Continues for one slice. Passes objects to `accept` until it returns false. Reads files, so
    /// it needs a thread that may block.
    pub fn advance(&mut self, slice: &mut WorkSlice, mut accept: impl FnMut(&Record) -> bool) -> PastListStep {
        while let Some(scan) = self.scans.last_mut() {
            if slice.is_over() {
                return self.pause_reading();
            }
            slice.count_row();
            let (ended, filter, start) = (&mut self.ended, &self.plan.filter, &self.start);
            let is_read = scan.advance(&mut |version| {
                if version.record.key < *start || !filter.may_match(&version.record.key) {
                    return;
                }
                let record = with_object(&version.record);
                if record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object)) {
                    ended.insert(record);
                }
            });
            if !is_read {
                self.lost = scan.lost_periods().into_iter().chain(std::mem::take(&mut self.lost)).collect();
                self.lost.sort_by_key(|gap| gap.after);
                self.lost.dedup();
                self.scans.pop();
                if self.scans.is_empty() && slice.is_over() {
                    // the next slice has time for at least one object
                    return self.pause_reading();
                }
            }
        }
        PastListStep::Listed(self.advance_merge(slice, &mut accept))
    }

    /// Ends a slice in which the history was read. A page may end here if it has passed objects
    /// before.
    fn pause_reading(&self) -> PastListStep {
        if self.is_rereading { PastListStep::Listed(ScanEnd::Paused(self.start.clone())) } else { PastListStep::ReadingHistory }
    }

    fn advance_merge(&mut self, slice: &mut WorkSlice, accept: &mut impl FnMut(&Record) -> bool) -> ScanEnd {
        let (at, ended) = (self.mirror.at.sequence, &mut self.ended);
        let dropped = ended.first_dropped.clone();
        let mut refused = None;
        let end = self.mirror.past.reading.scan(&self.plan, Some(&self.start), slice, |record| {
            refused = ended.pass_until(Some(&record.key), accept);
            if refused.is_some() || dropped.as_ref().is_some_and(|dropped| record.key >= *dropped) {
                return false;
            }
            // a later record was created after the time, or its version at the time has ended
            record.last_sequence > at || accept(record)
        });
        let next = match &end {
            ScanEnd::Complete => None,
            ScanEnd::PageFull(key) | ScanEnd::Paused(key) | ScanEnd::OverBudget(key, _) => Some(key.clone()),
        };
        let limit = next.iter().chain(&dropped).min().cloned();
        refused = refused.or_else(|| ended.pass_until(limit.as_ref(), accept));
        if let Some(key) = refused {
            self.start = key.clone();
            return ScanEnd::PageFull(key);
        }
        if let Some(dropped) = dropped.filter(|dropped| next.as_ref().is_none_or(|next| next >= dropped)) {
            // the versions from this key on did not fit: they are read again
            self.start = dropped.clone();
            self.is_rereading = true;
            self.begin_scans();
            return ScanEnd::Paused(dropped);
        }
        if let Some(next) = next {
            self.start = next;
        }
        end
    }
}
