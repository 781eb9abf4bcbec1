//! The on-disk form of keys and values, version 1 ("plain"), as docs/develop/store.md has it byte by byte ("Keys and values").
//!
//! Owns: which bytes stand for which record, cursor, cluster or mark. Deliberately lacks: IO, sled, and any meaning of an entry's own bytes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::bytes::{Malformed, Reader, put_text, put_varint, seal, unseal};
use crate::model::{
    CanaryPoint, ClusterConfig, ClusterId, ClusterName, ClusterRecord, Cursor, DeletePoint, DeleteReason, EntryKey, Epoch, EpochSpan,
    EtcdClusterId, Kind, LeaseId, PutPoint, RawRecord, Record, Rejection, Revision, Scope, Sequence, SourceStamp, Tombstone,
};

/// The form of every value.
const FORM: u8 = 1;

/// The first byte of every entry's key.
pub(in crate::store) const ENTRY: u8 = b'e';
const CURSOR: u8 = b'c';
const CLUSTER: u8 = b'k';
/// The first byte of every tombstone's key.
pub(in crate::store) const TOMBSTONE: u8 = b't';

/// The key of the layout's number.
pub(in crate::store) const FORMAT_KEY: &[u8] = b"mformat";
/// The key of the highest sequence that may have been handed out.
pub(in crate::store) const SEQUENCE_KEY: &[u8] = b"msequence";

/// The key of the starts that positions may come from.
pub(in crate::store) const EPOCHS_KEY: &[u8] = b"mepochs";
/// The key of the sequence below which tombstones are gone.
pub(super) const FLOOR_KEY: &[u8] = b"mfloor";
/// The key of the rules by which derived entries were made.
pub(in crate::store) const DERIVED_KEY: &[u8] = b"mderived";
/// The key of the newest sequence that is stored with all before it.
pub(super) const COVERED_KEY: &[u8] = b"mcovered";

/// Where the names of derived entries begin. No source has such keys, and none sorts between these and the ip entries.
const NODE_IPS: &str = "cilium/cache/node-ips/v1/";

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
const CLUSTER_NOTICES: u8 = 1 << 7;

/// What a stored key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum StoredKey {
    /// A mirrored entry.
    Entry(EntryKey),
    /// How far a scope is mirrored.
    Cursor(Scope),
    /// What a cluster says about itself.
    Cluster(ClusterName),
    /// The highest sequence that may have been handed out.
    Sequence,
    /// What is left of a key that went at this sequence.
    Tombstone(Sequence),
    /// The starts that positions may come from.
    Epochs,
    /// The sequence below which tombstones are gone.
    Floor,
    /// The newest sequence that is stored with all before it.
    Covered,
    /// The rules by which derived entries were made.
    Derived,
}

/// Reads a stored key; `None` for anything that version 1 does not write.
pub(in crate::store) fn read_key(stored: &[u8]) -> Option<StoredKey> {
    match stored {
        SEQUENCE_KEY => return Some(StoredKey::Sequence),
        EPOCHS_KEY => return Some(StoredKey::Epochs),
        FLOOR_KEY => return Some(StoredKey::Floor),
        COVERED_KEY => return Some(StoredKey::Covered),
        DERIVED_KEY => return Some(StoredKey::Derived),
        _ => {}
    }
    let (tag, rest) = stored.split_first()?;
    if *tag == TOMBSTONE {
        return rest.try_into().ok().map(|bytes| StoredKey::Tombstone(Sequence(u64::from_be_bytes(bytes))));
    }
    let text = std::str::from_utf8(rest).ok()?;
    match *tag {
        ENTRY => read_name(text).filter(|key| key.kind != Kind::Cluster).map(StoredKey::Entry),
        CURSOR => read_scope(text).map(StoredKey::Cursor),
        CLUSTER => ClusterName::parse(text).ok().map(StoredKey::Cluster),
        _ => None,
    }
}

fn read_scope(text: &str) -> Option<Scope> {
    Kind::ALL.into_iter().find_map(|kind| {
        let cluster = text.strip_prefix(kind.base())?.strip_prefix('/')?;
        Some(Scope { cluster: ClusterName::parse(cluster).ok()?, kind })
    })
}

/// The stored key of an entry.
pub(in crate::store) fn entry_key(key: &EntryKey) -> Vec<u8> {
    tagged(ENTRY, &name(key))
}

/// The name of a key: names sort as keys do.
pub(in crate::store) fn name(key: &EntryKey) -> String {
    if key.kind == Kind::NodeIp { format!("{NODE_IPS}{}/{}", key.cluster, key.name) } else { key.to_string() }
}

/// Reads a name back.
pub(super) fn read_name(text: &str) -> Option<EntryKey> {
    let Some(below) = text.strip_prefix(NODE_IPS) else {
        return EntryKey::from_cache_form(text).filter(|key| !matches!(key.kind, Kind::NodeIp | Kind::Problem));
    };
    let (cluster, name) = below.split_once('/')?;
    EntryKey::split_node_ip(name)?;
    Some(EntryKey::new(Kind::NodeIp, ClusterName::parse(cluster).ok()?, name))
}

