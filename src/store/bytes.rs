//! The fields of stored values and the envelope around each: what is written, over the primitives of [`crate::pack`], which read it back.
//!
//! Owns: the checksum. Deliberately lacks: what the bytes mean (`codec`).

use crate::pack::put_varint;
pub(super) use crate::pack::{Malformed, Reader};

/// The bytes of a checksum.
pub(super) const CHECKSUM_LENGTH: usize = 4;

/// Appends fields to a value.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts a value of a form.
    pub(super) fn new(form: u8) -> Self {
        Self { bytes: vec![form] }
    }

    /// Appends one byte.
    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends a number of fixed size, little-endian.
    pub(super) fn fixed(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends a signed number of fixed size, two's complement, little-endian.
    pub(super) fn signed(&mut self, number: i64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends a number in groups of 7 bits (LEB128).
    pub(super) fn varint(&mut self, number: u64) {
        put_varint(&mut self.bytes, number);
    }

    /// Appends bytes as they are, without a length.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length and that many bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.raw(bytes);
    }

    /// How long it is so far.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// The fields alone, without an envelope.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Ends the value with the checksum of the key that it is stored at and all its bytes.
    pub(super) fn seal(mut self, key: &[u8]) -> Vec<u8> {
        let checksum = checksum(key, &self.bytes);
        self.bytes.extend_from_slice(&checksum);
        self.bytes
    }
}

/// The CRC-32 of a key and the value's bytes, little-endian: a value at another's key does not match either.
fn checksum(key: &[u8], bytes: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// Checks the checksum of a value that is stored at `key`, and takes it off.
pub(super) fn unseal<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (sealed, stored_checksum) = stored.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(Malformed::Truncated)?;
    if checksum(key, sealed) == *stored_checksum { Ok(sealed) } else { Err(Malformed::Checksum) }
}

/// Checks the envelope of a value that is stored at `key` and opens its body.
pub(super) fn open<'a>(key: &[u8], stored: &'a [u8], form: u8) -> Result<Reader<'a>, Malformed> {
    Reader::body(unseal(key, stored)?, form)
}
