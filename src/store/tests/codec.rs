//! Encoded values decode to the same values, and other bytes are errors.

use std::time::{Duration, SystemTime};

use super::{cluster, cluster_record, cursor, key, record, scope};
use crate::model::{ClusterRecord, EntryKey, Kind, RawRecord, Rejection, Sequence};
use crate::store::encoding::checksum::{DecodeError, append_checksum, open_checked, put_varint};
use crate::store::encoding::codec::{self, StoredKey};

#[test]
fn keys_round_trip() {
    for kind in Kind::ALL {
        let entry = key(kind, "paris-1", "a/b:c/24");
        assert_eq!(codec::decode_key(&codec::entry_key(&entry)), Some(StoredKey::Entry(entry)));
        let scope = scope(kind, "paris-1");
        assert_eq!(codec::decode_key(&codec::cursor_key(&scope)), Some(StoredKey::Cursor(scope.clone())));
        assert_eq!(codec::decode_key(&codec::gaps_key(&scope)), Some(StoredKey::Gaps(scope)));
    }
    let derived = key(Kind::NodeIp, "paris-1", "a#fd00::1");
    assert_eq!(codec::entry_key(&derived), b"ecilium/cache/node-ips/v1/paris-1/a#fd00::1");
    assert_eq!(codec::decode_key(&codec::entry_key(&derived)), Some(StoredKey::Entry(derived)));
    assert_eq!(codec::decode_key(b"mderived"), Some(StoredKey::Derived));
    assert_eq!(codec::decode_key(&codec::cluster_key(&cluster("paris"))), Some(StoredKey::Cluster(cluster("paris"))));
    assert_eq!(codec::decode_key(&codec::run_key(Sequence(7))), Some(StoredKey::Run(Sequence(7))));
    assert_eq!(codec::decode_key(codec::SEQUENCE_KEY), Some(StoredKey::Sequence));
}

/// Chunks are ranges of stored keys, but their content is sorted by key.
#[test]
fn stored_keys_sort_as_keys_do() {
    let names =
        ["eu", "eu-west", "paris"].into_iter().flat_map(|cluster| ["0", "a#10.0.0.1", "a#fd00::1", "z/z"].map(|name| (cluster, name)));
    let of_kind = |kind: Kind| names.clone().filter(move |(_, name)| kind != Kind::NodeIp || name.contains('#'));
    let mut keys: Vec<EntryKey> =
        Kind::STORED.into_iter().flat_map(|kind| of_kind(kind).map(move |(cluster, name)| key(kind, cluster, name))).collect();
    keys.sort();
    assert!(keys.iter().map(codec::entry_key).is_sorted());
}

#[test]
fn other_keys_do_not_decode() {
    let keys: [&[u8]; 12] = [
        b"ecilium/cache/nodes/v1/paris/a#10.0.0.1",
        b"ecilium/cache/node-ips/v1/paris/a",
        b"ecilium/cache/node-ips/v1/paris",
        b"ecilium/cluster-config/paris",
        b"",
        b"e",
        b"ecilium/cache/nodes/v1/Paris/a",
        b"cnodes/v1",
        b"cnodes/v1/",
        b"k",
        b"mother",
        b"e\xff\xfe",
    ];
    for key in keys {
        assert_eq!(codec::decode_key(key), None, "{}", key.escape_ascii());
    }
}

#[test]
fn records_round_trip() {
    for seed in 0..8 {
        for value_length in [0, 1, 127, 128, 1_600_000] {
            let record = record(key(Kind::Node, "paris", "a"), seed, value_length);
            assert_eq!(decode_record(&encode_record(&record)), Ok(record));
        }
    }
}

#[test]
fn extreme_numbers_and_times_round_trip() {
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
    assert_eq!(decode_record(&encode_record(&record)), Ok(record));
}

#[test]
fn cursors_and_clusters_round_trip() {
    for revision in 0..210 {
        let cursor = cursor(revision);
        assert_eq!(codec::decode_cursor(&codec::encode_cursor(&cursor)), Ok(cursor));
    }
    for seed in 0..30 {
        let record = cluster_record(seed);
        assert_eq!(codec::decode_cluster(&codec::encode_cluster(&record)), Ok(record));
    }
}

#[test]
fn a_truncated_value_is_an_error() {
    let stored = encode_record(&record(key(Kind::Node, "paris", "a"), 1, 200));
    for length in 0..stored.len() {
        assert!(decode_record(&stored[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn bytes_after_the_last_field_are_an_error() {
    let mut stored = encode_record(&record(key(Kind::Node, "paris", "a"), 1, 200));
    stored.push(0);
    assert_eq!(decode_record(&stored), Err(DecodeError::Field("end")));
}

#[test]
fn unknown_versions_and_flags_are_errors() {
    assert_eq!(codec::decode_cluster(&[2]), Err(DecodeError::UnknownVersion(2)));
    assert_eq!(codec::decode_cursor(&[1, 128]), Err(DecodeError::Field("flags")));
}

#[test]
fn notices_round_trip_with_their_cluster() {
    let notice = |seed: u64| RawRecord {
        key: format!("cilium/synced/paris/{seed}").into(),
        value: format!("value {seed}").into_bytes().into(),
        create_sequence: Sequence(seed),
        last_sequence: Sequence(seed + 300),
        version: seed + 1,
    };
    for count in [1, 7] {
        let record = ClusterRecord { notices: (0..count).map(notice).collect(), ..cluster_record(7) };
        assert_eq!(codec::decode_cluster(&codec::encode_cluster(&record)), Ok(record));
    }
}

#[test]
fn varints_round_trip_and_overlong_ones_are_errors() {
    for number in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut value = vec![1];
        put_varint(&mut value, number);
        let stored = append_checksum(b"k", value);
        assert_eq!(open_checked(b"k", &stored, 1).and_then(|mut reader| reader.varint()), Ok(number));
    }
    for bytes in [&[0xff; 11][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02][..]] {
        let stored = append_checksum(b"k", [&[1], bytes].concat());
        assert_eq!(open_checked(b"k", &stored, 1).and_then(|mut reader| reader.varint()), Err(DecodeError::Field("varint")));
    }
}

fn encode_record(record: &crate::model::Record) -> Vec<u8> {
    codec::encode_record(record)
}

fn decode_record(body: &[u8]) -> Result<crate::model::Record, DecodeError> {
    let entry: EntryKey = key(Kind::Node, "paris", "a");
    codec::decode_record(entry, body)
}
