//! Readers with the same filter and format. Live events are encoded once for all of them.
//!
//! A group has the routed changes that are not encoded yet, and the encoded chunks that some reader
//! still lacks. The first reader that needs more encodes the next chunk under a short lock; the
//! others get the same bytes. A reader is only a position. A chunk is dropped once every reader of
//! that time has it.
//!
//! There is no task and no queue per reader, and no reader waits for another. One that falls too
//! far behind gets [`Taken::Lost`] and replays from the index.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::encode::{CHUNK_BYTES, Encoder, Encoding};
use super::wave::Routed;
use crate::api::dto::objects::ClusterIds;
use crate::handle::{Filter, Item, Reading};
use crate::model::Sequence;

/// Maximum number of changes that wait to be encoded in a group.
///
/// It is twice the writer's largest batch (32 commands of 256 keys), so that one batch never
/// overruns a reader that keeps up.
const PENDING_COUNT_MAX: usize = 16_384;

/// Maximum number of changes that a joining reader has to encode for the others: about a
/// millisecond of work.
const JOIN_PENDING_MAX: usize = 512;

/// Maximum bytes of encoded chunks in all groups together. At 3,250 changes/s of 450 bytes, they
/// last 45 s for one group.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// Properties that readers must have in common to share bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    /// Filter in canonical form.
    pub(super) filter: Filter,
    pub(super) encoding: Encoding,
    /// Set if a changed service is sent as a patch.
    pub(super) patch: bool,
}

/// State shared by all groups.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// Sequence up to which every change was routed to its groups.
    routed: AtomicU64,
    /// Bytes of the encoded chunks in all groups.
    retained: AtomicUsize,
    /// Number of chunks that readers got.
    taken: AtomicU64,
    /// Number of encoded events. Each is encoded once for all readers of a group.
    pub(super) encoded: AtomicU64,
    /// Number of changes left out of waves because the wave has a newer one of their key.
    pub(super) merged: AtomicU64,
    /// High-water mark of the changes that wait in one group.
    pub(super) pending_mark: AtomicUsize,
    /// High-water mark of the encoded bytes in all groups.
    pub(super) retained_mark: AtomicUsize,
    /// Set when the writer has ended or the process stops: there are no more changes.
    pub(super) ended: AtomicBool,
}

/// Readers that share encoded bytes.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    common: Arc<Common>,
    ring: Mutex<Ring>,
}

/// Some encoded events.
#[derive(Debug)]
struct Chunk {
    /// Sequence before the first event, or before the wave that it is part of.
    from: Sequence,
    /// Sequence of the last event.
    to: Sequence,
    bytes: Bytes,
    /// Set if a reader has exactly the state at `to` after this chunk, because it does not end
    /// inside a wave.
    settled: bool,
    /// Number of readers that do not have the chunk yet.
    lacking: usize,
}

#[derive(Debug)]
struct Ring {
    /// Encoded chunks in order. Changes between them do not match the filter.
    chunks: VecDeque<Chunk>,
    /// Routed changes that are not encoded yet, in order.
    pending: VecDeque<Routed>,
    /// Sequence of the newest routed change.
    ///
    /// A change with several of the filter's facets is routed once per facet, and a reader may have
    /// encoded it in between.
    newest: Sequence,
    /// Sequence below which a reader may lack changes that were dropped.
    floor: Sequence,
    /// Set after the pending changes were dropped because no reader read for too long. Changes are
    /// not retained until a reader joins.
    dormant: bool,
    readers: usize,
    /// Waker of each waiting reader, by the reader's slot.
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// Result of a read from the group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The next bytes.
    Bytes(Bytes),
    /// There are no more bytes yet. The waker is registered.
    Nothing,
    /// The reader is too far behind and must replay.
    Lost,
}

/// Membership of one reader in a group. Dropping its [`super::hub::Member`] ends it.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) position: Sequence,
    /// Set if the reader has exactly the state at its position.
    pub(super) settled: bool,
    place: usize,
}

impl Common {
    pub(super) fn routed(&self) -> Sequence {
        Sequence(self.routed.load(Ordering::Acquire))
    }

    pub(super) fn set_routed(&self, sequence: Sequence) {
        self.routed.store(sequence.0, Ordering::Release);
    }

