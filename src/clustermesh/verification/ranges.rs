//! Compares one range of keys with the source.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::comparison::{MirrorKey, MirrorRange, SourceKey, SourceRange, digest};
use super::kind_comparison::KindComparison;
use super::{ComparisonStep, Verifier};
use crate::commit::MirrorSnapshot;
use crate::model::{EntryKey, Kind, Revision, Scope, SourceStamp};
use crate::wire::keys;
use cilium_kvstore::{KeyRange, KvstoreError, prefix_end};

/// Number of entries of the mirror in a range. A reply of etcd with 1,024 keys and no values has
/// some 70 KiB.
const RANGE_ENTRIES: usize = 1_024;

/// Number of later revisions at which a difference must still exist.
const CONFIRMATIONS: usize = 2;

/// Minimum time for which a difference must exist.
///
/// Older releases of etcd 3.4 and 3.5 can report the progress of a watch before they send earlier
/// events (etcd#15220). An idle server sends them within 100 ms, a busy one takes some seconds.
const DIFFERENCE_AGE_MIN: Duration = Duration::from_secs(5);

/// Maximum time that a confirmation waits for the mirror, as a part of the interval between two
/// comparisons of the counts: half an interval, in which etcd is asked for progress three times.
const MIRROR_WAITS_PER_INTERVAL: u32 = 2;

/// Bytes of a key in etcd's reply, without its name: revisions, version, lease and field lengths.
pub(super) const KEY_OVERHEAD_BYTES: u64 = 32;

/// Bounds of a range as keys of the source.
#[derive(Debug, Clone)]
struct Bounds {
    scope: Scope,
    prefix: Vec<u8>,
    from: Vec<u8>,
    end: Vec<u8>,
    with_values: bool,
    /// Maximum number of keys in an answer.
    limit: u32,
}

/// Answer of the source for a range.
struct RangeRead {
    keys: SourceRange,
    /// End of the range that the answer covers.
    end: Vec<u8>,
    /// Number of all keys in the answer.
    key_count: u64,
    bytes: u64,
}

