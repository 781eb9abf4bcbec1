//! Replaced records in the log (docs/develop/store.md, "Keys and values"). Chunks never contain
//! them.
//!
//! A group has one key `h` + sequence for each replaced record, and one key `r` + last sequence for
//! its range, with the number of records and the times of the changes. A start uses a range only if
//! it can read all of its records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::block::KeyValueBlock;
use super::checksum::{ByteReader, DecodeError, put_varint};
use super::codec::{REPLACED_RANGE_TAG, REPLACED_TAG, micros_since_1970, time_from_micros};
use super::replaced_record;
use super::stored_value::{KeyBytes, StoredValue};
use crate::model::{ReplacedRecord, ReplacedRecords, Sequence};

/// Format version of both values.
const FORMAT_VERSION: u8 = 1;

/// Range of sequences in the log.
#[derive(Debug)]
struct StoredRange {
    after: Sequence,
    last: Sequence,
    record_count: u64,
    times: Vec<(Sequence, SystemTime)>,
}

/// Replaced records in the blocks of a recovered log, not decoded yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplacedLog(Vec<Arc<KeyValueBlock>>);

fn sequence_key(tag: u8, sequence: Sequence) -> KeyBytes {
    [&[tag][..], &sequence.0.to_be_bytes()].concat().into()
}

/// Returns the keys and values of replaced records, with their range.
pub(super) fn log_values(replaced: &ReplacedRecords) -> impl Iterator<Item = (KeyBytes, Option<StoredValue>)> {
    let record = |(sequence, record): (&Sequence, &ReplacedRecord)| {
        (sequence_key(REPLACED_TAG, *sequence), Some(StoredValue::Replaced(record.clone())))
    };
    let range = (sequence_key(REPLACED_RANGE_TAG, replaced.last), Some(StoredValue::Item(encode_range(replaced).into())));
    replaced.records.iter().map(record).chain([range])
}

fn encode_range(replaced: &ReplacedRecords) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    put_varint(&mut out, replaced.after.0);
    put_varint(&mut out, replaced.records.len() as u64);
    let mut previous = replaced.after;
    for (sequence, time) in &replaced.times {
        put_varint(&mut out, sequence.0 - previous.0);
        out.extend_from_slice(&micros_since_1970(*time).to_le_bytes());
        previous = *sequence;
    }
    out
}

fn decode_range(last: Sequence, body: &[u8]) -> Result<StoredRange, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let (after, record_count, mut times) = (Sequence(reader.varint()?), reader.varint()?, Vec::new());
    let mut previous = after.0;
    while !reader.is_empty() {
        previous = previous.checked_add(reader.varint()?).ok_or(DecodeError::Field("sequence"))?;
        times.push((Sequence(previous), time_from_micros(reader.read_i64()?)?));
    }
    Ok(StoredRange { after, last, record_count, times })
}

impl ReplacedLog {
    /// Adds a block of the log, which is newer than the earlier ones.
    pub(in crate::store) fn push(&mut self, block: Arc<KeyValueBlock>) {
        if block.log_only().next().is_some() {
            self.0.push(block);
        }
    }

    /// Adds the blocks of the groups that all chunks contain.
    pub(in crate::store) fn insert_older(&mut self, blocks: impl IntoIterator<Item = Arc<KeyValueBlock>>) {
        let newer = std::mem::take(&mut self.0);
        blocks.into_iter().for_each(|block| self.push(block));
        self.0.extend(newer);
    }

    /// Decodes the records that changes after a sequence replaced, as ranges in order. Adjacent
    /// ranges are joined.
    #[must_use]
    pub fn decode_after(&self, sequence: Sequence) -> Vec<ReplacedRecords> {
        let (mut records, mut ranges) = (BTreeMap::new(), BTreeMap::new());
        for (key, body) in self.0.iter().flat_map(|block| block.log_only()) {
            let Some((tag, number)) = key.split_first() else { continue };
            let (Ok(number), Some(body)) = (<[u8; 8]>::try_from(number), body) else { continue };
            let at = Sequence(u64::from_be_bytes(number));
            if *tag == REPLACED_TAG {
                records.insert(at, body);
            } else if at > sequence {
                ranges.extend(decode_range(at, body).map(|range| (at, range)));
            }
        }
        let mut decoded: Vec<ReplacedRecords> = Vec::new();
        for range in ranges.into_values() {
            let Some(newer) = range.with_records(&records, sequence) else { continue };
            match decoded.last_mut().filter(|older| older.last == newer.after) {
                Some(older) => {
                    let mut newer = newer;
                    newer.merge_older(std::mem::take(older));
                    *older = newer;
                }
                None => decoded.push(newer),
            }
        }
        decoded
    }
}

impl StoredRange {
    /// Returns the range after a sequence, with its records. `None` if a record is missing or
    /// cannot be decoded.
    fn with_records(self, bodies: &BTreeMap<Sequence, &[u8]>, sequence: Sequence) -> Option<ReplacedRecords> {
        let Self { after, last, record_count, times } = self;
        if bodies.range(after.next()..=last).count() as u64 != record_count {
            return None;
        }
        let mut replaced = ReplacedRecords { after, last, times, records: BTreeMap::new() };
        replaced.remove_up_to(sequence);
        for (sequence, body) in bodies.range(replaced.after.next()..=last) {
            replaced.records.insert(*sequence, replaced_record::decode(body).ok()?);
        }
        Some(replaced)
    }
}
