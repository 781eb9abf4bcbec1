//! The primitives of the codec: numbers, lengths and byte strings, and the envelope around every stored value.
//!
//! Owns: how a number becomes bytes, and the checksum. Receives: bytes that may have been damaged in any way; every read is checked
//! against what is left, so no input panics or allocates more than its own length. Deliberately lacks: what the bytes mean (`codec`).

use thiserror::Error;

/// The bytes of a checksum.
pub(super) const CHECKSUM_LENGTH: usize = 4;

/// A 64-bit number takes at most 10 groups of 7 bits.
const VARINT_LENGTH_MAX: u32 = 10;

/// Why stored bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Malformed {
    /// The bytes end inside a field.
    #[error("the value ends too early")]
    Truncated,
    /// The checksum is that of other bytes.
    #[error("the checksum does not match")]
    Checksum,
    /// The value has a form that this version does not know.
    #[error("the value has form {0}, which this version does not know")]
    UnknownForm(u8),
    /// A field holds what it cannot hold.
    #[error("the field {0} holds what it cannot hold")]
    Field(&'static str),
}

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

    /// Appends a number in groups of 7 bits, the lowest first, the top bit of each byte telling that more follow (LEB128).
    pub(super) fn varint(&mut self, mut number: u64) {
        loop {
            let low = number.to_le_bytes()[0] & 0x7f;
            number >>= 7;
            if number == 0 {
                return self.bytes.push(low);
            }
            self.bytes.push(low | 0x80);
        }
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

/// Takes fields off a value.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the envelope of a value that is stored at `key` and opens its body.
    pub(super) fn open(key: &[u8], stored: &'a [u8], form: u8) -> Result<Self, Malformed> {
        Self::body(unseal(key, stored)?, form)
    }

    /// Opens a form and its body, whose checksum was checked with what they are part of.
    pub(super) fn body(bytes: &'a [u8], form: u8) -> Result<Self, Malformed> {
        let (found, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
        if *found == form { Ok(Self { rest }) } else { Err(Malformed::UnknownForm(*found)) }
    }

    /// Reads fields that have no envelope.
    pub(super) const fn over(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many bytes are left.
    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Takes everything that is left.
    pub(super) const fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Takes one byte.
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.rest.split_first().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    /// Takes as many bytes as the array has.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Takes a number of fixed size.
    pub(super) fn fixed(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a signed number of fixed size.
    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    /// Takes a number in groups of 7 bits.
    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for group in 0..VARINT_LENGTH_MAX {
            let byte = self.byte()?;
            let low = u64::from(byte & 0x7f);
            let shifted = low << (7 * group);
            if shifted >> (7 * group) != low {
                return Err(Malformed::Field("varint"));
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed::Field("varint"))
    }

    /// Takes a length and that many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes a length and that many bytes of UTF-8.
    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Field(field))
    }

    /// Takes a byte whose bits outside `known` must be clear.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, Malformed> {
        let flags = self.byte()?;
        if flags & !known == 0 { Ok(flags) } else { Err(Malformed::Field("flags")) }
    }

    /// Ends the value: nothing may be left.
    pub(super) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Field("end")) }
    }
}