impl Verifier<'_> {
    /// Compares the next range of a kind, and adds the result to the comparison if there is one.
    pub(super) async fn compare_next_range(&mut self, kind: Kind, comparison: &mut KindComparison) -> Result<ComparisonStep, KvstoreError> {
        let Some(bounds) = self.next_bounds(kind, comparison).await else {
            return Ok(ComparisonStep::Unsettled);
        };
        let read = self.read_source(&bounds).await?;
        // the confirmations may find some more keys in the range
        let bounds = Bounds { end: read.end.clone(), limit: bounds.limit.saturating_mul(2), ..bounds };
        let (revision, key_count) = (read.keys.revision, read.keys.keys.len() as u64);
        comparison.record_answer(read.key_count, read.bytes);
        let Some(differing) = self.differing_keys(kind, &bounds, read).await? else { return Ok(ComparisonStep::Unsettled) };
        comparison.revision.get_or_insert(revision);
        comparison.key_count += key_count;
        comparison.add_differing(differing);
        let kind_end = prefix_end(&bounds.prefix);
        comparison.start = Some(bounds.end).filter(|end| *end != kind_end);
        Ok(if comparison.start.is_some() { ComparisonStep::Continues } else { ComparisonStep::Complete })
    }

    /// Returns the keys of a range that differ at this read and at two later ones, for at least
    /// [`DIFFERENCE_AGE_MIN`]. `None` if this cannot be judged, because the kind was listed
    /// meanwhile or the mirror stays behind the reads.
    async fn differing_keys(&mut self, kind: Kind, bounds: &Bounds, first: RangeRead) -> Result<Option<Vec<String>>, KvstoreError> {
        let (watch, last_read_from) = (self.progress(kind).current(), Instant::now() + DIFFERENCE_AGE_MIN);
        let mut confirmed: Option<BTreeSet<String>> = None;
        let mut before = first.keys;
        match self.sample_mirror(bounds).await {
            Some(mirror) if watch.watching && !before.may_differ(&mirror) => return Ok(Some(Vec::new())),
            Some(_) if watch.watching => {}
            Some(_) | None => return Ok(None),
        }
        for confirmation in 1..=CONFIRMATIONS {
            if confirmation == CONFIRMATIONS {
                sleep_until(last_read_from).await;
            }
            if !self.mirror_reaches(kind, before.revision).await {
                return Ok(None);
            }
            let Some(mirror) = self.sample_mirror(bounds).await else { return Ok(None) };
            let after = self.read_source(bounds).await?;
            let now = self.progress(kind).current();
            if !now.watching || now.watch_count != watch.watch_count {
                return Ok(None);
            }
            if after.end != bounds.end {
                // the source has so many new keys that the range must be divided
                return Ok(None);
            }
            let differing: BTreeSet<String> = before.differing_keys(&mirror, &after.keys).into_iter().collect();
            let still = confirmed.map_or(differing.clone(), |confirmed| confirmed.intersection(&differing).cloned().collect());
            if still.is_empty() {
                return Ok(Some(Vec::new()));
            }
            confirmed = Some(still);
            before = after.keys;
        }
        Ok(Some(confirmed.into_iter().flatten().collect()))
    }

    /// Waits until the mirror has all changes of a kind up to a revision of the source. Returns
    /// false if it stays behind: no difference from a read of that revision means anything then.
    pub(super) async fn mirror_reaches(&self, kind: Kind, revision: Revision) -> bool {
        let limit = self.context.timing.cluster.verify_interval / MIRROR_WAITS_PER_INTERVAL;
        let applied = |cursor: Revision| async move {
            let shows = |mirror: &MirrorSnapshot| self.settled_revision(mirror, kind).is_some_and(|shown| shown >= cursor);
            self.context.mirror.wait_for(shows).await;
        };
        self.progress(kind).reaches(revision, limit, applied).await
    }

    /// Returns the bounds of the next range. It ends at an entry of the mirror: etcd counts all
    /// keys up to the end of a range whatever the limit, so its end must be near.
    async fn next_bounds(&self, kind: Kind, comparison: &KindComparison) -> Option<Bounds> {
        let scope = self.scope(kind);
        let prefix = keys::watched_prefix(kind, self.cluster, self.source.info.cached).into_bytes();
        let from = comparison.start.clone().unwrap_or_else(|| prefix.clone());
        let (with_values, limit) = (comparison.with_values, comparison.answer_limit());
        let bounds = Bounds { scope, end: prefix_end(&prefix), from, prefix, with_values, limit };
        let mirror = self.settled_mirror(kind)?;
        // unpacks the names of a thousand entries
        let find_end = move || {
            let cached = bounds.prefix.starts_with(keys::root(true).as_bytes());
            let end = bounds.entries(&mirror).nth(RANGE_ENTRIES).map(|(key, _)| keys::source_key(&key, cached).into_bytes());
            Bounds { end: end.unwrap_or(bounds.end), ..bounds }
        };
        tokio::task::spawn_blocking(find_end).await.ok()
    }

    /// Reads a range of the source. If the source has more keys than fit, the answer ends earlier.
    async fn read_source(&mut self, bounds: &Bounds) -> Result<RangeRead, KvstoreError> {
        let read = self.request_range(bounds).await?;
        self.state.unpaced_bytes += read.bytes;
        Ok(read)
    }

    async fn request_range(&self, bounds: &Bounds) -> Result<RangeRead, KvstoreError> {
        let connection = &self.source.connection;
        let mut limit = bounds.limit;
        let read = loop {
            match connection.read_range(&bounds.from, &bounds.end, limit, !bounds.with_values).await {
                Err(KvstoreError::TooLarge { .. }) if limit > 1 => limit /= 2,
                result => break result?,
            }
        };
        let (bounds, cached) = (bounds.clone(), self.source.info.cached);
        if !bounds.with_values {
            return Ok(RangeRead::new(read, &bounds, cached));
        }
        // hashes up to some megabytes
        let hashing = tokio::task::spawn_blocking(move || RangeRead::new(read, &bounds, cached));
        hashing.await.map_err(|error| KvstoreError::Malformed { reason: format!("cannot hash the values: {error}") })
    }

    /// Returns the entries of the mirror in a range. `None` while the kind is listed.
    async fn sample_mirror(&self, bounds: &Bounds) -> Option<MirrorRange> {
        let mirror = self.settled_mirror(bounds.scope.kind)?;
        let bounds = bounds.clone();
        let sample = move || {
            let end = bounds.end.strip_prefix(&bounds.prefix[..]).map(<[u8]>::to_vec);
            let entries = bounds.entries(&mirror).take_while(|(key, _)| end.as_ref().is_none_or(|end| key.name.as_bytes() < &end[..]));
            let entry = |(key, source): (EntryKey, SourceStamp)| {
                let value = bounds.with_values.then(|| mirror.view.value(&key)).flatten().map(|value| digest(&value));
                (key.name.to_string(), MirrorKey { modified: source.mod_revision, held: source.held, value })
            };
            entries.map(entry).collect()
        };
        tokio::task::spawn_blocking(sample).await.ok()
    }

    fn settled_mirror(&self, kind: Kind) -> Option<Arc<MirrorSnapshot>> {
        let mirror = self.context.mirror.current();
        self.settled_revision(&mirror, kind).map(|_| mirror)
    }

    /// Returns the revision of the source that a snapshot shows. `None` while the kind is listed,
    /// and while entries of another history wait for their removal: they differ on purpose.
    pub(super) fn settled_revision(&self, mirror: &MirrorSnapshot, kind: Kind) -> Option<Revision> {
        let cursor = mirror.view.cursor(&self.scope(kind)).filter(|_| self.progress(kind).current().watching)?;
        // provisional cursors have other values (`resync`)
        let is_settled = cursor.etcd_cluster_id == self.source.info.etcd_cluster_id && cursor.revision > Revision(0);
        is_settled.then_some(cursor.revision)
    }
}

