//! Checksums of stored bytes, and the encoding of fields, which is re-exported from
//! [`crate::pack`].

pub(in crate::store) use crate::pack::{ByteReader, DecodeError, put_text, put_varint};

/// Length of a checksum, in bytes.
pub(in crate::store) const CHECKSUM_LENGTH: usize = 4;

/// Appends the checksum of `key` and the bytes.
pub(in crate::store) fn append_checksum(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(key, &value);
    value.extend_from_slice(&checksum);
    value
}

/// Returns the CRC-32 of a key and bytes, little-endian. The key is included so that a value under
/// another key does not match.
fn checksum(key: &[u8], bytes: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// Verifies the checksum of bytes that are stored under `key`, and returns the bytes before it.
pub(in crate::store) fn verify_checksum<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let (content, stored_checksum) = stored.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(DecodeError::Truncated)?;
    if checksum(key, content) == *stored_checksum { Ok(content) } else { Err(DecodeError::Checksum) }
}

/// Verifies the checksum and the format version, and returns a reader of the bytes that follow the
/// version.
pub(in crate::store) fn open_checked<'a>(key: &[u8], stored: &'a [u8], version: u8) -> Result<ByteReader<'a>, DecodeError> {
    ByteReader::with_version(verify_checksum(key, stored)?, version)
}
