//! Sequences, epochs and positions of the change stream, each with its own type so that they cannot
//! be confused.

use std::fmt;
use std::str::FromStr;

/// Number of a change, counted over all clusters and kinds. Never used twice, never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Returns the next sequence.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Random number that each start of meshkeep draws. A sequence identifies a state only together
/// with its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One start of meshkeep, as it is stored for later starts (docs/develop/invariants.md, 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochSpan {
    /// Epoch that the start drew.
    pub epoch: Epoch,
    /// Sequence at the start: the first change has the next one.
    pub start: Sequence,
    /// Highest sequence of the epoch up to which a later start knew that all changes were stored;
    /// `None` while the epoch is the newest.
    pub accepted_up_to: Option<Sequence>,
}

/// Position in the change stream: an epoch and a sequence, written `v1.<epoch in hex>.<sequence>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// Epoch of the start that issued the position.
    pub epoch: Epoch,
    /// The client has seen everything up to and including this sequence.
    pub sequence: Sequence,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ReaderPosition::from(*self).fmt(f)
    }
}

/// Error for a text that is not a position. The caller writes `… is ` before the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a position of the form v1.<16 or 32 hexadecimal digits>.<number>, like v1.00000000deadbeef.42")]
pub struct MalformedPosition;

impl FromStr for Position {
    type Err = MalformedPosition;

    fn from_str(text: &str) -> Result<Self, MalformedPosition> {
        let mut parts = text.split('.');
        let (Some("v1"), Some(epoch), Some(sequence), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err(MalformedPosition);
        };
        // `from_str_radix` accepts a sign, which a position must not have
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_epoch || sequence.is_empty() || !sequence.bytes().all(|b| b.is_ascii_digit()) {
            return Err(MalformedPosition);
        }
        let epoch = u64::from_str_radix(epoch, 16).map_err(|_| MalformedPosition)?;
        let sequence = sequence.parse().map_err(|_| MalformedPosition)?;
        Ok(Self { epoch: Epoch(epoch), sequence: Sequence(sequence) })
    }
}

/// Position of a subscriber. Inside a replay, events may be newer than the position: a key that
/// changed twice is sent once, with its current value. If a crash then loses the newer change, the
/// client has a value that no longer exists, and a replay from the position may not correct it.
/// Such a position therefore also contains the newest sequence seen: `v1.<epoch and the newest
/// sequence seen, 16 hexadecimal digits each>.<sequence>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReaderPosition {
    /// The client has seen every change up to this position.
    pub position: Position,
    /// Inside a replay: upper bound of the sequences that the client has seen.
    pub seen: Option<Sequence>,
}

impl From<Position> for ReaderPosition {
    fn from(position: Position) -> Self {
        Self { position, seen: None }
    }
}

impl fmt::Display for ReaderPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { epoch, sequence } = self.position;
        f.write_str("v1.")?;
        f.write_str(hexadecimal(epoch.0, &mut [0; 16]))?;
        if let Some(seen) = self.seen {
            f.write_str(hexadecimal(seen.0, &mut [0; 16]))?;
        }
        f.write_str(".")?;
        sequence.fmt(f)
    }
}

/// Writes 16 hexadecimal digits. Faster than `{:016x}`, which handles any width: every event has
/// one or two of these numbers.
fn hexadecimal(number: u64, digits: &mut [u8; 16]) -> &str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in number.to_be_bytes().into_iter().zip(digits.chunks_exact_mut(2)) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    str::from_utf8(digits).unwrap_or_default()
}

impl FromStr for ReaderPosition {
    type Err = MalformedPosition;

    fn from_str(text: &str) -> Result<Self, MalformedPosition> {
        // "v1." and the epoch, optionally followed by the newest sequence seen
        let (head, tail) = text.split_at_checked(19).ok_or(MalformedPosition)?;
        let Some((seen, rest)) = tail.split_once('.').filter(|(seen, _)| !seen.is_empty()) else {
            return Ok(text.parse::<Position>()?.into());
        };
        let is_hexadecimal = seen.len() == 16 && seen.bytes().all(|b| b.is_ascii_hexdigit());
        let seen = u64::from_str_radix(seen, 16).ok().filter(|_| is_hexadecimal).ok_or(MalformedPosition)?;
        Ok(Self { position: format!("{head}.{rest}").parse()?, seen: Some(Sequence(seen)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_parsed_as_it_was_written() {
        let position = Position { epoch: Epoch(0xdead_beef), sequence: Sequence(42) };
        assert_eq!(position.to_string(), "v1.00000000deadbeef.42");
        assert_eq!(position.to_string().parse(), Ok(position));
    }

    #[test]
    fn a_reader_position_is_parsed_as_it_was_written() {
        let position = Position { epoch: Epoch(0xdead_beef), sequence: Sequence(42) };
        for (seen, text) in [(None, "v1.00000000deadbeef.42"), (Some(Sequence(255)), "v1.00000000deadbeef00000000000000ff.42")] {
            let position = ReaderPosition { position, seen };
            assert_eq!(position.to_string(), text);
            assert_eq!(text.parse(), Ok(position));
        }
        for text in
            ["v1.00000000deadbeefff.42", "v1.00000000deadbeef+0000000000000ff.42", "v1.00000000deadbeéf.42", "v1.00000000deadbeef", ""]
        {
            assert_eq!(text.parse::<ReaderPosition>(), Err(MalformedPosition), "{text}");
        }
    }

    #[test]
    fn malformed_positions_are_refused() {
        for text in [
            "",
            "v1",
            "v1..",
            "v2.00000000deadbeef.1",
            "v9.00000000deadbeef.1",
            "v1.deadbeef.1",
            "v1.+0000000deadbeef.1",
            "v1.00000000deadbeef.-1",
            "v1.00000000deadbeef.+1",
            "v1.00000000deadbeef.1.2",
            "v1.00000000deadbeef.99999999999999999999",
        ] {
            assert_eq!(text.parse::<Position>(), Err(MalformedPosition), "{text}");
            assert_eq!(text.parse::<ReaderPosition>(), Err(MalformedPosition), "{text}");
        }
    }
}