/// Where the stored keys of a scope's entries begin, and a key above all of them.
pub(in crate::store) fn scope_range(scope: &Scope) -> (Vec<u8>, Vec<u8>) {
    let name = |end: char| tagged(ENTRY, &format!("cilium/cache/{}/{}{end}", scope.kind.base(), scope.cluster));
    // '0' follows '/'
    (name('/'), name('0'))
}

/// Where the stored keys of a kind's entries begin, and a key above all of them.
pub(in crate::store) fn kind_range(kind: Kind) -> (Vec<u8>, Vec<u8>) {
    let base = if kind == Kind::NodeIp { NODE_IPS.trim_end_matches('/').to_owned() } else { format!("cilium/cache/{}", kind.base()) };
    (tagged(ENTRY, &format!("{base}/")), tagged(ENTRY, &format!("{base}0")))
}

/// The entry that a stored key is of.
pub(in crate::store) fn entry_of(stored: &[u8]) -> Option<EntryKey> {
    match read_key(stored) {
        Some(StoredKey::Entry(key)) => Some(key),
        Some(_) | None => None,
    }
}

/// The stored key of a scope's cursor.
pub(in crate::store) fn cursor_key(scope: &Scope) -> Vec<u8> {
    tagged(CURSOR, &format!("{}/{}", scope.kind.base(), scope.cluster))
}

/// The stored key of a cluster's record.
pub(in crate::store) fn cluster_key(cluster: &ClusterName) -> Vec<u8> {
    tagged(CLUSTER, cluster.as_str())
}

/// The stored key of a tombstone: they sort by sequence.
pub(super) fn tombstone_key(sequence: Sequence) -> Vec<u8> {
    [&[TOMBSTONE][..], &sequence.0.to_be_bytes()].concat()
}

/// Writes a tombstone.
pub(super) fn write_tombstone(tombstone: &Tombstone) -> Vec<u8> {
    let mut out = vec![FORM];
    out.push(match tombstone.reason {
        DeleteReason::Deleted => 0,
        DeleteReason::ClusterRemoved => 1,
    });
    out.extend_from_slice(&micros_since_1970(tombstone.time).to_le_bytes());
    put_text(&mut out, name(&tombstone.key).as_bytes());
    out
}

/// Reads a tombstone back.
pub(in crate::store) fn read_tombstone(body: &[u8]) -> Result<Tombstone, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let reason = match reader.byte()? {
        0 => DeleteReason::Deleted,
        1 => DeleteReason::ClusterRemoved,
        _ => return Err(Malformed::Field("reason")),
    };
    let time = time_from_micros(reader.signed()?)?;
    let key = read_name(reader.text("key")?).ok_or(Malformed::Field("key"))?;
    reader.finish()?;
    Ok(Tombstone { key, reason, time })
}

/// Writes the starts that positions may come from.
pub(super) fn write_epochs(epochs: &[EpochSpan]) -> Vec<u8> {
    let mut out = vec![FORM];
    put_varint(&mut out, epochs.len() as u64);
    for span in epochs {
        out.extend_from_slice(&span.epoch.0.to_le_bytes());
        put_varint(&mut out, span.began.0);
        out.push(u8::from(span.vouched.is_some()));
        if let Some(vouched) = span.vouched {
            put_varint(&mut out, vouched.0);
        }
    }
    out
}

/// Reads them back.
pub(in crate::store) fn read_epochs(body: &[u8]) -> Result<Vec<EpochSpan>, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let count = reader.varint()?;
    let mut epochs = Vec::new();
    for _ in 0..count {
        let epoch = Epoch(reader.fixed()?);
        let began = Sequence(reader.varint()?);
        let vouched = if reader.flags(1)? == 1 { Some(Sequence(reader.varint()?)) } else { None };
        epochs.push(EpochSpan { epoch, began, vouched });
    }
    reader.finish()?;
    Ok(epochs)
}

fn tagged(tag: u8, text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + text.len());
    key.push(tag);
    key.extend_from_slice(text.as_bytes());
    key
}

/// Writes what is stored of a record: all but its decoded object and its generation. Times keep microseconds.
pub(in crate::store) fn write_record(record: &Record) -> Vec<u8> {
    let mut out = vec![FORM];
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

/// Reads a record back: without its object, in generation 0.
pub(in crate::store) fn read_record(key: EntryKey, body: &[u8]) -> Result<Record, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let flags = reader.flags(RECORD_GOOD_VALUE | RECORD_REJECTION | RECORD_HELD)?;
    let held = flags & RECORD_HELD != 0;
    let source = SourceStamp { mod_revision: Revision(reader.signed()?), lease: LeaseId(reader.signed()?), held };
    let create_sequence = Sequence(reader.varint()?);
    let last_sequence = Sequence(reader.varint()?);
    let version = reader.varint()?;
    let value = Arc::from(reader.bytes()?);
    let good_value = if flags & RECORD_GOOD_VALUE != 0 { Some(Arc::from(reader.bytes()?)) } else { None };
    let rejection = if flags & RECORD_REJECTION != 0 { Some(read_rejection(&mut reader)?) } else { None };
    reader.finish()?;
    Ok(Record { key, value, good_value, object: None, rejection, source, create_sequence, last_sequence, version, generation: 0 })
}

