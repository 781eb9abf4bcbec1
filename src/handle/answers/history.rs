//! Earlier versions of entries: from the history, joined with the current versions.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use crate::handle::scan::list_plan::ListPlan;
use crate::handle::{Filter, Handle, LookupMatch, Reading, ScanEnd, StoreLoading, WorkSlice};
use crate::history::{HistoryGap, HistorySnapshot, PageLimits, PastCovering, PastState, VersionPage, VersionSelection, with_object};
use crate::model::{ChangeTime, DeleteReason, EntryKey, IdentityLabels, Kind, ObservationGap, Record, Scope, Sequence};

/// Time after which a page ends, with the versions that it has.
const PAGE_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of keys and values after which a page ends.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Time for which one slice of a query reads segments.
const SLICE_TIME: Duration = Duration::from_millis(50);

/// The mirror and its history at one moment. The history contains every change of the reading.
#[derive(Debug, Clone)]
pub struct PastReading {
    /// The mirror.
    pub reading: Reading,
    history: HistorySnapshot,
}

/// Answer of a lookup at an earlier time.
#[derive(Debug)]
pub struct PastLookup {
    /// Entries of the longest prefix, the one that an agent would have used first.
    pub matches: Vec<LookupMatch>,
    /// False if the history lost changes since then that may matter.
    pub is_complete: bool,
    /// Scopes that were not observed at the time.
    pub not_observed: Vec<(Scope, ObservationGap)>,
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

/// Versions of a selection, newest first, while they are collected.
#[derive(Debug)]
pub struct VersionQuery {
    past: PastReading,
    selection: VersionSelection,
    limit: usize,
    /// Current entries that are still to be read: a scan, with its next key.
    scan: Option<(ListPlan, Option<EntryKey>)>,
    before: Option<Sequence>,
    deadline: Instant,
    page: EntryVersions,
}

/// A page of versions.
#[derive(Debug, Default)]
pub struct EntryVersions {
    /// Versions, newest first. The current ones are first.
    pub versions: Vec<EntryVersion>,
    /// Sequence before which the next page continues; `None` on the last page.
    pub before: Option<Sequence>,
    /// Periods that the history lost, newest first.
    pub lost: Vec<HistoryGap>,
    bytes: usize,
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
    /// Returns the time of a key's change with this sequence. Unlike [`Reading::change_time`], it
    /// is exact to the second as far back as the history reaches.
    #[must_use]
    pub fn change_time(&self, key: &EntryKey, sequence: Sequence) -> Option<ChangeTime> {
        if self.reading.observation_gap(key, sequence).is_none()
            && let Some(time) = self.history.time_of(sequence)
        {
            return Some(ChangeTime::At(time));
        }
        self.reading.change_time(key, sequence)
    }

    /// Returns the time of the oldest change that the history knows.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.history.since()
    }

    /// Returns the periods in which the changes of these scopes were not observed, newest first.
    #[must_use]
    pub fn observation_gaps(&self, scopes: &BTreeSet<Scope>) -> Vec<(Scope, ObservationGap)> {
        let gaps_of = |scope: &Scope| {
            let gaps = self.reading.published.view.observation_gaps(scope).iter().rev().filter(|gap| gap.from.is_some());
            gaps.map(|gap| (scope.clone(), *gap)).collect::<Vec<_>>()
        };
        let mut gaps: Vec<(Scope, ObservationGap)> = scopes.iter().flat_map(gaps_of).collect();
        gaps.sort_by_key(|(_, gap)| Reverse(gap.from));
        gaps
    }

    /// Returns the entries that an agent would have used for an address at a time. `None` if the
    /// history begins later. Reads files, so it needs a thread that may block.
    #[must_use]
    pub fn lookup_at(&self, ip: IpAddr, time: SystemTime) -> Option<PastLookup> {
        let at = self.history.sequence_at(time)?;
        let current: Vec<Arc<Record>> = self.reading.covering(IpNet::from(ip)).iter().filter_map(|key| self.reading.record(key)).collect();
        let PastCovering { records, mut is_complete } = self.history.covering_at(ip, at.sequence, &current);
        let records: Vec<Arc<Record>> = records.iter().map(with_object).collect();
        // after a jump of the clock, the time may mean either of two states
        let is_same = |one: &[Arc<Record>]| {
            one.iter()
                .map(|record| (&record.key, record.last_sequence))
                .eq(records.iter().map(|record| (&record.key, record.last_sequence)))
        };
        is_complete &= at.latest == at.sequence || is_same(&self.history.covering_at(ip, at.latest, &current).records);
        let entry_of = |record: &Arc<Record>| Some(record.object.as_deref()?.as_ip()?.prefix);
        let mut matches: Vec<_> = records.iter().filter_map(|record| Some((entry_of(record)?, record))).collect();
        // the longest prefix, a host entry first, as in a lookup now
        matches.sort_by_key(|(prefix, record)| (Reverse(prefix.net.prefix_len()), !prefix.host, self.reading.rank(record)));
        let winner = matches.first().map(|(prefix, _)| *prefix);
        let matches = matches.into_iter().filter(|(prefix, _)| Some(*prefix) == winner);
        let matches = matches.map(|(_, record)| LookupMatch {
            labels: self.labels_at(record, at.sequence),
            node_name: record.key.derived_from().map(ToOwned::to_owned),
            record: Arc::clone(record),
        });
        let matches = matches.collect();
        let kinds = [Kind::Ip, Kind::Node];
        let scopes = self.reading.cluster_names().into_iter();
        let scopes = scopes.flat_map(|cluster| kinds.map(|kind| Scope { cluster: cluster.clone(), kind })).collect();
        let not_observed = self.observation_gaps(&scopes).into_iter();
        let not_observed = not_observed.filter(|(_, gap)| gap.from <= Some(time) && gap.end.is_none_or(|end| time < end.time));
        Some(PastLookup { matches, is_complete, not_observed: not_observed.collect() })
    }

