//! Tests of edits: an edited chunk has the same records as one packed from them, and is about as
//! short.

use super::*;
use crate::pack::fold::{all_changes, edits};
use crate::pack::indexed_fields::prefix_of_name;

/// Expected content of a chunk.
type Model = BTreeMap<EntryKey, (Record, IndexedFields)>;

fn random_indexed_fields(key: &EntryKey, random: &mut StdRng) -> IndexedFields {
    if random.random_ratio(1, 20) {
        return if random.random() { IndexedFields::Unknown } else { IndexedFields::Nothing };
    }
    match key.kind {
        Kind::Ip | Kind::NodeIp => {
            let identity = random.random_range(1..70_000);
            // a prefix that differs from the name cannot be restored from it
            let known = prefix_of_name(key.kind, &key.name).filter(|_| random.random_ratio(19, 20));
            let other = ObjectPrefix { net: "10.0.0.0/8".parse().unwrap(), host: false };
            IndexedFields::Ip { prefix: known.unwrap_or(other), identity }
        }
        Kind::Identity => IndexedFields::Identity(key.name.parse().unwrap_or(7)),
        Kind::Node => {
            let addresses = (0..random.random_range(0..4)).map(|_| if random.random() { "10.0.0.1" } else { "fd00::7" });
            IndexedFields::Node { addresses: addresses.map(|ip| ip.parse().unwrap()).collect() }
        }
        Kind::Service | Kind::ServiceExport | Kind::EndpointSlice => IndexedFields::Service(random.random::<bool>().then(|| "a/b".into())),
        Kind::Cluster | Kind::Problem | Kind::Notice => IndexedFields::Unknown,
    }
}

fn packed(model: &Model) -> Vec<Chunk> {
    build_with_fields(model.values().map(|(record, fields)| (record, fields.clone())))
}

fn decoded_rows(chunks: &[Chunk]) -> Vec<(Record, IndexedFields)> {
    chunks.iter().flat_map(|chunk| (0..chunk.len()).map(|row| (chunk.record(row), chunk.indexed_fields(row)))).collect()
}

/// A random change of a chunk, as an edit and in the model.
enum EditStep {
    Put(Record, IndexedFields),
    Remove(EntryKey),
    Restamp(EntryKey, SourceStamp),
}

fn random_steps(model: &Model, random: &mut StdRng, count: usize, one_hostile_in: u32) -> BTreeMap<EntryKey, EditStep> {
    let keys: Vec<&EntryKey> = model.keys().collect();
    let mut steps = BTreeMap::new();
    let new = random_records(random, count, one_hostile_in);
    for (at, fresh) in new.into_iter().enumerate() {
        let key = keys[random.random_range(0..keys.len())].clone();
        let fields = random_indexed_fields(&key, random);
        let step = match at % 7 {
            0 if random.random() => EditStep::Remove(key.clone()),
            0 => EditStep::Restamp(key.clone(), fresh.source),
            1 => EditStep::Put(fresh.clone(), random_indexed_fields(&fresh.key, random)),
            // sometimes a value of another kind
            2 => EditStep::Put(Record { key: key.clone(), ..fresh }, fields),
            _ => {
                let (_, value) = usual_entry(key.kind, random);
                EditStep::Put(Record { key: key.clone(), value: value.into(), ..fresh }, fields)
            }
        };
        let key = if let EditStep::Put(record, _) = &step { record.key.clone() } else { key };
        steps.insert(key, step);
    }
    steps
}

fn edits_of<'a>(chunk: &Chunk, steps: &'a BTreeMap<EntryKey, EditStep>) -> Vec<RowEdit<'a>> {
    let edit = |(key, step): (&EntryKey, &'a EditStep)| match (chunk.find(key), step) {
        (Ok(row), EditStep::Put(record, fields)) => RowEdit::Replace { row, record, fields: fields.clone() },
        (Err(before), EditStep::Put(record, fields)) => RowEdit::Insert { before, record, fields: fields.clone() },
        (Ok(row), EditStep::Remove(_)) => RowEdit::Remove { row },
        (Ok(row), EditStep::Restamp(_, source)) => RowEdit::Restamp { row, source: *source },
        (Err(_), EditStep::Remove(_) | EditStep::Restamp(..)) => panic!("only existing keys can be removed or restamped"),
    };
    steps.iter().map(edit).collect()
}

