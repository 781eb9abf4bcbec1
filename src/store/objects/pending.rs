//! Changes of a chunk that are in the log and not folded yet.
//!
//! Records are packed here too. A decoded record needs ten times the memory of a packed one, and
//! the log of a large mesh has 100,000 records.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::model::Record;
use crate::pack;
use crate::store::encoding::codec;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};

/// Minimum number of records that are packed together. Each packed chunk has a fixed cost of about
/// 1.5 KB. Lower in tests, which have small meshes.
const PACKED_MIN: usize = if cfg!(test) { 4 } else { 32 };

/// Number of records of one scope that are packed at once as a full chunk, which [`pack::fold`]
/// need not pack again. A list delivers only a few hundred new records at a time, so they are
/// collected first.
const FULL_CHUNK_RECORDS: usize = if cfg!(test) { 16 } else { pack::RECORDS_TARGET };

/// Maximum number of records, over all chunks, that wait until they fill a chunk: one chunk for
/// each list that an etcd serves at once (eight, `clustermesh/concurrency.rs`). This is about 8 MB.
/// The mirror uses the same memory until it has packed its own copy of the records.
pub(in crate::store) const DEFERRED_MAX: usize = if cfg!(test) { 40 } else { 8 * FULL_CHUNK_RECORDS };

#[derive(Debug, Clone, Default)]
pub(in crate::store) struct PendingChanges {
    /// Packed records. Each chunk overrides the previous ones.
    packed: Vec<pack::Chunk>,
    /// Newest changes, which override `packed`; `None` deletes.
    recent: BTreeMap<KeyBytes, Option<StoredValue>>,
    /// Number of records in `recent`.
    record_count: usize,
    /// Number of records that the last call of [`Self::pack`] left for later.
    deferred_count: usize,
}

impl PendingChanges {
    pub(in crate::store) fn insert(&mut self, key: KeyBytes, value: Option<StoredValue>) {
        let is_record = |value: &Option<StoredValue>| matches!(value, Some(StoredValue::Record(_)));
        self.record_count += usize::from(is_record(&value));
        let before = self.recent.insert(key, value);
        self.record_count -= usize::from(before.as_ref().is_some_and(is_record));
    }

    /// Returns the number of changes, including those that newer ones override.
    pub(in crate::store) fn len(&self) -> usize {
        self.packed.iter().map(pack::Chunk::len).sum::<usize>() + self.recent.len()
    }

    /// Adds the decoded object of a record, if it is the newest of its key and not packed yet.
    pub(in crate::store) fn add_decoded(&mut self, record: &Arc<Record>) {
        if let Some(Some(StoredValue::Record(pending_record))) = self.recent.get_mut(&codec::entry_key(&record.key)[..])
            && pending_record.last_sequence == record.last_sequence
            && pending_record.value == record.value
        {
            *pending_record = Arc::clone(record);
        }
    }

    /// Replaces the newest records by a chunk, if the chunk was packed from exactly these records.
    pub(in crate::store) fn use_packed(&mut self, chunk: &pack::Chunk) {
        let (first, last) = (codec::entry_key(&chunk.first_key()), codec::entry_key(&chunk.last_key()));
        let changes = self.recent.range::<[u8], _>((Bound::Included(&first[..]), Bound::Included(&last[..])));
        // no two records have the same sequence
        let is_row = |(row, value): (usize, &Option<StoredValue>)| {
            matches!(value, Some(StoredValue::Record(record))
                if row < chunk.len() && record.last_sequence == chunk.last_sequence(row) && record.source == chunk.source(row))
        };
        if changes.clone().count() == chunk.len() && changes.clone().map(|(_, value)| value).enumerate().all(is_row) {
            let keys: Vec<KeyBytes> = changes.map(|(key, _)| key.clone()).collect();
            keys.iter().for_each(|key| drop(self.recent.remove(key)));
            self.record_count -= keys.len();
            self.packed.push(chunk.clone());
        }
    }

    /// Returns the number of records that wait until they fill a chunk.
    pub(in crate::store) const fn deferred_count(&self) -> usize {
        self.deferred_count
    }

    /// Packs the records, if that saves memory. Defers up to `deferred_max` new records that may be
    /// part of a list.
    pub(in crate::store) fn pack(&mut self, deferred_max: usize) {
        // each pass visits all deferred records, so the next pass waits until their number has
        // grown by half
        if self.record_count < PACKED_MIN.max(self.deferred_count + self.deferred_count / 2) {
            return;
        }
        let mut records = Vec::with_capacity(self.record_count);
        for (key, value) in std::mem::take(&mut self.recent) {
            match value {
                Some(StoredValue::Record(record)) => records.push((key, record)),
                Some(StoredValue::Item(_)) | None => drop(self.recent.insert(key, value)),
            }
        }
        let (mut others, mut deferred) = (Vec::new(), Vec::new());
        let is_of_one_scope = |(_, previous): &(KeyBytes, Arc<Record>), (_, next): &(KeyBytes, Arc<Record>)| {
            previous.key.kind == next.key.kind && previous.key.cluster == next.key.cluster
        };
        for run in records.chunk_by(is_of_one_scope) {
            let new = run.iter().filter(|(_, record)| record.create_sequence == record.last_sequence).count();
            if run.len() >= FULL_CHUNK_RECORDS {
                self.packed.extend(pack::build(run.iter().map(|(_, record)| &**record)));
            } else if new >= PACKED_MIN && deferred.len() + run.len() <= deferred_max {
                deferred.extend_from_slice(run);
            } else {
                others.extend(run.iter().map(|(_, record)| &**record));
            }
        }
        self.packed.extend(pack::build(others));
        self.deferred_count = deferred.len();
        self.record_count = deferred.len();
        self.recent.extend(deferred.into_iter().map(|(key, record)| (key, Some(StoredValue::Record(record)))));
    }

