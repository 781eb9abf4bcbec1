//! What the store must hold at least, kept in the file `witness` beside the engine's, so that cursors are never believed when they may be
//! ahead of their entries (docs/invariants.md, 1). There are two ways that can come about:
//!
//! - A kill leaves whole groups, but an *error* in the middle of one, such as a full disk, can leave part of it, in any order: perhaps the
//!   cursor without its entries. The process then writes the group again; should it end before it can, the mark `suspect` stands.
//! - A damaged log can open without a word in an older state, of which parts may be newer. Then its last group is older than the witness's.
//!
//! Either way the cursors go, which costs a resync. The file has its full length from the beginning and is changed in place, so a full
//! disk does not keep it from being written; it is written after each group, so it may lag behind the engine, never lead.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::codec;
use crate::model::Sequence;

/// The file's name beside the engine's files.
const WITNESS_FILE: &str = "witness";

/// More than the file has, to see one that is too long, in bytes.
const READ_BYTES: usize = 64;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Testimony {
    /// Whether part of a group may be on disk.
    pub(super) suspect: bool,
    /// The number of the last group that is durable.
    pub(super) group_number: u64,
    /// The highest sequence that may have been handed out.
    pub(super) sequence: Sequence,
}

/// The open file and what it says.
#[derive(Debug)]
pub(super) struct Witness {
    file: File,
    testimony: Testimony,
}

impl Witness {
    /// Opens the file. One that is missing or damaged beside an engine that `existed` is a reason to suspect.
    pub(super) fn open(directory: &Path, existed: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(directory.join(WITNESS_FILE))?;
        let mut bytes = [0; READ_BYTES];
        let length = file.read_at(&mut bytes, 0)?;
        if let Ok(testimony) = codec::read_witness(&bytes[..length]) {
            return Ok(Self { file, testimony });
        }
        let mut witness = Self { file, testimony: Testimony { suspect: existed, ..Testimony::default() } };
        witness.file.set_len(0)?;
        witness.write(witness.testimony)?;
        witness.file.sync_data()?;
        Ok(witness)
    }

    /// What the file says.
    pub(super) const fn testimony(&self) -> Testimony {
        self.testimony
    }

    /// Marks that part of a group may be on disk.
    pub(super) fn suspect(&mut self) -> io::Result<()> {
        self.write(Testimony { suspect: true, ..self.testimony })?;
        self.file.sync_data()
    }

    /// Notes that whole groups up to this one are all that is on disk. Not synced: a power cut can at most bring back an older
    /// testimony, which asks for less or costs one resync.
    pub(super) fn confirm(&mut self, group_number: u64, sequence: Sequence) -> io::Result<()> {
        self.write(Testimony { suspect: false, group_number, sequence: sequence.max(self.testimony.sequence) })
    }

    fn write(&mut self, testimony: Testimony) -> io::Result<()> {
        self.file.write_all_at(&codec::write_witness(testimony), 0)?;
        self.testimony = testimony;
        Ok(())
    }
}
