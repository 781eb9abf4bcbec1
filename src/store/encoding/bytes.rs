//! The envelope around each stored value. Its fields are written and read back by the primitives of [`crate::pack`].
//!
//! Owns: the checksum. Deliberately lacks: what the bytes mean (`codec`).

pub(in crate::store) use crate::pack::{Malformed, Reader, put_text, put_varint};

/// The bytes of a checksum.
pub(in crate::store) const CHECKSUM_LENGTH: usize = 4;

/// Ends a value with the checksum of the key that it is stored at and all its bytes.
pub(in crate::store) fn seal(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(key, &value);
    value.extend_from_slice(&checksum);
    value
}

/// The CRC-32 of a key and the value's bytes, little-endian: a value at another's key does not match either.
fn checksum(key: &[u8], bytes: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// Checks the checksum of a value that is stored at `key`, and takes it off.
pub(in crate::store) fn unseal<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (sealed, stored_checksum) = stored.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(Malformed::Truncated)?;
    if checksum(key, sealed) == *stored_checksum { Ok(sealed) } else { Err(Malformed::Checksum) }
}

/// Checks the envelope of a value that is stored at `key` and opens its body.
pub(in crate::store) fn open<'a>(key: &[u8], stored: &'a [u8], form: u8) -> Result<Reader<'a>, Malformed> {
    Reader::body(unseal(key, stored)?, form)
}
