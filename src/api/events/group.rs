//! Readers with the same filter and format. Live events are encoded once for all of them.
//!
//! A group stores the routed changes that are not encoded yet, and the encoded chunks that some
//! reader has not received. The first reader that needs more encodes the next chunk under a short
//! lock; the others get the same bytes. A reader is only a position. A chunk is dropped once every
//! reader that was in the group when the chunk was encoded has received it.
//!
//! There is no task and no queue per reader, and no reader waits for another. A reader that falls
//! too far behind gets [`GroupRead::Lagged`] and replays changes from a snapshot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::conflation::RoutedChange;
use super::encode::{CHUNK_BYTES, Encoder, Encoding};
use crate::handle::{Filter, Reading, StreamEvent};
use crate::model::Sequence;

/// Maximum number of changes that wait to be encoded in a group.
///
/// It is twice the writer's largest batch (32 commands of 256 keys), so that one batch never
/// overruns a reader that keeps up.
const PENDING_COUNT_MAX: usize = 16_384;

/// Maximum number of pending changes with which a reader may join. It first has to encode them for
/// the other readers: about a millisecond of work.
const JOIN_PENDING_MAX: usize = 512;

/// Maximum bytes of encoded chunks in all groups together. For one group at 3,250 changes/s of 450
/// bytes each, these are the events of 45 s.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// Properties that readers must have in common to share encoded bytes.
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
pub(super) struct GroupsState {
    /// Sequence up to which every change was routed to its groups.
    routed: AtomicU64,
    /// Bytes of the encoded chunks in all groups.
    retained: AtomicUsize,
    /// Number of chunks that readers got.
    delivered: AtomicU64,
    /// Number of encoded events. Each is encoded once for all readers of a group.
    pub(super) encoded: AtomicU64,
    /// Number of changes that were not sent because a newer change of their key was sent.
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
pub(super) struct StreamGroup {
    pub(super) key: GroupKey,
    groups_state: Arc<GroupsState>,
    buffer: Mutex<GroupBuffer>,
}

/// Encoded events that are sent together.
#[derive(Debug)]
struct EncodedChunk {
    /// Sequence before the first event, or before the conflated range that it is part of.
    from: Sequence,
    /// Sequence of the last event.
    to: Sequence,
    bytes: Bytes,
    /// Set if a reader has exactly the state at `to` after this chunk, because it does not end
    /// inside a conflated range.
    is_complete: bool,
    /// Number of readers that do not have the chunk yet.
    missing_readers: usize,
}

#[derive(Debug)]
struct GroupBuffer {
    /// Encoded chunks in order. Changes between them do not match the filter.
    chunks: VecDeque<EncodedChunk>,
    /// Routed changes that are not encoded yet, in order.
    pending: VecDeque<RoutedChange>,
    /// Sequence of the newest routed change.
    ///
    /// A change that matches several terms of the filter is routed once per term, and a reader may
    /// have encoded it in between. `push` therefore ignores changes up to this sequence.
    newest: Sequence,
    /// A reader whose position is below this sequence may lack changes that were dropped, and has
    /// to replay.
    floor: Sequence,
    /// Set after the pending changes were dropped because no reader read them in time. New changes
    /// are not stored until a reader joins.
    is_dormant: bool,
    reader_count: usize,
    /// Waker of each waiting reader, by the reader's slot.
    wakers: Vec<Option<Waker>>,
    free_slots: Vec<usize>,
}

/// Result of a read from the group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GroupRead {
    /// The next bytes.
    Bytes(Bytes),
    /// There are no more bytes yet. The waker is registered.
    Pending,
    /// The reader is too far behind and has to replay changes from a snapshot.
    Lagged,
}

/// Membership of one reader in a group. Dropping the [`super::change_router::GroupMember`] ends it.
#[derive(Debug)]
pub(super) struct GroupMembership {
    pub(super) position: Sequence,
    /// Set if the reader has exactly the state at its position.
    pub(super) is_complete: bool,
    slot: usize,
}

impl GroupsState {
    pub(super) fn routed(&self) -> Sequence {
        Sequence(self.routed.load(Ordering::Acquire))
    }

    pub(super) fn set_routed(&self, sequence: Sequence) {
        self.routed.store(sequence.0, Ordering::Release);
    }