impl RangeRead {
    /// Creates the read from an answer for a range.
    fn new(read: KeyRange, bounds: &Bounds, cached: bool) -> Self {
        let mut keys = SourceRange { revision: read.revision, ..SourceRange::default() };
        let last = read.key_values.last().map(|last| [&last.key[..], &[0]].concat());
        let end = last.filter(|_| read.more).unwrap_or_else(|| bounds.end.clone());
        let key_count = read.key_values.len() as u64;
        let mut bytes = 0;
        for key_value in read.key_values {
            bytes += (key_value.key.len() + key_value.value.len()) as u64 + KEY_OVERHEAD_BYTES;
            // other keys are not entries, and are reported as rejected
            if let Ok(key) = keys::entry_key(bounds.scope.kind, &bounds.scope.cluster, cached, &key_value.key) {
                let value = bounds.with_values.then(|| digest(&key_value.value));
                let source_key = SourceKey { created: key_value.create_revision, modified: key_value.mod_revision, value };
                keys.keys.insert(key.name.to_string(), source_key);
            }
        }
        Self { keys, end, key_count, bytes }
    }
}

impl Bounds {
    /// Iterates over the entries of the mirror from the start of the range to the end of the kind.
    fn entries<'a>(&'a self, mirror: &'a MirrorSnapshot) -> impl Iterator<Item = (EntryKey, SourceStamp)> + 'a {
        let from = self.from.strip_prefix(&self.prefix[..]).unwrap_or_default();
        // bytes that are not UTF-8 can make the start a few keys too low
        let text = from.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        mirror.view.source_stamps_from(&self.scope, text).skip_while(move |(key, _)| key.name.as_bytes() < from)
    }
}
