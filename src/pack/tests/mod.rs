//! Tests of packing: every record is restored, and damage is detected.

mod edit;
mod fold;
mod text_filter;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::model::{
    ClusterName, EntryKey, Identity, IdentityLabels, IpEntry, Kind, LeaseId, Node, NodeAddress, Object, ObjectPrefix, Rejection, Revision,
    Sequence, Service, SourceStamp,
};

fn record(key: EntryKey, value: &[u8], random: &mut StdRng) -> Record {
    let bits = random.random_range(1..60);
    let last = random.random_range(0..1_u64 << bits);
    Record {
        key,
        value: value.into(),
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp {
            mod_revision: Revision(random.random_range(-5..1 << 40)),
            lease: LeaseId(random.random_range(0..3) << 50),
            held: random.random_ratio(1, 5),
        },
        create_sequence: Sequence(random.random_range(0..=last)),
        last_sequence: Sequence(last),
        version: random.random_range(1..5),
        generation: 0,
    }
}

fn cluster(number: u32) -> ClusterName {
    ClusterName::parse(["eu", "eu-west", "paris", "a"][number as usize % 4]).unwrap()
}

/// Returns a name and a value as agents write them.
fn usual_entry(kind: Kind, random: &mut StdRng) -> (String, Vec<u8>) {
    let number: u32 = random.random_range(0..4_000);
    let (low, high) = (number % 250, number / 250);
    let ip = match number % 40 {
        0 => format!("10.{high}.{low}.0/24"),
        1 => format!("fd00::{high:x}:{low:x}"),
        _ => format!("10.1.{high}.{low}"),
    };
    let address = ip.split('/').next().unwrap_or_default();
    let mask = if ip.contains('/') { r#","Mask":"////AA==""# } else { "" };
    let uuid = format!("7f0c6a2e-3c3f-4f1e-9a6e-{:012x}", random.random_range(0..1_u64 << 48));
    match kind {
        Kind::Identity => (number.to_string(), format!("k8s:app=app-{low};k8s:io.kubernetes.pod.namespace=ns-{high};").into_bytes()),
        Kind::Ip => {
            let value = format!(
                r#"{{"IP":"{address}"{mask},"HostIP":"172.18.0.{high}","ID":{},"Key":0,"K8sPodName":"cart-{low}-{:x}","U":"{uuid}"}}"#,
                70_000 + low,
                random.random_range(0..1 << 20)
            );
            (ip, value.into_bytes())
        }
        Kind::Node => {
            let name = format!("worker-{number}");
            let value = format!(r#"{{"Name":"{name}","IPAddresses":[{{"IP":"{address}"}}],"A":"{uuid}","B":"{uuid}","N":-0{low}.5e7}}"#);
            (name, value.into_bytes())
        }
        Kind::NodeIp => {
            let value = format!(r#"{{"IP":"{address}","HostIP":"172.18.0.{high}","ID":6,"Key":{high}}}"#);
            (format!("worker-{high}#{address}"), value.into_bytes())
        }
        Kind::EndpointSlice => {
            let frame = zstd::encode_all(uuid.as_bytes(), 1).unwrap();
            (format!("ns-{high}/slice-{low}"), frame)
        }
        Kind::Cluster | Kind::Problem | Kind::Notice => panic!("a {kind} has no record"),
        Kind::Service | Kind::ServiceExport => {
            let (namespace, name) = (format!("ns-{high}"), format!("cart-{low}"));
            let value = format!(r#"{{"namespace":"{namespace}","name":"{name}","backends":{{"{address}":{{"p":{low}}}}}}}"#);
            (format!("{namespace}/{name}"), value.into_bytes())
        }
    }
}

/// Damages a value, or replaces it by something that agents never write.
fn hostile(mut value: Vec<u8>, random: &mut StdRng) -> Vec<u8> {
    match random.random_range(0..9) {
        0 => Vec::new(),
        1 => (0..random.random_range(0..300)).map(|_| random.random()).collect(),
        2 => vec![b'{'; 300],
        3 => br#"{"a":"b\"#.to_vec(),
        4 => b"{\"0\":".repeat(200),
        5 => [&b"{"[..], "0123456789,".repeat(60).as_bytes()].concat(),
        6 => {
            value.truncate(random.random_range(0..=value.len()));
            value
        }
        7 => br#"{"IP":"010.1.2.3","ID":007,"x":"18446744073709551616","u":"7F0C6A2E-3c3f-4f1e-9a6e-000000000000"}"#.to_vec(),
        _ => {
            if !value.is_empty() {
                let at = random.random_range(0..value.len());
                value[at] ^= 1 << random.random_range(0..8);
            }
            value
        }
    }
}

fn random_records(random: &mut StdRng, count: usize, one_hostile_in: u32) -> Vec<Record> {
    let mut records = BTreeMap::new();
    for _ in 0..count {
        // most records are ipcache entries
        let kind = Kind::STORED.get(random.random_range(0..14)).copied().unwrap_or(Kind::Ip);
        let (name, mut value) = usual_entry(kind, random);
        if random.random_ratio(1, one_hostile_in) {
            value = hostile(value, random);
        }
        let key = EntryKey::new(kind, cluster(random.random_range(0..4)), name);
        let mut record = record(key.clone(), &value, random);
        if random.random_ratio(1, 50) {
            let time = |random: &mut StdRng| {
                let distance = Duration::from_nanos(random.random_range(0..u64::MAX / 2));
                if random.random() { SystemTime::UNIX_EPOCH + distance } else { SystemTime::UNIX_EPOCH - distance }
            };
            record.rejection = Some(Rejection { reason: "Ünusable".into(), first_seen: time(random), last_seen: time(random) });
            record.good_value = random.random::<bool>().then(|| Arc::from(&b"{}"[..]));
        }
        records.insert(key, record);
    }
    records.into_values().collect()
}

fn assert_restored(records: &[Record], random: &mut StdRng) {
    let chunks = build(records);
    let reread: Vec<Chunk> = chunks.iter().map(|chunk| Chunk::from_stored(chunk.stored()).unwrap()).collect();
    assert_eq!(reread, chunks);
    let read: Vec<Record> = reread.iter().flat_map(Chunk::records).collect();
    assert_eq!(read, records);
    for chunk in &chunks {
        assert!(chunk.stored().len() < STORED_LENGTH_MAX || chunk.len() == 1);
        assert_eq!(chunk.is_oversize(), chunk.stored().len() >= STORED_LENGTH_MAX);
        assert_eq!(chunk.records().map(|record| record.last_sequence).max(), Some(chunk.max_sequence()));
        let rejected = chunk.records().map(|record| record.rejection.is_some());
        assert!(rejected.eq((0..chunk.len()).map(|row| chunk.is_rejected(row))));
        for (row, record) in chunk.records().enumerate() {
            let longer = [&record.value[..], b"x"].concat();
            assert_eq!((chunk.has_value(row, &record.value), chunk.has_value(row, &longer)), (true, false), "{}", record.key);
        }
        let in_order: Vec<Sequence> = chunk.rows_by_sequence().iter().map(|row| chunk.last_sequence(usize::from(*row))).collect();
        assert!(in_order.len() == chunk.len() && in_order.is_sorted());
        assert_eq!(
            (Some(chunk.first_key()), Some(chunk.last_key())),
            (chunk.records().next().map(|r| r.key), chunk.records().last().map(|r| r.key))
        );
    }
    for _ in 0..50 {
        let record = &records[random.random_range(0..records.len())];
        let found: Vec<Record> = chunks.iter().filter_map(|chunk| chunk.get(&record.key)).collect();
        assert_eq!(found.first(), Some(record));
        let other = EntryKey::new(record.key.kind, record.key.cluster.clone(), format!("{}\u{1}", record.key.name));
        let chunk = chunks.iter().find(|chunk| chunk.last_key() >= record.key).unwrap();
        let row = chunk.records().filter(|record| record.key < other).count();
        assert_eq!(chunk.find(&other), Err(row));
    }
}

#[test]
fn any_record_reads_back_unchanged() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let count = [1, 2, 3, 30, 700, 3_000][random.random_range(0..6)];
        let one_hostile_in = [2, 5, 1_000][random.random_range(0..3)];
        let records = random_records(&mut random, count, one_hostile_in);
        assert_restored(&records, &mut random);
    }
}

/// A row of an IPv4 column that is an exception has a filler, which must not be read as an address.
#[test]
fn a_cidr_among_ipv4_names_is_found() {
    let mut random = StdRng::seed_from_u64(9);
    let mut names: Vec<String> = (1..200).map(|last| format!("10.1.2.{last}")).collect();
    names.push("10.1.2.0/24".to_owned());
    names.sort();
    let key = |name: &str| EntryKey::new(Kind::Ip, cluster(2), name);
    let records: Vec<Record> = names.iter().map(|name| record(key(name), b"x", &mut random)).collect();
    let chunks = build(&records);
    for (row, name) in names.iter().enumerate() {
        assert_eq!(chunks[0].find(&key(name)), Ok(row), "{name}");
    }
    assert_eq!(chunks[0].find(&key("0.0.0.0")), Err(0));
}

/// Some of the keys exist; the others differ in name, cluster or kind.
#[test]
fn find_returns_the_row_of_a_key_or_where_to_insert_it() {
    let mut random = StdRng::seed_from_u64(10);
    let records = random_records(&mut random, 3_000, 1_000);
    let chunks = build(&records);
    let keys = random_records(&mut random, 400, 1_000)
        .into_iter()
        .map(|record| record.key)
        .chain(records.iter().step_by(7).map(|record| record.key.clone()));
    let mut found = 0;
    for key in keys {
        let chunk = &chunks[chunks.partition_point(|chunk| chunk.first_key() <= key).saturating_sub(1)];
        let expected = (0..chunk.len()).find(|row| chunk.key(*row) == key);
        assert_eq!(chunk.find(&key).ok(), expected, "{key}");
        found += usize::from(expected.is_some());
    }
    assert!(found >= 400, "{found}");
}

#[test]
fn a_record_longer_than_a_chunk_has_its_own_chunk() {
    let mut random = StdRng::seed_from_u64(1);
    let mut records = random_records(&mut random, 300, 1_000);
    for (at, length) in [(0, 1_600_000), (100, 130_000), (101, 130_000), (records.len() - 1, 200_000)] {
        records[at].value = (0..length).map(|_| random.random()).collect();
    }
    records[50].good_value = Some(vec![7; 300_000].into());
    records[50].rejection = Some(Rejection { reason: "".into(), first_seen: SystemTime::UNIX_EPOCH, last_seen: SystemTime::UNIX_EPOCH });
    assert_restored(&records, &mut random);
    assert_eq!(build(&records).iter().filter(|chunk| chunk.is_oversize()).count(), 5);
}

#[test]
fn usual_values_are_packed_to_27_percent() {
    let mut random = StdRng::seed_from_u64(1);
    let mut records: Vec<Record> = random_records(&mut random, 30_000, 1_000_000).into_iter().filter(|r| r.key.kind == Kind::Ip).collect();
    for record in &mut records {
        record.last_sequence = Sequence(random.random_range(1 << 30..(1 << 30) + 1_000_000));
        record.create_sequence = record.last_sequence;
        record.source.mod_revision = Revision(record.last_sequence.0.cast_signed() - 1_000);
        record.source.held = false;
    }
    let raw: usize = records.iter().map(|record| record.key.to_string().len() + record.value.len()).sum();
    let packed: usize = build(&records).iter().map(|chunk| chunk.stored().len()).sum();
    assert!(packed * 100 < raw * 27, "{packed} of {raw} B");
}

#[test]
fn damaged_bytes_are_an_error() {
    let mut random = StdRng::seed_from_u64(2);
    let chunks = build(&random_records(&mut random, 200, 10));
    let stored = chunks[0].stored();
    for length in 0..stored.len() {
        assert!(Chunk::from_stored(&stored[..length]).is_err(), "{length} bytes");
    }
    for bit in 0..stored.len() * 8 {
        let mut flipped = stored.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Chunk::from_stored(flipped), Err(DecodeError::Checksum), "bit {bit}");
    }
    assert_eq!(Chunk::from_stored(&b""[..]), Err(DecodeError::Truncated));
}

#[test]
fn damage_with_a_correct_checksum_does_not_panic() {
    let mut random = StdRng::seed_from_u64(3);
    let samples: Vec<Chunk> = (0..20).flat_map(|_| build(&random_records(&mut random, 40, 10))).collect();
    for round in 0..4_000 {
        let stored = samples[round % samples.len()].stored();
        let mut sealed = stored[..stored.len() - CHECKSUM_LENGTH].to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(1..sealed.len());
            match random.random_range(0..3) {
                0 => sealed[at] ^= 1 << random.random_range(0..8),
                1 => sealed[at] = 0xff,
                _ => sealed.truncate(at + 1),
            }
        }
        let checksum = crc32fast::hash(&sealed);
        sealed.extend_from_slice(&checksum.to_le_bytes());
        let Ok(chunk) = Chunk::from_stored(sealed) else { continue };
        for (row, record) in chunk.records().enumerate() {
            let (_, _) = (chunk.find(&record.key), chunk.indexed_fields(row));
        }
    }
}

