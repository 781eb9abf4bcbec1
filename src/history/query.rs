//! Queries over a [`HistorySnapshot`].
//!
//! The record of a key at an earlier sequence is the current record if that has not changed since.
//! Otherwise it is the record that the first later change of the key replaced. So a query walks the
//! sources forward from the sequence: the segments, then the records that are being sealed, then
//! the buffer. It needs the current records of a mirror snapshot that was taken before the
//! [`HistorySnapshot`], so that no change between them is missed.
//!
//! Queries read files, so they need a thread that may block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::buffered::{BufferedRange, BufferedVersion};
use super::segment::block::ReplacedVersion;
use super::segment::search::first_pair_after;
use super::segment::times::Millis;
use super::selection::VersionSelection;
use super::snapshot::{HistorySnapshot, Source};
use crate::model::{EntryKey, Record, Sequence};

/// State of the mirror at a time, as a sequence: everything up to it had happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceAt {
    /// Last change at or before the time. If the clock jumped back, the changes after the jump
    /// count as later than those before it.
    pub sequence: Sequence,
    /// Highest sequence that the time may mean. It differs from `sequence` only after a jump of the
    /// clock.
    pub latest: Sequence,
}

/// A range of sequences whose replaced records are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryGap {
    /// Sequence before the gap.
    pub after: Sequence,
    /// Last sequence of the gap.
    pub last: Sequence,
    /// Time of the last known change before the gap; `None` if nothing older is known.
    pub from: Option<SystemTime>,
    /// Time of the first known change after the gap.
    pub to: Option<SystemTime>,
}

/// State of a key at an earlier sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum PastState {
    /// The key had this record.
    Existed(Arc<Record>),
    /// The key did not exist.
    Absent,
    /// The history does not know it: a gap is in between.
    Unknown,
}

/// State of a key at an earlier sequence, and the change that ended it.
#[derive(Debug, Clone, PartialEq)]
pub struct PastVersion {
    /// State at the sequence.
    pub state: PastState,
    /// First known change of the key after the sequence; `None` if there is none.
    pub next_change: Option<ReplacedVersion>,
}

/// Ipcache entries that covered an address at an earlier sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PastCovering {
    /// Records, by key.
    pub records: Vec<Arc<Record>>,
    /// False if other entries may have covered the address too.
    pub is_complete: bool,
}

/// Limits of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// Maximum number of versions.
    pub count_max: usize,
    /// Maximum bytes of keys and values. A page has at least one version, however long.
    pub bytes_max: usize,
    /// Time at which the page ends, with what it has.
    pub deadline: Instant,
}

/// Page of replaced versions, newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VersionPage {
    /// Replaced versions, with the newest `replaced_at` first.
    pub versions: Vec<ReplacedVersion>,
    /// Sequence before which the next page continues; `None` if nothing older is known.
    pub before: Option<Sequence>,
    /// Gaps in the part of the history that the page covers, newest first.
    pub gaps: Vec<HistoryGap>,
}

/// Newest versions of a source, collected from versions in any order. Keeps at most twice as many
/// as a page may have.
struct NewestVersions {
    limits: PageLimits,
    versions: Vec<ReplacedVersion>,
    byte_count: usize,
}

impl NewestVersions {
    fn new(limits: PageLimits) -> Self {
        Self { limits, versions: Vec::new(), byte_count: 0 }
    }

    fn push(&mut self, version: ReplacedVersion) {
        self.byte_count += page_bytes(&version);
        self.versions.push(version);
        let PageLimits { count_max, bytes_max, .. } = self.limits;
        if self.versions.len() > count_max.saturating_mul(2).max(2) || self.byte_count / 2 > bytes_max {
            self.drop_oldest();
        }
    }

    /// Keeps the newest versions: as many as a page may have, and one more.
    fn drop_oldest(&mut self) {
        self.versions.sort_by_key(|version| std::cmp::Reverse(version.replaced_at));
        let (mut count, mut byte_count) = (0, 0);
        for version in &self.versions {
            count += 1;
            byte_count += page_bytes(version);
            if count > 1 && (count > self.limits.count_max || byte_count > self.limits.bytes_max) {
                break;
            }
        }
        self.versions.truncate(count);
        self.byte_count = byte_count;
    }

    /// Returns the versions, newest first.
    fn into_sorted(mut self) -> Vec<ReplacedVersion> {
        self.drop_oldest();
        self.versions
    }
}

