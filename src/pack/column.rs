//! A column of byte strings: its layout, and how to read it. The module `form_choice` chooses the
//! form of a column and writes the column.
//!
//! Bytes: `form (1) · body · varint exceptions · exceptions × (varint row, text)`. Rows count from
//! 0 within the column. `text` is a varint length and that many bytes. An exception replaces the
//! value that the form gives to its row.
//!
//! | form | body | value of a row |
//! |---|---|---|
//! | 0 | text | this text |
//! | 1, 2, 3 | – | name in the row's key: all, the part before the first `/`, the part after it |
//! | 4 | texts `T` · width (1) · rows × width | `T` at the index of the row |
//! | 5 | numbers | number in decimal |
//! | 6 | rows × 4 | IPv4 address |
//! | 7 | rows × 16 | UUID in lower case |
//! | 8 | body of form 4 · texts | `T` at the row's index, `-`, text of the row |
//! | 9 | texts | text of the row |
//! | 10 | varint column | value of an earlier column of the template |
//!
//! Texts: `varint count · text (common prefix) · width (1) · count × width (ends) · bytes`. The
//! ends count from the start of `bytes`.

use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Range;

use super::DecodeError;
use super::byte_reader::{ByteReader, ByteSpan, fixed_number, fixed_numbers};
use super::number_column::NumberColumn;

pub(super) const CONSTANT: u8 = 0;
pub(super) const NAME: u8 = 1;
pub(super) const NAME_HEAD: u8 = 2;
pub(super) const NAME_TAIL: u8 = 3;
pub(super) const TABLE: u8 = 4;
pub(super) const DECIMAL: u8 = 5;
pub(super) const IPV4: u8 = 6;
pub(super) const UUID: u8 = 7;
pub(super) const SPLIT: u8 = 8;
pub(super) const TEXTS: u8 = 9;
pub(super) const SAME: u8 = 10;

/// Length of a UUID as text: 8, 4, 4, 4 and 12 hexadecimal digits with dashes.
pub(super) const UUID_TEXT_LENGTH: usize = 36;

/// Positions of the dashes in a UUID.
const UUID_DASHES: [usize; 4] = [8, 13, 18, 23];

/// A list of texts that stores their common prefix once.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextList {
    pub(super) prefix: ByteSpan,
    pub(super) count: u32,
    width: u8,
    ends: u32,
    pub(super) bytes: ByteSpan,
    /// Whether a text has an upper-case letter after the common prefix.
    pub(super) has_upper_case: bool,
    /// Length of the longest text without the common prefix.
    longest: u32,
}

/// A list of texts with an index per row.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextTable {
    pub(super) texts: TextList,
    width: u8,
    start: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ColumnForm {
    Constant(ByteSpan),
    Name,
    NameHead,
    NameTail,
    Table(TextTable),
    Decimal(NumberColumn),
    Ipv4(u32),
    Uuid(u32),
    Split(TextTable, TextList),
    Texts(TextList),
    Same(u32),
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) form: ColumnForm,
    /// Row and value of each exception, in order of rows.
    exceptions: Box<[(u32, ByteSpan)]>,
}

/// Arguments that a row's value depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowInput<'a> {
    /// Bytes of the chunk.
    pub(super) bytes: &'a [u8],
    /// Name in the row's key. Empty in the column of names itself.
    pub(super) name: &'a [u8],
    /// Row within the column.
    pub(super) index: usize,
}

impl TextList {
    fn read(reader: &mut ByteReader<'_>, count_max: usize) -> Result<Self, DecodeError> {
        let count = reader.count(count_max)?;
        let prefix = reader.span()?;
        let width = reader.width()?;
        let ends = reader.numbers(count, width)?;
        let (mut last, mut longest) = (0, 0);
        for index in 0..count {
            let end = fixed_number(reader.all(), ends, width, index);
            if end < last {
                return Err(DecodeError::Field("end of a text"));
            }
            longest = longest.max(end - last);
            last = end;
        }
        let bytes = reader.skip(usize::try_from(last).map_err(|_| DecodeError::Truncated)?)?;
        let count = u32::try_from(count).map_err(|_| DecodeError::Field("count"))?;
        // no text is longer than all texts together, whose length fits a `u32`
        let longest = u32::try_from(longest).map_err(|_| DecodeError::Truncated)?;
        // without an early end, so that it runs over many bytes at once
        let has_upper_case = bytes.slice(reader.all()).iter().fold(false, |has, byte| has | byte.is_ascii_uppercase());
        Ok(Self { prefix, count, width, ends, bytes, has_upper_case, longest })
    }