/// Reads a changed chunk with a correct checksum.
fn read_changed(chunk: &Chunk, change: impl FnOnce(&mut Vec<u8>)) -> Result<Chunk, DecodeError> {
    let mut stored = chunk.stored()[..chunk.stored().len() - CHECKSUM_LENGTH].to_vec();
    change(&mut stored);
    let checksum = crc32fast::hash(&stored);
    stored.extend_from_slice(&checksum.to_le_bytes());
    Chunk::from_stored(stored)
}

#[test]
fn another_format_version_is_an_error_with_its_number() {
    let mut random = StdRng::seed_from_u64(4);
    let chunks = build(&random_records(&mut random, 5, 10));
    assert_eq!(read_changed(&chunks[0], |stored| stored[0] = 2), Err(DecodeError::UnknownVersion(2)));
}

#[test]
fn bytes_behind_the_last_section_are_an_error() {
    let mut random = StdRng::seed_from_u64(6);
    let chunks = build(&random_records(&mut random, 5, 10));
    assert_eq!(read_changed(&chunks[0], |_| {}), Ok(chunks[0].clone()));
    assert_eq!(read_changed(&chunks[0], |stored| stored.push(0)), Err(DecodeError::Field("end")));
}

#[test]
fn the_usable_value_of_a_rejected_record_is_the_last_good_one() {
    let mut random = StdRng::seed_from_u64(7);
    let object = Some(Arc::new(Object::Service(Service::default())));
    let rejection = Rejection { reason: "no".into(), first_seen: SystemTime::UNIX_EPOCH, last_seen: SystemTime::UNIX_EPOCH };
    let mut packed = |name: &str, value: &[u8]| {
        let record = record(EntryKey::new(Kind::Service, cluster(0), name), value, &mut random);
        Record { object: object.clone(), ..record }
    };
    let usable = packed("a/b", b"new");
    let rejected = Record { good_value: Some(b"old"[..].into()), rejection: Some(rejection), ..packed("a/c", b"damaged") };
    let chunks = build([&usable, &rejected]);
    assert_eq!([0, 1].map(|row| chunks[0].usable_value(row)), [Some(b"new".to_vec()), Some(b"old".to_vec())]);
}

