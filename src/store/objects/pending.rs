//! What the log has for a chunk, until it is folded into it.
//!
//! Owns: what of it is packed, as a record with its meaning takes ten times the room in memory that it takes in a chunk, and the log of a large
//! mesh has 100,000 of them. Deliberately lacks: the log itself, and when folding is due (`chunk_store`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::Record;
use crate::pack;
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::codec;

/// The fewest records that are packed together: fewer would take more room each (some 1.5 KB a chunk are the same for all), and more would stay whole.
/// The tests' meshes are small.
const PACKED_MIN: usize = if cfg!(test) { 4 } else { 32 };

/// As many new records of one scope as a chunk of them has: [`pack::fold`] need not pack them again. A list brings them a few hundred at a time.
const WHOLE_RUN: usize = if cfg!(test) { 16 } else { pack::RECORDS_TARGET };

/// The most records that may wait for that, over all chunks: a chunk of each list that one etcd gives at once (eight, `clustermesh/concurrency.rs`). They are some
/// 8 MB that the mirror holds as well until it has packed them.
pub(in crate::store) const GROWING_MAX: usize = if cfg!(test) { 40 } else { 8 * WHOLE_RUN };

/// What the log has for a chunk.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Pending {
    /// Each counts more than those before it.
    packed: Vec<pack::Chunk>,
    /// Counts more than all of them; `None` is gone.
    recent: BTreeMap<Key, Option<Value>>,
    /// How many of `recent` are records.
    record_count: usize,
    /// How many of them waited for more when the rest was packed.
    growing: usize,
}

impl Pending {
    pub(in crate::store) fn insert(&mut self, key: Key, value: Option<Value>) {
        let is_record = |value: &Option<Value>| matches!(value, Some(Value::Record(_)));
        self.record_count += usize::from(is_record(&value));
        let before = self.recent.insert(key, value);
        self.record_count -= usize::from(before.as_ref().is_some_and(is_record));
    }

    /// How many changes there are, those included that newer ones of their keys stand for.
    pub(in crate::store) fn len(&self) -> usize {
        self.packed.iter().map(pack::Chunk::len).sum::<usize>() + self.recent.len()
    }

    /// Takes in what a record means, if it is the newest of its key and not packed yet.
    pub(in crate::store) fn know(&mut self, record: &Arc<Record>) {
        if let Some(Some(Value::Record(held))) = self.recent.get_mut(&codec::entry_key(&record.key)[..])
            && held.last_sequence == record.last_sequence
            && held.value == record.value
        {
            *held = Arc::clone(record);
        }
    }

    /// How many records wait to be packed until there are more.
    pub(in crate::store) const fn growing(&self) -> usize {
        self.growing
    }

    /// Packs the records, if that saves room, but for so many that may be part of a list.
    pub(in crate::store) fn pack(&mut self, growing_max: usize) {
        // what waits is gone through each time, so that is done when it has grown by half
        if self.record_count < PACKED_MIN.max(self.growing + self.growing / 2) {
            return;
        }
        let mut records = Vec::with_capacity(self.record_count);
        for (key, value) in std::mem::take(&mut self.recent) {
            match value {
                Some(Value::Record(record)) => records.push((key, record)),
                Some(Value::Item(_)) | None => drop(self.recent.insert(key, value)),
            }
        }
        let (mut others, mut left) = (Vec::new(), Vec::new());
        let is_of_one_scope = |(_, one): &(Key, Arc<Record>), (_, next): &(Key, Arc<Record>)| {
            one.key.kind == next.key.kind && one.key.cluster == next.key.cluster
        };
        for run in records.chunk_by(is_of_one_scope) {
            let new = run.iter().filter(|(_, record)| record.create_sequence == record.last_sequence).count();
            if run.len() >= WHOLE_RUN {
                self.packed.extend(pack::build(run.iter().map(|(_, record)| &**record)));
            } else if new >= PACKED_MIN && left.len() + run.len() <= growing_max {
                left.extend_from_slice(run);
            } else {
                others.extend(run.iter().map(|(_, record)| &**record));
            }
        }
        self.packed.extend(pack::build(others));
        self.growing = left.len();
        self.record_count = left.len();
        self.recent.extend(left.into_iter().map(|(key, record)| (key, Some(Value::Record(record)))));
    }

