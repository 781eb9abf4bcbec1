//! Segments in memory: what was written is read, and damage is noticed.

use std::collections::BTreeSet;
use std::io;

use super::{key, record};
use crate::history::ReplacedVersion;
use crate::history::segment::block::{decode_block, encode_block, open_part, seal_part};
use crate::history::segment::fence::{PartSpan, SegmentFence, TAIL_BYTES, decode_tail};
use crate::history::segment::filter::FilterElement;
use crate::history::segment::reader::{Segment, SegmentBytes};
use crate::history::segment::row_key::{RowKey, Section, prefix_of};
use crate::history::segment::search::first_pair_after;
use crate::history::segment::times::{Millis, TimeRange, decode_pairs, encode_pairs};
use crate::history::segment::writer::SegmentWriter;
use crate::model::{DeleteReason, EntryKey, Kind, Sequence};
use crate::pack::IndexedFields;

impl SegmentBytes for Vec<u8> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let bytes = self.get(start..start + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

fn versions() -> Vec<ReplacedVersion> {
    let names = [
        (Kind::Ip, "paris", "10.0.9.1"),
        (Kind::Ip, "oslo", "10.0.10.1"),
        (Kind::Ip, "paris", "10.0.10.1"),
        (Kind::Ip, "paris", "fd00::1"),
        (Kind::NodeIp, "paris", "worker#10.0.10.1"),
        (Kind::Ip, "paris", "10.0.10.0/24"),
        (Kind::NodeIp, "paris", "worker#10.0.0.0/16"),
        (Kind::Identity, "paris", "65540"),
        (Kind::Node, "paris", "worker"),
        (Kind::Service, "paris", "shop/cart"),
    ];
    let mut versions: Vec<ReplacedVersion> = Vec::new();
    for (number, (kind, cluster, name)) in (0_u64..).zip(names) {
        for repeat in 0..1 + number % 3 {
            let (sequence, seed) = (100 + number + repeat * 20, number * 3 + repeat);
            let record = record(key(kind, cluster, name), 50, sequence - 5, repeat + 1, seed);
            let deleted = [None, Some(DeleteReason::Deleted), Some(DeleteReason::ClusterRemoved)][usize::try_from(repeat).unwrap()];
            versions.push(ReplacedVersion { record, replaced_at: Sequence(sequence), deleted });
        }
    }
    versions.sort_by_key(ReplacedVersion::row_key);
    versions
}

fn segment_bytes(versions: &[ReplacedVersion]) -> Vec<u8> {
    let mut writer = SegmentWriter::new(Vec::new()).unwrap();
    versions.iter().for_each(|version| writer.push(version.row_key(), version.clone()).unwrap());
    let pairs = [(Sequence(100), Millis(1_000)), (Sequence(110), Millis(900)), (Sequence(120), Millis(1_200))];
    writer.finish(Sequence(99), Sequence(200), &pairs).unwrap().0
}

#[test]
fn hosts_are_sorted_by_address_and_cidrs_follow() {
    let order: Vec<(Section, String)> =
        versions().iter().map(|version| (version.row_key().section, version.record.key.name.to_string())).collect();
    let mut names: Vec<(Section, &str)> = order.iter().map(|(section, name)| (*section, &**name)).collect();
    names.dedup();
    let expected = [
        (Section::Identities, "65540"),
        (Section::Hosts, "10.0.9.1"),
        (Section::Hosts, "10.0.10.1"),
        (Section::Hosts, "worker#10.0.10.1"),
        (Section::Hosts, "fd00::1"),
        (Section::Cidrs, "worker#10.0.0.0/16"),
        (Section::Cidrs, "10.0.10.0/24"),
        (Section::Nodes, "worker"),
        (Section::Services, "shop/cart"),
    ];
    assert_eq!(names, expected);
}

fn versions_of(segment: &Segment<Vec<u8>>, key: &EntryKey, after: Sequence) -> Vec<ReplacedVersion> {
    let mut versions = Vec::new();
    let mut visit = |version| {
        versions.push(version);
        true
    };
    segment.visit_versions_of(key, after, &mut visit).unwrap();
    versions
}

#[test]
fn a_segment_returns_the_rows_and_times_that_were_written() {
    let versions = versions();
    let segment = Segment::open(segment_bytes(&versions)).unwrap();
    let rows: Vec<ReplacedVersion> = segment.rows().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows, versions);
    let fence = &segment.fence;
    assert_eq!((fence.after, fence.last, fence.row_count), (Sequence(99), Sequence(200), versions.len() as u64));
    assert_eq!(fence.times, Some(TimeRange { earliest: Millis(900), latest: Millis(1_200) }));
    assert_eq!(fence.cidr_lengths, BTreeSet::from([(false, 16), (false, 24)]));
    for version in &versions {
        let key = &version.record.key;
        let expected: Vec<ReplacedVersion> = versions.iter().filter(|other| other.record.key == *key).cloned().collect();
        assert_eq!(versions_of(&segment, key, Sequence(0)), expected);
        let later = versions_of(&segment, key, version.replaced_at);
        assert!(later.iter().all(|later| later.replaced_at > version.replaced_at));
    }
    let ip = "10.0.10.1".parse().unwrap();
    let mut covering = Vec::new();
    segment.visit_versions_covering(ip, &mut |version| covering.push(version)).unwrap();
    covering.sort_by_key(ReplacedVersion::row_key);
    let covers = |version: &&ReplacedVersion| prefix_of(&version.record.key).is_some_and(|prefix| prefix.net.contains(&ip));
    let expected: Vec<_> = versions.iter().filter(covers).cloned().collect();
    assert_eq!((covering.len(), covering), (expected.len(), expected));
    assert_eq!(versions_of(&segment, &key(Kind::Ip, "paris", "10.0.9.2"), Sequence(0)), []);
    assert_eq!(segment.time_of(Sequence(115)).unwrap(), Some(Millis(900)));
    assert_eq!(segment.time_of(Sequence(100)).unwrap(), Some(Millis(1_000)));
    // the second pair is earlier than the first, so it counts as not earlier
    let at = |time| segment.first_sequence_after(None, Millis(time)).unwrap();
    assert_eq!([999, 1_000, 1_199, 1_200].map(at), [Some(Sequence(100)), Some(Sequence(120)), Some(Sequence(120)), None]);
    let until = |time| segment.sequence_after_last_before(Millis(time)).unwrap();
    assert_eq!([899, 900, 1_000, 1_200].map(until), [None, Some(Sequence(120)), Some(Sequence(120)), Some(Sequence(201))]);
}