fn apply_steps(model: &mut Model, steps: BTreeMap<EntryKey, EditStep>) {
    for (key, step) in steps {
        match step {
            EditStep::Put(record, fields) => drop(model.insert(key, (record, fields))),
            EditStep::Remove(key) => drop(model.remove(&key)),
            EditStep::Restamp(key, source) => model.get_mut(&key).unwrap().0.source = source,
        }
    }
}

/// Edits a chunk repeatedly and compares each result with a chunk packed from the records. Returns
/// the number of edits in place.
fn edit_repeatedly(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let one_hostile_in = [5, 40, 1_000_000][random.random_range(0..3)];
    let count = random.random_range(70..1_100);
    let records = random_records(&mut random, count, one_hostile_in);
    let first: Model =
        records.into_iter().map(|record| (record.key.clone(), (record.clone(), random_indexed_fields(&record.key, &mut random)))).collect();
    let mut chunk = packed(&first).swap_remove(0);
    let mut edited = 0;
    for _ in 0..12 {
        let mut model: Model = decoded_rows(std::slice::from_ref(&chunk)).into_iter().map(|pair| (pair.0.key.clone(), pair)).collect();
        let count = [1, 5, 60, 300][random.random_range(0..4)];
        let steps = random_steps(&model, &mut random, count, one_hostile_in);
        let new = edit(&chunk, &edits_of(&chunk, &steps));
        apply_steps(&mut model, steps);
        let expected = packed(&model);
        let Some(new) = new else {
            let Some(next) = expected.into_iter().next() else { break };
            chunk = next;
            continue;
        };
        edited += 1;
        let expected = decoded_rows(&expected);
        assert_eq!(new.max_sequence(), expected.iter().map(|(record, _)| record.last_sequence).max().unwrap(), "seed {seed}");
        assert!(new.stored().len() < STORED_LENGTH_MAX, "seed {seed}");
        let found = decoded_rows(std::slice::from_ref(&new));
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        found.iter().zip(&expected).for_each(|(found, expected)| assert_eq!(found, expected, "seed {seed}"));
        for (row, (record, _)) in expected.iter().enumerate() {
            assert_eq!(new.find(&record.key), Ok(row), "seed {seed}");
            assert!(new.has_value(row, &record.value), "seed {seed}");
            assert!(new.value_length_max(row).is_none_or(|most| record.value.len() <= most), "seed {seed}");
        }
        chunk = new;
    }
    edited
}

#[test]
fn an_edited_chunk_equals_one_packed_from_the_records() {
    let edited: usize = (0..60).map(edit_repeatedly).sum();
    assert!(edited > 160, "only {edited} chunks were edited");
}

/// The random edits above never produce a chunk of this length.
#[test]
fn a_chunk_that_would_become_too_long_is_not_edited() {
    let mut random = StdRng::seed_from_u64(7);
    let (mut long, mut short) = (0, 0);
    for _ in 0..40 {
        let records = random_records(&mut random, 300, 1_000_000);
        let chunk = build(&records).swap_remove(0);
        let row = random.random_range(0..chunk.len());
        for (length, edited) in [(STORED_LENGTH_MAX, &mut long), (STORED_LENGTH_MAX / 2, &mut short)] {
            let value: Vec<u8> = (0..length).map(|_| random.random()).collect();
            let record = Record { value: value.into(), ..chunk.record(row) };
            let edits = [RowEdit::Replace { row, record: &record, fields: IndexedFields::Unknown }];
            *edited += usize::from(edit(&chunk, &edits).is_some());
        }
    }
    assert_eq!(long, 0);
    // some chunks are packed from their records anyway
    assert!(short > 25, "only {short} of 40 were edited");
}

#[test]
fn folded_records_equal_those_of_a_sorted_map() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let records = random_records(&mut random, 1_200, 30);
        let mut chunks = build(&records);
        let mut model: BTreeMap<EntryKey, Record> = records.into_iter().map(|record| (record.key.clone(), record)).collect();
        for _ in 0..6 {
            let count = [1, 60, 900][random.random_range(0..3)];
            let mut changes: BTreeMap<EntryKey, Option<Arc<Record>>> = BTreeMap::new();
            for record in random_records(&mut random, count, 30) {
                let key = model.keys().nth(random.random_range(0..model.len())).unwrap().clone();
                match random.random_range(0..3) {
                    0 => changes.insert(key, None),
                    1 => changes.insert(key.clone(), Some(Arc::new(Record { key, ..record }))),
                    _ => changes.insert(record.key.clone(), Some(Arc::new(record))),
                };
            }
            // some changes are packed already, and some of those have changed again
            let mut packed = |count| -> BTreeMap<EntryKey, Record> {
                let records = random_records(&mut random, count, 30).into_iter();
                records.map(|record| (record.key.clone(), record)).collect()
            };
            let newer = [packed(20), packed(30)];
            let newer_chunks: Vec<Chunk> = newer.iter().flat_map(|records| build(records.values())).collect();
            chunks = fold(&chunks, &newer_chunks, &changes);
            model.extend(newer.into_iter().flatten());
            for (key, change) in changes {
                match change {
                    Some(record) => drop(model.insert(key, (*record).clone())),
                    None => drop(model.remove(&key)),
                }
            }
            let found: Vec<Record> = chunks.iter().flat_map(Chunk::records).collect();
            assert_eq!(found, model.values().cloned().collect::<Vec<_>>(), "seed {seed}");
            assert!(chunks.iter().all(|chunk| chunk.stored().len() < STORED_LENGTH_MAX || chunk.len() == 1), "seed {seed}");
        }
    }
}