/// Returns the bytes of a version that count for a page.
fn page_bytes(version: &ReplacedVersion) -> usize {
    version.record.key.name.len() + version.record.value.len()
}

impl BufferedRange {
    /// Returns the first change whose time, or that of an earlier change, is later than `time`.
    pub(super) fn first_sequence_after(&self, latest_before: Option<Millis>, time: Millis) -> Option<Sequence> {
        first_pair_after(self.pairs(), latest_before, time).map(|at| self.pairs()[at].0)
    }

    /// Returns the sequence after the last change whose time is not later than `time`.
    pub(super) fn sequence_after_last_before(&self, time: Millis) -> Option<Sequence> {
        let at = self.pairs().iter().rposition(|(_, label)| *label <= time)?;
        Some(self.pairs().get(at + 1).map_or(self.last.next(), |(sequence, _)| *sequence))
    }

    pub(super) fn time_of(&self, sequence: Sequence) -> Option<SystemTime> {
        let before = self.pairs().partition_point(|(first, _)| *first <= sequence);
        self.pairs().get(before.checked_sub(1)?).map(|(_, time)| (*time).into())
    }
}

impl Source<'_> {
    /// Returns the version of a key that the first change after `after` replaced. `None` if the
    /// source is damaged, `Some(None)` if it has no such version.
    fn first_version_of(self, key: &EntryKey, after: Sequence) -> Option<Option<ReplacedVersion>> {
        let mut first = None;
        match self {
            Self::Segment(segment) => segment.read(|segment| {
                segment.visit_versions_of(key, after, &mut |version| {
                    first = Some(version);
                    false
                })
            })?,
            Self::Buffered(range) => {
                let matches = |version: &&ReplacedVersion| version.replaced_at > after && version.record.key == *key;
                first = range.versions().find(matches).cloned();
            }
        }
        Some(first)
    }

    /// Calls `visit` with each version of the ipcache entries that cover an address, in any order.
    /// `None` if the source is damaged.
    fn visit_versions_covering(self, ip: IpAddr, visit: &mut dyn FnMut(ReplacedVersion)) -> Option<()> {
        match self {
            Self::Segment(segment) => segment.read(|segment| segment.visit_versions_covering(ip, visit)),
            Self::Buffered(range) => {
                let covers = |buffered: &&BufferedVersion| buffered.prefix.is_some_and(|prefix| prefix.net.contains(&ip));
                range.buffered().filter(covers).for_each(|buffered| visit(buffered.version.clone()));
                Some(())
            }
        }
    }

    /// Calls `visit` with each selected version, in any order. `None` if the source is damaged.
    pub(super) fn visit_selected(self, selection: &VersionSelection, visit: &mut dyn FnMut(ReplacedVersion)) -> Option<()> {
        let mut visit_matching = |version: ReplacedVersion| {
            if selection.matches(&version.record) {
                visit(version);
            }
        };
        match (self, selection) {
            (Self::Segment(segment), VersionSelection::Key(key)) => segment.read(|segment| {
                segment.visit_versions_of(key, segment.fence.after, &mut |version| {
                    visit_matching(version);
                    true
                })
            }),
            (_, VersionSelection::Covering(ip)) => self.visit_versions_covering(*ip, &mut visit_matching),
            (Self::Segment(segment), _) => segment.read(|segment| match selection.filter_element() {
                Some(element) if !segment.may_have(element)? => Ok(()),
                Some(_) | None => segment.visit_selected_versions(|chunk| selection.rows_that_may_match(chunk), &mut visit_matching),
            }),
            (Self::Buffered(range), _) => {
                range.versions().cloned().for_each(visit_matching);
                Some(())
            }
        }
    }

    /// Returns the newest of the selected versions that changes up to `last` replaced, as many as a
    /// page may have and one more, newest first. `None` if the source is damaged.
    fn newest_versions(self, selection: &VersionSelection, last: Sequence, limits: PageLimits) -> Option<Vec<ReplacedVersion>> {
        let mut newest = NewestVersions::new(limits);
        self.visit_selected(selection, &mut |version| {
            if version.replaced_at <= last {
                newest.push(version);
            }
        })?;
        Some(newest.into_sorted())
    }

    /// Returns the first change whose time, or that of an earlier change, is later than `time`.
    /// `None` if the source is damaged, `Some(None)` if it has no such change.
    fn first_sequence_after(self, latest_before: Option<Millis>, time: Millis) -> Option<Option<Sequence>> {
        match self {
            Self::Segment(segment) => segment.read(|segment| segment.first_sequence_after(latest_before, time)),
            Self::Buffered(range) => Some(range.first_sequence_after(latest_before, time)),
        }
    }

    fn sequence_after_last_before(self, time: Millis) -> Option<Sequence> {
        match self {
            Self::Segment(segment) => segment.read(|segment| segment.sequence_after_last_before(time)).flatten(),
            Self::Buffered(range) => range.sequence_after_last_before(time),
        }
    }
}

