//! The synced mark: the file `synced` next to the engine's files. It says up to which group the log is on the disk.
//!
//! It is written behind each sync of the log and not synced itself, so it may be old after a power cut, but never names a group that is not on
//! the disk. A log that ends before it has lost something. A store of an earlier version has none.

use crate::store::encoding::bytes::{Malformed, open, seal};

/// The form of the mark.
const FORM: u8 = 1;

/// Stands in for a key where the checksum is made.
const KEY: &[u8] = b"synced";

/// Bytes of the mark.
pub(super) const LENGTH: usize = 21;

/// Up to which group the log is on the disk at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct SyncedMark {
    /// The id of the log.
    pub(in crate::store) id: u64,
    /// The last group that is synced.
    pub(in crate::store) group: u64,
}

impl SyncedMark {
    /// Its bytes; all marks have the same length, so that a new one covers the one before.
    pub(in crate::store) fn write(self) -> Vec<u8> {
        let mut out = vec![FORM];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.group.to_le_bytes());
        seal(KEY, out)
    }

    /// Reads it back.
    pub(in crate::store) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = open(KEY, bytes, FORM)?;
        let mark = Self { id: reader.fixed()?, group: reader.fixed()? };
        reader.finish()?;
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_one_with_another_bit_is_none() {
        let mark = SyncedMark { id: u64::MAX, group: 7 };
        let bytes = mark.write();
        assert_eq!((bytes.len(), SyncedMark::read(&bytes)), (LENGTH, Ok(mark)));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SyncedMark::read(&damaged).is_err(), "bit {bit}");
        }
    }
}
