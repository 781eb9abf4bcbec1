//! The mirror as an etcd would serve it: entries and notices by their full etcd keys, in byte
//! order. Values are not decoded.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::model::{ClusterName, EntryKey, Kind, RawRecord, Sequence};
use crate::pack::RecordHistory;
use crate::view::records::location::RecordLocation;
use crate::view::{LiveKey, View};

/// Prefix of the keys of all mirrored entries. Some notices sort before it and some after it.
const ENTRIES_PREFIX: &str = "cilium/cache/";

/// An existing key in etcd's form. Its bytes are unpacked on request.
#[derive(Debug)]
pub struct RawKey<'a>(RawKeyLocation<'a>);

#[derive(Debug)]
enum RawKeyLocation<'a> {
    Notice(&'a RawRecord),
    Entry(RecordLocation),
}

impl RawKey<'_> {
    /// Returns the whole key.
    #[must_use]
    pub fn key(&self) -> SmolStr {
        match &self.0 {
            RawKeyLocation::Notice(notice) => notice.key.clone(),
            // every mirrored entry has a key in etcd
            RawKeyLocation::Entry(location) => location.key().etcd_key().unwrap_or_default(),
        }
    }

    /// Returns the sequences of the creation and of the last change, and the number of changes.
    #[must_use]
    pub fn history(&self) -> (Sequence, Sequence, u64) {
        match &self.0 {
            RawKeyLocation::Notice(notice) => (notice.create_sequence, notice.last_sequence, notice.version),
            RawKeyLocation::Entry(location) => {
                let RecordHistory { created, last, version } = location.history();
                (created, last, version)
            }
        }
    }

    /// Returns the key with its value.
    #[must_use]
    pub fn record(&self) -> RawRecord {
        match &self.0 {
            RawKeyLocation::Notice(notice) => (*notice).clone(),
            RawKeyLocation::Entry(location) => raw_record(location),
        }
    }
}

fn raw_record(location: &RecordLocation) -> RawRecord {
    let unpacked;
    let record = match location.record() {
        Ok(record) => &**record,
        Err(packed) => {
            unpacked = packed.chunk.record(packed.row);
            &unpacked
        }
    };
    RawRecord {
        key: record.key.etcd_key().unwrap_or_default(),
        value: Arc::clone(&record.value),
        create_sequence: record.create_sequence,
        last_sequence: record.last_sequence,
        version: record.version,
    }
}

