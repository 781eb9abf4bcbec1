//! A column of numbers.
//!
//! The numbers are stored as differences from the least, in as few bytes as the largest difference
//! needs (none if all are equal), or as indices into a table of distinct numbers.
//!
//! Bytes: `form (1)`, then for form 0 `least (8) · width (1) · count × width`, and for form 1
//! `varint distinct · distinct × 8 · width (1) · count × width`.

use super::DecodeError;
use super::byte_reader::{ByteReader, fixed_number, fixed_numbers, put_fixed, put_varint, width_of};

/// Maximum number of distinct numbers in a table, so that an index fits in one byte.
const TABLE_LENGTH_MAX: usize = 256;

/// Number of hash slots for finding distinct numbers, a power of two: four times the maximum length
/// of a table.
const DISTINCT_SLOTS: usize = 1_024;

const PLAIN: u8 = 0;
const TABLE: u8 = 1;

#[derive(Debug, Clone, Copy)]
pub(super) enum NumberColumn {
    Plain { least: u64, start: u32, width: u8 },
    Table { table: u32, length: u32, start: u32, width: u8 },
}

pub(super) fn put_numbers(out: &mut Vec<u8>, values: &[u64]) {
    let least = values.iter().copied().min().unwrap_or(0);
    let most = values.iter().copied().max().unwrap_or(0);
    let width = width_of(most - least);
    if let Some(table) = worthwhile_table(values, width) {
        out.push(TABLE);
        put_varint(out, table.len() as u64);
        table.iter().for_each(|number| put_fixed(out, *number, 8));
        let width = usize::from(table.len() > 1);
        out.push(u8::from(width == 1));
        values.iter().for_each(|value| put_fixed(out, table.binary_search(value).unwrap_or(0) as u64, width));
        return;
    }
    out.push(PLAIN);
    put_fixed(out, least, 8);
    out.extend_from_slice(&width.to_le_bytes()[..1]);
    values.iter().for_each(|value| put_fixed(out, value - least, width));
}

/// Returns the distinct numbers in order, if a table is shorter than the differences.
fn worthwhile_table(values: &[u64], width: usize) -> Option<Vec<u64>> {
    if width < 2 {
        return None;
    }
    let mut table = distinct(values)?;
    table.sort_unstable();
    (table.len() * 8 + values.len() < values.len() * width).then_some(table)
}

/// Returns the distinct numbers in any order, or `None` if there are too many for a table. It runs
/// for every column of numbers, so it must reject quickly.
fn distinct(values: &[u64]) -> Option<Vec<u64>> {
    let mut table = Vec::new();
    // index in the table plus one, or 0 if the slot is empty
    let mut slots = [0_u16; DISTINCT_SLOTS];
    for value in values {
        // the upper bits of a product with a large odd number are well mixed
        let mut slot = usize::try_from(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54).unwrap_or(0);
        while usize::from(slots[slot]).checked_sub(1).is_some_and(|position| table[position] != *value) {
            slot = (slot + 1) % DISTINCT_SLOTS;
        }
        if slots[slot] == 0 {
            if table.len() == TABLE_LENGTH_MAX {
                return None;
            }
            table.push(*value);
            slots[slot] = u16::try_from(table.len()).unwrap_or(u16::MAX);
        }
    }
    Some(table)
}

impl NumberColumn {
    /// Reads and checks a column of `count` numbers.
    pub(super) fn read(reader: &mut ByteReader<'_>, count: usize) -> Result<Self, DecodeError> {
        match reader.byte()? {
            PLAIN => {
                let least = reader.read_u64()?;
                let width = reader.width()?;
                Ok(Self::Plain { least, start: reader.numbers(count, width)?, width })
            }
            TABLE => {
                let length = reader.count(TABLE_LENGTH_MAX)?;
                let table = reader.numbers(length, 8)?;
                let width = reader.width()?;
                let start = reader.numbers(count, width)?;
                let length = u32::try_from(length).map_err(|_| DecodeError::Field("table"))?;
                let is_valid = |index| fixed_number(reader.all(), start, width, index) < u64::from(length);
                if (0..count).all(is_valid) {
                    Ok(Self::Table { table, length, start, width })
                } else {
                    Err(DecodeError::Field("table index"))
                }
            }
            _ => Err(DecodeError::Field("form of a number column")),
        }
    }

    /// Returns the number at an index, which must be below the count.
    pub(super) fn get(self, bytes: &[u8], index: usize) -> u64 {
        match self {
            Self::Plain { least, start, width } => least.wrapping_add(fixed_number(bytes, start, width, index)),
            Self::Table { table, start, width, .. } => {
                let entry = usize::try_from(fixed_number(bytes, start, width, index)).unwrap_or(usize::MAX);
                fixed_number(bytes, table, 8, entry)
            }
        }
    }

    /// Returns the numbers of all `count` rows.
    pub(super) fn all(self, bytes: &[u8], count: usize) -> Vec<u64> {
        match self {
            Self::Plain { least, start, width } => {
                fixed_numbers(bytes, start, width, count).map(|difference| least.wrapping_add(difference)).collect()
            }
            Self::Table { table, length, start, width } => {
                let table: Vec<u64> = fixed_numbers(bytes, table, 8, length as usize).collect();
                let entry = |entry| usize::try_from(entry).ok().and_then(|entry| table.get(entry)).copied().unwrap_or(0);
                fixed_numbers(bytes, start, width, count).map(entry).collect()
            }
        }
    }

    /// Returns `false` only if the column does not contain the number. `true` may be wrong if the
    /// column has no table.
    pub(super) fn may_contain(self, bytes: &[u8], number: u64) -> bool {
        match self {
            Self::Plain { least, width, .. } => {
                let most = if width >= 8 { u64::MAX } else { (1 << (8 * u32::from(width))) - 1 };
                number.checked_sub(least).is_some_and(|difference| difference <= most)
            }
            Self::Table { table, length, .. } => {
                let entries = bytes.get(table as usize..).unwrap_or_default().chunks_exact(8).take(length as usize);
                // without an early end, so that it compares many entries at once
                entries.fold(false, |has, entry| has | (entry == number.to_le_bytes()))
            }
        }
    }

    /// Returns the number of earlier rows with the same number.
    pub(super) fn rank(self, bytes: &[u8], index: usize) -> usize {
        match self {
            Self::Plain { width: 0, .. } => index,
            Self::Plain { start, width: 1, .. } => {
                let rows = bytes.get(start as usize..start as usize + index).unwrap_or_default();
                let wanted = fixed_number(bytes, start, 1, index).to_le_bytes()[0];
                rows.iter().filter(|row| **row == wanted).count()
            }
            Self::Plain { .. } | Self::Table { .. } => {
                let wanted = self.get(bytes, index);
                (0..index).filter(|row| self.get(bytes, *row) == wanted).count()
            }
        }
    }
}
