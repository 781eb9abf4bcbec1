//! The mirror as an etcd has it: whole keys and bytes in one order, with our sequences as revisions.
//!
//! Owns: what a revision of ours means to a client that was told of an earlier one. Deliberately lacks: etcd's own interface (`etcd_api`).

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{Reading, Slice};
use crate::commit::Changed;
use crate::model::{Announcement, RawRecord, Sequence, Version};
use crate::view::RawPlace;

/// The newest change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawChange {
    /// It has these bytes.
    Put(RawRecord),
    /// It is gone.
    Delete(SmolStr),
    /// It is none that an etcd has.
    Nothing,
}

/// What keys had that changed since; `None` of those that were not there.
pub type RawPast = BTreeMap<SmolStr, Option<RawRecord>>;

impl Reading {
    /// A number of the history that the sequences belong to: the same after every start that goes on with what the store held, another one where the
    /// store was lost or the clock was set back, and never 0.
    #[must_use]
    pub fn lineage(&self) -> u64 {
        let published = self.published();
        published.earlier.first().map_or(published.epoch, |first| first.epoch).0.max(1)
    }

    /// Whether a client that has seen everything up to a position can be told all that changed since: its deletes are known, and what was announced up to there
    /// was recovered (docs/develop/invariants.md, 6).
    ///
    /// # Errors
    /// The lowest position of which that is true for all above, up to the newest.
    pub fn raw_goes_on_from(&self, position: Sequence) -> Result<(), Sequence> {
        let (published, feed) = (self.published(), &self.published().feed);
        if position > feed.head() {
            // another copy of the store has announced it
            return Err(feed.start().max(feed.floor()));
        }
        if position < feed.floor() {
            return Err(feed.floor());
        }
        let is_recovered = position >= feed.start()
            || published.earlier.iter().any(|span| span.began <= position && span.vouched.is_some_and(|vouched| position <= vouched));
        if is_recovered { Ok(()) } else { Err(feed.start().max(feed.floor())) }
    }

    /// What exists of a key.
    #[must_use]
    pub fn raw(&self, key: &str) -> Option<RawPlace<'_>> {
        self.published().view.raw(key)
    }

    /// Every key from some bytes on, in order.
    pub fn raw_from(&self, start: &[u8]) -> impl Iterator<Item = RawPlace<'_>> {
        self.published().view.raw_from(start)
    }

    /// How many keys there are from some bytes on and below others.
    #[must_use]
    pub fn raw_count(&self, start: &[u8], end: Option<&[u8]>) -> usize {
        self.published().view.raw_count(start, end)
    }

    /// What changed after a position, newest change of each key only, in order of sequence: so many are looked at.
    #[must_use]
    pub fn raw_changes_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, RawChange)> {
        let published = self.published();
        let change = |changed| match changed {
            Changed::Live(live) => published.view.raw_of(&live).map_or(RawChange::Nothing, RawChange::Put),
            Changed::Gone(key, _) => key.etcd_key().map_or(RawChange::Nothing, RawChange::Delete),
        };
        published.lacked_after(position, count).into_iter().map(|(sequence, changed)| (sequence, change(changed))).collect()
    }

    /// Adds what the keys had at an earlier sequence that pass a test and changed since, until the slice is over: then it goes on from the sequence that is
    /// given back. `None` where it is not known any more.
    #[must_use]
    pub fn raw_past(
        &self,
        past: &mut RawPast,
        after: Sequence,
        slice: &mut Slice,
        test: impl Fn(&str) -> bool,
    ) -> Option<Option<Sequence>> {
        for announcement in self.announced_after(after)? {
            if let Some(key) = announcement.key.etcd_key().filter(|key| test(key)) {
                // the first change since is the one that knows
                past.entry(key).or_insert_with_key(|key| announcement.raw_old(key));
            }
            slice.look();
            if slice.is_over() {
                return Some(Some(announcement.sequence));
            }
        }
        Some(None)
    }
}

impl Announcement {
    /// What the key had before.
    #[must_use]
    pub fn raw_old(&self, key: &SmolStr) -> Option<RawRecord> {
        self.old.as_ref().map(|version| raw_version(key, version))
    }

    /// What it has now; `None` where it is gone.
    #[must_use]
    pub fn raw_new(&self, key: &SmolStr) -> Option<RawRecord> {
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
