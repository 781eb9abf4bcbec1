//! The codec: everything reads back whole, and nothing else reads at all.

use std::time::{Duration, SystemTime};

use super::{cluster, cluster_record, cursor, key, record, scope};
use crate::model::{EntryKey, Kind, Rejection};
use crate::store::bytes::{Malformed, Reader, Writer};
use crate::store::codec::{self, StoredKey};

#[test]
fn keys_read_back() {
    for kind in Kind::ALL {
        let entry = key(kind, "paris-1", "a/b:c/24");
        assert_eq!(codec::read_key(&codec::entry_key(&entry)), Some(StoredKey::Entry(entry)));
        let scope = scope(kind, "paris-1");
        assert_eq!(codec::read_key(&codec::cursor_key(&scope)), Some(StoredKey::Cursor(scope)));
    }
    assert_eq!(codec::read_key(&codec::cluster_key(&cluster("paris"))), Some(StoredKey::Cluster(cluster("paris"))));
    assert_eq!(codec::read_key(codec::FORMAT_KEY), Some(StoredKey::Format));
    assert_eq!(codec::read_key(codec::GROUP_KEY), Some(StoredKey::Group));
    assert_eq!(codec::read_key(codec::SEQUENCE_KEY), Some(StoredKey::Sequence));
}

#[test]
fn other_keys_are_nothing() {
    let keys: [&[u8]; 8] = [b"", b"e", b"ecilium/cache/nodes/v1/Paris/a", b"cnodes/v1", b"cnodes/v1/", b"k", b"mother", b"e\xff\xfe"];
    for key in keys {
        assert_eq!(codec::read_key(key), None, "{}", key.escape_ascii());
    }
}

#[test]
fn records_read_back_whole() {
    for seed in 0..8 {
        for value_length in [0, 1, 127, 128, 1_600_000] {
            let record = record(key(Kind::Node, "paris", "a"), seed, value_length);
            assert_eq!(read_record(&write_record(&record)), Ok(record));
        }
    }
}

#[test]
fn extreme_numbers_and_times_read_back() {
    let mut record = record(key(Kind::Node, "paris", "a"), 1, 3);
    record.version = u64::MAX;
    record.last_sequence.0 = u64::MAX;
    record.source.lease.0 = i64::MIN;
    let rejection = Rejection {
        reason: "".into(),
        first_seen: SystemTime::UNIX_EPOCH - Duration::from_micros(1),
        last_seen: SystemTime::UNIX_EPOCH + Duration::from_micros(i64::MAX.unsigned_abs()),
    };
    record.rejection = Some(rejection);
    assert_eq!(read_record(&write_record(&record)), Ok(record));
}

#[test]
fn cursors_and_clusters_read_back_whole() {
    let cursor_key = codec::cursor_key(&scope(Kind::Ip, "paris"));
    for revision in 0..210 {
        let cursor = cursor(revision);
        assert_eq!(codec::read_cursor(&cursor_key, &codec::write_cursor(&cursor_key, &cursor)), Ok(cursor));
    }
    let cluster_key = codec::cluster_key(&cluster("paris"));
    for seed in 0..30 {
        let record = cluster_record(seed);
        assert_eq!(codec::read_cluster(&cluster_key, &codec::write_cluster(&cluster_key, &record)), Ok(record));
    }
}

#[test]
fn a_truncated_value_is_an_error() {
    let stored = write_record(&record(key(Kind::Node, "paris", "a"), 1, 200));
    for length in 0..stored.len() {
        assert!(read_record(&stored[..length]).is_err(), "{length} bytes");
    }
}

/// Behind a good checksum, too: each field's own bounds hold.
#[test]
fn a_truncated_body_with_a_good_checksum_is_an_error() {
    let stored_key = codec::entry_key(&key(Kind::Node, "paris", "a"));
    let stored = write_record(&record(key(Kind::Node, "paris", "a"), 1, 200));
    let body = &stored[1..stored.len() - 4];
    for length in 0..body.len() {
        let mut writer = Writer::new(1);
        writer.raw(&body[..length]);
        assert!(read_record(&writer.seal(&stored_key)).is_err(), "{length} bytes");
    }
    let mut writer = Writer::new(1);
    writer.raw(body);
    writer.byte(0);
    assert_eq!(read_record(&writer.seal(&stored_key)), Err(Malformed::Field("end")));
}

#[test]
fn every_flipped_bit_is_detected() {
    let mut stored = write_record(&record(key(Kind::Node, "paris", "a"), 1, 100));
    for bit in 0..stored.len() * 8 {
        stored[bit / 8] ^= 1 << (bit % 8);
        assert!(read_record(&stored).is_err(), "bit {bit}");
        stored[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_value_at_another_keys_place_is_detected() {
    let stored = write_record(&record(key(Kind::Node, "paris", "a"), 2, 100));
    let other = key(Kind::Node, "paris", "b");
    assert_eq!(codec::read_record(&codec::entry_key(&other), other, &stored), Err(Malformed::Checksum));
}

#[test]
fn unknown_forms_and_flags_are_errors() {
    let stored_key = codec::cluster_key(&cluster("paris"));
    assert_eq!(codec::read_cluster(&stored_key, &Writer::new(2).seal(&stored_key)), Err(Malformed::UnknownForm(2)));
    let mut writer = Writer::new(1);
    writer.byte(128);
    assert_eq!(codec::read_cluster(&stored_key, &writer.seal(&stored_key)), Err(Malformed::Field("flags")));
}

#[test]
fn varints_read_back_and_overlong_ones_are_errors() {
    for number in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut writer = Writer::new(1);
        writer.varint(number);
        let stored = writer.seal(b"k");
        assert_eq!(Reader::open(b"k", &stored, 1).and_then(|mut reader| reader.varint()), Ok(number));
    }
    for bytes in [&[0xff; 11][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02][..]] {
        let mut writer = Writer::new(1);
        writer.raw(bytes);
        let stored = writer.seal(b"k");
        assert_eq!(Reader::open(b"k", &stored, 1).and_then(|mut reader| reader.varint()), Err(Malformed::Field("varint")));
    }
}

fn write_record(record: &crate::model::Record) -> Vec<u8> {
    codec::write_record(&codec::entry_key(&record.key), record)
}

fn read_record(stored: &[u8]) -> Result<crate::model::Record, Malformed> {
    let entry: EntryKey = key(Kind::Node, "paris", "a");
    codec::read_record(&codec::entry_key(&entry), entry, stored)
}
