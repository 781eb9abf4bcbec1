//! The newest changes in etcd's form, prepared once for all watches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;

use crate::handle::Reading;
use crate::model::{Announcement, Sequence};

/// Maximum number of retained changes: four seconds at 1,000 changes/s.
///
/// A thousand streams that each scan 20 times a second find all changes here. The feed usually
/// retains the same changes anyway.
const KEPT_MAX: usize = 4_096;

/// Maximum bytes of retained changes: a fourth of the feed's limit. The feed may have dropped some
/// of them.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Maximum number of announcements per part.
const PART_MAX: usize = 1_024;

/// One change of a key.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) key: SmolStr,
    pub(super) announcement: Arc<Announcement>,
}

/// Consecutive changes without a gap.
#[derive(Debug)]
pub(super) struct Part {
    /// Positions before the first and after the last change. Changes between them without an etcd
    /// key are left out.
    after: Sequence,
    pub(super) upto: Sequence,
    told: Vec<Told>,
    bytes: usize,
}

/// The newest parts.
#[derive(Debug, Default)]
pub(super) struct Window(Mutex<VecDeque<Arc<Part>>>);

impl Part {
    /// Builds the part after a position, with at most [`PART_MAX`] announcements.
    fn of(reading: &Reading, after: Sequence) -> Option<Self> {
        let (mut upto, mut told, mut bytes) = (after, Vec::new(), 0);
        for announcement in reading.announced_after(after)?.take(PART_MAX) {
            upto = announcement.sequence;
            if let Some(key) = announcement.key.etcd_key() {
                bytes += announcement.byte_count();
                told.push(Told { key, announcement: Arc::clone(announcement) });
            }
            // bounded, because a part stays in memory while a watch uses it
            if bytes > KEPT_BYTES_MAX {
                break;
            }
        }
        Some(Self { after, upto, told, bytes })
    }

    /// Returns the changes of this part after a position.
    pub(super) fn after(&self, position: Sequence) -> &[Told] {
        let first = self.told.partition_point(|told| told.announcement.sequence <= position);
        &self.told[first..]
    }
}

impl Window {
    /// Returns a part that continues from a position; `None` if the feed no longer has the changes
    /// after it.
    pub(super) fn after(&self, reading: &Reading, position: Sequence) -> Option<Arc<Part>> {
        let head = reading.position().sequence;
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = parts.back().map(|part| part.upto);
        if let Some(newest) = newest.filter(|newest| *newest < head && position >= parts[0].after && position <= *newest) {
            // only the new changes are read from the feed; if it no longer has them, the retained
            // parts are useless
            let mut from = newest;
            while from < head {
                match Part::of(reading, from) {
                    Some(part) => {
                        from = part.upto;
                        parts.push_back(Arc::new(part));
                    }
                    None => {
                        parts.clear();
                        break;
                    }
                }
            }
        } else if newest.is_none_or(|newest| newest < head) && newest.is_none_or(|newest| position > newest) {
            parts.clear();
            parts.push_back(Arc::new(Part::of(reading, position)?));
        }
        let mut kept: usize = parts.iter().map(|part| part.told.len()).sum();
        let mut bytes: usize = parts.iter().map(|part| part.bytes).sum();
        while (kept > KEPT_MAX || bytes > KEPT_BYTES_MAX) && parts.len() > 1 {
            let Some(oldest) = parts.pop_front() else { break };
            (kept, bytes) = (kept - oldest.told.len(), bytes - oldest.bytes);
        }
        let found = parts.iter().find(|part| part.after <= position && position < part.upto).cloned();
        drop(parts);
        found.or_else(|| Part::of(reading, position).map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Mirror;
    use super::*;

    #[tokio::test]
    async fn what_is_kept_ready_is_bounded_in_bytes_and_follows_without_a_gap() {
        let (mut mirror, window) = (Mirror::new(), Window::default());
        let mut position = mirror.reading().await.position().sequence;
        for number in 0..80_u32 {
            mirror.put("10.0.0.1", &vec![u8::try_from(number).unwrap(); 1 << 20]);
            let reading = mirror.reading().await;
            let part = window.after(&reading, position).unwrap();
            let told = part.after(position);
            assert_eq!((told.len(), told[0].announcement.sequence), (1, position.next()));
            position = part.upto;
            let kept: usize = window.0.lock().unwrap().iter().map(|part| part.bytes).sum();
            assert!(kept <= KEPT_BYTES_MAX + (3 << 20), "{kept} bytes are kept");
        }
    }
}
