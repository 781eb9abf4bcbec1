//! Compares the number of keys of each kind with the source's.

use std::time::{Instant, SystemTime};

use super::ranges::KEY_OVERHEAD_BYTES;
use super::{ComparisonExtent, Verifier, ends_history};
use crate::model::{Kind, Revision};
use crate::wire::keys;
use cilium_kvstore::{Disposition, KvstoreError, prefix_end};

/// Number of keys that the source must have, by the mirror.
struct MirrorCount {
    /// Revision of the source that the mirror shows.
    revision: Revision,
    keys: i64,
}

/// Result of a comparison of a kind's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountComparison {
    /// The counts are equal, except for a difference that a comparison of the keys explained.
    Equal,
    /// The source has so many keys more than the mirror, or fewer if negative.
    Differs { surplus: i64 },
    /// The counts cannot be compared now.
    NotJudged,
}

impl MirrorCount {
    /// Compares the source's count at the revision that the mirror shows.
    fn compare(&self, source_count: u64, explained: i64) -> CountComparison {
        let surplus = signed(source_count) - self.keys;
        if surplus == explained { CountComparison::Equal } else { CountComparison::Differs { surplus } }
    }
}

impl Verifier<'_> {
    /// Compares the counts of all kinds. If a kind's count differs, compares all of its keys. If a
    /// kind cannot be counted or compared, the other kinds are compared nevertheless. Returns the
    /// first error.
    pub(super) async fn compare_counts(&mut self) -> Result<(), KvstoreError> {
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| self.mirror_count(*kind).is_some()).collect();
        let ranges: Vec<_> = kinds.iter().map(|kind| self.range_of(*kind)).collect();
        let counts = self.source.connection.count_many(&ranges).await?;
        // an answer without keys has its header
        self.state.unpaced_bytes += KEY_OVERHEAD_BYTES * counts.len() as u64;
        let mut outcome = Ok(());
        for (kind, count) in kinds.into_iter().zip(counts) {
            let result = match count {
                Ok((count, revision)) => self.verify_count(kind, count, revision).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if ends_history(&error) => return Err(error),
                result => outcome = outcome.and(result),
            }
        }
        outcome
    }

    /// Compares the count of one kind. If it differs, compares all keys of the kind.
    async fn verify_count(&mut self, kind: Kind, count: u64, revision: Revision) -> Result<(), KvstoreError> {
        let surplus = match self.compare_count(kind, count, revision).await? {
            CountComparison::Equal => {
                self.context.reporter.change_resource(kind, |resource| resource.verification.counted_at = Some(SystemTime::now()));
                return Ok(());
            }
            CountComparison::NotJudged => return Ok(()),
            // a list did not help: the rounds go on comparing the keys
            CountComparison::Differs { .. } if self.state.repairs[kind.index()].is_waiting(Instant::now()) => return Ok(()),
            CountComparison::Differs { .. } if !self.permits_recount(kind) => return Ok(()),
            CountComparison::Differs { surplus } => surplus,
        };
        match self.compare_kind(kind, false, ComparisonExtent::FirstDifference).await? {
            // the list that follows a difference makes the counts equal
            Some(comparison) => self.explained[kind.index()] = if comparison.is_equal() { surplus } else { 0 },
            None => self.state.round.record_unsettled_recount(self.state.unpaced_bytes),
        }
        Ok(())
    }

    /// Returns whether the rate permits to read all keys of a kind.
    fn permits_recount(&mut self, kind: Kind) -> bool {
        let (bytes, now) = (self.take_unpaced_bytes(), Instant::now());
        self.state.round.delay_ranges(bytes, now);
        let keys = self.mirror_count(kind).map_or(0, |mirror| mirror.keys.unsigned_abs());
        self.state.round.permits_recount(keys * KEY_OVERHEAD_BYTES, now)
    }

    /// Compares the source's count of a kind with the mirror's.
    ///
    /// `count` is of `revision`, and the mirror may be behind or ahead of it. If the two differ,
    /// the mirror must first reach that revision. If it has newer changes by then, the keys are
    /// counted again at the very revision that it shows.
    async fn compare_count(&mut self, kind: Kind, count: u64, revision: Revision) -> Result<CountComparison, KvstoreError> {
        let explained = self.explained[kind.index()];
        if self.mirror_count(kind).is_some_and(|mirror| mirror.compare(count, explained) == CountComparison::Equal) {
            return Ok(CountComparison::Equal);
        }
        if !self.mirror_reaches(kind, revision).await {
            return Ok(CountComparison::NotJudged);
        }
        let Some(mirror) = self.mirror_count(kind) else { return Ok(CountComparison::NotJudged) };
        if mirror.revision <= revision {
            return Ok(mirror.compare(count, explained));
        }
        let (from, end) = self.range_of(kind);
        self.state.unpaced_bytes += KEY_OVERHEAD_BYTES;
        match self.source.connection.count_at(&from, &end, Some(mirror.revision)).await {
            Ok((count, _)) => Ok(mirror.compare(count, explained)),
            // the next comparison is of a newer revision
            Err(error) if error.disposition() == Disposition::Resync => Ok(CountComparison::NotJudged),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of keys that the source must have. `None` while the kind is listed.
    /// Held entries and keys that are not entries differ on purpose.
    fn mirror_count(&self, kind: Kind) -> Option<MirrorCount> {
        let scope = self.scope(kind);
        let mirror = self.context.mirror.current();
        let revision = self.settled_revision(&mirror, kind)?;
        let entries = mirror.view.scope(&scope).map_or(0, |state| u64::from(state.entry_count));
        let (held, refused) = self.context.reporter.excluded_counts(kind);
        Some(MirrorCount { revision, keys: signed(entries) - signed(held) + signed(refused) })
    }

    fn range_of(&self, kind: Kind) -> (Vec<u8>, Vec<u8>) {
        let prefix = keys::watched_prefix(kind, self.cluster, self.source.info.cached).into_bytes();
        let end = prefix_end(&prefix);
        (prefix, end)
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_was_explained_is_none() {
        let mirror = MirrorCount { revision: Revision(7), keys: 10 };
        assert_eq!(mirror.compare(10, 0), CountComparison::Equal);
        assert_eq!(mirror.compare(12, 2), CountComparison::Equal);
        assert_eq!(mirror.compare(12, 0), CountComparison::Differs { surplus: 2 });
        assert_eq!(mirror.compare(10, 2), CountComparison::Differs { surplus: 0 });
        assert_eq!(mirror.compare(8, 0), CountComparison::Differs { surplus: -2 });
    }
}