fn read_rejection(reader: &mut Reader<'_>) -> Result<Rejection, Malformed> {
    let reason = Arc::from(reader.text("rejection reason")?);
    Ok(Rejection { reason, first_seen: time_from_micros(reader.signed()?)?, last_seen: time_from_micros(reader.signed()?)? })
}

/// Writes a cursor.
pub(in crate::store) fn write_cursor(cursor: &Cursor) -> Vec<u8> {
    let mut out = vec![FORM];
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

/// Reads a cursor back.
pub(in crate::store) fn read_cursor(body: &[u8]) -> Result<Cursor, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let flags = reader.flags(CURSOR_CACHED | CURSOR_PUT | CURSOR_DELETE | CURSOR_CANARY)?;
    let etcd_cluster_id = EtcdClusterId(reader.fixed()?);
    let revision = Revision(reader.signed()?);
    let last_put = if flags & CURSOR_PUT != 0 { Some(read_put_point(&mut reader)?) } else { None };
    let last_delete = if flags & CURSOR_DELETE != 0 { Some(read_delete_point(&mut reader)?) } else { None };
    let canary = if flags & CURSOR_CANARY != 0 { Some(read_sentinel(&mut reader)?) } else { None };
    reader.finish()?;
    Ok(Cursor { etcd_cluster_id, revision, cached: flags & CURSOR_CACHED != 0, last_put, last_delete, canary })
}

fn read_put_point(reader: &mut Reader<'_>) -> Result<PutPoint, Malformed> {
    Ok(PutPoint { revision: Revision(reader.signed()?), value_digest: reader.array()?, source_key: reader.bytes()?.to_vec() })
}

fn read_delete_point(reader: &mut Reader<'_>) -> Result<DeletePoint, Malformed> {
    Ok(DeletePoint { revision: Revision(reader.signed()?), source_key: reader.bytes()?.to_vec() })
}

fn read_sentinel(reader: &mut Reader<'_>) -> Result<CanaryPoint, Malformed> {
    Ok(CanaryPoint { revision: Revision(reader.signed()?), value: reader.bytes()?.to_vec() })
}

/// Writes a cluster's record.
pub(in crate::store) fn write_cluster(record: &ClusterRecord) -> Vec<u8> {
    let mut out = vec![FORM];
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

/// Reads a cluster's record back.
pub(in crate::store) fn read_cluster(body: &[u8]) -> Result<ClusterRecord, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    // every bit is a flag
    let flags = reader.byte()?;
    let last_contact = if flags & CLUSTER_CONTACT != 0 { Some(time_from_micros(reader.signed()?)?) } else { None };
    let config = if flags & CONFIG_PRESENT != 0 { Some(read_config(&mut reader, flags)?) } else { None };
    let count = if flags & CLUSTER_NOTICES != 0 { reader.varint()? } else { 0 };
    let notices = (0..count).map(|_| read_notice(&mut reader)).collect::<Result<_, _>>()?;
    reader.finish()?;
    Ok(ClusterRecord { config, last_contact, notices })
}

fn read_notice(reader: &mut Reader<'_>) -> Result<RawRecord, Malformed> {
    Ok(RawRecord {
        key: reader.text("key of a notice")?.into(),
        value: reader.bytes()?.into(),
        create_sequence: Sequence(reader.varint()?),
        last_sequence: Sequence(reader.varint()?),
        version: reader.varint()?,
    })
}

fn read_config(reader: &mut Reader<'_>, flags: u8) -> Result<ClusterConfig, Malformed> {
    let id = ClusterId(u32::try_from(reader.varint()?).map_err(|_| Malformed::Field("cluster id"))?);
    let max_connected_clusters = u32::try_from(reader.varint()?).map_err(|_| Malformed::Field("max connected clusters"))?;
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

/// Writes one of the marks, a plain number.
pub(super) fn write_number(number: u64) -> Vec<u8> {
    let mut out = vec![FORM];
    out.extend_from_slice(&number.to_le_bytes());
    out
}

/// Reads one of the marks back.
pub(in crate::store) fn read_number(body: &[u8]) -> Result<u64, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let number = reader.fixed()?;
    reader.finish()?;
    Ok(number)
}

/// Writes the number of the layout, sealed with its key.
pub(in crate::store) fn write_format(format: u64) -> Vec<u8> {
    let mut out = vec![FORM];
    out.extend_from_slice(&format.to_le_bytes());
    seal(FORMAT_KEY, out)
}

/// Reads it back.
pub(in crate::store) fn read_format(stored: &[u8]) -> Result<u64, Malformed> {
    read_number(unseal(FORMAT_KEY, stored)?)
}

const fn bit(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// Clamped at the ends of an `i64`, some 292,000 years away.
fn micros_since_1970(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

fn time_from_micros(micros: i64) -> Result<SystemTime, Malformed> {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { SystemTime::UNIX_EPOCH.checked_sub(distance) } else { SystemTime::UNIX_EPOCH.checked_add(distance) };
    time.ok_or(Malformed::Field("time"))
}