    /// Returns the number of chunks that readers got.
    pub(super) fn delivered_count(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl StreamGroup {
    /// Creates a group without readers that is current up to the last routed change.
    pub(super) fn new(key: GroupKey, groups_state: Arc<GroupsState>) -> Self {
        let buffer = GroupBuffer {
            chunks: VecDeque::new(),
            pending: VecDeque::new(),
            newest: groups_state.routed(),
            floor: groups_state.routed(),
            is_dormant: false,
            reader_count: 0,
            wakers: Vec::new(),
            free_slots: Vec::new(),
        };
        Self { key, groups_state, buffer: Mutex::new(buffer) }
    }

    fn buffer(&self) -> MutexGuard<'_, GroupBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change that may match the filter. Returns true if nothing was pending before; the
    /// readers must then be woken.
    pub(super) fn push(&self, routed: &RoutedChange) -> bool {
        let mut buffer = self.buffer();
        let sequence = routed.announcement.sequence;
        if buffer.is_dormant || sequence <= buffer.newest {
            return false;
        }
        buffer.newest = sequence;
        let first = buffer.pending.is_empty();
        buffer.pending.push_back(routed.clone());
        self.groups_state.pending_mark.fetch_max(buffer.pending.len(), Ordering::Relaxed);
        if buffer.pending.len() > PENDING_COUNT_MAX {
            buffer.discard_all(sequence, &self.groups_state);
        }
        first
    }

    /// Drops everything up to `head`, because the feed no longer has all changes. Every reader has
    /// to replay.
    pub(super) fn discard_all(&self, head: Sequence) {
        self.buffer().discard_all(head, &self.groups_state);
    }

    /// Drops the pending changes if the oldest of them is before `oldest`, the start of the feed's
    /// ring. Returns true if so; the readers must then be woken.
    ///
    /// The ring therefore contains all pending changes of all groups, and its limit in bytes bounds
    /// their memory.
    pub(super) fn discard_if_behind(&self, oldest: Sequence) -> bool {
        let mut buffer = self.buffer();
        let is_behind = buffer.pending.front().is_some_and(|first| first.start() < oldest);
        if is_behind {
            buffer.discard_all(self.groups_state.routed(), &self.groups_state);
        }
        is_behind
    }

    /// Returns the number of changes by which the slowest reader is behind `head`.
    pub(super) fn lag(&self, head: Sequence) -> u64 {
        let buffer = self.buffer();
        let pending = buffer.pending.front().filter(|_| buffer.reader_count > 0).map(|first| first.start().0);
        let lacked = buffer.chunks.iter().find(|chunk| chunk.missing_readers > 0).map(|chunk| chunk.from.0);
        lacked.or(pending).map_or(0, |position| head.0.saturating_sub(position))
    }

    /// Wakes every waiting reader. Returns their number.
    pub(super) fn wake(&self) -> usize {
        let waiting: Vec<Waker> = self.buffer().wakers.iter_mut().filter_map(Option::take).collect();
        let count = waiting.len();
        waiting.into_iter().for_each(Waker::wake);
        count
    }

    /// Adds a reader that has everything up to `position`, which must be routed. `None` if the
    /// position is inside a shared chunk or below the floor, or if too many changes are pending.
    pub(super) fn join(&self, position: Sequence, reading: &Reading) -> Option<GroupMembership> {
        let mut buffer = self.buffer();
        if buffer.pending.len() > JOIN_PENDING_MAX {
            return None;
        }
        // the pending changes are not for this reader, so they must not share a chunk with later
        // ones
        while self.encode(&mut buffer, reading) {}
        buffer.drop_delivered(&self.groups_state);
        if buffer.is_dormant {
            buffer.is_dormant = false;
            buffer.floor = self.groups_state.routed();
        }
        let next = buffer.next_chunk(position);
        let inside = buffer.chunks.get(next).is_some_and(|chunk| chunk.from < position);
        if position < buffer.floor || inside {
            return None;
        }
        buffer.chunks.iter_mut().skip(next).for_each(|chunk| chunk.missing_readers += 1);
        buffer.reader_count += 1;
        let slot = buffer.free_slots.pop().unwrap_or_else(|| {
            buffer.wakers.push(None);
            buffer.wakers.len() - 1
        });
        Some(GroupMembership { position, is_complete: true, slot })
    }

    /// Removes a reader. Returns true if it was the last.
    pub(super) fn leave(&self, membership: &GroupMembership) -> bool {
        let mut buffer = self.buffer();
        let next = buffer.next_chunk(membership.position);
        buffer.chunks.iter_mut().skip(next).for_each(|chunk| chunk.missing_readers = chunk.missing_readers.saturating_sub(1));
        buffer.drop_delivered(&self.groups_state);
        buffer.wakers[membership.slot] = None;
        buffer.free_slots.push(membership.slot);
        buffer.reader_count -= 1;
        buffer.reader_count == 0
    }

    /// Returns the reader's next bytes. `newest` supplies the newest snapshot; it is called only if
    /// changes have to be encoded.
    pub(super) fn read(&self, membership: &mut GroupMembership, waker: &Waker, newest: impl FnOnce() -> Option<Reading>) -> GroupRead {
        // read before the lock is taken: a change up to `routed` that is not pending under the lock
        // does not match the filter
        let routed = self.groups_state.routed();
        let mut buffer = self.buffer();
        let mut reading = None;
        let mut newest = Some(newest);
        loop {
            if membership.position < buffer.floor {
                return GroupRead::Lagged;
            }
            let next = buffer.next_chunk(membership.position);
            if let Some(chunk) = buffer.chunks.get_mut(next) {
                chunk.missing_readers = chunk.missing_readers.saturating_sub(1);
                (membership.position, membership.is_complete) = (chunk.to, chunk.is_complete);
                self.groups_state.delivered.fetch_add(1, Ordering::Relaxed);
                let bytes = chunk.bytes.clone();
                buffer.drop_delivered(&self.groups_state);
                // this reader has the chunk; if memory is short, the chunk is dropped and slower
                // readers have to replay, even if the group has few chunks
                while self.groups_state.retained.load(Ordering::Relaxed) > RETAINED_BYTES_MAX
                    && buffer.chunks.front().is_some_and(|one| one.to <= membership.position)
                {
                    buffer.drop_oldest(&self.groups_state);
                }
                return GroupRead::Bytes(bytes);
            }
            if buffer.pending.is_empty() {
                (membership.position, membership.is_complete) = (membership.position.max(routed), true);
                buffer.register_waker(membership.slot, waker);
                return GroupRead::Pending;
            }
            if let Some(newest) = newest.take() {
                reading = newest();
            }
            let Some(reading) = &reading else { return GroupRead::Lagged };
            self.encode(&mut buffer, reading);
        }
    }

    /// Encodes pending changes into one chunk. Returns false if nothing was pending.
    fn encode(&self, buffer: &mut GroupBuffer, reading: &Reading) -> bool {
        if buffer.pending.is_empty() {
            return false;
        }
        let epoch = reading.position().epoch;
        let mut encoder = Encoder::new(self.key.encoding);
        let (mut encoded, mut conflated) = (None, None);
        while encoder.len() < CHUNK_BYTES
            && let Some(routed) = buffer.pending.pop_front()
        {
            let announcement = &routed.announcement;
            if let Some(item) = StreamEvent::of_change(&self.key.filter, announcement, routed.position(epoch)) {
                let item = if self.key.patch { item.into_patch(&self.key.filter, announcement) } else { item };
                self.groups_state.encoded.fetch_add(1, Ordering::Relaxed);
                encoder.item(&item, reading);
                let from = encoded.map_or(routed.start(), |(from, _)| from);
                encoded = Some((from, announcement.sequence));
                conflated = routed.range;
            }
        }
        if let Some((from, to)) = encoded {
            let is_complete = conflated.is_none() || buffer.pending.front().is_none_or(|next| next.range != conflated);
            // there is exactly one chunk: the encoder closes it at the length that ends the loop
            let bytes = encoder.finish().pop().unwrap_or_default();
            let retained = self.groups_state.retained.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
            self.groups_state.retained_mark.fetch_max(retained, Ordering::Relaxed);
            buffer.chunks.push_back(EncodedChunk { from, to, bytes, is_complete, missing_readers: buffer.reader_count });
            while self.groups_state.retained.load(Ordering::Relaxed) > RETAINED_BYTES_MAX && buffer.chunks.len() > 1 {
                buffer.drop_oldest(&self.groups_state);
            }
        }
        true
    }
}

impl GroupBuffer {
    /// Returns the index of the first chunk that a reader lacks.
    fn next_chunk(&self, position: Sequence) -> usize {
        self.chunks.partition_point(|chunk| chunk.to <= position)
    }

    /// Drops the oldest chunks that every reader has.
    fn drop_delivered(&mut self, groups_state: &GroupsState) {
        while self.chunks.front().is_some_and(|chunk| chunk.missing_readers == 0) {
            self.drop_oldest(groups_state);
        }
    }

    fn drop_oldest(&mut self, groups_state: &GroupsState) {
        if let Some(chunk) = self.chunks.pop_front() {
            groups_state.retained.fetch_sub(chunk.bytes.len(), Ordering::Relaxed);
            self.floor = self.floor.max(chunk.to);
        }
    }

    fn discard_all(&mut self, sequence: Sequence, groups_state: &GroupsState) {
        while !self.chunks.is_empty() {
            self.drop_oldest(groups_state);
        }
        // a new queue also frees the capacity; this happens to groups whose readers read nothing
        self.pending = VecDeque::new();
        self.floor = self.floor.max(sequence);
        self.is_dormant = true;
    }

    fn register_waker(&mut self, slot: usize, waker: &Waker) {
        match &mut self.wakers[slot] {
            Some(registered) => registered.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
