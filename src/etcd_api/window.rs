//! The newest changes as an etcd tells them, made ready once for all watches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;

use crate::handle::Reading;
use crate::model::{Announcement, Sequence};

/// How many changes are kept ready: those of four seconds at 1,000/s, so that a thousand streams that each look twenty times a second find all. What
/// they hold the ring holds too, as a rule.
const KEPT_MAX: usize = 4_096;

/// How many changes one part has.
const PART_MAX: usize = 1_024;

/// One change of a key.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) key: SmolStr,
    pub(super) announcement: Arc<Announcement>,
}

/// Changes that follow each other without a gap.
#[derive(Debug)]
pub(super) struct Part {
    /// The position before the first of them, and that behind the last: between them may be some that no etcd has.
    after: Sequence,
    pub(super) upto: Sequence,
    told: Vec<Told>,
}

/// The newest parts.
#[derive(Debug, Default)]
pub(super) struct Window(Mutex<VecDeque<Arc<Part>>>);

impl Part {
    /// What follows a position, up to so many announcements.
    fn of(reading: &Reading, after: Sequence) -> Option<Self> {
        let (mut upto, mut told) = (after, Vec::new());
        for announcement in reading.announced_after(after)?.take(PART_MAX) {
            upto = announcement.sequence;
            if let Some(key) = announcement.key.etcd_key() {
                told.push(Told { key, announcement: Arc::clone(announcement) });
            }
        }
        Some(Self { after, upto, told })
    }

    /// Those of its changes that follow a position.
    pub(super) fn after(&self, position: Sequence) -> &[Told] {
        let first = self.told.partition_point(|told| told.announcement.sequence <= position);
        &self.told[first..]
    }
}

impl Window {
    /// A part that goes on from a position; `None` where the ring has lost what follows it.
    pub(super) fn after(&self, reading: &Reading, position: Sequence) -> Option<Arc<Part>> {
        let head = reading.position().sequence;
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = parts.back().map(|part| part.upto);
        if let Some(newest) = newest.filter(|newest| *newest < head && position >= parts[0].after && position <= *newest) {
            // the ring is asked for what is new alone; where it has lost that, nobody needs what is kept
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
        while kept > KEPT_MAX && parts.len() > 1 {
            kept -= parts.pop_front().map_or(0, |part| part.told.len());
        }
        let found = parts.iter().find(|part| part.after <= position && position < part.upto).cloned();
        drop(parts);
        found.or_else(|| Part::of(reading, position).map(Arc::new))
    }
}