/// Returns an address's value in a mesh that drifts: new sets of pods and new hosts, and later a
/// field that did not exist before.
fn drifted_value(key: &EntryKey, time: u32, random: &mut StdRng) -> Vec<u8> {
    let (set, host) = (time / 40 + random.random_range(0..30), time / 100 + random.random_range(0..60));
    let field = if time > 300 && random.random_ratio(time.min(600) - 300, 300) { r#","Zone":"a""# } else { "" };
    let account = if time % 200 < 100 { "default".to_owned() } else { format!("account-{}", random.random_range(0..900)) };
    format!(
        r#"{{"IP":"{}","HostIP":"172.18.{}.{}","ID":{},"K8sPodName":"cart-{set}-{:x}","K8sServiceAccount":"{account}"{field}}}"#,
        key.name,
        host / 250,
        host % 250,
        70_000 + set,
        random.random_range(0..1 << 20)
    )
    .into_bytes()
}

#[test]
fn a_thousand_folds_keep_a_chunk_as_short_as_a_new_one() {
    let mut random = StdRng::seed_from_u64(9);
    let key = |number: u32| EntryKey::new(Kind::Ip, cluster(2), format!("10.1.{}.{}", number / 250, number % 250));
    let mut next = 0;
    let mut new_record = |number: u32, time: u32, random: &mut StdRng| {
        next += 1;
        let key = key(number);
        let value = drifted_value(&key, time, random);
        let source = SourceStamp { mod_revision: Revision(1_000 + next), lease: LeaseId(77), held: false };
        let sequence = Sequence(next.cast_unsigned());
        Record { source, create_sequence: sequence, last_sequence: sequence, version: 1, ..record(key, &value, random) }
    };
    let mut model: BTreeMap<EntryKey, Record> = (0..1_024).map(|number| (key(number), new_record(number, 0, &mut random))).collect();
    let mut chunks = build(model.values());
    let (mut edited, mut longest) = (0, 0);
    let (mut all_folded, mut all_fresh) = (0, 0);
    for time in 0..1_000 {
        let mut changes = BTreeMap::new();
        for _ in 0..80 {
            let number = random.random_range(0..1_024);
            let is_deleted = random.random_ratio(1, 10);
            changes.insert(key(number), (!is_deleted).then(|| Arc::new(new_record(number, time, &mut random))));
        }
        edited += usize::from(chunks.len() == 1 && edit(&chunks[0], &edits(&chunks[0], &all_changes(&[], &changes))).is_some());
        chunks = fold(&chunks, &[], &changes);
        for (key, change) in changes {
            match change {
                Some(record) => drop(model.insert(key, (*record).clone())),
                None => drop(model.remove(&key)),
            }
        }
        if time % 10 != 9 {
            continue;
        }
        let fresh: usize = build(model.values()).iter().map(|chunk| chunk.stored().len()).sum();
        let folded: usize = chunks.iter().map(|chunk| chunk.stored().len()).sum();
        longest = longest.max(folded * 1000 / fresh);
        (all_folded, all_fresh) = (all_folded + folded, all_fresh + fresh);
    }
    assert_eq!(chunks.iter().flat_map(Chunk::records).collect::<Vec<_>>(), model.into_values().collect::<Vec<_>>());
    assert!(edited > 800, "only {edited} of 1000 were edited");
    // a form that no longer suits a column stays until the chunk is packed from its records
    assert!(longest < 1_300, "a folded chunk has {longest} thousandths of the length of a new one");
    assert!(all_folded * 100 < all_fresh * 106, "the folded chunks have {all_folded} B, new ones {all_fresh} B");
}