    /// Returns the length of the longest text, with the common prefix.
    fn value_length_max(self) -> usize {
        self.prefix.length() + self.longest as usize
    }

    /// Returns a text without the common prefix.
    pub(super) fn suffix(self, bytes: &[u8], index: usize) -> &[u8] {
        let end_of = |index| usize::try_from(fixed_number(bytes, self.ends, self.width, index)).unwrap_or(0);
        let start = index.checked_sub(1).map_or(0, end_of);
        self.bytes.slice(bytes).get(start..end_of(index)).unwrap_or_default()
    }

    /// Returns whether a text without the common prefix has this position in `bytes`.
    pub(super) fn has_text_at(self, text: Range<usize>, bytes: &[u8]) -> bool {
        let end_of = |index| usize::try_from(fixed_number(bytes, self.ends, self.width, index)).unwrap_or(0);
        // index of the first text that does not end before the position ends
        let (mut low, mut high) = (0, self.count as usize);
        while low < high {
            let middle = low.midpoint(high);
            if end_of(middle) < text.end { low = middle + 1 } else { high = middle }
        }
        low < self.count as usize && end_of(low) == text.end && text.start == low.checked_sub(1).map_or(0, end_of)
    }

    /// Returns the start of the first text and the end of each, relative to `bytes`.
    pub(super) fn all_ends(self, bytes: &[u8]) -> Vec<u32> {
        let ends = fixed_numbers(bytes, self.ends, self.width, self.count as usize).map(|end| u32::try_from(end).unwrap_or(0));
        std::iter::once(0).chain(ends).collect()
    }

    /// Returns consecutive texts without the common prefix. `ends` are those of
    /// [`TextList::all_ends`].
    pub(super) fn between<'a>(self, bytes: &'a [u8], ends: &[u32], indices: Range<usize>) -> &'a [u8] {
        self.bytes.slice(bytes).get(ends[indices.start] as usize..ends[indices.end] as usize).unwrap_or_default()
    }

    pub(super) fn append(self, bytes: &[u8], index: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.slice(bytes));
        out.extend_from_slice(self.suffix(bytes, index));
    }
}

impl TextTable {
    fn read(reader: &mut ByteReader<'_>, count: usize) -> Result<Self, DecodeError> {
        let texts = TextList::read(reader, count)?;
        let width = reader.width()?;
        let start = reader.numbers(count, width)?;
        let is_valid = |index| fixed_number(reader.all(), start, width, index) < u64::from(texts.count);
        if (0..count).all(is_valid) { Ok(Self { texts, width, start }) } else { Err(DecodeError::Field("text index")) }
    }

    /// Returns the index of a row's text.
    pub(super) fn text_index(self, bytes: &[u8], index: usize) -> usize {
        usize::try_from(fixed_number(bytes, self.start, self.width, index)).unwrap_or(0)
    }

    fn append(self, bytes: &[u8], index: usize, out: &mut Vec<u8>) {
        self.texts.append(bytes, self.text_index(bytes, index), out);
    }
}

