//! Readers with the same filter and form: what is live is encoded once for all of them.
//!
//! A group owns what was routed to it and is not encoded yet, and the encoded chunks that some reader still lacks. Whoever is first to
//! need what lies behind the last chunk encodes the next one, under a short lock; the others take the same bytes. A reader is a
//! position: a chunk is let go once each reader that was there took it. Deliberately lacks: a task, a queue for each reader, and
//! waiting for any of them: one that falls too far behind is [`Taken::Lost`] and replays through the index.

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

/// How many changes wait for a group at most to be encoded: two of the writer's largest batches (32 commands of 256 keys), so that one
/// never overruns a reader that keeps up.
const PENDING_COUNT_MAX: usize = 16_384;

/// How many changes a reader that joins may have to encode for the others: about a millisecond of work.
const JOIN_PENDING_MAX: usize = 512;

/// How many encoded bytes all groups together keep for readers that lag: at 3,250 changes/s of 450 bytes, 45 s of one group.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// What readers must have in common to share bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    /// In canonical form.
    pub(super) filter: Filter,
    pub(super) encoding: Encoding,
    /// Whether a service's change is sent as a patch.
    pub(super) patch: bool,
}

/// What all groups have in common.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// Up to here every change was given to the groups that it concerns.
    routed: AtomicU64,
    /// Encoded bytes in all groups.
    retained: AtomicUsize,
    /// How often a reader took bytes.
    taken: AtomicU64,
    /// How many events were encoded, each once for all readers of a group.
    pub(super) encoded: AtomicU64,
    /// How many changes were left out of waves, because a newer one of their key was in them.
    pub(super) merged: AtomicU64,
    /// The most changes that ever waited for a group.
    pub(super) pending_mark: AtomicUsize,
    /// The most bytes that all groups ever kept.
    pub(super) retained_mark: AtomicUsize,
    /// The writer is gone or the process ends: nothing more comes.
    pub(super) ended: AtomicBool,
}

/// Readers that share bytes.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    common: Arc<Common>,
    ring: Mutex<Ring>,
}

/// Some events, encoded.
#[derive(Debug)]
struct Chunk {
    /// The sequence before the first event, or before the wave that it is part of.
    from: Sequence,
    /// The sequence of the last event.
    to: Sequence,
    bytes: Bytes,
    /// Whether a reader that took it has exactly the state at `to`: not in the middle of a wave.
    settled: bool,
    /// How many readers have not taken it.
    lacking: usize,
}

#[derive(Debug)]
struct Ring {
    /// In order; what lies between two does not concern the filter.
    chunks: VecDeque<Chunk>,
    /// Routed and not encoded, in order.
    pending: VecDeque<Routed>,
    /// The newest change that was routed here. One that has several of the filter's facets comes once for each, and a reader may have
    /// encoded it in between.
    newest: Sequence,
    /// A reader below this one may lack something that is gone.
    floor: Sequence,
    /// Nobody read for so long that what was pending was given up; nothing is kept until somebody joins.
    dormant: bool,
    readers: usize,
    /// One place for each reader; it holds what wakes it where it waits.
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The next bytes.
    Bytes(Bytes),
    /// There is nothing more: the waker was kept.
    Nothing,
    /// The reader is too far behind.
    Lost,
}

/// One reader's place in a group. Leaves when dropped, through the hub.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) position: Sequence,
    /// Whether the reader has exactly the state at its position.
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

    /// How often a reader took bytes.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Group {
    /// A group without readers that has everything up to what was routed.
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

    /// Takes in a change that may concern the filter. True if nothing was pending before, so that its readers must be woken.
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

    /// Some changes up to `head` can no longer be told: every reader has to replay.
    pub(super) fn give_up(&self, head: Sequence) {
        self.ring().give_up(head, &self.common);
    }

    /// Gives up what waits to be encoded where it begins before `oldest`, which the feed's ring begins with: so all that waits for all groups is
    /// in the ring too, and its bound in bytes holds for them. True if that was so, and its readers must be woken.
    pub(super) fn keep_up(&self, oldest: Sequence) -> bool {
        let mut ring = self.ring();
        let is_behind = ring.pending.front().is_some_and(|first| first.from() < oldest);
        if is_behind {
            ring.give_up(self.common.routed(), &self.common);
        }
        is_behind
    }

    /// How far its slowest reader is behind `head`.
    pub(super) fn lag(&self, head: Sequence) -> u64 {
        let ring = self.ring();
        let pending = ring.pending.front().filter(|_| ring.readers > 0).map(|first| first.from().0);
        let lacked = ring.chunks.iter().find(|chunk| chunk.lacking > 0).map(|chunk| chunk.from.0);
        lacked.or(pending).map_or(0, |position| head.0.saturating_sub(position))
    }

    /// Wakes every reader that waits. Says how many.
    pub(super) fn wake(&self) -> usize {
        let waiting: Vec<Waker> = self.ring().wakers.iter_mut().filter_map(Option::take).collect();
        let count = waiting.len();
        waiting.into_iter().for_each(Waker::wake);
        count
    }

    /// A place for a reader that has everything up to `position`, which must be routed; `None` where it lies inside of what is shared.
    pub(super) fn join(&self, position: Sequence, reading: &Reading) -> Option<Membership> {
        let mut ring = self.ring();
        if ring.pending.len() > JOIN_PENDING_MAX {
            return None;
        }
        // what is pending now is not for this reader, so it must not get into one chunk with what is
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

    /// Gives a place back. True if it was the last.
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

    /// What the reader lacks next. `look` gives the newest snapshot, where something has to be encoded.
    pub(super) fn take(&self, seat: &mut Membership, waker: &Waker, look: impl FnOnce() -> Option<Reading>) -> Taken {
        // before the lock: whatever is routed up to here and not pending then does not concern the filter
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
                // the reader that encodes has what it needs; where there is no room, slower ones have to replay, however few chunks its group keeps
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

    /// Makes what is pending into a chunk, as far as one goes. False if nothing was pending.
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
    /// The first chunk that a reader lacks.
    fn next_chunk(&self, position: Sequence) -> usize {
        self.chunks.partition_point(|chunk| chunk.to <= position)
    }

    /// Lets go what no reader lacks.
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
        // with their room: this happens to groups whose readers stand still
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
