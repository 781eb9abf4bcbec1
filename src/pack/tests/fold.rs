//! Tests of folding: the result has the expected records, and a chunk that overlaps nothing else is
//! kept.

use std::ops::Range;

use super::*;

/// Returns records of one of many clusters, by key.
fn records_of(number: u32, names: Range<u32>, random: &mut StdRng) -> BTreeMap<EntryKey, Record> {
    let cluster = ClusterName::parse(&format!("c{number}")).unwrap();
    let key = |name: u32| EntryKey::new(Kind::Ip, cluster.clone(), format!("10.0.{name}.1"));
    names.map(|name| (key(name), record(key(name), format!(r#"{{"ID":{}}}"#, random.random_range(0..9)).as_bytes(), random))).collect()
}

fn chunk_of(records: &BTreeMap<EntryKey, Record>) -> Chunk {
    let [chunk] = build(records.values()).try_into().expect("must be one chunk");
    chunk
}

/// Returns the length of each chunk, and whether it is one of `newer`.
fn lengths_and_kept(folded: &[Chunk], newer: &[Chunk]) -> Vec<(usize, bool)> {
    folded.iter().map(|chunk| (chunk.len(), newer.iter().any(|newer| newer.stored() == chunk.stored()))).collect()
}

#[test]
fn a_new_chunk_between_others_is_kept_as_it_is() {
    let mut random = StdRng::seed_from_u64(1);
    let mut folded = |below: u32, listed: u32, above: u32, changed: Option<&str>| {
        let mut base = records_of(1, 0..below, &mut random);
        base.append(&mut records_of(9, 0..above, &mut random));
        let newer = [chunk_of(&records_of(5, 10..10 + listed, &mut random))];
        let cluster = ClusterName::parse("c5").unwrap();
        let changes = changed.map(|name| (EntryKey::new(Kind::Ip, cluster, name), None)).into_iter().collect();
        lengths_and_kept(&fold(&[chunk_of(&base)], &newer, &changes), &newer)
    };
    assert_eq!(folded(10, 20, 30, None), [(10, false), (20, true), (30, false)]);
    assert_eq!(folded(3, 20, 30, None), [(23, false), (30, false)], "three rows are too few for a chunk");
    assert_eq!(folded(10, 20, 3, None), [(10, false), (23, false)]);
    assert_eq!(folded(10, 7, 30, None), [(47, false)], "a new chunk with too few rows is not kept");
    assert_eq!(folded(10, 20, 30, Some("10.0.15.1")), [(59, false)], "a row of the new chunk was deleted");
    assert_eq!(folded(10, 20, 30, Some("10.0.1.1")), [(10, false), (20, true), (30, false)], "the deleted key did not exist");
}

#[test]
fn the_newest_record_of_each_key_wins() {
    let mut kept_count = 0;
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let random_cluster = |random: &mut StdRng, count_max: u32| {
            let first = random.random_range(10..90);
            records_of(random.random_range(1..6), first..first + random.random_range(1..count_max), random)
        };
        let mut model: BTreeMap<EntryKey, Record> = BTreeMap::new();
        (0..random.random_range(0..4)).for_each(|_| model.extend(random_cluster(&mut random, 60)));
        let chunks = build(model.values());
        let mut newer = Vec::new();
        for _ in 0..random.random_range(0..5) {
            let mut records = random_cluster(&mut random, 30);
            if random.random_ratio(1, 4) {
                records.extend(random_cluster(&mut random, 10));
            }
            newer.push(chunk_of(&records));
            model.extend(records);
        }
        let mut changes = BTreeMap::new();
        for (key, record) in random_cluster(&mut random, 4) {
            let record = random.random_bool(0.5).then(|| Arc::new(record));
            match &record {
                Some(record) => drop(model.insert(key.clone(), Record::clone(record))),
                None => drop(model.remove(&key)),
            }
            changes.insert(key, record);
        }
        let folded = fold(&chunks, &newer, &changes);
        kept_count += lengths_and_kept(&folded, &newer).iter().filter(|(_, is_kept)| *is_kept).count();
        let found: Vec<Record> = folded.iter().flat_map(Chunk::records).collect();
        assert_eq!(found, model.into_values().collect::<Vec<_>>(), "seed {seed}");
    }
    assert!(kept_count > 50, "only {kept_count} chunks were kept");
}