    /// Returns the packed records and the newer changes.
    pub(super) fn into_parts(self) -> (Vec<pack::Chunk>, BTreeMap<KeyBytes, Option<StoredValue>>) {
        (self.packed, self.recent)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::packing::RangeContent;
    use super::*;
    use crate::model::{ClusterName, EntryKey, Identity, IdentityLabels, Kind, Object, Sequence, SourceStamp};
    use crate::pack::IndexedFields;

    /// Returns an identity, with or without its decoded object.
    fn record(number: u32, sequence: u64, is_decoded: bool) -> Arc<Record> {
        let identity = Identity { id: number, labels: IdentityLabels::default() };
        Arc::new(Record {
            key: EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), number.to_string()),
            value: format!("k8s:app=a{sequence};").into_bytes().into(),
            good_value: None,
            object: is_decoded.then(|| Arc::new(Object::Identity(identity))),
            rejection: None,
            source: SourceStamp::default(),
            create_sequence: Sequence(1),
            last_sequence: Sequence(sequence),
            version: 1,
            generation: 0,
        })
    }

    fn key(number: u32) -> KeyBytes {
        codec::entry_key(&record(number, 0, false).key).into()
    }

    /// Folds changes into an empty chunk. Returns each key with its sequence and indexed fields.
    fn folded(pending: PendingChanges) -> Vec<(String, u64, IndexedFields)> {
        let mut content = RangeContent::entries(Vec::new());
        content.apply(pending).unwrap();
        let RangeContent::Entries { newer, changed, .. } = content else { panic!() };
        let chunks = pack::fold(&[], &newer, &changed);
        let rows = chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| (chunk, row)));
        rows.map(|(chunk, row)| (chunk.key(row).name.to_string(), chunk.last_sequence(row).0, chunk.indexed_fields(row))).collect()
    }

    #[test]
    fn the_newest_change_of_a_key_overrides_older_ones() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut pending, mut model) = (PendingChanges::default(), BTreeMap::new());
            for sequence in 1..60 {
                let number = random.random_range(10..30);
                if random.random_ratio(1, 3) {
                    pending.insert(key(number), None);
                    model.remove(&number);
                } else {
                    let create_sequence = Sequence(if random.random() { sequence } else { 1 });
                    let record = Record { create_sequence, ..(*record(number, sequence, true)).clone() };
                    pending.insert(key(number), Some(StoredValue::Record(Arc::new(record))));
                    model.insert(number, sequence);
                }
                if random.random_ratio(1, 5) {
                    pending.pack(random.random_range(0..DEFERRED_MAX));
                }
            }
            let expected = model.into_iter().map(|(number, sequence)| (number.to_string(), sequence, IndexedFields::Identity(number)));
            assert_eq!(folded(pending), expected.collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn new_records_of_a_scope_wait_until_they_fill_a_chunk() {
        let mut pending = PendingChanges::default();
        let mut packed_with = |numbers: std::ops::Range<u32>, is_new: bool, deferred_max: usize| {
            for number in numbers {
                let changed = record(number, 7, true);
                let record = if is_new { Arc::new(Record { create_sequence: Sequence(7), ..(*changed).clone() }) } else { changed };
                pending.insert(key(number), Some(StoredValue::Record(record)));
            }
            pending.pack(deferred_max);
            (pending.packed.iter().map(pack::Chunk::len).collect::<Vec<_>>(), pending.deferred_count(), pending.recent.len())
        };
        assert_eq!(packed_with(10..16, true, DEFERRED_MAX), (vec![], 6, 6));
        assert_eq!(packed_with(16..18, true, DEFERRED_MAX), (vec![], 6, 8), "two more records do not cause another pass");
        assert_eq!(packed_with(18..26, true, DEFERRED_MAX), (vec![16], 0, 0));
        assert_eq!(packed_with(10..16, false, DEFERRED_MAX), (vec![16, 6], 0, 0), "changed records are not deferred");
        assert_eq!(packed_with(30..36, true, 5), (vec![16, 6, 6], 0, 0), "the limit of deferred records is reached");
    }

    #[test]
    fn decoded_objects_are_added_before_packing() {
        let mut pending = PendingChanges::default();
        (10..20).for_each(|number| pending.insert(key(number), Some(StoredValue::Record(record(number, 7, false)))));
        (10..15).for_each(|number| pending.add_decoded(&record(number, 7, true)));
        // not the stored sequence
        pending.add_decoded(&record(17, 8, true));
        pending.pack(0);
        assert_eq!((pending.len(), pending.recent.len()), (10, 0));
        let meaning = |number| if number < 15 { IndexedFields::Identity(number) } else { IndexedFields::Unknown };
        assert_eq!(folded(pending), (10..20).map(|number| (number.to_string(), 7, meaning(number))).collect::<Vec<_>>());
    }
}
