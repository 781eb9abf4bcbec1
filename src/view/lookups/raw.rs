//! The mirror as an etcd has it: whole keys in the order of their bytes, what is mirrored and the notices beside it. No value is looked into.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::model::{ClusterName, EntryKey, Kind, RawRecord, Sequence};
use crate::pack::History;
use crate::view::base::location::RecordLocation;
use crate::view::{Live, View};

/// What all mirrored keys begin with. Notices stand on both sides of them.
const ENTRIES: &str = "cilium/cache/";

/// A key that exists. Its bytes are unpacked where they are asked for.
#[derive(Debug)]
pub struct RawPlace<'a>(Raw<'a>);

#[derive(Debug)]
enum Raw<'a> {
    Notice(&'a RawRecord),
    Entry(RecordLocation),
}

impl RawPlace<'_> {
    /// The whole key.
    #[must_use]
    pub fn key(&self) -> SmolStr {
        match &self.0 {
            Raw::Notice(notice) => notice.key.clone(),
            // all of them are mirrored
            Raw::Entry(place) => place.key().etcd_key().unwrap_or_default(),
        }
    }

    /// The sequence when it appeared, that of its last change, and how many there were.
    #[must_use]
    pub fn history(&self) -> (Sequence, Sequence, u64) {
        match &self.0 {
            Raw::Notice(notice) => (notice.create_sequence, notice.last_sequence, notice.version),
            Raw::Entry(place) => {
                let History { created, last, version } = place.history();
                (created, last, version)
            }
        }
    }

    /// All of it.
    #[must_use]
    pub fn record(&self) -> RawRecord {
        match &self.0 {
            Raw::Notice(notice) => (*notice).clone(),
            Raw::Entry(place) => raw_record(place),
        }
    }
}

fn raw_record(place: &RecordLocation) -> RawRecord {
    let unpacked;
    let record = match place.record() {
        Ok(record) => &**record,
        Err(at) => {
            unpacked = at.chunk.record(at.row);
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
    /// What exists of a key.
    #[must_use]
    pub fn raw(&self, key: &str) -> Option<RawPlace<'_>> {
        if let Some(notice) = self.notice(key) {
            return Some(RawPlace(Raw::Notice(notice)));
        }
        let key = EntryKey::from_cache_form(key).filter(|key| key.kind.is_mirrored())?;
        self.place(&key).map(|place| RawPlace(Raw::Entry(place)))
    }

    /// What exists of a key that a list of changes names; `None` of what no etcd has.
    #[must_use]
    pub fn raw_of(&self, live: &Live) -> Option<RawRecord> {
        match live.place() {
            Some(place) => place.kind().is_mirrored().then(|| raw_record(place)),
            None if live.kind() == Kind::Notice => self.notice(&live.key().name).cloned(),
            None => None,
        }
    }

    /// Every key from some bytes on, in order.
    pub fn raw_from(&self, start: &[u8]) -> impl Iterator<Item = RawPlace<'_>> {
        let before = self.raw_notices_from(start).take_while(|notice| *notice.key < *ENTRIES);
        let entries = self.first_entry_from(start).into_iter().flat_map(|first| self.mirrored_from(first));
        let behind = self.raw_notices_from(start.max(ENTRIES.as_bytes()));
        let notice = |notice| RawPlace(Raw::Notice(notice));
        let entry = |place| RawPlace(Raw::Entry(place));
        let start = start.to_vec();
        // where the bytes are no text a few may come before them
        let all = before.map(notice).chain(entries.map(entry)).chain(behind.map(notice));
        all.skip_while(move |place| place.key().as_bytes() < start.as_slice())
    }

    /// The mirrored entries from a key on. What is derived from nodes stands between two kinds, and is not gone through.
    fn mirrored_from(&self, first: EntryKey) -> impl Iterator<Item = RecordLocation> {
        let lowest = first.kind;
        Kind::ALL.into_iter().filter(move |kind| *kind >= lowest).flat_map(move |kind| {
            let from = first.clone().max(EntryKey::lowest_of(kind));
            self.places_from(&from).take_while(move |place| place.kind() == kind)
        })
    }

    /// How many keys there are from some bytes on and below others; nothing is unpacked.
    #[must_use]
    pub fn raw_count(&self, start: &[u8], end: Option<&[u8]>) -> usize {
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        if !is_text(start) || !end.is_none_or(is_text) {
            let keys = self.raw_from(start).map(|place| place.key());
            return keys.take_while(|key| end.is_none_or(|end| key.as_bytes() < end)).count();
        }
        let notices = self.raw_notices_from(start).filter(|notice| end.is_none_or(|end| notice.key.as_bytes() < end)).count();
        let behind = EntryKey::lowest_of(Kind::Cluster);
        let end = end.and_then(|end| self.first_entry_from(end)).unwrap_or_else(|| behind.clone());
        let Some(start) = self.first_entry_from(start) else { return notices };
        // one kind after another, as what is derived from nodes stands between two of them
        let of_kind = |kind: Kind| {
            let stored = Kind::STORED.into_iter().chain([Kind::Cluster]);
            let next = stored.into_iter().find(|next| *next > kind).unwrap_or(Kind::Cluster);
            let (from, to) = (start.clone().max(EntryKey::lowest_of(kind)), end.clone().min(EntryKey::lowest_of(next)));
            if from < to { self.base.count_within(&from, &to) + self.overlay.count_within(&from, &to) } else { 0 }
        };
        notices + Kind::ALL.into_iter().map(of_kind).sum::<usize>()
    }

    fn raw_notices_from(&self, start: &[u8]) -> impl Iterator<Item = &RawRecord> {
        let text = start.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let start = start.to_vec();
        self.notices_from(text).skip_while(move |notice| notice.key.as_bytes() < start.as_slice())
    }

    /// The lowest key that a mirrored entry can have whose cache form is not below some bytes, or a little lower where those are no text. `None`
    /// where all entries are below.
    fn first_entry_from(&self, start: &[u8]) -> Option<EntryKey> {
        for kind in Kind::ALL {
            let prefix = format!("{ENTRIES}{}/", kind.base());
            if start <= prefix.as_bytes() {
                return Some(EntryKey::lowest_of(kind));
            }
            let Some(below) = start.strip_prefix(prefix.as_bytes()) else { continue };
            if let Some(found) = self.first_of_kind_from(kind, below) {
                return Some(found);
            }
        }
        None
    }

    /// The first key of a kind from some bytes on, by those behind what all keys of the kind begin with.
    fn first_of_kind_from(&self, kind: Kind, below: &[u8]) -> Option<EntryKey> {
        let text = below.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let whole = text.split_once('/').and_then(|(cluster, rest)| {
            let first = EntryKey::new(kind, ClusterName::parse(cluster).ok()?, "");
            Some((rest.strip_prefix(kind.infix())?, first))
        });
        if let Some((name, first)) = whole {
            return Some(EntryKey { name: name.into(), ..first });
        }
        let mut clusters: Vec<ClusterName> = self.cluster_names().into_iter().collect();
        clusters.sort_by(ClusterName::cmp_in_keys);
        let first = clusters.into_iter().find(|cluster| format!("{cluster}/{}", kind.infix()).as_bytes() >= below)?;
        Some(EntryKey::new(kind, first, ""))
    }
}

#[cfg(test)]
mod tests;
