//! Conversion of earlier versions of entries.

use std::collections::BTreeSet;

use crate::dto::meta::UnknownPeriod;
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::StreamedObject;
use crate::dto::streamed::{EntryVersion, VersionList};
use crate::dto::text::rfc3339;
use crate::dto::values::closed::{StreamedKind, VersionEnd};
use crate::handle::{self, EntryVersions, PastReading};
use crate::model::{DeleteReason, EntryKey, ObservationGap, Scope, Sequence};

impl VersionList {
    pub(crate) fn new(past: &PastReading, page: &EntryVersions) -> Self {
        let scope = |key: &EntryKey| Scope { cluster: key.cluster.clone(), kind: key.origin_kind() };
        let scopes: BTreeSet<Scope> = page.versions.iter().map(|version| scope(&version.record.key)).collect();
        // a gap that ended before the oldest version of the page belongs to a later page
        let oldest = page.versions.iter().map(|version| version.record.last_sequence).min().unwrap_or_default();
        let observation_gaps = past.observation_gaps(&scopes).into_iter();
        let observation_gaps = observation_gaps.filter(|(_, gap)| gap.end.is_none_or(|end| end.last >= oldest));
        let not_observed = observation_gaps.map(|(scope, gap)| UnknownPeriod::new(&scope, &gap));
        let lost =
            page.lost.iter().map(|gap| UnknownPeriod { cluster: None, kind: None, from: gap.from.map(rfc3339), to: gap.to.map(rfc3339) });
        let gaps: Vec<UnknownPeriod> = lost.chain(not_observed).collect();
        Self {
            items: page.versions.iter().map(|version| EntryVersion::new(past, version)).collect(),
            complete: gaps.is_empty(),
            gaps,
            since: past.since().map(rfc3339),
            next_page_token: page.before.map(|before| before.to_string()),
            position: past.reading.position().to_string(),
        }
    }
}

impl UnknownPeriod {
    pub(crate) fn new(scope: &Scope, gap: &ObservationGap) -> Self {
        Self {
            cluster: Some(scope.cluster.to_string()),
            kind: Some(scope.kind.into()),
            from: gap.from.map(rfc3339),
            to: gap.end.map(|end| rfc3339(end.time)),
        }
    }
}

impl EntryVersion {
    fn new(past: &PastReading, version: &handle::EntryVersion) -> Self {
        let handle::EntryVersion { record, end } = version;
        let time = |sequence: Sequence| LastChange::from(past.change_time(&record.key, sequence));
        let from = time(record.last_sequence);
        let object = record.object.as_ref().map(|object| StreamedObject::new(&record.key, object, record.last_sequence, &past.reading));
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
