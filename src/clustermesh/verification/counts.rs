//! Compares the number of keys of each kind with the source's.

use std::time::SystemTime;

use super::Verifier;
use crate::model::{Kind, Revision};
use crate::wire::keys;
use cilium_kvstore::{Disposition, KvstoreError, prefix_end};

/// Number of keys that the source must have, by the mirror.
struct MirrorCount {
    /// Revision of the source that the mirror shows.
    revision: Revision,
    keys: i64,
}

impl Verifier<'_> {
    /// Compares the counts of all kinds. If a kind's count differs, compares all of its keys.
    pub(super) async fn compare_counts(&mut self) -> Result<(), KvstoreError> {
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| self.mirror_count(*kind).is_some()).collect();
        let ranges: Vec<_> = kinds.iter().map(|kind| self.range_of(*kind)).collect();
        let counts = self.source.connection.count_many(&ranges).await?;
        for (kind, (count, revision)) in kinds.into_iter().zip(counts) {
            let Some(surplus) = self.unexplained_surplus(kind, count, revision).await? else {
                self.context.reporter.change_resource(kind, |resource| resource.verification.counted_at = Some(SystemTime::now()));
                continue;
            };
            if let Some(comparison) = self.compare_kind(kind, false).await? {
                // the list that follows a difference makes the counts equal
                self.explained[kind.index()] = if comparison.is_equal() { surplus } else { 0 };
            }
        }
        Ok(())
    }

    /// Returns by how much the source's count exceeds the mirror's, unless that is explained.
    ///
    /// `count` is of `revision`, and the mirror may be behind or ahead of it. If the two differ,
    /// the mirror must first reach that revision. If it has newer changes by then, the keys are
    /// counted again at the very revision that it shows.
    async fn unexplained_surplus(&self, kind: Kind, count: u64, revision: Revision) -> Result<Option<i64>, KvstoreError> {
        let explained = self.explained[kind.index()];
        let Some(mirror) = self.mirror_count(kind) else { return Ok(None) };
        if signed(count) - mirror.keys == explained {
            return Ok(None);
        }
        if !self.mirror_reaches(kind, revision).await {
            return Ok(None);
        }
        let Some(mirror) = self.mirror_count(kind) else { return Ok(None) };
        let at = mirror.revision;
        let surplus = if at <= revision {
            signed(count) - mirror.keys
        } else {
            let (from, end) = self.range_of(kind);
            match self.source.connection.count_at(&from, &end, Some(at)).await {
                Ok((count, _)) => signed(count) - mirror.keys,
                // the next comparison is of a newer revision
                Err(error) if error.disposition() == Disposition::Resync => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        Ok(Some(surplus).filter(|surplus| *surplus != explained))
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
