//! Loads the contents of the store. Drops the keys that cannot be read, and the cursors that cover
//! them.
//!
//! Damage costs the damaged keys and the cursors of the scopes that it may affect
//! (docs/develop/invariants.md, 7 and 8), so that a resync restores the entries. `slot_scan` finds
//! damaged slots, `recovery` damaged files. The caller decodes the values of entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::losses::describe_losses;
use super::slot_scan::DamageReport;
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{
    ClusterName, ClusterRecord, Cursor, EntryKey, EpochSpan, ObservationGap, Record, Scope, Sequence, SequenceRun, Tombstone,
};
use crate::pack::Chunk;
use crate::store::chunks::chunk_store::{ChunkBody, ChunkStore};
use crate::store::encoding::change_times;
use crate::store::encoding::checksum::DecodeError;
use crate::store::encoding::codec::{self, StoredKey};
use crate::store::encoding::group::KeyChanges;
use crate::store::encoding::replaced::ReplacedLog;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::SlotStorage;
use crate::store::error::EngineError;
use crate::store::log::files::LogFiles;
use crate::store::log::recovered_log::RecoveredLog;
use crate::store::objects::packing::RangeContent;

/// Recently logged drops. In a damaged store everything may be dropped.
static DROPPED: LogLimiter = LogLimiter::new();

/// Everything that is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoreContents {
    /// Packed entries, sorted by key.
    pub chunks: Vec<Chunk>,
    /// Changes that override `chunks`; `None` is a deleted key. Records have no decoded objects and
    /// generation 0.
    pub changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
    /// Cursors, except those of scopes that lost a record.
    pub cursors: Vec<(Scope, Cursor)>,
    /// Records of clusters.
    pub clusters: Vec<(ClusterName, ClusterRecord)>,
    /// Tombstones, sorted by sequence.
    pub tombstones: Vec<(Sequence, Tombstone)>,
    /// Observation gaps of scopes, oldest first.
    pub gaps: Vec<(Scope, Vec<ObservationGap>)>,
    /// Runs of sequences with their times, sorted by sequence. Empty after any damage, because a
    /// missing run or gap would make times wrong.
    pub times: Vec<SequenceRun>,
    /// Sequence below which tombstones were dropped.
    pub floor: Sequence,
    /// Epochs whose positions may be valid, oldest first. Empty after any damage, because a missing
    /// change may have been announced (docs/develop/invariants.md, 6).
    pub epochs: Vec<EpochSpan>,
    /// Newest sequence up to which everything is stored.
    pub covered_sequence: Sequence,
    /// Version of the rules by which entries were derived from nodes. `None` after any damage.
    pub derivation_version: Option<u64>,
    /// Highest sequence that may have been used.
    pub sequence_reserved: Sequence,
    /// Number of slots and values that could not be read and were dropped.
    pub damaged_count: u64,
    /// Replaced records that the log has, for the history.
    pub replaced: ReplacedLog,
}

impl StoreContents {
    /// Returns the entry with a key.
    #[cfg(test)]
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<Arc<Record>> {
        if let Some(changed) = self.changed.get(key) {
            return changed.clone();
        }
        let at = self.chunks.partition_point(|chunk| chunk.first_key() <= *key).checked_sub(1)?;
        self.chunks.get(at)?.get(key).map(Arc::new)
    }

    /// Returns all entries, sorted by key.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let packed = self.chunks.iter().flat_map(Chunk::records).filter(|record| !self.changed.contains_key(&record.key));
        let mut records: Vec<Record> = packed.chain(self.changed.values().flatten().map(|record| Record::clone(record))).collect();
        records.sort_by(|left, right| left.key.cmp(&right.key));
        records
    }

    /// Returns the number of mirrored entries.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        let mirrored = |chunk: &Chunk| -> usize {
            let rows = chunk.scopes().map(|(rows, _)| rows).filter(|rows| chunk.scope(rows.start).0.is_mirrored());
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

/// Contents and repairs, while they are collected.
#[derive(Debug, Default)]
pub(in crate::store) struct ContentScan {
    pub(in crate::store) contents: StoreContents,
    repairs: KeyChanges,
    suspect_everywhere: bool,
}