#[test]
fn a_segment_without_a_value_is_not_read() {
    let segment = Segment::open(segment_bytes(&versions())).unwrap();
    let has = |element| segment.may_have(element).unwrap();
    assert!(has(FilterElement::of_identity(65_540)) && has(FilterElement::of_pod("shop", "cart-3")));
    let others = (0..1_000).filter(|number| has(FilterElement::of_pod("shop", &format!("other-{number}")))).count();
    assert!(others < 30, "{others} of 1,000 values that are not in the segment");
}

/// Every changed byte is noticed by whoever reads it, except in the text at the beginning.
#[test]
fn a_damaged_byte_is_noticed() {
    let versions = versions();
    let bytes = segment_bytes(&versions);
    let read_all = |bytes: Vec<u8>| -> bool {
        let Ok(segment) = Segment::open(bytes) else { return false };
        let Ok(rows) = segment.rows() else { return false };
        let is_intact = rows.collect::<Result<Vec<_>, _>>().is_ok_and(|rows| rows == versions);
        let pages = (0..2_000).all(|number| segment.may_have(FilterElement::of_identity(number)).is_ok());
        is_intact && pages && segment.all_pairs().is_ok()
    };
    assert!(read_all(bytes.clone()));
    for position in (19..bytes.len()).step_by(if bytes.len() > 2_000 { 37 } else { 1 }) {
        let mut damaged = bytes.clone();
        damaged[position] ^= 0x10;
        assert!(!read_all(damaged), "byte {position} of {}", bytes.len());
    }
    for length in [0, 10, bytes.len() / 2, bytes.len() - 1] {
        assert!(!read_all(bytes[..length].to_vec()), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn parts_are_decoded_as_they_were_encoded() {
    let rows: Vec<_> = versions().into_iter().map(|version| (version, IndexedFields::Unknown)).collect();
    let block = decode_block(&open_part(&seal_part(&encode_block(&rows)).unwrap()).unwrap(), rows.len()).unwrap();
    let decoded: Vec<_> = (0..block.len()).map(|row| block.version(row)).collect();
    assert_eq!(decoded, rows.iter().map(|(version, _)| version.clone()).collect::<Vec<_>>());
    assert!(decode_block(&encode_block(&rows), rows.len() + 1).is_err());
    let fence = SegmentFence {
        after: Sequence(5),
        last: Sequence(1 << 51),
        row_count: 7,
        times: Some(TimeRange { earliest: Millis(-5), latest: Millis(1 << 41) }),
        filter_offset: 1 << 30,
        filter_pages: 9,
        index: PartSpan { offset: 3, length: 4 },
        cidr_lengths: BTreeSet::from([(true, 128), (false, 0)]),
    };
    let encoded = fence.encode(77);
    let (checked, tail) = encoded.split_last_chunk::<TAIL_BYTES>().unwrap();
    assert_eq!(SegmentFence::decode(checked).unwrap(), fence);
    assert_eq!(decode_tail(tail).unwrap(), PartSpan { offset: 77, length: checked.len() as u64 });
    let pairs = [(Sequence(7), Millis(-1)), (Sequence(7), Millis(i64::MAX)), (Sequence(1 << 52), Millis(0))];
    assert_eq!(decode_pairs(&encode_pairs(&pairs)).unwrap(), pairs);
    let mut reader_bytes = Vec::new();
    let row_key = RowKey::new(key(Kind::NodeIp, "eu-west", "a#b#fd00::1"), Sequence(9));
    row_key.encode(&mut reader_bytes);
    assert_eq!(RowKey::decode(&mut crate::pack::ByteReader::new(&reader_bytes)).unwrap(), row_key);
}

#[test]
fn a_clock_that_jumps_back_does_not_reorder_changes() {
    let pairs = [10, 50, 20, 60].map(Millis).into_iter().zip(1..).map(|(time, number)| (Sequence(number), time)).collect::<Vec<_>>();
    let first = |time| first_pair_after(&pairs, None, Millis(time));
    assert_eq!([9, 10, 25, 50, 60].map(first), [Some(0), Some(1), Some(1), Some(3), None]);
    assert_eq!(first_pair_after(&pairs, Some(Millis(55)), Millis(52)), Some(0), "an earlier change is later");
}

/// Size on disk of ipcache entries that are deleted and created again, in the form and with the
/// variety of a large mesh (`benches/store/data.rs`).
#[test]
fn a_replaced_ipcache_entry_needs_few_bytes() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    let mut random = StdRng::seed_from_u64(1);
    let (count, mut sequence) = (40_000, 1_764_000_000_000_000_u64);
    let mut versions = Vec::new();
    let mut pairs = Vec::new();
    for number in 0..count {
        // 325 changes a second, each in a batch of its own; two changes of an entry are a version
        sequence += 2;
        pairs.push((Sequence(sequence), Millis(1_764_000_000_000 + number * 6)));
        let (cluster, node, pod) = (random.random_range(0..20), random.random_range(0..200), random.random_range(10..110));
        let name = format!("10.{cluster}.{node}.{pod}");
        let workload = random.random_range(0..400);
        let value = format!(
            r#"{{"IP":"{name}","Mask":null,"HostIP":"172.{cluster}.{}.{}","ID":{},"Key":255,"Metadata":"cilium-global:c{cluster}:n{node}:{}","K8sNamespace":"namespace-{}","K8sPodName":"workload-{workload}-{:08x}-{:05x}","K8sServiceAccount":"default"}}"#,
            node / 100,
            node % 100,
            (cluster << 16) + 256 + workload,
            random.random_range(1_000..4_000),
            workload % 50,
            workload * 7_919 + 104_729,
            random.random_range(0..1 << 20),
        );
        let lifetime = random.random_range(1_000..2_000_000);
        let old = record(key(Kind::Ip, &format!("c{cluster}"), &name), sequence - lifetime, sequence - lifetime, 1, 1);
        let source = crate::model::SourceStamp {
            mod_revision: crate::model::Revision(i64::try_from((sequence - lifetime) / 3 % 1_000_000_000).unwrap()),
            ..old.source
        };
        let record = crate::model::Record { value: value.into_bytes().into(), rejection: None, good_value: None, source, ..(*old).clone() };
        versions.push(ReplacedVersion { record: record.into(), replaced_at: Sequence(sequence), deleted: Some(DeleteReason::Deleted) });
    }
    versions.sort_by_cached_key(ReplacedVersion::row_key);
    let mut writer = SegmentWriter::new(Vec::new()).unwrap();
    for version in &versions {
        writer.push(version.row_key(), version.clone()).unwrap();
    }
    let (bytes, fence) = writer.finish(Sequence(1), Sequence(sequence), &pairs).unwrap();
    let filter = u64::from(fence.filter_pages) * 4_096;
    println!("{} B, filter {filter} B, {:.1} B per version", bytes.len(), bytes.len() as f64 / versions.len() as f64);
    // each version is two changes: its creation and its deletion
    assert!(bytes.len() < versions.len() * 80, "{} B for {} versions", bytes.len(), versions.len());
}
