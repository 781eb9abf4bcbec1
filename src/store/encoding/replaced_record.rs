//! Encodes and decodes one replaced record (docs/develop/store.md, "Keys and values").

use std::sync::Arc;

use super::checksum::{ByteReader, DecodeError, put_text};
use super::codec::{FORMAT_VERSION, decode_entry_name, decode_record, encode_record, entry_name};
use crate::model::{DeleteReason, ReplacedRecord};

/// Encodes a replaced record.
pub(super) fn encode(replaced: &ReplacedRecord) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.push(match replaced.deleted {
        None => 0,
        Some(DeleteReason::Deleted) => 1,
        Some(DeleteReason::ClusterRemoved) => 2,
    });
    put_text(&mut out, entry_name(&replaced.record.key).as_bytes());
    out.extend_from_slice(&encode_record(&replaced.record));
    out
}

pub(super) fn decode(body: &[u8]) -> Result<ReplacedRecord, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let deleted = match reader.byte()? {
        0 => None,
        1 => Some(DeleteReason::Deleted),
        2 => Some(DeleteReason::ClusterRemoved),
        _ => return Err(DecodeError::Field("reason")),
    };
    let key = decode_entry_name(reader.text("key")?).ok_or(DecodeError::Field("key"))?;
    Ok(ReplacedRecord { record: Arc::new(decode_record(key, reader.rest())?), deleted })
}