/// Loads everything. Removes unreadable keys, and the cursors that may cover them, from the
/// contents and from the disk. Returns the losses, human-readable, and the log, which is new if
/// something was removed.
pub(in crate::store) fn load_and_repair<S: SlotStorage>(
    chunk_store: &mut ChunkStore<S>,
    mut damage: DamageReport,
    mut recovered_log: RecoveredLog,
    files: &dyn LogFiles,
) -> Result<(StoreContents, Vec<String>, RecoveredLog), EngineError> {
    let (mut loaded, losses, repairs) = load_trusted(chunk_store, &mut damage)?;
    loaded.replaced = std::mem::take(&mut damage.replaced);
    if repairs.is_empty() && damage.is_whole() {
        recovered_log.truncate_and_sync(files).map_err(EngineError::Log)?;
    } else {
        // until the repair is complete, a start trusts no cursor
        chunk_store.set_log_id(0)?;
        recovered_log = create_log(chunk_store, &repairs, files)?;
    }
    Ok((loaded, losses, recovered_log))
}

/// Loads everything that can be trusted. Returns the losses, human-readable, and the keys to
/// remove.
pub(super) fn load_trusted<S: SlotStorage>(
    chunk_store: &ChunkStore<S>,
    damage: &mut DamageReport,
) -> Result<(StoreContents, Vec<String>, KeyChanges), EngineError> {
    let mut scan = load_contents(chunk_store, std::mem::take(&mut damage.bodies))?;
    let losses = describe_losses(damage, scan.contents.damaged_count);
    scan.suspect_everywhere |= damage.suspect_everywhere || !damage.doubts.is_empty();
    scan.contents.damaged_count += damage.damaged_count;
    scan.drop_suspect_cursors(&damage.lost);
    scan.drop_suspect_epochs(!damage.lost.is_empty());
    Ok((scan.contents, losses, scan.repairs))
}

/// Adds the repairs, folds everything, and creates an empty log that replaces all log files.
pub(in crate::store) fn create_log<S: SlotStorage>(
    chunk_store: &mut ChunkStore<S>,
    repairs: &KeyChanges,
    files: &dyn LogFiles,
) -> Result<RecoveredLog, EngineError> {
    if !repairs.is_empty() {
        chunk_store.add_changes(chunk_store.group_number() + 1, repairs, &[]);
    }
    chunk_store.fold_all()?;
    // 0 means that a repair is not complete
    let id = rand::random_range(1..=u64::MAX);
    let mut recovered_log = RecoveredLog::create(id, chunk_store.group_number() + 1, files).map_err(EngineError::Log)?;
    chunk_store.set_log_id(id)?;
    recovered_log.truncate_and_sync(files).map_err(EngineError::Log)?;
    Ok(recovered_log)
}

/// Reads all content. `bodies` are chunks that were read before.
pub(in crate::store) fn load_contents<S: SlotStorage>(
    chunk_store: &ChunkStore<S>,
    bodies: BTreeMap<KeyBytes, ChunkBody>,
) -> Result<ContentScan, EngineError> {
    let mut scan = ContentScan::default();
    for content in chunk_store.contents(bodies)? {
        match content {
            RangeContent::Entries { chunks, newer, changed } => scan.add_entries(chunks, &newer, changed),
            RangeContent::Items(items) => items.into_iter().for_each(|(key, body)| scan.add_item(&key, &body)),
        }
    }
    Ok(scan)
}

impl ContentScan {
    /// Adds a key and its value.
    pub(in crate::store) fn add_item(&mut self, key: &KeyBytes, body: &[u8]) {
        let Some(stored_key) = codec::decode_key(key) else {
            if let Some(LogPermit { more }) = DROPPED.permit("key") {
                tracing::warn!(key = %key.escape_ascii(), more, "dropped a stored key that this version does not write");
            }
            self.suspect_everywhere = true;
            return self.drop_damaged(key);
        };
        if let Err(error) = self.decode_item(&stored_key, body) {
            if let Some(LogPermit { more }) = DROPPED.permit("value") {
                tracing::warn!(key = %key.escape_ascii(), %error, more, "dropped a stored value that cannot be read");
            }
            self.drop_damaged(key);
        }
    }

