//! Encodes and decodes stored keys and values (docs/develop/store.md, "Keys and values").
//!
//! All functions are pure. The value of an entry is stored as it is and not decoded.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::checksum::{ByteReader, DecodeError, append_checksum, put_text, put_varint, verify_checksum};
use crate::model::{
    CanaryPoint, ClusterConfig, ClusterId, ClusterName, ClusterRecord, Cursor, DeletePoint, DeleteReason, EntryKey, Epoch, EpochSpan,
    EtcdClusterId, Kind, LeaseId, PutPoint, RawRecord, Record, Rejection, Revision, Scope, Sequence, SourceStamp, Tombstone,
};

/// Format version of every value.
pub(super) const FORMAT_VERSION: u8 = 1;

/// First byte of the stored key of an entry.
pub(in crate::store) const ENTRY_TAG: u8 = b'e';
const CURSOR_TAG: u8 = b'c';
const CLUSTER_TAG: u8 = b'k';
const GAPS_TAG: u8 = b'g';
const RUN_TAG: u8 = b's';
/// First byte of the key of a replaced record.
pub(super) const REPLACED_TAG: u8 = b'h';
/// First byte of the key of a range of replaced records.
pub(super) const REPLACED_RANGE_TAG: u8 = b'r';
/// First byte of the stored key of a tombstone.
pub(in crate::store) const TOMBSTONE_TAG: u8 = b't';

/// Key of the number of the layout.
pub(in crate::store) const LAYOUT_KEY: &[u8] = b"mformat";
/// Key of the highest sequence that may have been used.
pub(in crate::store) const SEQUENCE_KEY: &[u8] = b"msequence";

/// Key of the epochs from whose stream positions a client may still resume.
pub(in crate::store) const EPOCHS_KEY: &[u8] = b"mepochs";
/// Key of the sequence below which tombstones were dropped.
pub(super) const FLOOR_KEY: &[u8] = b"mfloor";
/// Key of the version of the rules by which entries were derived from nodes.
pub(in crate::store) const DERIVED_KEY: &[u8] = b"mderived";
/// Key of the newest sequence up to which everything is stored.
pub(super) const COVERED_KEY: &[u8] = b"mcovered";

/// Prefix of the names of derived entries. No source has keys with this prefix. Derived entries
/// sort directly after the ip entries.
const NODE_IPS_PREFIX: &str = "cilium/cache/node-ips/v1/";

const RECORD_GOOD_VALUE: u8 = 1;
const RECORD_REJECTION: u8 = 1 << 1;
const RECORD_HELD: u8 = 1 << 2;

const CURSOR_CACHED: u8 = 1;
const CURSOR_PUT: u8 = 1 << 1;
const CURSOR_DELETE: u8 = 1 << 2;
const CURSOR_CANARY: u8 = 1 << 3;

const CONFIG_PRESENT: u8 = 1;
const CONFIG_CANARIES: u8 = 1 << 1;
const CONFIG_CACHED: u8 = 1 << 2;
const CONFIG_EXPORTS_GIVEN: u8 = 1 << 3;
const CONFIG_EXPORTS_ON: u8 = 1 << 4;
const CONFIG_SLICES_GIVEN: u8 = 1 << 5;
const CLUSTER_CONTACT: u8 = 1 << 6;
/// Set if the record has notices: the keys of the cluster that are no entries, such as canaries.
const CLUSTER_NOTICES: u8 = 1 << 7;

/// Returns whether a key is only in the log.
pub(in crate::store) fn is_log_only(key: &[u8]) -> bool {
    matches!(key.first(), Some(&REPLACED_TAG | &REPLACED_RANGE_TAG))
}

/// A decoded key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum StoredKey {
    /// An entry.
    Entry(EntryKey),
    /// The cursor of a scope.
    Cursor(Scope),
    /// The record of a cluster.
    Cluster(ClusterName),
    /// The observation gaps of a scope.
    Gaps(Scope),
    /// The run of sequences that begins with this one.
    Run(Sequence),
    /// The highest sequence that may have been used.
    Sequence,
    /// The tombstone with this sequence.
    Tombstone(Sequence),
    /// The epochs whose positions may be valid.
    Epochs,
    /// The sequence below which tombstones were dropped.
    Floor,
    /// The newest sequence up to which everything is stored.
    Covered,
    /// The version of the rules that derived entries from nodes.
    Derived,
}