    /// Returns the number of chunks that readers got.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Group {
    /// Creates a group without readers that is current up to the last routed change.
    pub(super) fn new(key: GroupKey, common: Arc<Common>) -> Self {
        let ring = Ring {
            chunks: VecDeque::new(),
            pending: VecDeque::new(),
            newest: common.routed(),
            floor: common.routed(),
            dormant: false,
            readers: 0,
            wakers: Vec::new(),
            free: Vec::new(),
        };
        Self { key, common, ring: Mutex::new(ring) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change that may match the filter. Returns true if nothing was pending before; the
    /// readers must then be woken.
    pub(super) fn push(&self, routed: &Routed) -> bool {
        let mut ring = self.ring();
        let sequence = routed.announcement.sequence;
        if ring.dormant || sequence <= ring.newest {
            return false;
        }
        ring.newest = sequence;
        let first = ring.pending.is_empty();
        ring.pending.push_back(routed.clone());
        self.common.pending_mark.fetch_max(ring.pending.len(), Ordering::Relaxed);
        if ring.pending.len() > PENDING_COUNT_MAX {
            ring.give_up(sequence, &self.common);
        }
        first
    }

    /// Drops everything up to `head`, because changes were lost. Every reader has to replay.
    pub(super) fn give_up(&self, head: Sequence) {
        self.ring().give_up(head, &self.common);
    }

    /// Drops the pending changes if the oldest of them is before `oldest`, the start of the feed's
    /// ring. Returns true if so; the readers must then be woken.
    ///
    /// All pending changes of all groups are therefore in the ring too, and its limit in bytes
    /// bounds them.
    pub(super) fn keep_up(&self, oldest: Sequence) -> bool {
        let mut ring = self.ring();
        let is_behind = ring.pending.front().is_some_and(|first| first.from() < oldest);
        if is_behind {
            ring.give_up(self.common.routed(), &self.common);
        }
        is_behind
    }

    /// Returns by how many changes the slowest reader is behind `head`.
    pub(super) fn lag(&self, head: Sequence) -> u64 {
        let ring = self.ring();
        let pending = ring.pending.front().filter(|_| ring.readers > 0).map(|first| first.from().0);
        let lacked = ring.chunks.iter().find(|chunk| chunk.lacking > 0).map(|chunk| chunk.from.0);
        lacked.or(pending).map_or(0, |position| head.0.saturating_sub(position))
    }

    /// Wakes every waiting reader. Returns their number.
    pub(super) fn wake(&self) -> usize {
        let waiting: Vec<Waker> = self.ring().wakers.iter_mut().filter_map(Option::take).collect();
        let count = waiting.len();
        waiting.into_iter().for_each(Waker::wake);
        count
    }

    /// Adds a reader that has everything up to `position`, which must be routed. `None` if the
    /// position is inside a shared chunk.
    pub(super) fn join(&self, position: Sequence, reading: &Reading) -> Option<Membership> {
        let mut ring = self.ring();
        if ring.pending.len() > JOIN_PENDING_MAX {
            return None;
        }
        // the pending changes are not for this reader, so they must not share a chunk with later
        // ones
        while self.encode(&mut ring, reading) {}
        ring.let_go(&self.common);
        if ring.dormant {
            ring.dormant = false;
            ring.floor = self.common.routed();
        }
        let next = ring.next_chunk(position);
        let inside = ring.chunks.get(next).is_some_and(|chunk| chunk.from < position);
        if position < ring.floor || inside {
            return None;
        }
        ring.chunks.iter_mut().skip(next).for_each(|chunk| chunk.lacking += 1);
        ring.readers += 1;
        let place = ring.free.pop().unwrap_or_else(|| {
            ring.wakers.push(None);
            ring.wakers.len() - 1
        });
        Some(Membership { position, settled: true, place })
    }

    /// Removes a reader. Returns true if it was the last.
    pub(super) fn leave(&self, seat: &Membership) -> bool {
        let mut ring = self.ring();
        let next = ring.next_chunk(seat.position);
        ring.chunks.iter_mut().skip(next).for_each(|chunk| chunk.lacking = chunk.lacking.saturating_sub(1));
        ring.let_go(&self.common);
        ring.wakers[seat.place] = None;
        ring.free.push(seat.place);
        ring.readers -= 1;
        ring.readers == 0
    }

    /// Returns the reader's next bytes. `look` returns the newest snapshot; it is called only if
    /// something has to be encoded.
    pub(super) fn take(&self, seat: &mut Membership, waker: &Waker, look: impl FnOnce() -> Option<Reading>) -> Taken {
        // before the lock: a change routed up to here that is not pending then does not match the
        // filter
        let routed = self.common.routed();
        let mut ring = self.ring();
        let mut reading = None;
        let mut look = Some(look);
        loop {
            if seat.position < ring.floor {
                return Taken::Lost;
            }
            let next = ring.next_chunk(seat.position);
            if let Some(chunk) = ring.chunks.get_mut(next) {
                chunk.lacking = chunk.lacking.saturating_sub(1);
                (seat.position, seat.settled) = (chunk.to, chunk.settled);
                self.common.taken.fetch_add(1, Ordering::Relaxed);
                let bytes = chunk.bytes.clone();
                ring.let_go(&self.common);
                // this reader has its bytes; if memory is short, slower ones have to replay,
                // however few chunks the group has
                while self.common.retained.load(Ordering::Relaxed) > RETAINED_BYTES_MAX
                    && ring.chunks.front().is_some_and(|one| one.to <= seat.position)
                {
                    ring.drop_oldest(&self.common);
                }
                return Taken::Bytes(bytes);
            }
            if ring.pending.is_empty() {
                (seat.position, seat.settled) = (seat.position.max(routed), true);
                ring.wait(seat.place, waker);
                return Taken::Nothing;
            }
            if let Some(look) = look.take() {
                reading = look();
            }
            let Some(reading) = &reading else { return Taken::Lost };
            self.encode(&mut ring, reading);
        }
    }

    /// Encodes pending changes into one chunk. Returns false if nothing was pending.
    fn encode(&self, ring: &mut Ring, reading: &Reading) -> bool {
        if ring.pending.is_empty() {
            return false;
        }
        let epoch = reading.position().epoch;
        let ids = ClusterIds::new(reading);
        let mut encoder = Encoder::new(self.key.encoding);
        let (mut range, mut wave) = (None, None);
        while encoder.len() < CHUNK_BYTES
            && let Some(routed) = ring.pending.pop_front()
        {
            let announcement = &routed.announcement;
            if let Some(item) = Item::told(&self.key.filter, announcement, routed.position(epoch)) {
                let item = if self.key.patch { item.shortened(&self.key.filter, announcement) } else { item };
                self.common.encoded.fetch_add(1, Ordering::Relaxed);
                encoder.item(&item, reading, &ids);
                let from = range.map_or(routed.from(), |(from, _)| from);
                range = Some((from, announcement.sequence));
                wave = routed.wave;
            }
        }
        if let Some((from, to)) = range {
            let settled = wave.is_none() || ring.pending.front().is_none_or(|next| next.wave != wave);
            // one chunk: the encoder closes it at the length that ends the loop
            let bytes = encoder.finish().pop().unwrap_or_default();
            let retained = self.common.retained.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
            self.common.retained_mark.fetch_max(retained, Ordering::Relaxed);
            ring.chunks.push_back(Chunk { from, to, bytes, settled, lacking: ring.readers });
            while self.common.retained.load(Ordering::Relaxed) > RETAINED_BYTES_MAX && ring.chunks.len() > 1 {
                ring.drop_oldest(&self.common);
            }
        }
        true
    }
}

impl Ring {
    /// Returns the index of the first chunk that a reader lacks.
    fn next_chunk(&self, position: Sequence) -> usize {
        self.chunks.partition_point(|chunk| chunk.to <= position)
    }

    /// Drops the oldest chunks that every reader has.
    fn let_go(&mut self, common: &Common) {
        while self.chunks.front().is_some_and(|chunk| chunk.lacking == 0) {
            self.drop_oldest(common);
        }
    }

    fn drop_oldest(&mut self, common: &Common) {
        if let Some(chunk) = self.chunks.pop_front() {
            common.retained.fetch_sub(chunk.bytes.len(), Ordering::Relaxed);
            self.floor = self.floor.max(chunk.to);
        }
    }

    fn give_up(&mut self, sequence: Sequence, common: &Common) {
        while !self.chunks.is_empty() {
            self.drop_oldest(common);
        }
        // with its capacity: this happens to groups whose readers read nothing
        self.pending = VecDeque::new();
        self.floor = self.floor.max(sequence);
        self.dormant = true;
    }

    fn wait(&mut self, place: usize, waker: &Waker) {
        match &mut self.wakers[place] {
            Some(kept) => kept.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