impl Column {
    /// Reads and checks a column of `count` rows. `earlier` is the number of previous columns in
    /// its template.
    pub(super) fn read(reader: &mut ByteReader<'_>, count: usize, earlier: usize) -> Result<Self, DecodeError> {
        let form = match reader.byte()? {
            CONSTANT => ColumnForm::Constant(reader.span()?),
            NAME => ColumnForm::Name,
            NAME_HEAD => ColumnForm::NameHead,
            NAME_TAIL => ColumnForm::NameTail,
            TABLE => ColumnForm::Table(TextTable::read(reader, count)?),
            DECIMAL => ColumnForm::Decimal(NumberColumn::read(reader, count)?),
            IPV4 => ColumnForm::Ipv4(reader.numbers(count, 4)?),
            UUID => ColumnForm::Uuid(reader.numbers(count, 16)?),
            SPLIT => ColumnForm::Split(TextTable::read(reader, count)?, read_row_texts(reader, count)?),
            TEXTS => ColumnForm::Texts(read_row_texts(reader, count)?),
            SAME => ColumnForm::Same(read_same(reader, earlier)?),
            _ => return Err(DecodeError::Field("form of a column")),
        };
        let exception_count = reader.count(count)?;
        // each exception needs at least two bytes, so a false count fails early
        let mut exceptions: Vec<(u32, ByteSpan)> = Vec::new();
        for _ in 0..exception_count {
            let row = u32::try_from(reader.count(count)?).map_err(|_| DecodeError::Field("row"))?;
            if exceptions.last().is_some_and(|(last, _)| *last >= row) {
                return Err(DecodeError::Field("row of an exception"));
            }
            exceptions.push((row, reader.span()?));
        }
        Ok(Self { form, exceptions: exceptions.into() })
    }

    /// Returns an upper bound on the length of a value, if names have at most `name_length_max`
    /// bytes. Rows that refer to an earlier column count as 0.
    pub(super) fn value_length_max(&self, name_length_max: usize) -> usize {
        let form_max = match self.form {
            ColumnForm::Constant(span) => span.length(),
            ColumnForm::Name | ColumnForm::NameHead | ColumnForm::NameTail => name_length_max,
            ColumnForm::Table(table) => table.texts.value_length_max(),
            // u64::MAX
            ColumnForm::Decimal(_) => 20,
            // 255.255.255.255
            ColumnForm::Ipv4(_) => 15,
            ColumnForm::Uuid(_) => UUID_TEXT_LENGTH,
            ColumnForm::Split(heads, tails) => heads.texts.value_length_max() + 1 + tails.value_length_max(),
            ColumnForm::Texts(texts) => texts.value_length_max(),
            ColumnForm::Same(_) => 0,
        };
        self.exceptions.iter().map(|(_, span)| span.length()).fold(form_max, usize::max)
    }

    /// Returns the earlier column that has the value of a row, if there is one.
    pub(super) fn same_as(&self, index: usize) -> Option<usize> {
        match self.form {
            ColumnForm::Same(column) if self.exception(index).is_none() => Some(column as usize),
            _ => None,
        }
    }

    /// Appends the value of a row. Appends nothing if an earlier column has it.
    pub(super) fn append(&self, row: RowInput<'_>, out: &mut Vec<u8>) {
        let RowInput { bytes, name, index } = row;
        if let Some(span) = self.exception(index) {
            return out.extend_from_slice(span.slice(bytes));
        }
        match self.form {
            ColumnForm::Constant(span) => out.extend_from_slice(span.slice(bytes)),
            ColumnForm::Name => out.extend_from_slice(name),
            ColumnForm::NameHead => out.extend_from_slice(name_head(name).unwrap_or_default()),
            ColumnForm::NameTail => out.extend_from_slice(name_tail(name).unwrap_or_default()),
            ColumnForm::Table(table) => table.append(bytes, index, out),
            ColumnForm::Decimal(numbers) => append_decimal(numbers.get(bytes, index), out),
            ColumnForm::Ipv4(start) => append_ipv4(fixed_number(bytes, start, 4, index), out),
            ColumnForm::Uuid(start) => append_uuid(bytes, start as usize + index * 16, out),
            ColumnForm::Split(heads, tails) => {
                heads.append(bytes, index, out);
                out.push(b'-');
                tails.append(bytes, index, out);
            }
            ColumnForm::Texts(texts) => texts.append(bytes, index, out),
            ColumnForm::Same(_) => {}
        }
    }

