//! Lists in slices: each goes on from a key until it has what it wants, nothing is left, or its slice is over.

use super::{Filter, Reading, Slice};
use crate::model::{ClusterName, EntryKey, Kind, Record};

/// How far a scan came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scanned<K = EntryKey> {
    /// Nothing is left.
    All,
    /// What this key holds was not taken: it is where a next page begins.
    Full(K),
    /// The slice is over: go on from this key, of which it is not known whether it matches.
    Paused(K),
}

impl Reading {
    /// Gives objects of one kind that pass a filter, from a key on, to `take` until that refuses one.
    pub fn scan(
        &self,
        kind: Kind,
        filter: &Filter,
        start: Option<&EntryKey>,
        slice: &mut Slice,
        mut take: impl FnMut(&Record) -> bool,
    ) -> Scanned {
        let view = &self.published().view;
        let lowest = EntryKey::lowest_of(kind);
        if let Some(id) = filter.identity.filter(|_| kind == Kind::Ip) {
            for record in view.ips_of_identity(id, start.unwrap_or(&lowest)) {
                if slice.is_over() {
                    return Scanned::Paused(record.key.clone());
                }
                slice.look();
                let matches = record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object));
                if matches && !take(&record) {
                    return Scanned::Full(record.key.clone());
                }
            }
            return Scanned::All;
        }
        for live in view.live_from(start.unwrap_or(&lowest)) {
            if live.kind().listed_as() != kind {
                break;
            }
            if slice.is_over() {
                return Scanned::Paused(live.key());
            }
            slice.look();
            let Some(record) = view.record_passing(&live, |key| filter.may_match(key)) else { continue };
            let matches = record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object));
            if matches && !take(&record) {
                return Scanned::Full(record.key.clone());
            }
        }
        Scanned::All
    }

    /// Gives raw entries, mirrored ones alone, whose cache-form key begins with `prefix`, from a key on, to `take` until that refuses one.
    pub fn scan_entries(
        &self,
        prefix: &str,
        clusters: &[ClusterName],
        start: Option<&EntryKey>,
        slice: &mut Slice,
        mut take: impl FnMut(&Record) -> bool,
    ) -> Scanned {
        let view = &self.published().view;
        let lowest = EntryKey::lowest();
        let wanted = |key: &EntryKey| key.kind.is_mirrored() && among(clusters, key) && key.to_string().starts_with(prefix);
        for live in view.live_from(start.unwrap_or(&lowest)) {
            if slice.is_over() {
                return Scanned::Paused(live.key());
            }
            slice.look();
            if let Some(record) = view.record_passing(&live, wanted)
                && !take(&record)
            {
                return Scanned::Full(record.key.clone());
            }
        }
        Scanned::All
    }

    /// Gives records whose newest bytes could not be used, from a key on, to `take` until that refuses one.
    pub fn scan_rejected(
        &self,
        clusters: &[ClusterName],
        start: Option<&EntryKey>,
        slice: &mut Slice,
        mut take: impl FnMut(&Record) -> bool,
    ) -> Scanned {
        let view = &self.published().view;
        let lowest = EntryKey::lowest();
        for key in view.rejected_from(start.unwrap_or(&lowest)) {
            if slice.is_over() {
                return Scanned::Paused(key.clone());
            }
            slice.look();
            if among(clusters, key)
                && let Some(record) = view.record(key)
                && !take(&record)
            {
                return Scanned::Full(key.clone());
            }
        }
        Scanned::All
    }
}

fn among(clusters: &[ClusterName], key: &EntryKey) -> bool {
    clusters.is_empty() || clusters.contains(&key.cluster)
}