#[test]
fn indexed_fields_of_decoded_records_read_back() {
    let mut random = StdRng::seed_from_u64(5);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let prefix = |text: &str, host| ObjectPrefix { net: text.parse().unwrap(), host };
    let entry = |prefix| IpEntry::new(prefix, 77);
    let addresses = [ip("10.0.0.1"), ip("fd00::1")];
    let node = Node { addresses: addresses.map(|ip| NodeAddress { address_type: "InternalIP".to_owned(), ip }).into(), ..Node::default() };
    let cases: [(Kind, &str, Option<Object>, IndexedFields); 11] = [
        (
            Kind::Identity,
            "300",
            Some(Object::Identity(Identity { id: 300, labels: IdentityLabels::default() })),
            IndexedFields::Identity(300),
        ),
        (Kind::Identity, "301", None, IndexedFields::Unknown),
        (
            Kind::Ip,
            "10.0.0.1",
            Some(Object::Ip(entry(prefix("10.0.0.1/32", true)))),
            IndexedFields::Ip { prefix: prefix("10.0.0.1/32", true), identity: 77 },
        ),
        (Kind::Ip, "10.0.0.2", Some(Object::Ip(entry(prefix("10.0.0.3/32", true)))), IndexedFields::Unknown),
        (
            Kind::Ip,
            "10.0.0.9/24",
            Some(Object::Ip(entry(prefix("10.0.0.0/24", false)))),
            IndexedFields::Ip { prefix: prefix("10.0.0.0/24", false), identity: 77 },
        ),
        (
            Kind::Ip,
            "fd00::1",
            Some(Object::Ip(entry(prefix("fd00::1/128", true)))),
            IndexedFields::Ip { prefix: prefix("fd00::1/128", true), identity: 77 },
        ),
        (Kind::Node, "a", Some(Object::Node(node.into())), IndexedFields::Node { addresses: addresses.into() }),
        (Kind::Node, "b", Some(Object::Service(Service::default())), IndexedFields::Unknown),
        (Kind::Service, "a/b", Some(Object::Service(Service::default())), IndexedFields::Service(None)),
        (
            Kind::Service,
            "a/c",
            Some(Object::Service(Service { shared: true, ..Service::default() })),
            IndexedFields::Service(Some("a/c".into())),
        ),
        (
            Kind::EndpointSlice,
            "a/b",
            Some(Object::EndpointSlice(crate::model::PackedSlice::new([].into(), |_| None, 0))),
            IndexedFields::Service(None),
        ),
    ];
    let mut records: Vec<(Record, IndexedFields)> = cases
        .into_iter()
        .map(|(kind, name, object, fields)| {
            let record = record(EntryKey::new(kind, cluster(0), name), b"x", &mut random);
            (Record { object: object.map(Arc::new), ..record }, fields)
        })
        .collect();
    let rejection = Rejection { reason: "no".into(), first_seen: SystemTime::UNIX_EPOCH, last_seen: SystemTime::UNIX_EPOCH };
    let rejected = record(EntryKey::new(Kind::Service, cluster(0), "z"), b"x", &mut random);
    records.push((Record { rejection: Some(rejection), ..rejected }, IndexedFields::Nothing));
    records.sort_by(|left, right| left.0.key.cmp(&right.0.key));
    let chunks = build(records.iter().map(|(record, _)| record));
    let chunk = &chunks[0];
    let found: Vec<IndexedFields> = (0..chunk.len()).map(|row| chunk.indexed_fields(row)).collect();
    assert_eq!(found, records.iter().map(|(_, fields)| fields.clone()).collect::<Vec<_>>());
    assert!(chunk.may_name_identity(77) && !chunk.may_name_identity(300));
}