    fn decode_item(&mut self, stored_key: &StoredKey, body: &[u8]) -> Result<(), DecodeError> {
        match stored_key {
            // entries are in other chunks
            StoredKey::Entry(_) => return Err(DecodeError::Field("key")),
            StoredKey::Cursor(scope) => self.contents.cursors.push((scope.clone(), codec::decode_cursor(body)?)),
            StoredKey::Cluster(cluster) => self.contents.clusters.push((cluster.clone(), codec::decode_cluster(body)?)),
            StoredKey::Gaps(scope) => self.contents.gaps.push((scope.clone(), change_times::decode_gaps(body)?)),
            StoredKey::Run(first) => self.contents.times.push(change_times::decode_run(*first, body)?),
            StoredKey::Sequence => self.raise_reserved_sequence(Sequence(codec::decode_number(body)?)),
            StoredKey::Tombstone(sequence) => self.contents.tombstones.push((*sequence, codec::decode_tombstone(body)?)),
            StoredKey::Epochs => self.contents.epochs = codec::decode_epochs(body)?,
            StoredKey::Floor => self.contents.floor = Sequence(codec::decode_number(body)?),
            StoredKey::Covered => self.contents.covered_sequence = Sequence(codec::decode_number(body)?),
            StoredKey::Derived => self.contents.derivation_version = Some(codec::decode_number(body)?),
        }
        Ok(())
    }

    fn add_entries(&mut self, chunks: Vec<Chunk>, newer: &[Chunk], changed: BTreeMap<EntryKey, Option<Arc<Record>>>) {
        let mut changed = changed;
        for record in newer.iter().rev().flat_map(Chunk::records) {
            changed.entry(record.key.clone()).or_insert_with(|| Some(record.into()));
        }
        // the highest used sequence may be lost, so the sequences of the records count too
        let packed = chunks.iter().map(Chunk::max_sequence);
        let newest = changed.values().flatten().map(|record| record.last_sequence).chain(packed).max();
        self.raise_reserved_sequence(newest.unwrap_or_default());
        self.contents.chunks.extend(chunks);
        self.contents.changed.extend(changed);
    }

    /// Returns whether everything could be read.
    pub(in crate::store) fn is_whole(&self) -> bool {
        !self.suspect_everywhere && self.contents.damaged_count == 0
    }

    pub(in crate::store) fn raise_reserved_sequence(&mut self, sequence: Sequence) {
        self.contents.sequence_reserved = self.contents.sequence_reserved.max(sequence);
    }

    fn drop_damaged(&mut self, key: &KeyBytes) {
        self.contents.damaged_count += 1;
        self.repairs.insert(key.clone(), None);
    }

    /// Drops the epochs, the version of the derivation rules and the times of sequences after any
    /// damage. Announced changes, derived entries, runs and gaps may be missing.
    fn drop_suspect_epochs(&mut self, lost: bool) {
        if self.suspect_everywhere || lost || self.contents.damaged_count > 0 {
            self.contents.epochs.clear();
            self.contents.derivation_version = None;
            self.repairs.insert(codec::EPOCHS_KEY.into(), None);
            self.repairs.insert(codec::DERIVED_KEY.into(), None);
            self.repairs.extend(self.contents.times.drain(..).map(|run| (codec::run_key(run.first).into(), None)));
        }
    }

    fn drop_suspect_cursors(&mut self, lost: &[(KeyBytes, Option<KeyBytes>)]) {
        let Self { contents, suspect_everywhere, repairs, .. } = self;
        contents.cursors.retain(|(scope, _)| {
            let (low, high) = codec::scope_range(scope);
            let overlaps = |(from, to): &(KeyBytes, Option<KeyBytes>)| **from < *high && to.as_ref().is_none_or(|to| **to > *low);
            let suspect = *suspect_everywhere || lost.iter().any(overlaps);
            if suspect {
                repairs.insert(codec::cursor_key(scope).into(), None);
            }
            !suspect
        });
    }
}