    /// What is packed, each counting more than those before it, and what counts more than all of that.
    pub(super) fn into_parts(self) -> (Vec<pack::Chunk>, BTreeMap<Key, Option<Value>>) {
        (self.packed, self.recent)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::packing::Content;
    use super::*;
    use crate::model::{ClusterName, EntryKey, Identity, IdentityLabels, Kind, Object, Sequence, SourceStamp};
    use crate::pack::Meaning;

    /// An identity, as the mirror or as the log has it.
    fn record(number: u32, sequence: u64, is_known: bool) -> Arc<Record> {
        let identity = Identity { id: number, labels: IdentityLabels::default() };
        Arc::new(Record {
            key: EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), number.to_string()),
            value: format!("k8s:app=a{sequence};").into_bytes().into(),
            good_value: None,
            object: is_known.then(|| Arc::new(Object::Identity(identity))),
            rejection: None,
            source: SourceStamp::default(),
            create_sequence: Sequence(1),
            last_sequence: Sequence(sequence),
            version: 1,
            generation: 0,
        })
    }

    fn key(number: u32) -> Key {
        codec::entry_key(&record(number, 0, false).key).into()
    }

    /// What a chunk without any entries becomes: each key, its sequence and what it means.
    fn folded(pending: Pending) -> Vec<(String, u64, Meaning)> {
        let mut content = Content::entries(Vec::new());
        content.apply(pending).unwrap();
        let Content::Entries { newer, changed, .. } = content else { panic!() };
        let chunks = pack::fold(&[], &newer, &changed);
        let rows = chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| (chunk, row)));
        rows.map(|(chunk, row)| (chunk.key(row).name.to_string(), chunk.last_sequence(row).0, chunk.meaning(row))).collect()
    }

    #[test]
    fn the_newest_change_of_a_key_counts_whether_packed_or_not() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut pending, mut model) = (Pending::default(), BTreeMap::new());
            for sequence in 1..60 {
                let number = random.random_range(10..30);
                if random.random_ratio(1, 3) {
                    pending.insert(key(number), None);
                    model.remove(&number);
                } else {
                    let create_sequence = Sequence(if random.random() { sequence } else { 1 });
                    let record = Record { create_sequence, ..(*record(number, sequence, true)).clone() };
                    pending.insert(key(number), Some(Value::Record(Arc::new(record))));
                    model.insert(number, sequence);
                }
                if random.random_ratio(1, 5) {
                    pending.pack(random.random_range(0..GROWING_MAX));
                }
            }
            let expected = model.into_iter().map(|(number, sequence)| (number.to_string(), sequence, Meaning::Identity(number)));
            assert_eq!(folded(pending), expected.collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn new_records_of_a_scope_wait_until_they_fill_a_chunk() {
        let mut pending = Pending::default();
        let mut packed_with = |numbers: std::ops::Range<u32>, is_new: bool, growing_max: usize| {
            for number in numbers {
                let changed = record(number, 7, true);
                let record = if is_new { Arc::new(Record { create_sequence: Sequence(7), ..(*changed).clone() }) } else { changed };
                pending.insert(key(number), Some(Value::Record(record)));
            }
            pending.pack(growing_max);
            (pending.packed.iter().map(pack::Chunk::len).collect::<Vec<_>>(), pending.growing(), pending.recent.len())
        };
        assert_eq!(packed_with(10..16, true, GROWING_MAX), (vec![], 6, 6));
        assert_eq!(packed_with(16..18, true, GROWING_MAX), (vec![], 6, 8), "so few more are not worth a look");
        assert_eq!(packed_with(18..26, true, GROWING_MAX), (vec![16], 0, 0));
        assert_eq!(packed_with(10..16, false, GROWING_MAX), (vec![16, 6], 0, 0), "a change is no part of a list");
        assert_eq!(packed_with(30..36, true, 5), (vec![16, 6, 6], 0, 0), "no more may wait");
    }

    #[test]
    fn what_records_mean_is_taken_in_before_they_are_packed() {
        let mut pending = Pending::default();
        (10..20).for_each(|number| pending.insert(key(number), Some(Value::Record(record(number, 7, false)))));
        (10..15).for_each(|number| pending.know(&record(number, 7, true)));
        // not what is there
        pending.know(&record(17, 8, true));
        pending.pack(0);
        assert_eq!((pending.len(), pending.recent.len()), (10, 0));
        let meaning = |number| if number < 15 { Meaning::Identity(number) } else { Meaning::Unknown };
        assert_eq!(folded(pending), (10..20).map(|number| (number.to_string(), 7, meaning(number))).collect::<Vec<_>>());
    }
}
