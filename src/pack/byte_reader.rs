//! Primitive encodings of chunks and of the store: numbers, lengths, byte strings and spans of
//! bytes in a chunk.
//!
//! Every read is checked against the remaining bytes. No input can cause a panic, or an allocation
//! of more than a small multiple of its own length.

use thiserror::Error;

/// Maximum length of a varint in bytes: 64 bits in groups of 7.
const VARINT_LENGTH_MAX: u32 = 10;

/// Error for bytes that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("the value ends too early")]
    Truncated,
    /// The checksum does not match the bytes.
    #[error("the checksum does not match")]
    Checksum,
    /// This version does not know the format version of the value.
    #[error("the value has format version {0}, which this version of meshkeep does not support")]
    UnknownVersion(u8),
    /// A field has an invalid value.
    #[error("the field {0} has an invalid value")]
    Field(&'static str),
}

/// Range of bytes within a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ByteSpan {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl ByteSpan {
    pub(super) const fn length(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns the bytes of the span, or an empty slice if it is out of range, which cannot happen
    /// in a checked chunk.
    pub(super) fn slice(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Appends a number as LEB128: groups of 7 bits, the lowest first, with the top bit set if more
/// follow.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Appends a length and that many bytes, which need not be UTF-8. [`ByteReader::bytes`] reads them.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// Returns the length of the common prefix of two byte strings.
pub(crate) fn common_prefix_length(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// Returns the number of bytes that a number needs, 0 for 0.
pub(super) fn width_of(number: u64) -> usize {
    8 - number.leading_zeros() as usize / 8
}

/// Appends the lowest `width` bytes of a number, little-endian. It copies all eight bytes and
/// truncates, because a copy of fixed length is faster.
pub(super) fn put_fixed(out: &mut Vec<u8>, number: u64, width: usize) {
    let length = out.len() + width.min(8);
    out.extend_from_slice(&number.to_le_bytes());
    out.truncate(length);
}

/// Returns the number at `index` in an array that begins at `start`, with `width` bytes per number;
/// 0 if out of range.
pub(super) fn fixed_number(bytes: &[u8], start: u32, width: u8, index: usize) -> u64 {
    let width = usize::from(width);
    let first = start as usize + index * width;
    // the common widths without a loop
    match (width, bytes.get(first..first + width)) {
        (1, Some(one)) => u64::from(one[0]),
        (2, Some(two)) => u64::from(two[0]) | u64::from(two[1]) << 8,
        (_, Some(number_bytes)) => number_bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        (_, None) => 0,
    }
}

/// Iterates over an array of `count` numbers that begins at `start`, with `width` bytes per number.
pub(super) fn fixed_numbers(bytes: &[u8], start: u32, width: u8, count: usize) -> impl Iterator<Item = u64> {
    let width = usize::from(width.min(8));
    let mask = 1_u64.checked_shl(8 * u32::try_from(width).unwrap_or(8)).map_or(u64::MAX, |limit| limit - 1);
    (0..count).map(move |index| {
        let rest = bytes.get(start as usize + index * width..).unwrap_or_default();
        match rest.first_chunk::<8>() {
            Some(eight_bytes) => u64::from_le_bytes(*eight_bytes) & mask,
            // fewer than eight bytes are left before the end of the chunk
            None => rest.iter().take(width).rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        }
    })
}

/// A reader of consecutive fields.
#[derive(Debug)]
pub(crate) struct ByteReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> ByteReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Opens a reader after the first byte, which must be the format version `version`.
    pub(crate) fn with_version(bytes: &'a [u8], version: u8) -> Result<Self, DecodeError> {
        let mut reader = Self::new(bytes);
        let actual = reader.byte()?;
        if actual == version { Ok(reader) } else { Err(DecodeError::UnknownVersion(actual)) }
    }

    /// Returns all bytes, including those already read.
    pub(super) const fn all(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) const fn remaining_length(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.remaining_length() == 0
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// Checks that no bytes remain.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(DecodeError::Field("end")) }
    }

    /// Skips `length` bytes and returns their span.
    pub(super) fn skip(&mut self, length: usize) -> Result<ByteSpan, DecodeError> {
        let start = to_u32(self.position)?;
        self.next_bytes(length)?;
        Ok(ByteSpan { start, end: to_u32(self.position)? })
    }

    fn next_bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.position.checked_add(length).ok_or(DecodeError::Truncated)?;
        let slice = self.bytes.get(self.position..end).ok_or(DecodeError::Truncated)?;
        self.position = end;
        Ok(slice)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = self.bytes.get(self.position).copied().ok_or(DecodeError::Truncated)?;
        self.position += 1;
        Ok(byte)
    }

    /// Reads a byte whose bits outside `known` must be 0.
    pub(crate) fn flags(&mut self, known: u8) -> Result<u8, DecodeError> {
        Some(self.byte()?).filter(|flags| flags & !known == 0).ok_or(DecodeError::Field("flags"))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.next_bytes(N)?.try_into().map_err(|_| DecodeError::Truncated)
    }

    /// Reads eight bytes, little-endian.
    pub(crate) fn read_u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads eight bytes as a signed number, little-endian.
    pub(crate) fn read_i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads a LEB128 number.
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0_u64;
        for group in 0..VARINT_LENGTH_MAX {
            let byte = self.byte()?;
            let low = u64::from(byte & 0x7f);
            let shifted = low << (7 * group);
            if shifted >> (7 * group) != low {
                return Err(DecodeError::Field("varint"));
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Field("varint"))
    }

    /// Reads a varint that must not exceed `max`.
    pub(super) fn count(&mut self, max: usize) -> Result<usize, DecodeError> {
        usize::try_from(self.varint()?).ok().filter(|count| *count <= max).ok_or(DecodeError::Field("count"))
    }

    /// Reads a length and that many bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        self.next_bytes(length)
    }

    /// Reads a length and that many bytes of UTF-8.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::Field(field))
    }

    /// Skips a length and that many bytes, and returns the span of the bytes.
    pub(super) fn span(&mut self) -> Result<ByteSpan, DecodeError> {
        let length = self.count(self.bytes.len())?;
        self.skip(length)
    }

    /// Reads the width of fixed numbers: 0 to 8 bytes.
    pub(super) fn width(&mut self) -> Result<u8, DecodeError> {
        Some(self.byte()?).filter(|width| *width <= 8).ok_or(DecodeError::Field("width"))
    }

    /// Skips an array of `count` numbers and returns its start.
    pub(super) fn numbers(&mut self, count: usize, width: u8) -> Result<u32, DecodeError> {
        let length = count.checked_mul(usize::from(width)).ok_or(DecodeError::Truncated)?;
        Ok(self.skip(length)?.start)
    }
}

fn to_u32(position: usize) -> Result<u32, DecodeError> {
    u32::try_from(position).map_err(|_| DecodeError::Field("length"))
}