    /// Returns the address of a row, if the column has form 6 and the row is not an exception.
    pub(super) fn ipv4(&self, bytes: &[u8], index: usize) -> Option<Ipv4Addr> {
        match self.form {
            ColumnForm::Ipv4(start) if self.exception(index).is_none() => {
                u32::try_from(fixed_number(bytes, start, 4, index)).ok().map(Ipv4Addr::from)
            }
            _ => None,
        }
    }

    /// Returns the row and the value of each exception.
    pub(super) fn exceptions(&self) -> &[(u32, ByteSpan)] {
        &self.exceptions
    }

    /// Returns the exceptions within a range of rows.
    pub(super) fn exceptions_in(&self, rows: Range<usize>) -> &[(u32, ByteSpan)] {
        let position = |row: usize| self.exceptions.partition_point(|(exception_row, _)| (*exception_row as usize) < row);
        if self.exceptions.is_empty() { &[] } else { &self.exceptions[position(rows.start)..position(rows.end)] }
    }

    fn exception(&self, index: usize) -> Option<ByteSpan> {
        if self.exceptions.is_empty() {
            return None;
        }
        let position = self.exceptions.binary_search_by(|(row, _)| (*row as usize).cmp(&index)).ok()?;
        Some(self.exceptions[position].1)
    }
}

fn read_row_texts(reader: &mut ByteReader<'_>, count: usize) -> Result<TextList, DecodeError> {
    let texts = TextList::read(reader, count)?;
    if texts.count as usize == count { Ok(texts) } else { Err(DecodeError::Field("count of texts")) }
}

fn read_same(reader: &mut ByteReader<'_>, earlier: usize) -> Result<u32, DecodeError> {
    let column = reader.varint()?;
    u32::try_from(column).ok().filter(|column| (*column as usize) < earlier).ok_or(DecodeError::Field("earlier column"))
}

/// Returns the part of a name before its first `/`.
pub(super) fn name_head(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|byte| *byte == b'/').and_then(|slash| name.get(..slash))
}

/// Returns the part of a name after its first `/`.
pub(super) fn name_tail(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|byte| *byte == b'/').and_then(|slash| name.get(slash + 1..))
}

pub(super) fn append_decimal(number: u64, out: &mut Vec<u8>) {
    // writing into a vector cannot fail
    let _ = write!(out, "{number}");
}

fn append_ipv4(number: u64, out: &mut Vec<u8>) {
    for (index, shift) in [24, 16, 8, 0].into_iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        let octet = (number >> shift & 0xff).to_le_bytes()[0];
        append_octet(octet, out);
    }
}

fn append_octet(octet: u8, out: &mut Vec<u8>) {
    if octet >= 100 {
        out.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        out.push(b'0' + octet / 10 % 10);
    }
    out.push(b'0' + octet % 10);
}

fn append_uuid(bytes: &[u8], start: usize, out: &mut Vec<u8>) {
    for (index, byte) in bytes.get(start..start + 16).unwrap_or_default().iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            out.push(b'-');
        }
        out.push(hex_digit(byte >> 4));
        out.push(hex_digit(byte & 0xf));
    }
}

const fn hex_digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

/// Parses an IPv4 address in the form that `append_ipv4` writes.
pub(super) fn parse_ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    if text.len() < 7 || text.len() > 15 {
        return None;
    }
    // the standard parser rejects leading zeros, so an accepted text is the canonical one
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a UUID in the form that `append_uuid` writes.
pub(super) fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != UUID_TEXT_LENGTH || UUID_DASHES.iter().any(|position| text[*position] != b'-') {
        return None;
    }
    let mut uuid = [0; 16];
    let mut nibbles = text.iter().enumerate().filter(|(position, _)| !UUID_DASHES.contains(position)).map(|(_, digit)| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    });
    for byte in &mut uuid {
        *byte = nibbles.next()?? << 4 | nibbles.next()??;
    }
    Some(uuid)
}

/// Parses a number in the form that `append_decimal` writes.
pub(super) fn parse_decimal(text: &[u8]) -> Option<u64> {
    let canonical = !text.is_empty() && text.len() <= 19 && text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text[0] != b'0');
    canonical.then(|| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}
