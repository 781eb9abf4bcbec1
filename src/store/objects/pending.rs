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

#[derive(Debug, Clone, Default)]
pub(in crate::store) struct PendingChanges {
    /// Packed records. Each chunk overrides the previous ones.
    packed: Vec<pack::Chunk>,
    /// Newest changes, which override `packed`; `None` deletes.
    recent: BTreeMap<KeyBytes, Option<StoredValue>>,
    /// Number of records in `recent`.
    record_count: usize,
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

    /// Packs the records, if that saves memory.
    pub(in crate::store) fn pack(&mut self) {
        if self.record_count < PACKED_MIN {
            return;
        }
        let mut records = Vec::with_capacity(self.record_count);
        for (key, value) in std::mem::take(&mut self.recent) {
            match value {
                Some(StoredValue::Record(record)) => records.push(record),
                Some(StoredValue::Item(_) | StoredValue::Replaced(_)) | None => drop(self.recent.insert(key, value)),
            }
        }
        self.packed.extend(pack::build(records.iter().map(|record| &**record)));
        self.record_count = 0;
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
                    pending.pack();
                }
            }
            let expected = model.into_iter().map(|(number, sequence)| (number.to_string(), sequence, IndexedFields::Identity(number)));
            assert_eq!(folded(pending), expected.collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn a_chunk_replaces_exactly_the_records_that_it_was_packed_from() {
        let listed: Vec<Arc<Record>> = (10..20).map(|number| record(number, u64::from(number), true)).collect();
        let [chunk] = pack::build(listed.iter().map(|record| &**record)).try_into().unwrap();
        let used = |changes: &[(u32, Option<Arc<Record>>)]| {
            let mut pending = PendingChanges::default();
            for record in &listed {
                pending.insert(codec::entry_key(&record.key).into(), Some(StoredValue::Record(Arc::clone(record))));
            }
            changes.iter().for_each(|(number, record)| pending.insert(key(*number), record.clone().map(StoredValue::Record)));
            pending.use_packed(&chunk);
            (pending.packed.len(), pending.recent.len(), pending.record_count)
        };
        let held = Record { source: SourceStamp { held: true, ..SourceStamp::default() }, ..(*listed[3]).clone() };
        assert_eq!(used(&[]), (1, 0, 0));
        assert_eq!(used(&[(30, Some(record(30, 40, true))), (31, None)]), (1, 2, 1), "other keys do not matter");
        assert_eq!(used(&[(13, Some(record(13, 40, true)))]), (0, 10, 10), "a newer record");
        assert_eq!(used(&[(13, Some(held.into()))]), (0, 10, 10), "a newer revision of the same record");
        assert_eq!(used(&[(13, None)]), (0, 10, 9), "a deleted record");
        assert_eq!(used(&[(130, Some(record(130, 40, true)))]), (0, 11, 11), "a new key between the others");
    }

    #[test]
    fn decoded_objects_are_added_before_packing() {
        let mut pending = PendingChanges::default();
        (10..20).for_each(|number| pending.insert(key(number), Some(StoredValue::Record(record(number, 7, false)))));
        (10..15).for_each(|number| pending.add_decoded(&record(number, 7, true)));
        // not the stored sequence
        pending.add_decoded(&record(17, 8, true));
        pending.pack();
        assert_eq!((pending.len(), pending.recent.len()), (10, 0));
        let meaning = |number| if number < 15 { IndexedFields::Identity(number) } else { IndexedFields::Unknown };
        assert_eq!(folded(pending), (10..20).map(|number| (number.to_string(), 7, meaning(number))).collect::<Vec<_>>());
    }
}
