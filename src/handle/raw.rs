//! The mirror as an etcd: whole keys and values in one order, with meshkeep's sequences as
//! revisions.
//!
//! It also says which earlier revisions a client may continue from. etcd's gRPC interface is in
//! `etcd_api`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{Follower, Reading, WorkSlice};
use crate::commit::LatestChange;
use crate::feed::{Announcement, Version};
use crate::model::{RawRecord, Sequence};
use crate::view::{LiveKey, RawKey};

/// Newest change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawChange {
    /// The key has this value.
    Put(RawRecord),
    /// The key was deleted.
    Delete(SmolStr),
    /// The change concerns a key that etcd clients do not see.
    Nothing,
}

/// Earlier values of the keys that have changed since a sequence. `None` for a key that did not
/// exist.
pub type FormerValues = BTreeMap<SmolStr, Option<RawRecord>>;

impl Reading {
    /// Returns the id of the history that the sequences belong to; never 0. It is the same after
    /// every start that continues from the store, and differs after the store was lost or the clock
    /// was set back.
    #[must_use]
    pub fn lineage(&self) -> u64 {
        let published = &self.published;
        published.earlier_runs.first().map_or(published.epoch, |first| first.epoch).0.max(1)
    }

    /// Checks that a client at a position can get everything that changed since. All deletes since
    /// the position must be known, and everything announced up to the position must have been
    /// recovered (docs/develop/invariants.md, 6).
    ///
    /// # Errors
    /// Returns the lowest position such that clients can continue from it and from every later one,
    /// up to the newest.
    pub fn check_raw_position(&self, position: Sequence) -> Result<(), Sequence> {
        let (published, feed) = (&self.published, &self.published.feed);
        let lowest = feed.start().max(feed.floor());
        if position > feed.head() {
            // another copy of the store has announced this position
            return Err(lowest);
        }
        if Follower::at(position).each_change(self).is_some() {
            return Ok(());
        }
        if position < feed.floor() {
            return Err(feed.floor());
        }
        let is_recovered = position >= feed.start()
            || published
                .earlier_runs
                .iter()
                .any(|span| span.start <= position && span.accepted_up_to.is_some_and(|accepted_up_to| position <= accepted_up_to));
        if is_recovered { Ok(()) } else { Err(lowest) }
    }

    /// Returns the current value of a key.
    #[must_use]
    pub fn raw_value(&self, key: &str) -> Option<RawKey<'_>> {
        self.published.view.raw_key(key)
    }

    /// Returns every key from `start` on, in order.
    pub fn raw_from(&self, start: &[u8]) -> impl Iterator<Item = RawKey<'_>> {
        self.published.view.raw_keys_from(start)
    }

    /// Returns the number of keys from `start` on and below `end`.
    #[must_use]
    pub fn raw_count(&self, start: &[u8], end: Option<&[u8]>) -> usize {
        self.published.view.raw_key_count(start, end)
    }

    /// Returns a change in etcd's form.
    #[must_use]
    pub fn raw_change(&self, change: &LatestChange<LiveKey>) -> RawChange {
        match change {
            LatestChange::Live(live) => self.published.view.raw_record_of(live).map_or(RawChange::Nothing, RawChange::Put),
            LatestChange::Deleted(key, _) => key.etcd_key().map_or(RawChange::Nothing, RawChange::Delete),
        }
    }

    /// Adds the former values, as of sequence `after`, of the keys that pass `test` and have
    /// changed since.
    ///
    /// Returns `Some(None)` if all were added, and `Some(Some(sequence))` if the slice is over; the
    /// caller then continues after `sequence`. Returns `None` if the former values are not known
    /// any more.
    #[must_use]
    pub fn collect_former_values(
        &self,
        former: &mut FormerValues,
        after: Sequence,
        slice: &mut WorkSlice,
        test: impl Fn(&str) -> bool,
    ) -> Option<Option<Sequence>> {
        for announcement in Follower::at(after).each_change(self)? {
            if let Some(key) = announcement.key.etcd_key().filter(|key| test(key)) {
                // the first change since has the former value
                former.entry(key).or_insert_with_key(|key| announcement.raw_old_value(key));
            }
            slice.count_row();
            if slice.is_over() {
                return Some(Some(announcement.sequence));
            }
        }
        Some(None)
    }
}

impl Announcement {
    /// Returns the value of the key before the change.
    #[must_use]
    pub fn raw_old_value(&self, key: &SmolStr) -> Option<RawRecord> {
        self.old.as_ref().map(|version| raw_version(key, version))
    }

    /// Returns the value of the key after the change. `None` if it was deleted.
    #[must_use]
    pub fn raw_new_value(&self, key: &SmolStr) -> Option<RawRecord> {
        self.new.as_ref().map(|version| raw_version(key, version))
    }
}

fn raw_version(key: &SmolStr, version: &Version) -> RawRecord {
    let bytes = version.bytes();
    RawRecord {
        key: key.clone(),
        value: bytes.value.clone(),
        create_sequence: bytes.create_sequence,
        last_sequence: bytes.last_sequence,
        version: bytes.version,
    }
}
