//! Reading everything back, and dropping what cannot be read together with the cursors that claim it.
//!
//! Owns: what damage costs (docs/develop/invariants.md, 7 and 8): itself, and the cursors of the scopes that it may concern, so that a resync brings it
//! again. Deliberately lacks: noticing damage to slots (`slot_scan`) or to the engine's files (`recovery`), and decoding an entry's bytes
//! (the caller does).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::losses::losses;
use super::slot_scan::DamageReport;
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, EpochSpan, Record, Scope, Sequence, Tombstone};
use crate::pack::Chunk;
use crate::store::chunks::chunk_store::{Body, ChunkStore};
use crate::store::encoding::bytes::Malformed;
use crate::store::encoding::change::Key;
use crate::store::encoding::codec::{self, StoredKey};
use crate::store::encoding::group::Changes;
use crate::store::engine::slots::Slots;
use crate::store::error::EngineError;
use crate::store::log::files::Files;
use crate::store::log::run::Run;
use crate::store::objects::packing::Content;

/// What was dropped and logged lately: of a damaged store it may be everything.
static DROPPED: LogLimiter = LogLimiter::new();

/// Everything that is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Most entries, in key order.
    pub chunks: Vec<Chunk>,
    /// The others, which are newer where a chunk has the key too; `None`: the key is gone. Without their objects and in generation 0: the caller
    /// decodes.
    pub changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
    /// How far scopes are mirrored. None for a scope that lost a record.
    pub cursors: Vec<(Scope, Cursor)>,
    /// What clusters said about themselves.
    pub clusters: Vec<(ClusterName, ClusterRecord)>,
    /// What is left of keys that went, in order of sequence.
    pub tombstones: Vec<(Sequence, Tombstone)>,
    /// The sequence below which tombstones are gone.
    pub floor: Sequence,
    /// The starts that positions may come from, oldest first. None where anything was damaged: what is missing might have been
    /// announced (docs/develop/invariants.md, 6).
    pub epochs: Vec<EpochSpan>,
    /// The newest sequence that is stored with all before it.
    pub covered: Sequence,
    /// The rules by which the entries derived from nodes were made; none where there are none, or where anything was damaged.
    pub derived: Option<u64>,
    /// No sequence up to and including this one may be handed out again.
    pub sequence_reserved: Sequence,
    /// How many slots and values could not be read and were dropped.
    pub damaged_count: u64,
}

impl Loaded {
    /// The entry of a key.
    #[cfg(test)]
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        if let Some(changed) = self.changed.get(key) {
            return changed.clone();
        }
        let at = self.chunks.partition_point(|chunk| chunk.first_key() <= *key).checked_sub(1)?;
        self.chunks.get(at)?.get(key).map(Arc::new)
    }

    /// All entries in key order, unpacked.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let packed = self.chunks.iter().flat_map(Chunk::records).filter(|record| !self.changed.contains_key(&record.key));
        let mut records: Vec<Record> = packed.chain(self.changed.values().flatten().map(|record| Record::clone(record))).collect();
        records.sort_by(|left, right| left.key.cmp(&right.key));
        records
    }

    /// How many mirrored entries there are.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        let mirrored = |chunk: &Chunk| -> usize {
            let rows = chunk.clusters().map(|(rows, _)| rows).filter(|rows| chunk.scope(rows.start).0.is_mirrored());
            rows.map(|rows| rows.len()).sum()
        };
        let packed: usize = self.chunks.iter().map(mirrored).sum();
        let changed = || self.changed.iter().filter(|(key, _)| key.kind.is_mirrored());
        let replaced = changed().filter(|(key, _)| self.is_packed(key)).count();
        (packed - replaced + changed().filter(|(_, record)| record.is_some()).count()) as u64
    }

    fn is_packed(&self, key: &EntryKey) -> bool {
        let at = self.chunks.partition_point(|chunk| chunk.first_key() <= *key).checked_sub(1);
        at.and_then(|at| self.chunks.get(at)).is_some_and(|chunk| chunk.find(key).is_ok())
    }
}

/// What a scan found, good and bad.
#[derive(Debug, Default)]
pub(in crate::store) struct Scan {
    pub(in crate::store) loaded: Loaded,
    repairs: Changes,
    suspect_everywhere: bool,
}

/// Reads everything; removes what cannot be read, and the cursors that may claim it, also from the disk. Says what is lost, too. What the log is to
/// go on from is cleaned, or begun anew where something was removed.
pub(in crate::store) fn load_and_repair<S: Slots>(
    chunk_store: &mut ChunkStore<S>,
    mut found: DamageReport,
    mut run: Run,
    files: &dyn Files,
) -> Result<(Loaded, Vec<String>, Run), EngineError> {
    let (loaded, losses, repairs) = judge(chunk_store, &mut found)?;
    if repairs.is_empty() && found.is_whole() {
        run.clean(files).map_err(EngineError::Log)?;
    } else {
        // until the end nobody believes the cursors
        chunk_store.adopt(0)?;
        run = begin_log(chunk_store, &repairs, files)?;
    }
    Ok((loaded, losses, run))
}

/// Reads everything, without what cannot be read and what may be ahead of it. Says in words what is lost, and what must be removed.
pub(super) fn judge<S: Slots>(
    chunk_store: &ChunkStore<S>,
    found: &mut DamageReport,
) -> Result<(Loaded, Vec<String>, Changes), EngineError> {
    let mut scan = read(chunk_store, std::mem::take(&mut found.bodies))?;
    let losses = losses(found, scan.loaded.damaged_count);
    scan.suspect_everywhere |= found.suspect_everywhere || !found.doubts.is_empty();
    scan.loaded.damaged_count += found.damaged_count;
    scan.drop_suspect_cursors(&found.lost);
    scan.drop_suspect_epochs(!found.lost.is_empty());
    Ok((scan.loaded, losses, scan.repairs))
}

