//! Times of sequences: a list of pairs, each the first sequence of some changes and their time.
//!
//! The clock may jump, so the order of changes is that of their sequences, and a time only maps to
//! sequences: the state at a time is the one before the first change whose time, or an earlier
//! change's time, is later.

use std::time::{Duration, SystemTime};

use crate::model::Sequence;
use crate::pack::{ByteReader, DecodeError, put_varint};

/// A time in milliseconds since 1970. History has no finer times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::history) struct Millis(pub(in crate::history) i64);

impl From<SystemTime> for Millis {
    /// Rounds down.
    fn from(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Self(i64::try_from(after.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => Self(i64::try_from(before.duration().as_nanos().div_ceil(1_000_000)).map_or(i64::MIN, |millis| -millis)),
        }
    }
}

impl From<Millis> for SystemTime {
    fn from(millis: Millis) -> Self {
        let distance = Duration::from_millis(millis.0.unsigned_abs());
        let time = if millis.0 < 0 { Self::UNIX_EPOCH.checked_sub(distance) } else { Self::UNIX_EPOCH.checked_add(distance) };
        time.unwrap_or(Self::UNIX_EPOCH)
    }
}

/// First sequence of some changes, and their time.
pub(in crate::history) type TimePair = (Sequence, Millis);

/// Earliest and latest time of some pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history) struct TimeRange {
    pub(in crate::history) earliest: Millis,
    pub(in crate::history) latest: Millis,
}

impl TimeRange {
    /// Returns the range of some pairs, or `None` if there are none.
    pub(in crate::history) fn of_pairs(pairs: &[TimePair]) -> Option<Self> {
        let times = || pairs.iter().map(|(_, time)| *time);
        Some(Self { earliest: times().min()?, latest: times().max()? })
    }

    /// Returns the time between the earliest and the latest.
    pub(in crate::history) fn span(self) -> Duration {
        Duration::from_millis(self.latest.0.saturating_sub(self.earliest.0).unsigned_abs())
    }

    /// Returns the range that covers both.
    pub(in crate::history) fn covering(self, other: Self) -> Self {
        Self { earliest: self.earliest.min(other.earliest), latest: self.latest.max(other.latest) }
    }
}

/// Appends a pair to a list, unless the last pair has the same time.
pub(in crate::history) fn push_pair(pairs: &mut Vec<TimePair>, pair: TimePair) {
    if pairs.last().is_none_or(|(_, time)| *time != pair.1) {
        pairs.push(pair);
    }
}

/// Encodes pairs: `varint` difference from the previous sequence, and the difference from the
/// previous time as a `varint` whose lowest bit is the sign.
pub(in crate::history) fn encode_pairs(pairs: &[TimePair]) -> Vec<u8> {
    let (mut out, mut previous) = (Vec::new(), (Sequence(0), Millis(0)));
    for (sequence, time) in pairs {
        put_varint(&mut out, sequence.0 - previous.0.0);
        let difference = time.0.wrapping_sub(previous.1.0);
        put_varint(&mut out, (difference << 1 ^ difference >> 63).cast_unsigned());
        previous = (*sequence, *time);
    }
    out
}

pub(in crate::history) fn decode_pairs(bytes: &[u8]) -> Result<Vec<TimePair>, DecodeError> {
    let (mut reader, mut pairs, mut previous) = (ByteReader::new(bytes), Vec::new(), (Sequence(0), Millis(0)));
    while !reader.is_empty() {
        let sequence = previous.0.0.checked_add(reader.varint()?).ok_or(DecodeError::Field("sequence"))?;
        let coded = reader.varint()?;
        let difference = (coded >> 1).cast_signed() ^ -(coded & 1).cast_signed();
        previous = (Sequence(sequence), Millis(previous.1.0.wrapping_add(difference)));
        pairs.push(previous);
    }
    Ok(pairs)
}