impl HistorySnapshot {
    /// Returns the state of the mirror at a time, as a sequence. `None` if the history begins
    /// later.
    #[must_use]
    pub fn sequence_at(&self, time: SystemTime) -> Option<SequenceAt> {
        let time = Millis::from(time);
        let (mut latest_before, mut previous): (Option<Millis>, Option<Sequence>) = (None, None);
        let mut sequence = None;
        for source in self.sources() {
            match source.first_sequence_after(latest_before, time) {
                // the changes before a gap happened before the time, and those in the gap may have
                Some(Some(first)) => {
                    let follows_gap = previous != Some(source.after());
                    let is_first = first_pair_of(source) == Some(first);
                    let before_first = Sequence(first.0.saturating_sub(1));
                    sequence = Some(if follows_gap && is_first { previous? } else { before_first });
                    break;
                }
                Some(None) => previous = Some(source.last()),
                // a damaged segment is a gap
                None => {}
            }
            latest_before = latest_before.max(source.times().map(|range| range.latest));
        }
        let sequence = sequence.or(previous)?;
        let after_latest = self.sources().rev().find_map(|source| source.sequence_after_last_before(time));
        Some(SequenceAt { sequence, latest: after_latest.map_or(sequence, |after| Sequence(after.0.saturating_sub(1))).max(sequence) })
    }

    /// Returns the time of a change. `None` if the history does not contain it.
    #[must_use]
    pub fn time_of(&self, sequence: Sequence) -> Option<SystemTime> {
        let source = self.sources().find(|source| source.after() < sequence && sequence <= source.last())?;
        match source {
            Source::Segment(segment) => segment.read(|segment| segment.time_of(sequence)).flatten().map(SystemTime::from),
            Source::Buffered(range) => range.time_of(sequence),
        }
    }

    /// Returns the gaps in a range of sequences: after `after` up to `last`, oldest first.
    /// `damaged` has sources that the query could not read.
    pub(super) fn gaps_between(&self, after: Sequence, last: Sequence, damaged: &BTreeSet<Sequence>) -> Vec<HistoryGap> {
        let (mut gaps, mut covered, mut from) = (Vec::new(), after, None);
        let readable = self.sources().filter(|source| source.is_readable() && !damaged.contains(&source.after()));
        for source in readable {
            let times = source.times();
            if source.last() <= after {
                from = times.map(|range| range.latest.into());
                continue;
            }
            if source.after() > covered && covered < last {
                gaps.push(HistoryGap {
                    after: covered,
                    last: source.after().min(last),
                    from,
                    to: times.map(|range| range.earliest.into()),
                });
            }
            covered = covered.max(source.last());
            from = times.map(|range| range.latest.into());
        }
        if covered < last {
            gaps.push(HistoryGap { after: covered, last, from, to: None });
        }
        gaps
    }

    /// Returns the gaps after a sequence, up to the end of the history, oldest first.
    #[cfg(test)]
    #[must_use]
    pub fn gaps_after(&self, after: Sequence) -> Vec<HistoryGap> {
        self.gaps_between(after, self.last(), &BTreeSet::new())
    }

    /// Returns the state of a key at a sequence. `current` is its current record.
    #[must_use]
    pub fn version_at(&self, key: &EntryKey, at: Sequence, current: Option<&Arc<Record>>) -> PastVersion {
        if let Some(current) = current.filter(|current| current.last_sequence <= at) {
            return PastVersion { state: PastState::Existed(Arc::clone(current)), next_change: None };
        }
        let mut damaged = BTreeSet::new();
        let later = self.sources().filter(|source| source.last() > at);
        let next_change = later.clone().find_map(|source| {
            let first = source.first_version_of(key, at);
            if first.is_none() {
                damaged.insert(source.after());
            }
            first.flatten()
        });
        let has_gap = |until: Sequence| !self.gaps_between(at, until, &damaged).is_empty();
        let next = next_change.as_ref().map(|change| &change.record).or(current);
        let state = state_before(next, at, |until| has_gap(until.unwrap_or(self.last())));
        PastVersion { state, next_change }
    }

