//! The moments that lists are read at page by page, kept until their last page.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::revisions::revision;
use crate::handle::Reading;

/// How many moments are kept for lists that go on. What changed since stays in memory with each: at 1,000 changes/s of 300 B for a minute some
/// 20 MB for the oldest, which all others share.
const PINNED_COUNT_MAX: usize = 16;

/// How long one is kept that nobody asks for: the pages of a list follow each other within seconds.
const PINNED_FOR: Duration = Duration::from_secs(60);

/// The moments that lists are read at.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<i64, Pin>>);

#[derive(Debug)]
struct Pin {
    reading: Reading,
    asked: Instant,
}

impl Pins {
    /// Keeps a moment for the pages that follow.
    pub(super) fn keep(&self, reading: &Reading) {
        let (mut pins, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        pins.retain(|_, pin| now.duration_since(pin.asked) < PINNED_FOR);
        pins.insert(revision(reading.position().sequence), Pin { reading: reading.clone(), asked: now });
        while pins.len() > PINNED_COUNT_MAX {
            let longest_ago = pins.iter().min_by_key(|(_, pin)| pin.asked).map(|(revision, _)| *revision);
            longest_ago.and_then(|revision| pins.remove(&revision));
        }
    }

    /// The moment of a revision, if it is kept.
    pub(super) fn find(&self, revision: i64) -> Option<Reading> {
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pin = pins.get_mut(&revision)?;
        pin.asked = Instant::now();
        Some(pin.reading.clone())
    }
}
