//! Encodes and decodes observation gaps and runs of sequences, which determine the times of changes
//! (docs/develop/store.md, "Keys and values").

use super::checksum::{ByteReader, DecodeError, put_varint};
use super::codec::{FORMAT_VERSION, bit, micros_since_1970, time_from_micros};
use crate::model::{GapEnd, ObservationGap, Sequence, SequenceRun};

const GAP_FROM: u8 = 1;
const GAP_END: u8 = 1 << 1;

pub(super) fn encode_gaps(gaps: &[ObservationGap]) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    put_varint(&mut out, gaps.len() as u64);
    for gap in gaps {
        out.push(bit(gap.from.is_some(), GAP_FROM) | bit(gap.end.is_some(), GAP_END));
        put_varint(&mut out, gap.first.0);
        if let Some(from) = gap.from {
            out.extend_from_slice(&micros_since_1970(from).to_le_bytes());
        }
        if let Some(end) = gap.end {
            out.extend_from_slice(&micros_since_1970(end.time).to_le_bytes());
            put_varint(&mut out, end.last.0);
        }
    }
    out
}

pub(in crate::store) fn decode_gaps(body: &[u8]) -> Result<Vec<ObservationGap>, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let count = reader.varint()?;
    let mut gaps = Vec::new();
    for _ in 0..count {
        let flags = reader.flags(GAP_FROM | GAP_END)?;
        let first = Sequence(reader.varint()?);
        let from = if flags & GAP_FROM != 0 { Some(time_from_micros(reader.read_i64()?)?) } else { None };
        let end = if flags & GAP_END != 0 {
            Some(GapEnd { time: time_from_micros(reader.read_i64()?)?, last: Sequence(reader.varint()?) })
        } else {
            None
        };
        gaps.push(ObservationGap { from, first, end });
    }
    reader.finish()?;
    Ok(gaps)
}

pub(super) fn encode_run(run: &SequenceRun) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    out.extend_from_slice(&micros_since_1970(run.from).to_le_bytes());
    out.extend_from_slice(&micros_since_1970(run.to).to_le_bytes());
    out
}

pub(in crate::store) fn decode_run(first: Sequence, body: &[u8]) -> Result<SequenceRun, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let (from, to) = (time_from_micros(reader.read_i64()?)?, time_from_micros(reader.read_i64()?)?);
    reader.finish()?;
    Ok(SequenceRun { first, from, to })
}