/// Decodes a key. Returns `None` for a key that this version does not write.
pub(in crate::store) fn decode_key(stored: &[u8]) -> Option<StoredKey> {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let number = |bytes: &[u8]| bytes.try_into().ok().map(|bytes| Sequence(u64::from_be_bytes(bytes)));
    Some(match stored {
        SEQUENCE_KEY => StoredKey::Sequence,
        EPOCHS_KEY => StoredKey::Epochs,
        FLOOR_KEY => StoredKey::Floor,
        COVERED_KEY => StoredKey::Covered,
        DERIVED_KEY => StoredKey::Derived,
        [TOMBSTONE_TAG, sequence @ ..] => StoredKey::Tombstone(number(sequence)?),
        [RUN_TAG, sequence @ ..] => StoredKey::Run(number(sequence)?),
        [ENTRY_TAG, name @ ..] => StoredKey::Entry(decode_entry_name(text(name)?).filter(|key| key.kind != Kind::Cluster)?),
        [CURSOR_TAG, scope @ ..] => StoredKey::Cursor(decode_scope(text(scope)?)?),
        [GAPS_TAG, scope @ ..] => StoredKey::Gaps(decode_scope(text(scope)?)?),
        [CLUSTER_TAG, name @ ..] => StoredKey::Cluster(ClusterName::parse(text(name)?).ok()?),
        _ => return None,
    })
}

fn decode_scope(text: &str) -> Option<Scope> {
    Kind::ALL.into_iter().find_map(|kind| {
        let cluster = text.strip_prefix(kind.base())?.strip_prefix('/')?;
        Some(Scope { cluster: ClusterName::parse(cluster).ok()?, kind })
    })
}

/// Returns the stored key of an entry.
pub(in crate::store) fn entry_key(key: &EntryKey) -> Vec<u8> {
    tagged_key(ENTRY_TAG, &entry_name(key))
}

/// Returns the name of a key. Names sort like keys.
pub(in crate::store) fn entry_name(key: &EntryKey) -> String {
    if key.kind == Kind::NodeIp { format!("{NODE_IPS_PREFIX}{}/{}", key.cluster, key.name) } else { key.to_string() }
}

pub(super) fn decode_entry_name(text: &str) -> Option<EntryKey> {
    let Some(cluster_and_name) = text.strip_prefix(NODE_IPS_PREFIX) else {
        return EntryKey::from_cache_form(text).filter(|key| !matches!(key.kind, Kind::NodeIp | Kind::Problem));
    };
    let (cluster, name) = cluster_and_name.split_once('/')?;
    EntryKey::split_node_ip(name)?;
    Some(EntryKey::new(Kind::NodeIp, ClusterName::parse(cluster).ok()?, name))
}

/// Returns the first stored key that the entries of a scope can have, and the end of the range.
pub(in crate::store) fn scope_range(scope: &Scope) -> (Vec<u8>, Vec<u8>) {
    let name = |end: char| tagged_key(ENTRY_TAG, &format!("cilium/cache/{}/{}{end}", scope.kind.base(), scope.cluster));
    // '0' follows '/'
    (name('/'), name('0'))
}

/// Returns the first stored key that the entries of a kind can have, and the end of the range.
pub(in crate::store) fn kind_range(kind: Kind) -> (Vec<u8>, Vec<u8>) {
    let base =
        if kind == Kind::NodeIp { NODE_IPS_PREFIX.trim_end_matches('/').to_owned() } else { format!("cilium/cache/{}", kind.base()) };
    (tagged_key(ENTRY_TAG, &format!("{base}/")), tagged_key(ENTRY_TAG, &format!("{base}0")))
}

/// Decodes the stored key of an entry.
pub(in crate::store) fn decode_entry_key(stored: &[u8]) -> Option<EntryKey> {
    match decode_key(stored) {
        Some(StoredKey::Entry(key)) => Some(key),
        Some(_) | None => None,
    }
}

/// Returns the stored key of a cursor.
pub(in crate::store) fn cursor_key(scope: &Scope) -> Vec<u8> {
    tagged_key(CURSOR_TAG, &format!("{}/{}", scope.kind.base(), scope.cluster))
}

/// Returns the stored key of the observation gaps of a scope.
pub(in crate::store) fn gaps_key(scope: &Scope) -> Vec<u8> {
    tagged_key(GAPS_TAG, &format!("{}/{}", scope.kind.base(), scope.cluster))
}

