//! Conversion of earlier versions of entries.

use std::time::SystemTime;

use crate::api::dto::meta::{GAPS_MAX, MetaOptions};
use crate::dto::meta::{ItemMeta, PastMeta, UnknownPeriod};
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::{EntryVersion, StreamedObject, VersionList};
use crate::dto::text::rfc3339;
use crate::dto::values::closed::{StreamedKind, VersionEnd};
use crate::handle::{self, HistoryGap, PastReading, PastRecords, PastTime, VersionScan};
use crate::model::{ClusterName, DeleteReason, ObservationGap, Scope, Sequence};

impl VersionList {
    /// Returns the members after the versions of a page. `oldest` is the lowest sequence with which
    /// a version of the page began, if another page follows.
    pub(crate) fn without_items(past: &PastReading, scan: &VersionScan, oldest: Option<Sequence>, next_page_token: Option<String>) -> Self {
        // a gap that ended before the oldest version of the page belongs to a later page
        let oldest = oldest.unwrap_or_default();
        let not_observed = scan.observation_gaps().into_iter().filter(|(_, gap)| gap.end.is_none_or(|end| end.last >= oldest));
        let lost = scan.lost_periods().iter();
        let lost = lost.map(UnknownPeriod::from);
        let gaps: Vec<UnknownPeriod> = lost.chain(not_observed.map(|(scope, gap)| UnknownPeriod::new(&scope, &gap))).collect();
        Self {
            items: Vec::new(),
            complete: gaps.is_empty(),
            gaps,
            since: past.since().map(rfc3339),
            next_page_token,
            position: past.reading.position().to_string(),
        }
    }
}

impl From<&HistoryGap> for UnknownPeriod {
    fn from(gap: &HistoryGap) -> Self {
        Self { cluster: None, kind: None, from: gap.from.map(rfc3339), to: gap.to.map(rfc3339) }
    }
}

impl ItemMeta {
    /// Returns the `meta` of an answer about an earlier time, whose object belongs to `cluster`.
    pub(crate) fn at(
        past: &PastReading,
        time: &PastTime,
        found: &PastRecords,
        cluster: Option<&ClusterName>,
        meta_options: MetaOptions,
    ) -> Self {
        let candidates = found.candidates.iter().map(|version| EntryVersion::new(past, version));
        Self {
            cluster: cluster.map(ToString::to_string),
            past: PastMeta { candidates: candidates.collect(), ..PastMeta::new(time.time(), found.is_complete(), &found.not_observed) },
            ..Self::without_source(past.reading.position(), &[], meta_options)
        }
    }
}

impl PastMeta {
    /// Returns the members about a time, with the newest of the periods in which scopes were not
    /// observed.
    pub(crate) fn new<'a>(
        time: SystemTime,
        is_complete: bool,
        not_observed: impl IntoIterator<Item = &'a (Scope, ObservationGap)>,
    ) -> Self {
        let gaps = not_observed.into_iter().take(GAPS_MAX).map(|(scope, gap)| UnknownPeriod::new(scope, gap));
        Self { at: Some(rfc3339(time)), complete: Some(is_complete), gaps: gaps.collect(), candidates: Vec::new() }
    }
}

impl UnknownPeriod {
    fn new(scope: &Scope, gap: &ObservationGap) -> Self {
        Self {
            cluster: Some(scope.cluster.to_string()),
            kind: Some(scope.kind.into()),
            from: gap.from.map(rfc3339),
            to: gap.end.map(|end| rfc3339(end.time)),
        }
    }
}

impl EntryVersion {
    pub(crate) fn new(past: &PastReading, version: &handle::EntryVersion) -> Self {
        let handle::EntryVersion { record, end } = version;
        let time = |sequence: Sequence| LastChange::of(&past.reading, &record.key, sequence);
        let from = time(record.last_sequence);
        let object = record.object.as_ref().map(|object| {
            let mut object = StreamedObject::new(&record.key, object, record.last_sequence, &past.reading);
            object.set_last_change(from.clone());
            object
        });
        let ended = |deleted: Option<DeleteReason>| match deleted {
            None => VersionEnd::Updated,
            Some(DeleteReason::Deleted) => VersionEnd::Deleted,
            Some(DeleteReason::ClusterRemoved) => VersionEnd::ClusterRemoved,
        };
        Self {
            kind: StreamedKind(record.key.kind).into(),
            key: record.key.to_string(),
            object,
            from,
            to: end.map(|(sequence, _)| time(sequence)),
            ended: end.map(|(_, deleted)| ended(deleted).into()),
        }
    }
}