/// Folds everything that was found, and some repairs, and begins a log behind that in place of all that there is.
pub(in crate::store) fn begin_log<S: Slots>(
    chunk_store: &mut ChunkStore<S>,
    repairs: &Changes,
    files: &dyn Files,
) -> Result<Run, EngineError> {
    if !repairs.is_empty() {
        chunk_store.take_in(chunk_store.group_number() + 1, repairs);
    }
    chunk_store.fold_all()?;
    // 0 is none
    let id = rand::random_range(1..=u64::MAX);
    let mut run = Run::begin(id, chunk_store.group_number() + 1, files).map_err(EngineError::Log)?;
    chunk_store.adopt(id)?;
    run.clean(files).map_err(EngineError::Log)?;
    Ok(run)
}

/// Reads everything; `bodies` are those of chunks that were read already.
pub(in crate::store) fn read<S: Slots>(chunk_store: &ChunkStore<S>, bodies: BTreeMap<Key, Body>) -> Result<Scan, EngineError> {
    let mut scan = Scan::default();
    for content in chunk_store.contents(bodies)? {
        match content {
            Content::Entries { chunks, newer, changed } => scan.take_entries(chunks, &newer, changed),
            Content::Items(items) => items.into_iter().for_each(|(key, body)| scan.take(&key, &body)),
        }
    }
    Ok(scan)
}

impl Scan {
    /// Takes a stored key and what it holds.
    pub(in crate::store) fn take(&mut self, key: &Key, body: &[u8]) {
        let Some(stored_key) = codec::read_key(key) else {
            if let Some(LogPermit { more }) = DROPPED.permit("key") {
                tracing::warn!(key = %key.escape_ascii(), more, "dropped a stored key that this version does not write");
            }
            self.suspect_everywhere = true;
            return self.drop_damaged(key);
        };
        if let Err(error) = self.read(&stored_key, body) {
            if let Some(LogPermit { more }) = DROPPED.permit("value") {
                tracing::warn!(key = %key.escape_ascii(), %error, more, "dropped a stored value that cannot be read");
            }
            self.drop_damaged(key);
        }
    }

    fn read(&mut self, stored_key: &StoredKey, body: &[u8]) -> Result<(), Malformed> {
        match stored_key {
            // those are elsewhere
            StoredKey::Entry(_) => return Err(Malformed::Field("key")),
            StoredKey::Cursor(scope) => self.loaded.cursors.push((scope.clone(), codec::read_cursor(body)?)),
            StoredKey::Cluster(cluster) => self.loaded.clusters.push((cluster.clone(), codec::read_cluster(body)?)),
            StoredKey::Sequence => self.reserve(Sequence(codec::read_number(body)?)),
            StoredKey::Tombstone(sequence) => self.loaded.tombstones.push((*sequence, codec::read_tombstone(body)?)),
            StoredKey::Epochs => self.loaded.epochs = codec::read_epochs(body)?,
            StoredKey::Floor => self.loaded.floor = Sequence(codec::read_number(body)?),
            StoredKey::Covered => self.loaded.covered = Sequence(codec::read_number(body)?),
            StoredKey::Derived => self.loaded.derived = Some(codec::read_number(body)?),
        }
        Ok(())
    }

    fn take_entries(&mut self, chunks: Vec<Chunk>, newer: &[Chunk], changed: BTreeMap<EntryKey, Option<Arc<Record>>>) {
        let mut changed = changed;
        for record in newer.iter().rev().flat_map(Chunk::records) {
            changed.entry(record.key.clone()).or_insert_with(|| Some(record.into()));
        }
        // the records' own sequences count too, should the mark be lost
        let packed = chunks.iter().map(Chunk::max_sequence);
        let newest = changed.values().flatten().map(|record| record.last_sequence).chain(packed).max();
        self.reserve(newest.unwrap_or_default());
        self.loaded.chunks.extend(chunks);
        self.loaded.changed.extend(changed);
    }

    /// Whether all that was taken could be read.
    pub(in crate::store) fn is_whole(&self) -> bool {
        !self.suspect_everywhere && self.loaded.damaged_count == 0
    }

    pub(in crate::store) fn reserve(&mut self, sequence: Sequence) {
        self.loaded.sequence_reserved = self.loaded.sequence_reserved.max(sequence);
    }

    fn drop_damaged(&mut self, key: &Key) {
        self.loaded.damaged_count += 1;
        self.repairs.insert(key.clone(), None);
    }

    /// After any damage nothing can be vouched for that was announced before, nor that each node has what is derived from it.
    fn drop_suspect_epochs(&mut self, lost: bool) {
        if self.suspect_everywhere || lost || self.loaded.damaged_count > 0 {
            self.loaded.epochs.clear();
            self.loaded.derived = None;
            self.repairs.insert(codec::EPOCHS_KEY.into(), None);
            self.repairs.insert(codec::DERIVED_KEY.into(), None);
        }
    }

    fn drop_suspect_cursors(&mut self, lost: &[(Key, Option<Key>)]) {
        let Self { loaded, suspect_everywhere, repairs, .. } = self;
        loaded.cursors.retain(|(scope, _)| {
            let (low, high) = codec::scope_range(scope);
            let concerns = |(from, to): &(Key, Option<Key>)| **from < *high && to.as_ref().is_none_or(|to| **to > *low);
            let suspect = *suspect_everywhere || lost.iter().any(concerns);
            if suspect {
                repairs.insert(codec::cursor_key(scope).into(), None);
            }
            !suspect
        });
    }
}