/// Returns the stored key of a run. The keys sort by sequence.
pub(in crate::store) fn run_key(first: Sequence) -> Vec<u8> {
    [&[RUN_TAG][..], &first.0.to_be_bytes()].concat()
}

/// Returns the stored key of a cluster's record.
pub(in crate::store) fn cluster_key(cluster: &ClusterName) -> Vec<u8> {
    tagged_key(CLUSTER_TAG, cluster.as_str())
}

/// Returns the stored key of a tombstone. The keys sort by sequence.
pub(super) fn tombstone_key(sequence: Sequence) -> Vec<u8> {
    [&[TOMBSTONE_TAG][..], &sequence.0.to_be_bytes()].concat()
}

pub(super) fn encode_tombstone(tombstone: &Tombstone) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.push(match tombstone.reason {
        DeleteReason::Deleted => 0,
        DeleteReason::ClusterRemoved => 1,
    });
    out.extend_from_slice(&micros_since_1970(tombstone.time).to_le_bytes());
    put_text(&mut out, entry_name(&tombstone.key).as_bytes());
    out
}

pub(in crate::store) fn decode_tombstone(body: &[u8]) -> Result<Tombstone, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let reason = match reader.byte()? {
        0 => DeleteReason::Deleted,
        1 => DeleteReason::ClusterRemoved,
        _ => return Err(DecodeError::Field("reason")),
    };
    let time = time_from_micros(reader.read_i64()?)?;
    let key = decode_entry_name(reader.text("key")?).ok_or(DecodeError::Field("key"))?;
    reader.finish()?;
    Ok(Tombstone { key, reason, time })
}

pub(super) fn encode_epochs(epochs: &[EpochSpan]) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    put_varint(&mut out, epochs.len() as u64);
    for span in epochs {
        out.extend_from_slice(&span.epoch.0.to_le_bytes());
        put_varint(&mut out, span.start.0);
        out.push(u8::from(span.accepted_up_to.is_some()));
        if let Some(accepted_up_to) = span.accepted_up_to {
            put_varint(&mut out, accepted_up_to.0);
        }
    }
    out
}

pub(in crate::store) fn decode_epochs(body: &[u8]) -> Result<Vec<EpochSpan>, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let count = reader.varint()?;
    let mut epochs = Vec::new();
    for _ in 0..count {
        let epoch = Epoch(reader.read_u64()?);
        let start = Sequence(reader.varint()?);
        let accepted_up_to = if reader.flags(1)? == 1 { Some(Sequence(reader.varint()?)) } else { None };
        epochs.push(EpochSpan { epoch, start, accepted_up_to });
    }
    reader.finish()?;
    Ok(epochs)
}

fn tagged_key(tag: u8, text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + text.len());
    key.push(tag);
    key.extend_from_slice(text.as_bytes());
    key
}

/// Encodes a record without its decoded object and its generation. Times have microseconds.
pub(in crate::store) fn encode_record(record: &Record) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.push(
        bit(record.good_value.is_some(), RECORD_GOOD_VALUE)
            | bit(record.rejection.is_some(), RECORD_REJECTION)
            | bit(record.source.held, RECORD_HELD),
    );
    out.extend_from_slice(&record.source.mod_revision.0.to_le_bytes());
    out.extend_from_slice(&record.source.lease.0.to_le_bytes());
    put_varint(&mut out, record.create_sequence.0);
    put_varint(&mut out, record.last_sequence.0);
    put_varint(&mut out, record.version);
    put_text(&mut out, &record.value);
    if let Some(good_value) = &record.good_value {
        put_text(&mut out, good_value);
    }
    if let Some(rejection) = &record.rejection {
        put_text(&mut out, rejection.reason.as_bytes());
        out.extend_from_slice(&micros_since_1970(rejection.first_seen).to_le_bytes());
        out.extend_from_slice(&micros_since_1970(rejection.last_seen).to_le_bytes());
    }
    out
}

