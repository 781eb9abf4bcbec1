//! Fields of a chunk as bytes: numbers, lengths and where a text stands. Every read is checked against what is left, so no input
//! panics or allocates more than a small multiple of its own length.

use super::PackError;

/// A 64-bit number takes at most 10 groups of 7 bits.
const VARINT_LENGTH_MAX: u32 = 10;

/// Where some bytes stand within a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    /// How many bytes.
    pub(super) const fn length(self) -> usize {
        (self.end - self.start) as usize
    }

    /// The bytes; empty where they are not there, which a chunk that was checked never has.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Appends a number in groups of 7 bits, the lowest first, the top bit of each byte telling that more follow (LEB128).
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Appends a length and that many bytes.
pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// How many bytes a number needs, 0 for 0.
pub(super) fn width_of(number: u64) -> usize {
    8 - number.leading_zeros() as usize / 8
}

/// Appends the lowest `width` bytes of a number, little-endian: all eight, and then without what is too much, which is copied at once.
pub(super) fn put_fixed(out: &mut Vec<u8>, number: u64, width: usize) {
    let length = out.len() + width.min(8);
    out.extend_from_slice(&number.to_le_bytes());
    out.truncate(length);
}

/// The `index`-th number of an array of numbers of `width` bytes that begins at `start`; 0 where there is none.
pub(super) fn fixed_at(bytes: &[u8], start: u32, width: u8, index: usize) -> u64 {
    let width = usize::from(width);
    let at = start as usize + index * width;
    // the usual widths without a loop
    match (width, bytes.get(at..at + width)) {
        (1, Some(one)) => u64::from(one[0]),
        (2, Some(two)) => u64::from(two[0]) | u64::from(two[1]) << 8,
        (_, Some(found)) => found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        (_, None) => 0,
    }
}

/// The `count` numbers of an array of numbers of `width` bytes that begins at `start`.
pub(super) fn all_fixed(bytes: &[u8], start: u32, width: u8, count: usize) -> impl Iterator<Item = u64> {
    let width = usize::from(width.min(8));
    let mask = 1_u64.checked_shl(8 * u32::try_from(width).unwrap_or(8)).map_or(u64::MAX, |above| above - 1);
    (0..count).map(move |index| {
        let rest = bytes.get(start as usize + index * width..).unwrap_or_default();
        match rest.first_chunk::<8>() {
            Some(found) => u64::from_le_bytes(*found) & mask,
            // near the end of the chunk
            None => rest.iter().take(width).rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        }
    })
}

/// Takes fields off a chunk, one after another.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// All bytes of the chunk, those that were taken too.
    pub(super) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<Span, PackError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(PackError::Truncated)?;
        let span = Span { start: narrow(self.at)?, end: narrow(end)? };
        self.at = end;
        Ok(span)
    }

    pub(super) fn byte(&mut self) -> Result<u8, PackError> {
        let byte = self.bytes.get(self.at).copied().ok_or(PackError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn varint(&mut self) -> Result<u64, PackError> {
        let mut number = 0;
        for group in 0..VARINT_LENGTH_MAX {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(7 * group).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(PackError::Field("number"))
    }

    /// A number that may not exceed a bound.
    pub(super) fn count(&mut self, most: usize) -> Result<usize, PackError> {
        usize::try_from(self.varint()?).ok().filter(|count| *count <= most).ok_or(PackError::Field("count"))
    }

    /// A length and that many bytes.
    pub(super) fn text(&mut self) -> Result<Span, PackError> {
        let length = self.count(self.bytes.len())?;
        self.take(length)
    }

    pub(super) fn fixed(&mut self) -> Result<u64, PackError> {
        let span = self.take(8)?;
        Ok(fixed_at(self.bytes, span.start, 8, 0))
    }

    /// The width of a fixed number: 0 to 8 bytes.
    pub(super) fn width(&mut self) -> Result<u8, PackError> {
        Some(self.byte()?).filter(|width| *width <= 8).ok_or(PackError::Field("width"))
    }

    /// An array of `count` numbers of a width: where it starts.
    pub(super) fn array(&mut self, count: usize, width: u8) -> Result<u32, PackError> {
        let length = count.checked_mul(usize::from(width)).ok_or(PackError::Truncated)?;
        Ok(self.take(length)?.start)
    }
}

fn narrow(position: usize) -> Result<u32, PackError> {
    u32::try_from(position).map_err(|_| PackError::Field("length"))
}