    /// Returns the labels at a sequence of the identity of an ipcache entry, in its own cluster.
    fn labels_at(&self, record: &Record, at: Sequence) -> Option<IdentityLabels> {
        let identity = record.object.as_deref()?.as_ip()?.identity;
        let key = EntryKey::new(Kind::Identity, record.key.cluster.clone(), identity.to_string());
        let PastState::Existed(identity) = self.history.version_at(&key, at, self.reading.record(&key).as_ref()).state else {
            return None;
        };
        Some(with_object(&identity).object.as_deref()?.as_identity()?.labels.clone())
    }

    /// Begins a query for the versions of a selection that ended before a sequence, or for all of
    /// them with the current ones.
    #[must_use]
    pub fn query(&self, selection: VersionSelection, before: Option<Sequence>, limit: usize) -> VersionQuery {
        let mut page = EntryVersions::default();
        let mut scan = None;
        if before.is_none() {
            match &selection {
                VersionSelection::Key(key) => page.add_current(self.reading.record(key)),
                VersionSelection::Covering(ip) => {
                    let keys = self.reading.covering(IpNet::from(*ip));
                    keys.iter().for_each(|key| page.add_current(self.reading.record(key)));
                }
                VersionSelection::Identity(id) => {
                    self.reading.identities(*id).for_each(|record| page.add_current(Some(record)));
                    scan = Some(Filter { identity: Some(*id), ..Filter::default() });
                }
                VersionSelection::Pod { namespace, name } => {
                    scan = Some(Filter { namespace: Some(namespace.clone()), pod: Some(name.clone()), ..Filter::default() });
                }
                VersionSelection::Scopes { .. } => {}
            }
        }
        let scan = scan.map(|filter| (self.reading.plan_list(Kind::Ip, &filter), None));
        VersionQuery { past: self.clone(), selection, limit, scan, before, deadline: Instant::now() + PAGE_TIME_MAX, page }
    }
}

impl VersionQuery {
    /// Continues for one slice. Returns the page once it is complete.
    pub fn advance(&mut self, slice: &mut WorkSlice) -> std::ops::ControlFlow<EntryVersions> {
        use std::ops::ControlFlow::{Break, Continue};
        if let Some((plan, start)) = &mut self.scan {
            let (page, limit) = (&mut self.page, self.limit);
            let scanned = self.past.reading.scan(plan, start.as_ref(), slice, |record| {
                page.add_current(Some(Arc::new(record.clone())));
                page.versions.len() < limit
            });
            if let ScanEnd::Paused(key) = scanned {
                *start = Some(key);
                return Continue(());
            }
            self.scan = None;
        }
        slice.count_row();
        let deadline = self.deadline.min(Instant::now() + SLICE_TIME);
        let (count_max, bytes_max) = (self.limit.saturating_sub(self.page.versions.len()), PAGE_BYTES_MAX.saturating_sub(self.page.bytes));
        if count_max > 0 {
            let limits = PageLimits { count_max, bytes_max, deadline };
            let VersionPage { versions, before, gaps } = self.past.history.versions(&self.selection, self.before, limits);
            self.page.lost.extend(gaps);
            versions.into_iter().for_each(|version| self.page.add_ended(version.record, version.replaced_at, version.deleted));
            self.before = before;
            let is_full = self.page.versions.len() >= self.limit || self.page.bytes >= PAGE_BYTES_MAX;
            if before.is_some() && !is_full && Instant::now() < self.deadline {
                return Continue(());
            }
        } else {
            // the first page has only current versions
            self.before = Some(self.before.unwrap_or(Sequence(u64::MAX)));
        }
        self.page.before = self.before;
        Break(std::mem::take(&mut self.page))
    }
}

impl EntryVersions {
    fn add_current(&mut self, record: Option<Arc<Record>>) {
        self.versions.extend(record.map(|record| EntryVersion { record, end: None }));
    }

    fn add_ended(&mut self, record: Arc<Record>, replaced_at: Sequence, deleted: Option<DeleteReason>) {
        self.bytes += record.key.name.len() + record.value.len();
        self.versions.push(EntryVersion { record: with_object(&record), end: Some((replaced_at, deleted)) });
    }
}