/// Decodes a record, without its object and with generation 0.
pub(in crate::store) fn decode_record(key: EntryKey, body: &[u8]) -> Result<Record, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let flags = reader.flags(RECORD_GOOD_VALUE | RECORD_REJECTION | RECORD_HELD)?;
    let held = flags & RECORD_HELD != 0;
    let source = SourceStamp { mod_revision: Revision(reader.read_i64()?), lease: LeaseId(reader.read_i64()?), held };
    let create_sequence = Sequence(reader.varint()?);
    let last_sequence = Sequence(reader.varint()?);
    let version = reader.varint()?;
    let value = Arc::from(reader.bytes()?);
    let good_value = if flags & RECORD_GOOD_VALUE != 0 { Some(Arc::from(reader.bytes()?)) } else { None };
    let rejection = if flags & RECORD_REJECTION != 0 { Some(decode_rejection(&mut reader)?) } else { None };
    reader.finish()?;
    Ok(Record { key, value, good_value, object: None, rejection, source, create_sequence, last_sequence, version, generation: 0 })
}

fn decode_rejection(reader: &mut ByteReader<'_>) -> Result<Rejection, DecodeError> {
    let reason = Arc::from(reader.text("rejection reason")?);
    Ok(Rejection { reason, first_seen: time_from_micros(reader.read_i64()?)?, last_seen: time_from_micros(reader.read_i64()?)? })
}

pub(in crate::store) fn encode_cursor(cursor: &Cursor) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.push(
        bit(cursor.cached, CURSOR_CACHED)
            | bit(cursor.last_put.is_some(), CURSOR_PUT)
            | bit(cursor.last_delete.is_some(), CURSOR_DELETE)
            | bit(cursor.canary.is_some(), CURSOR_CANARY),
    );
    out.extend_from_slice(&cursor.etcd_cluster_id.0.to_le_bytes());
    out.extend_from_slice(&cursor.revision.0.to_le_bytes());
    if let Some(put) = &cursor.last_put {
        out.extend_from_slice(&put.revision.0.to_le_bytes());
        out.extend_from_slice(&put.value_digest);
        put_text(&mut out, &put.source_key);
    }
    if let Some(delete) = &cursor.last_delete {
        out.extend_from_slice(&delete.revision.0.to_le_bytes());
        put_text(&mut out, &delete.source_key);
    }
    if let Some(canary) = &cursor.canary {
        out.extend_from_slice(&canary.revision.0.to_le_bytes());
        put_text(&mut out, &canary.value);
    }
    out
}

pub(in crate::store) fn decode_cursor(body: &[u8]) -> Result<Cursor, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let flags = reader.flags(CURSOR_CACHED | CURSOR_PUT | CURSOR_DELETE | CURSOR_CANARY)?;
    let etcd_cluster_id = EtcdClusterId(reader.read_u64()?);
    let revision = Revision(reader.read_i64()?);
    let last_put = if flags & CURSOR_PUT != 0 { Some(decode_put_point(&mut reader)?) } else { None };
    let last_delete = if flags & CURSOR_DELETE != 0 { Some(decode_delete_point(&mut reader)?) } else { None };
    let canary = if flags & CURSOR_CANARY != 0 { Some(decode_canary_point(&mut reader)?) } else { None };
    reader.finish()?;
    Ok(Cursor { etcd_cluster_id, revision, cached: flags & CURSOR_CACHED != 0, last_put, last_delete, canary })
}

fn decode_put_point(reader: &mut ByteReader<'_>) -> Result<PutPoint, DecodeError> {
    Ok(PutPoint { revision: Revision(reader.read_i64()?), value_digest: reader.array()?, source_key: reader.bytes()?.to_vec() })
}

fn decode_delete_point(reader: &mut ByteReader<'_>) -> Result<DeletePoint, DecodeError> {
    Ok(DeletePoint { revision: Revision(reader.read_i64()?), source_key: reader.bytes()?.to_vec() })
}

fn decode_canary_point(reader: &mut ByteReader<'_>) -> Result<CanaryPoint, DecodeError> {
    Ok(CanaryPoint { revision: Revision(reader.read_i64()?), value: reader.bytes()?.to_vec() })
}

