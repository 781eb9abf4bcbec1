//! The newest changes in etcd's form, prepared once for all watches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;

use crate::handle::{Announcement, Follower, Reading};
use crate::model::Sequence;

/// Maximum number of retained changes: four seconds at 1,000 changes/s.
///
/// A thousand streams that each scan 20 times a second find all changes here. The changes usually
/// need no additional memory, because the feed retains them too.
const RETAINED_CHANGES_MAX: usize = 4_096;

/// Maximum bytes of retained changes: a fourth of the feed's limit. Changes that the feed has
/// dropped already are additional memory.
const RETAINED_BYTES_MAX: usize = 16 << 20;

const BATCH_ANNOUNCEMENTS_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct KeyChange {
    pub(super) key: SmolStr,
    pub(super) announcement: Arc<Announcement>,
}

/// Consecutive changes of the feed, without a gap.
#[derive(Debug)]
pub(super) struct ChangeBatch {
    /// Sequence before the first change of the batch.
    after: Sequence,
    /// Sequence of the last change of the batch.
    pub(super) up_to: Sequence,
    /// The changes of the batch that have an etcd key.
    changes: Vec<KeyChange>,
    bytes: usize,
}

/// The newest changes, in batches.
#[derive(Debug, Default)]
pub(super) struct RecentChanges(Mutex<VecDeque<Arc<ChangeBatch>>>);

impl ChangeBatch {
    /// Reads the batch after a position from the feed, with at most [`BATCH_ANNOUNCEMENTS_MAX`]
    /// announcements.
    fn read_from_feed(reading: &Reading, follower: Follower) -> Option<Self> {
        let after = follower.position();
        let (mut up_to, mut changes, mut bytes) = (after, Vec::new(), 0);
        for announcement in follower.each_change(reading)?.take(BATCH_ANNOUNCEMENTS_MAX) {
            up_to = announcement.sequence;
            if let Some(key) = announcement.key.etcd_key() {
                bytes += announcement.byte_count();
                changes.push(KeyChange { key, announcement: Arc::clone(announcement) });
            }
            // bounded, because a batch stays in memory while a watch uses it
            if bytes > RETAINED_BYTES_MAX {
                break;
            }
        }
        Some(Self { after, up_to, changes, bytes })
    }

    /// Returns the changes of this batch after a position.
    pub(super) fn after(&self, position: Sequence) -> &[KeyChange] {
        let first = self.changes.partition_point(|change| change.announcement.sequence <= position);
        &self.changes[first..]
    }
}

impl RecentChanges {
    /// Returns a batch that continues from a position; `None` if the feed no longer has the changes
    /// after it.
    pub(super) fn batch_after(&self, reading: &Reading, follower: Follower) -> Option<Arc<ChangeBatch>> {
        let (position, head) = (follower.position(), reading.position().sequence);
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = batches.back().map(|batch| batch.up_to);
        if let Some(newest) = newest.filter(|newest| *newest < head && position >= batches[0].after && position <= *newest) {
            // only the new changes are read from the feed; if it no longer has them, the retained
            // batches are useless
            let mut from = newest;
            while from < head {
                match ChangeBatch::read_from_feed(reading, Follower::at(from)) {
                    Some(batch) => {
                        from = batch.up_to;
                        batches.push_back(Arc::new(batch));
                    }
                    None => {
                        batches.clear();
                        break;
                    }
                }
            }
        } else if newest.is_none_or(|newest| newest < head) && newest.is_none_or(|newest| position > newest) {
            batches.clear();
            batches.push_back(Arc::new(ChangeBatch::read_from_feed(reading, follower)?));
        }
        let mut retained: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let mut bytes: usize = batches.iter().map(|batch| batch.bytes).sum();
        while (retained > RETAINED_CHANGES_MAX || bytes > RETAINED_BYTES_MAX) && batches.len() > 1 {
            let Some(oldest) = batches.pop_front() else { break };
            (retained, bytes) = (retained - oldest.changes.len(), bytes - oldest.bytes);
        }
        let matching = batches.iter().find(|batch| batch.after <= position && position < batch.up_to).cloned();
        drop(batches);
        matching.or_else(|| ChangeBatch::read_from_feed(reading, follower).map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::InMemoryMirror;
    use super::*;

    #[tokio::test]
    async fn retained_changes_are_bounded_in_bytes_and_without_gaps() {
        let (mut mirror, recent) = (InMemoryMirror::new(), RecentChanges::default());
        let mut position = mirror.reading().await.position().sequence;
        for number in 0..80_u32 {
            mirror.put("10.0.0.1", &vec![u8::try_from(number).unwrap(); 1 << 20]);
            let reading = mirror.reading().await;
            let batch = recent.batch_after(&reading, Follower::at(position)).unwrap();
            let changes = batch.after(position);
            assert_eq!((changes.len(), changes[0].announcement.sequence), (1, position.next()));
            position = batch.up_to;
            let retained: usize = recent.0.lock().unwrap().iter().map(|batch| batch.bytes).sum();
            assert!(retained <= RETAINED_BYTES_MAX + (3 << 20), "{retained} bytes are retained");
        }
    }
}