    /// Returns the ipcache entries that covered an address, each at the sequence of its key.
    /// `earliest` is the lowest of these sequences. `current` has the records of all entries that
    /// cover it now.
    #[must_use]
    pub fn covering_at(&self, ip: IpAddr, earliest: Sequence, at: impl Fn(&EntryKey) -> Sequence, current: &[Arc<Record>]) -> PastCovering {
        let mut damaged = BTreeSet::new();
        let mut changes: BTreeMap<EntryKey, ReplacedVersion> = BTreeMap::new();
        for source in self.sources().filter(|source| source.last() > earliest) {
            let mut first: BTreeMap<EntryKey, ReplacedVersion> = BTreeMap::new();
            let mut visit = |version: ReplacedVersion| {
                let is_earlier = |other: &ReplacedVersion| version.replaced_at < other.replaced_at;
                if version.replaced_at > at(&version.record.key) && first.get(&version.record.key).is_none_or(is_earlier) {
                    first.insert(version.record.key.clone(), version);
                }
            };
            match source.visit_versions_covering(ip, &mut visit) {
                None => drop(damaged.insert(source.after())),
                Some(()) => {
                    first.retain(|key, _| !changes.contains_key(key));
                    changes.append(&mut first);
                }
            }
        }
        let is_whole = self.gaps_between(earliest, self.last(), &damaged).is_empty();
        let mut records: BTreeMap<&EntryKey, &Arc<Record>> = current.iter().map(|record| (&record.key, record)).collect();
        records.extend(changes.iter().map(|(key, change)| (key, &change.record)));
        let (mut covering, mut is_complete) = (Vec::new(), is_whole);
        for record in records.into_values() {
            match state_before(Some(record), at(&record.key), |_| !is_whole) {
                PastState::Existed(record) => covering.push(record),
                PastState::Absent => {}
                PastState::Unknown => is_complete = false,
            }
        }
        PastCovering { records: covering, is_complete }
    }

    /// Returns a page of the replaced versions of a selection, newest first: those that changes up
    /// to and including `before` replaced. The current version is not among them.
    #[must_use]
    pub fn versions(&self, selection: &VersionSelection, before: Option<Sequence>, limits: PageLimits) -> VersionPage {
        let newest = before.unwrap_or(self.last());
        let (mut page, mut bytes, mut damaged) = (VersionPage::default(), 0, BTreeSet::new());
        let mut read_after = newest;
        for source in self.sources().rev().filter(|source| source.after() < newest) {
            if read_after < newest && Instant::now() >= limits.deadline {
                page.before = Some(read_after);
                break;
            }
            let Some(versions) = source.newest_versions(selection, newest, limits) else {
                damaged.insert(source.after());
                read_after = source.after();
                continue;
            };
            read_after = source.after();
            for version in versions {
                let length = page_bytes(&version);
                if !page.versions.is_empty() && (page.versions.len() >= limits.count_max || bytes + length > limits.bytes_max) {
                    page.before = Some(version.replaced_at);
                    break;
                }
                bytes += length;
                page.versions.push(version);
            }
            if page.before.is_some() {
                break;
            }
        }
        let covered_after = page.before.unwrap_or(read_after);
        page.gaps = self.gaps_between(covered_after, newest, &damaged);
        page.gaps.reverse();
        page
    }
}

/// Returns the first change whose time a source has.
fn first_pair_of(source: Source<'_>) -> Option<Sequence> {
    source.first_sequence_after(Some(Millis(i64::MAX)), Millis(i64::MIN)).flatten()
}

/// Returns the state of a key at a sequence. `next` is the record that the first later change
/// replaced, or the current record if no change is known. `has_gap` returns whether the history has
/// a gap between the sequence and the given one, or the end.
pub fn state_before(next: Option<&Arc<Record>>, at: Sequence, has_gap: impl FnOnce(Option<Sequence>) -> bool) -> PastState {
    match next {
        // nothing changed the record until then, so no gap matters
        Some(record) if record.last_sequence <= at => PastState::Existed(Arc::clone(record)),
        // a change in between is missing
        Some(record) if record.create_sequence <= at => PastState::Unknown,
        Some(record) => {
            if has_gap(Some(record.create_sequence)) {
                PastState::Unknown
            } else {
                PastState::Absent
            }
        }
        None => {
            if has_gap(None) {
                PastState::Unknown
            } else {
                PastState::Absent
            }
        }
    }
}