pub(in crate::store) fn encode_cluster(record: &ClusterRecord) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    let config_flags = record.config.as_ref().map_or(0, |config| {
        CONFIG_PRESENT
            | bit(config.synced_canaries, CONFIG_CANARIES)
            | bit(config.cached, CONFIG_CACHED)
            | bit(config.service_exports_enabled.is_some(), CONFIG_EXPORTS_GIVEN)
            | bit(config.service_exports_enabled == Some(true), CONFIG_EXPORTS_ON)
            | bit(config.endpoint_slices_export_mode.is_some(), CONFIG_SLICES_GIVEN)
    });
    let contact_flag = bit(record.last_contact.is_some(), CLUSTER_CONTACT);
    out.push(config_flags | contact_flag | bit(!record.notices.is_empty(), CLUSTER_NOTICES));
    if let Some(last_contact) = record.last_contact {
        out.extend_from_slice(&micros_since_1970(last_contact).to_le_bytes());
    }
    if let Some(config) = &record.config {
        put_varint(&mut out, config.id.0.into());
        put_varint(&mut out, config.max_connected_clusters.into());
        if let Some(mode) = &config.endpoint_slices_export_mode {
            put_text(&mut out, mode.as_bytes());
        }
    }
    if !record.notices.is_empty() {
        put_varint(&mut out, record.notices.len() as u64);
    }
    for notice in &record.notices {
        put_text(&mut out, notice.key.as_bytes());
        put_text(&mut out, &notice.value);
        [notice.create_sequence.0, notice.last_sequence.0, notice.version].into_iter().for_each(|number| put_varint(&mut out, number));
    }
    out
}

pub(in crate::store) fn decode_cluster(body: &[u8]) -> Result<ClusterRecord, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    // all eight bits are flags
    let flags = reader.byte()?;
    let last_contact = if flags & CLUSTER_CONTACT != 0 { Some(time_from_micros(reader.read_i64()?)?) } else { None };
    let config = if flags & CONFIG_PRESENT != 0 { Some(decode_config(&mut reader, flags)?) } else { None };
    let count = if flags & CLUSTER_NOTICES != 0 { reader.varint()? } else { 0 };
    let notices = (0..count).map(|_| decode_notice(&mut reader)).collect::<Result<_, _>>()?;
    reader.finish()?;
    Ok(ClusterRecord { config, last_contact, notices })
}

fn decode_notice(reader: &mut ByteReader<'_>) -> Result<RawRecord, DecodeError> {
    Ok(RawRecord {
        key: reader.text("key of a notice")?.into(),
        value: reader.bytes()?.into(),
        create_sequence: Sequence(reader.varint()?),
        last_sequence: Sequence(reader.varint()?),
        version: reader.varint()?,
    })
}

fn decode_config(reader: &mut ByteReader<'_>, flags: u8) -> Result<ClusterConfig, DecodeError> {
    let id = ClusterId(u32::try_from(reader.varint()?).map_err(|_| DecodeError::Field("cluster id"))?);
    let max_connected_clusters = u32::try_from(reader.varint()?).map_err(|_| DecodeError::Field("max connected clusters"))?;
    let endpoint_slices_export_mode =
        if flags & CONFIG_SLICES_GIVEN != 0 { Some(reader.text("endpoint slices export mode")?.to_owned()) } else { None };
    Ok(ClusterConfig {
        id,
        synced_canaries: flags & CONFIG_CANARIES != 0,
        cached: flags & CONFIG_CACHED != 0,
        max_connected_clusters,
        service_exports_enabled: (flags & CONFIG_EXPORTS_GIVEN != 0).then_some(flags & CONFIG_EXPORTS_ON != 0),
        endpoint_slices_export_mode,
    })
}

/// Encodes a single number, such as a sequence.
pub(super) fn encode_number(number: u64) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.extend_from_slice(&number.to_le_bytes());
    out
}

pub(in crate::store) fn decode_number(body: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let number = reader.read_u64()?;
    reader.finish()?;
    Ok(number)
}

/// Encodes the number of the layout, with its checksum.
pub(in crate::store) fn encode_layout(layout: u64) -> Vec<u8> {
    append_checksum(LAYOUT_KEY, encode_number(layout))
}

pub(in crate::store) fn decode_layout(stored: &[u8]) -> Result<u64, DecodeError> {
    decode_number(verify_checksum(LAYOUT_KEY, stored)?)
}

pub(super) const fn bit(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// Returns the microseconds since 1970, limited to an `i64` (292,000 years).
pub(super) fn micros_since_1970(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

pub(super) fn time_from_micros(micros: i64) -> Result<SystemTime, DecodeError> {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { SystemTime::UNIX_EPOCH.checked_sub(distance) } else { SystemTime::UNIX_EPOCH.checked_add(distance) };
    time.ok_or(DecodeError::Field("time"))
}
