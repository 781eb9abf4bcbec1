//! Earlier versions of entries: from the history, joined with the current versions.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use crate::handle::scan::list_plan::ListPlan;
use crate::handle::{Filter, Handle, Reading, ScanEnd, StoreLoading, WorkSlice};
use crate::history::{HistoryGap, HistorySnapshot, PageLimits, VersionPage, VersionSelection, with_object};
use crate::model::{ClusterName, DeleteReason, EntryKey, Kind, ObservationGap, Record, Scope, Sequence};

/// Maximum bytes of keys and values that one slice of a query reads.
const SLICE_BYTES_MAX: usize = 4 << 20;

/// Time for which one slice of a query reads segments.
const SLICE_TIME: Duration = Duration::from_millis(50);

/// The mirror and its history at one moment. The history contains every change of the reading.
#[derive(Debug, Clone)]
pub struct PastReading {
    /// The mirror.
    pub reading: Reading,
    pub(super) history: HistorySnapshot,
}

/// One version of an entry.
#[derive(Debug, Clone)]
pub struct EntryVersion {
    /// The record, with its object.
    pub record: Arc<Record>,
    /// Sequence of the change that ended the version, and the reason if it deleted the entry.
    /// `None` if the version is current.
    pub end: Option<(Sequence, Option<DeleteReason>)>,
}

/// Start of a page of versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionStart {
    /// The current versions from this key on, in key order, and then the ended ones.
    Current(EntryKey),
    /// The versions that changes up to and including this sequence ended, newest first.
    Ended(Sequence),
}

/// Scan of the versions of a selection: first the current ones, then the ended ones.
#[derive(Debug)]
pub struct VersionScan {
    past: PastReading,
    selection: VersionSelection,
    start: VersionStart,
    /// Keys of current entries, in order. They come before those of `plan`.
    keys: Vec<EntryKey>,
    /// Further current entries.
    plan: Option<ListPlan>,
    /// Periods that the history lost, newest first, as far back as the scan has come.
    lost: Vec<HistoryGap>,
}

impl Handle {
    /// Returns the newest snapshot with its history. `None` without a history.
    ///
    /// # Errors
    /// [`StoreLoading`] if the store is still loading after 2 s.
    pub async fn past_reading(&self) -> Result<Option<PastReading>, StoreLoading> {
        // the history is read second, so that it has every change of the reading
        let reading = self.reading().await?;
        Ok(self.history_snapshot().map(|history| PastReading { reading, history }))
    }
}

impl PastReading {
    /// Makes the times of changes exact to the second as far back as the history reaches, instead
    /// of the last hour. Each time then needs a read of a file, which is too slow for long lists.
    #[must_use]
    pub fn with_exact_times(mut self) -> Self {
        self.reading.exact_times = Some(Arc::new(self.history.clone()));
        self
    }

    /// Returns the time of the oldest change that the history knows.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.history.since()
    }

    /// Returns the periods in which the changes of some kinds in some clusters were not observed
    /// when they happened, newest first. No cluster means all. The period before a first list has
    /// no start, and the current period has no end.
    pub(super) fn observation_gaps(&self, kinds: &[Kind], clusters: &[ClusterName]) -> Vec<(Scope, ObservationGap)> {
        let names = if clusters.is_empty() { self.reading.cluster_names() } else { clusters.to_vec() };
        let scopes_of = |cluster: ClusterName| kinds.iter().map(move |kind| Scope { cluster: cluster.clone(), kind: *kind });
        let scopes: BTreeSet<Scope> = names.into_iter().flat_map(scopes_of).collect();
        let gaps_of = |scope: &Scope| self.reading.observation_gaps(scope).into_iter().map(|gap| (scope.clone(), gap)).collect::<Vec<_>>();
        let mut gaps: Vec<(Scope, ObservationGap)> = scopes.iter().flat_map(gaps_of).collect();
        gaps.sort_by_key(|(_, gap)| Reverse(gap.from));
        gaps
    }

    /// Begins a scan of the versions of a selection.
    #[must_use]
    pub fn scan_versions(&self, selection: VersionSelection, start: Option<VersionStart>) -> VersionScan {
        let start = start.unwrap_or_else(|| VersionStart::Current(EntryKey::lowest()));
        let (mut keys, mut plan) = (Vec::new(), None);
        if let VersionStart::Current(_) = start {
            let plan_of = |filter| Some(self.reading.plan_list(Kind::Ip, &filter));
            match &selection {
                VersionSelection::Key(key) => keys.push(key.clone()),
                VersionSelection::Covering(ip) => keys = self.reading.covering(IpNet::from(*ip)),
                VersionSelection::Identity(id) => {
                    keys.extend(self.reading.identities(*id).map(|record| record.key.clone()));
                    plan = plan_of(Filter { identity: Some(*id), ..Filter::default() });
                }
                VersionSelection::IdentityObjects(id) => keys.extend(self.reading.identities(*id).map(|record| record.key.clone())),
                VersionSelection::Pod { namespace, name } => {
                    plan = plan_of(Filter { namespace: Some(namespace.clone()), pod: Some(name.clone()), ..Filter::default() });
                }
                VersionSelection::Scopes { .. } => {}
            }
            keys.sort();
        }
        VersionScan { past: self.clone(), selection, start, keys, plan, lost: Vec::new() }
    }
}

