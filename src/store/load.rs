//! Reading everything back, and dropping what cannot be read together with the cursors that claim it.
//!
//! Owns: what a bad value costs (design.md, invariants 7 and 8): itself, and its scope's cursor, so that a resync brings it again.
//! Deliberately lacks: damage to the engine's own files (`recovery`), and decoding an entry's bytes (the caller does).

use std::collections::BTreeSet;

use super::bytes::Malformed;
use super::codec::{self, StoredKey};
use super::engine::{Engine, Write};
use super::error::EngineError;
use super::witness::Witness;
use super::write;
use crate::model::{ClusterName, ClusterRecord, Cursor, EpochSpan, Record, Scope, Sequence, Tombstone};

/// Everything that is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// The entries in key order, without their objects and in generation 0: the caller decodes.
    pub records: Vec<Record>,
    /// How far scopes are mirrored. None for a scope that lost a record.
    pub cursors: Vec<(Scope, Cursor)>,
    /// What clusters said about themselves.
    pub clusters: Vec<(ClusterName, ClusterRecord)>,
    /// What is left of keys that went, in order of sequence.
    pub tombstones: Vec<(Sequence, Tombstone)>,
    /// The sequence below which tombstones are gone.
    pub floor: Sequence,
    /// The starts that positions may come from, oldest first. None where anything was damaged: what is missing might have been
    /// announced (design.md, invariant 6).
    pub epochs: Vec<EpochSpan>,
    /// The newest sequence that is stored with all before it.
    pub covered: Sequence,
    /// No sequence up to and including this one may be handed out again.
    pub sequence_reserved: Sequence,
    /// How many values could not be read and were dropped.
    pub damaged_count: u64,
}

/// What a scan found, good and bad.
#[derive(Debug, Default)]
struct Scan {
    loaded: Loaded,
    group_number: u64,
    repairs: Vec<Write>,
    suspect_scopes: BTreeSet<Scope>,
    suspect_everywhere: bool,
}

/// Reads everything; removes what cannot be read, and the cursors that may claim it, also from the disk. Returns the number of the last
/// group as well.
pub(super) fn load_and_repair(engine: &Engine, witness: &mut Witness) -> Result<(Loaded, u64), EngineError> {
    let testimony = witness.testimony();
    let mut scan = Scan { suspect_everywhere: testimony.suspect, ..Scan::default() };
    engine.scan(&[], |key, value| scan.take(key, value))?;
    if scan.group_number < testimony.group_number {
        let (found, expected) = (scan.group_number, testimony.group_number);
        tracing::warn!("the store went back from group {expected} to {found}: all clusters will be listed anew");
        scan.suspect_everywhere = true;
        scan.group_number = expected;
        scan.repairs.push((codec::GROUP_KEY.to_vec(), Some(codec::write_number(codec::GROUP_KEY, expected))));
    }
    scan.reserve(testimony.sequence);
    scan.drop_suspect_cursors();
    scan.drop_suspect_epochs();
    if scan.suspect_everywhere {
        // also those that could not be read
        engine.scan(&codec::CURSOR_PREFIX, |key, _| scan.repairs.push((key.to_vec(), None)))?;
    }
    if !scan.repairs.is_empty() || testimony.suspect {
        witness.suspect()?;
        write(engine, scan.repairs)?;
        witness.confirm(scan.group_number, scan.loaded.sequence_reserved)?;
    }
    Ok((scan.loaded, scan.group_number))
}

impl Scan {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        let Some(stored_key) = codec::read_key(key) else {
            tracing::warn!(key = %key.escape_ascii(), "dropped a stored key that this version does not write");
            self.suspect_everywhere = true;
            return self.drop_damaged(key);
        };
        if let Err(error) = self.read(key, &stored_key, value) {
            tracing::warn!(key = %key.escape_ascii(), %error, "dropped a stored value that cannot be read");
            if let StoredKey::Entry(entry) = stored_key {
                self.suspect_scopes.insert(Scope { cluster: entry.cluster, kind: entry.kind });
            }
            self.drop_damaged(key);
        }
    }

    fn read(&mut self, key: &[u8], stored_key: &StoredKey, value: &[u8]) -> Result<(), Malformed> {
        match stored_key {
            StoredKey::Entry(entry) => {
                let record = codec::read_record(key, entry.clone(), value)?;
                self.reserve(record.last_sequence);
                self.loaded.records.push(record);
            }
            StoredKey::Cursor(scope) => self.loaded.cursors.push((scope.clone(), codec::read_cursor(key, value)?)),
            StoredKey::Cluster(cluster) => self.loaded.clusters.push((cluster.clone(), codec::read_cluster(key, value)?)),
            // recovery has checked it
            StoredKey::Format => {}
            StoredKey::Group => self.group_number = codec::read_number(key, value)?,
            StoredKey::Sequence => self.reserve(Sequence(codec::read_number(key, value)?)),
            StoredKey::Tombstone(sequence) => self.loaded.tombstones.push((*sequence, codec::read_tombstone(key, value)?)),
            StoredKey::Epochs => self.loaded.epochs = codec::read_epochs(value)?,
            StoredKey::Floor => self.loaded.floor = Sequence(codec::read_number(key, value)?),
            StoredKey::Covered => self.loaded.covered = Sequence(codec::read_number(key, value)?),
        }
        Ok(())
    }

    /// The records' own sequences count too, should the mark be lost.
    fn reserve(&mut self, sequence: Sequence) {
        self.loaded.sequence_reserved = self.loaded.sequence_reserved.max(sequence);
    }

    fn drop_damaged(&mut self, key: &[u8]) {
        self.loaded.damaged_count += 1;
        self.repairs.push((key.to_vec(), None));
    }

    /// After any damage nothing can be vouched for that was announced before.
    fn drop_suspect_epochs(&mut self) {
        if (self.suspect_everywhere || self.loaded.damaged_count > 0) && !self.loaded.epochs.is_empty() {
            self.loaded.epochs.clear();
            self.repairs.push((codec::EPOCHS_KEY.to_vec(), None));
        }
    }

    fn drop_suspect_cursors(&mut self) {
        let Self { loaded, suspect_scopes, suspect_everywhere, repairs, .. } = self;
        loaded.cursors.retain(|(scope, _)| {
            let suspect = *suspect_everywhere || suspect_scopes.contains(scope);
            if suspect {
                repairs.push((codec::cursor_key(scope), None));
            }
            !suspect
        });
    }
}
