//! The synced mark: the file `synced`, which names the last synced group of the log.
//!
//! It is written after each sync of the log and not synced itself. After a power cut it may be old,
//! but it never names a group that is not on the disk. A log that ends before that group has lost
//! groups. Earlier versions wrote no such file.

use crate::store::encoding::checksum::{DecodeError, append_checksum, open_checked};

/// Format version of the file.
const FORMAT_VERSION: u8 = 1;

/// Key of the checksum.
const KEY: &[u8] = b"synced";

/// Length of the file, in bytes.
pub(super) const LENGTH: usize = 21;

/// Last group of a log that is known to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct SyncedMark {
    /// Id of the log.
    pub(in crate::store) id: u64,
    /// Number of the group.
    pub(in crate::store) group: u64,
}

impl SyncedMark {
    /// Encodes the mark. All marks have the same length, so that a new one overwrites the old one.
    pub(in crate::store) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORMAT_VERSION];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.group.to_le_bytes());
        append_checksum(KEY, out)
    }

    pub(in crate::store) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = open_checked(KEY, bytes, FORMAT_VERSION)?;
        let mark = Self { id: reader.read_u64()?, group: reader.read_u64()? };
        reader.finish()?;
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_round_trips_and_a_flipped_bit_is_an_error() {
        let mark = SyncedMark { id: u64::MAX, group: 7 };
        let bytes = mark.encode();
        assert_eq!((bytes.len(), SyncedMark::decode(&bytes)), (LENGTH, Ok(mark)));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SyncedMark::decode(&damaged).is_err(), "bit {bit}");
        }
    }
}