impl View {
    /// Finds a key.
    #[must_use]
    pub fn raw_key(&self, key: &str) -> Option<RawKey<'_>> {
        if let Some(notice) = self.notice(key) {
            return Some(RawKey(RawKeyLocation::Notice(notice)));
        }
        let key = EntryKey::from_cache_form(key).filter(|key| key.kind.is_mirrored())?;
        self.records.locate(&key).map(|location| RawKey(RawKeyLocation::Entry(location)))
    }

    /// Returns the stored bytes of an entry, without decoding them.
    #[must_use]
    pub fn value(&self, key: &EntryKey) -> Option<Arc<[u8]>> {
        Some(match self.records.locate(key)?.record() {
            Ok(record) => Arc::clone(&record.value),
            Err(packed) => packed.chunk.record_with_key(packed.row, key.clone()).value,
        })
    }

    /// Returns the record of a live key; `None` if no etcd has such a key.
    #[must_use]
    pub fn raw_record_of(&self, live: &LiveKey) -> Option<RawRecord> {
        match live.location() {
            Some(location) => location.kind().is_mirrored().then(|| raw_record(location)),
            None if live.kind() == Kind::Notice => self.notice(&live.key().name).cloned(),
            None => None,
        }
    }

    /// Iterates over the keys from some bytes on, in order.
    pub fn raw_keys_from(&self, start: &[u8]) -> impl Iterator<Item = RawKey<'_>> {
        let before = self.raw_notices_from(start).take_while(|notice| *notice.key < *ENTRIES_PREFIX);
        let entries = self.first_entry_from(start).into_iter().flat_map(|first| self.mirrored_from(first));
        let after = self.raw_notices_from(start.max(ENTRIES_PREFIX.as_bytes()));
        let notice = |notice| RawKey(RawKeyLocation::Notice(notice));
        let entry = |location| RawKey(RawKeyLocation::Entry(location));
        let start = start.to_vec();
        // bytes that are not UTF-8 can make the start a few keys too low
        let all = before.map(notice).chain(entries.map(entry)).chain(after.map(notice));
        all.skip_while(move |location| location.key().as_bytes() < start.as_slice())
    }

    /// Iterates over the mirrored entries from a key on. Skips derived entries, which sort between
    /// two kinds.
    fn mirrored_from(&self, first: EntryKey) -> impl Iterator<Item = RecordLocation> {
        let lowest = first.kind;
        Kind::ALL.into_iter().filter(move |kind| *kind >= lowest).flat_map(move |kind| {
            let from = first.clone().max(EntryKey::lowest_of(kind));
            self.records.scan_from(&from).take_while(move |location| location.kind() == kind)
        })
    }

    /// Returns the number of keys from `start` up to but not including `end`. Unpacks nothing.
    #[must_use]
    pub fn raw_key_count(&self, start: &[u8], end: Option<&[u8]>) -> usize {
        let is_utf8 = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        if !is_utf8(start) || !end.is_none_or(is_utf8) {
            let keys = self.raw_keys_from(start).map(|location| location.key());
            return keys.take_while(|key| end.is_none_or(|end| key.as_bytes() < end)).count();
        }
        let notices = self.raw_notices_from(start).filter(|notice| end.is_none_or(|end| notice.key.as_bytes() < end)).count();
        let after_entries = EntryKey::lowest_of(Kind::Cluster);
        let end = end.and_then(|end| self.first_entry_from(end)).unwrap_or_else(|| after_entries.clone());
        let Some(start) = self.first_entry_from(start) else { return notices };
        // kind by kind, because derived entries sort between two of them
        let of_kind = |kind: Kind| {
            let stored = Kind::STORED.into_iter().chain([Kind::Cluster]);
            let next = stored.into_iter().find(|next| *next > kind).unwrap_or(Kind::Cluster);
            let (from, to) = (start.clone().max(EntryKey::lowest_of(kind)), end.clone().min(EntryKey::lowest_of(next)));
            if from < to { self.records.count_between(&from, &to) } else { 0 }
        };
        notices + Kind::ALL.into_iter().map(of_kind).sum::<usize>()
    }

    fn raw_notices_from(&self, start: &[u8]) -> impl Iterator<Item = &RawRecord> {
        let text = start.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let start = start.to_vec();
        self.notices_from(text).skip_while(move |notice| notice.key.as_bytes() < start.as_slice())
    }

    /// Returns the lowest possible key of a mirrored entry whose cache form is at least `start`, or
    /// a lower one if `start` is not UTF-8. `None` if all entries are below.
    fn first_entry_from(&self, start: &[u8]) -> Option<EntryKey> {
        for kind in Kind::ALL {
            let prefix = format!("{ENTRIES_PREFIX}{}/", kind.base());
            if start <= prefix.as_bytes() {
                return Some(EntryKey::lowest_of(kind));
            }
            let Some(suffix) = start.strip_prefix(prefix.as_bytes()) else { continue };
            if let Some(found) = self.first_of_kind_from(kind, suffix) {
                return Some(found);
            }
        }
        None
    }

    /// Returns the first key of a kind whose cache form, without the prefix of the kind, is at
    /// least `suffix`.
    fn first_of_kind_from(&self, kind: Kind, suffix: &[u8]) -> Option<EntryKey> {
        let text = suffix.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let with_cluster = text.split_once('/').and_then(|(cluster, rest)| {
            let first = EntryKey::new(kind, ClusterName::parse(cluster).ok()?, "");
            Some((rest.strip_prefix(kind.infix())?, first))
        });
        if let Some((name, first)) = with_cluster {
            return Some(EntryKey { name: name.into(), ..first });
        }
        let mut clusters: Vec<ClusterName> = self.cluster_names().into_iter().collect();
        clusters.sort_by(ClusterName::cmp_in_keys);
        let first = clusters.into_iter().find(|cluster| format!("{cluster}/{}", kind.infix()).as_bytes() >= suffix)?;
        Some(EntryKey::new(kind, first, ""))
    }
}

#[cfg(test)]
mod tests;