impl VersionScan {
    /// Passes versions to `accept` for one slice, until `accept` returns false. The next call
    /// continues with the first version that was not accepted. `count_max` is the number of
    /// versions that `accept` probably accepts. Reads files, so it needs a thread that may block.
    pub fn advance(
        &mut self,
        slice: &mut WorkSlice,
        count_max: usize,
        mut accept: impl FnMut(&EntryVersion) -> bool,
    ) -> ScanEnd<VersionStart> {
        let (reading, mut over_budget) = (self.past.reading.clone(), None);
        let accept_in_memory = |version: &EntryVersion| match reading.reserve_memory_for(&version.record) {
            Ok(_permit) => accept(version),
            Err(error) => {
                over_budget = Some(error);
                false
            }
        };
        let end = match self.start.clone() {
            VersionStart::Current(key) => self.scan_current(&key, slice, accept_in_memory),
            VersionStart::Ended(up_to) => self.scan_ended(up_to, slice, count_max, accept_in_memory),
        };
        if let ScanEnd::PageFull(start) | ScanEnd::Paused(start) | ScanEnd::OverBudget(start, _) = &end {
            self.start = start.clone();
        }
        match (end, over_budget) {
            (ScanEnd::PageFull(start), Some(error)) => ScanEnd::OverBudget(start, error),
            (end, _) => end,
        }
    }

    fn scan_current(
        &self,
        start: &EntryKey,
        slice: &mut WorkSlice,
        mut accept: impl FnMut(&EntryVersion) -> bool,
    ) -> ScanEnd<VersionStart> {
        let reading = &self.past.reading;
        let mut accept_record = |record: &Record| accept(&EntryVersion { record: Arc::new(record.clone()), end: None });
        let mut end = reading.scan_keys(&self.keys, Some(start), slice, &mut accept_record);
        if let (ScanEnd::Complete, Some(plan)) = (&end, &self.plan) {
            end = reading.scan(plan, Some(start), slice, accept_record);
        }
        match end {
            ScanEnd::PageFull(key) => ScanEnd::PageFull(VersionStart::Current(key)),
            ScanEnd::Paused(key) => ScanEnd::Paused(VersionStart::Current(key)),
            ScanEnd::OverBudget(key, error) => ScanEnd::OverBudget(VersionStart::Current(key), error),
            // the current versions of this reading have not ended up to its position
            ScanEnd::Complete => ScanEnd::Paused(VersionStart::Ended(reading.position().sequence)),
        }
    }

    fn scan_ended(
        &mut self,
        up_to: Sequence,
        slice: &mut WorkSlice,
        count_max: usize,
        mut accept: impl FnMut(&EntryVersion) -> bool,
    ) -> ScanEnd<VersionStart> {
        slice.count_row();
        let limits = PageLimits { count_max: count_max.max(1), bytes_max: SLICE_BYTES_MAX, deadline: Instant::now() + SLICE_TIME };
        let VersionPage { versions, before, gaps } = self.past.history.versions(&self.selection, Some(up_to), limits);
        self.lost.extend(gaps);
        for version in versions {
            let end = Some((version.replaced_at, version.deleted));
            if !accept(&EntryVersion { record: with_object(&version.record), end }) {
                // the next page has the older gaps
                self.lost.retain(|gap| gap.last > version.replaced_at);
                return ScanEnd::PageFull(VersionStart::Ended(version.replaced_at));
            }
        }
        before.map_or(ScanEnd::Complete, |before| ScanEnd::Paused(VersionStart::Ended(before)))
    }

    /// Returns the periods in which changes of the selection were not observed when they happened,
    /// newest first. A period before a first list counts only while the list is in progress: the
    /// versions since then are known.
    #[must_use]
    pub fn observation_gaps(&self) -> Vec<(Scope, ObservationGap)> {
        // no cluster means all
        let all = Vec::new;
        let (kinds, clusters) = match &self.selection {
            VersionSelection::Key(key) => (vec![key.origin_kind()], vec![key.cluster.clone()]),
            VersionSelection::Covering(_) => (vec![Kind::Ip, Kind::Node], all()),
            VersionSelection::Identity(_) => (vec![Kind::Identity, Kind::Ip, Kind::Node], all()),
            VersionSelection::IdentityObjects(_) => (vec![Kind::Identity], all()),
            VersionSelection::Pod { .. } => (vec![Kind::Ip], all()),
            VersionSelection::Scopes { kinds, clusters } => {
                let kinds = kinds.iter().copied().filter(|kind| Kind::ALL.contains(kind)).collect();
                (kinds, clusters.clone())
            }
        };
        let mut gaps = self.past.observation_gaps(&kinds, &clusters);
        gaps.retain(|(_, gap)| gap.from.is_some() || gap.end.is_none());
        gaps
    }

    /// Returns the periods that the history lost, newest first, as far back as the scan has come.
    #[must_use]
    pub fn lost_periods(&self) -> &[HistoryGap] {
        &self.lost
    }
}
