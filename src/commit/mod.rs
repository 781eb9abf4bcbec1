//! The committer: the one thread that applies changes to the mirror, numbers them, logs them and
//! publishes the result.
//!
//! The tasks of the clusters send [`Command`]s through one bounded queue. For each batch the
//! [`Committer`] publishes a new [`MirrorSnapshot`], then hands the changes to `persist`, which
//! stores them in groups on a thread of its own, because sled blocks.
//!
//! The committer keeps two invariants (docs/develop/invariants.md). Entries and cursors of one
//! command are stored in one atomic group (1). A sequence is used only once, from blocks that are
//! reserved in the store beforehand, and each change is in the log before it is announced (6).

mod decoded;
mod folding;
mod marks;
mod pending_changes;
mod persist;
mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::feed::Feed;
use crate::model::{Command, DeleteReason, EntryKey, Epoch, EpochSpan, Kind, Position, ReplacedRecords, Sequence, Tombstone};
use crate::store::{Group, WriteAheadLog};
use crate::view::{ChangeSet, LiveKey, View};

pub use decoded::{DecodedBudget, DecodedBudgetError, DecodedPermit};
pub use folding::{Folder, folder};
pub use marks::{ChangeCounts, PipelineMetrics};
pub use persist::{PersistState, Persistence, Persister, UnsyncedCounter, persister};
use queue::CommandBatch;
pub use queue::{CommandQueue, CommandSender, CommitterEnded, WeakCommandSender, command_queue};

/// Minimum time between two snapshots while commands arrive one by one. A snapshot costs some 40
/// µs, and subscribers wake at longer intervals anyway. A single change after a pause is published
/// at once.
const PUBLISH_INTERVAL_MIN: Duration = Duration::from_millis(2);

/// Number of sequences that are reserved at a time. At 20,000 changes/s they last 3 s, while the
/// store is about 40 ms behind.
///
/// A process takes its first sequence from the clock in microseconds, so a reserved block reaches
/// 66 ms into the future. A process that starts sooner after the previous one cannot use the clock
/// (`runtime/plan.rs`).
const RESERVED_BLOCK: u64 = 1 << 16;

/// Immutable snapshot of everything that readers can query.
#[derive(Debug, Clone)]
pub struct MirrorSnapshot {
    /// The mirror.
    pub view: View,
    /// Recent changes and tombstones, in order of sequence.
    pub feed: Feed,
    /// Epoch of this run of meshkeep.
    pub epoch: Epoch,
    /// Earlier runs whose positions are still accepted, each with its last accepted sequence.
    pub earlier_runs: Arc<[EpochSpan]>,
}

impl MirrorSnapshot {
    /// Returns the position of this snapshot.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.feed.head() }
    }

    /// Returns the keys that changed after a position, each with its newest change, in order of
    /// sequence. At most `count` of them. A [`LiveKey`] refers to a record of this view.
    #[must_use]
    pub fn changes_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, LatestChange<LiveKey>)> {
        let live = self.view.live_keys_after(position, count).into_iter().map(|(sequence, live)| (sequence, LatestChange::Live(live)));
        let deleted = |tombstone: &Tombstone| LatestChange::Deleted(tombstone.key.clone(), tombstone.reason);
        let deleted = self.feed.tombstones_after(position).take(count).map(|(sequence, tombstone)| (sequence, deleted(tombstone)));
        let mut changes: Vec<_> = live.chain(deleted).collect();
        // both are in order, so the sort only merges them
        changes.sort_by_key(|(sequence, _)| *sequence);
        changes.truncate(count);
        changes
    }
}

/// Newest change of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum LatestChange<L> {
    /// The key exists.
    Live(L),
    /// The key was deleted.
    Deleted(EntryKey, DeleteReason),
}

impl LatestChange<LiveKey> {
    /// Returns the key.
    #[must_use]
    pub fn into_key(self) -> EntryKey {
        match self {
            Self::Live(live) => live.key(),
            Self::Deleted(key, _) => key,
        }
    }
}

/// Sender of new snapshots, which the committer owns.
#[derive(Debug)]
pub struct SnapshotPublisher {
    current: Arc<ArcSwap<MirrorSnapshot>>,
    head: watch::Sender<Sequence>,
    /// Number of snapshots, including those without announcements.
    count: watch::Sender<u64>,
    marks: Arc<PipelineMetrics>,
}

/// Receiver of the newest snapshot and of signals for new ones. Each reader has a clone.
#[derive(Debug, Clone)]
pub struct SnapshotReceiver {
    current: Arc<ArcSwap<MirrorSnapshot>>,
    head: watch::Receiver<Sequence>,
    count: watch::Receiver<u64>,
    marks: Arc<PipelineMetrics>,
}

impl SnapshotReceiver {
    /// Returns the newest snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<MirrorSnapshot> {
        self.current.load_full()
    }

    /// Returns the high-water marks of all queues, with other counters.
    #[must_use]
    pub fn marks(&self) -> &PipelineMetrics {
        &self.marks
    }

    /// Waits for a snapshot that fulfils a condition. Never returns if the committer ends first.
    pub async fn wait_for(&self, mut condition: impl FnMut(&MirrorSnapshot) -> bool) -> Arc<MirrorSnapshot> {
        let mut count = self.count.clone();
        loop {
            count.mark_unchanged();
            let current = self.current();
            if condition(&current) {
                return current;
            }
            if count.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns a receiver that changes when a snapshot with new changes is published.
    #[must_use]
    pub fn signal(&self) -> watch::Receiver<Sequence> {
        self.head.clone()
    }
}

/// Creates a publisher and a receiver whose current snapshot is `first`.
#[must_use]
pub fn snapshot_channel(first: MirrorSnapshot) -> (SnapshotPublisher, SnapshotReceiver) {
    let (head, head_receiver) = watch::channel(first.feed.head());
    let (count, count_receiver) = watch::channel(0);
    let current = Arc::new(ArcSwap::from_pointee(first));
    let marks = Arc::<PipelineMetrics>::default();
    let publisher = SnapshotPublisher { current: Arc::clone(&current), head, count, marks: Arc::clone(&marks) };
    (publisher, SnapshotReceiver { current, head: head_receiver, count: count_receiver, marks })
}

impl SnapshotPublisher {
    /// Publishes a snapshot.
    pub fn publish(&self, snapshot: MirrorSnapshot) {
        let head = snapshot.feed.head();
        self.current.store(Arc::new(snapshot));
        self.head.send_if_modified(|current| {
            let newer = head > *current;
            *current = head;
            newer
        });
        self.count.send_modify(|count| *count += 1);
    }
}

/// State of the committer's thread.
#[derive(Debug)]
pub struct Committer {
    state: MirrorSnapshot,
    publisher: SnapshotPublisher,
    persister: Persister,
    log: Option<Arc<WriteAheadLog>>,
    /// Folder, with the runtime whose timer wakes the committer when a fold is due and no command
    /// comes.
    folder: Option<(Folder, Handle)>,
    reserved: Sequence,
    /// Whether groups contain the replaced records.
    collects_replaced: bool,
}

impl Committer {
    /// Creates a committer that continues from `state`. It uses no sequence above `reserved` before
    /// the next block is stored.
    #[must_use]
    pub fn new(state: MirrorSnapshot, publisher: SnapshotPublisher, persister: Persister, reserved: Sequence) -> Self {
        publisher.marks.set_stored_times(persister.times());
        Self { state, publisher, persister, log: None, folder: None, reserved, collects_replaced: false }
    }

    /// Makes the committer append each group to a log before it publishes the changes.
    #[must_use]
    pub fn with_log(self, log: Arc<WriteAheadLog>) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Makes groups contain the records that their changes replace, for the history.
    #[must_use]
    pub fn with_replaced_records(mut self) -> Self {
        self.state.view.collect_replaced();
        self.collects_replaced = true;
        self
    }

    /// Makes the committer fold changed records into chunks, so that the mirror stays small.
    /// `runtime` needs an enabled timer, and [`Committer::run`] must not be called on one of its
    /// worker threads.
    #[must_use]
    pub fn with_folder(self, folder: Folder, runtime: Handle) -> Self {
        Self { folder: Some((folder, runtime)), ..self }
    }

    /// Runs until every sender is dropped and all their commands are published and handed to
    /// `persist`. Blocks, so it needs its own thread.
    pub fn run(mut self, mut commands: CommandQueue) {
        let mut published = Instant::now();
        // true while commands arrive at shorter intervals than snapshots: it then sleeps once per
        // snapshot, instead of being woken by the first command and sleeping as well
        let mut is_paced = false;
        loop {
            let mut batch = CommandBatch::default();
            if !is_paced && !self.receive(&mut commands, &mut batch) {
                break;
            }
            commands.fill(&mut batch);
            let wait = PUBLISH_INTERVAL_MIN.saturating_sub(published.elapsed());
            if !wait.is_zero() && commands.is_empty() {
                std::thread::sleep(wait);
                commands.fill(&mut batch);
            }
            is_paced = !wait.is_zero() && !batch.is_empty();
            if batch.is_empty() {
                continue;
            }
            commands.record_fill(&batch, &self.publisher.marks);
            let (started, queued_at) = (Instant::now(), batch.queued_at());
            self.commit(batch.take_commands());
            published = Instant::now();
            self.publisher.marks.commit.record(published.saturating_duration_since(started));
            self.publisher.marks.publish.record(published.saturating_duration_since(queued_at.unwrap_or(started)));
        }
        self.persister.finish();
    }

    /// Waits for commands and folds meanwhile. Returns false once every sender is dropped.
    fn receive(&mut self, commands: &mut CommandQueue, batch: &mut CommandBatch) -> bool {
        loop {
            let due = self.folder.as_ref().and_then(|(folder, runtime)| Some((folder.due_in(&self.state.view)?, runtime)));
            let Some((due, runtime)) = due else { return commands.wait(batch) };
            if let Some(received) = commands.wait_for(due, runtime, batch) {
                return received;
            }
            if self.fold() {
                self.publisher.publish(self.state.clone());
            }
        }
    }

    /// Applies a finished fold and starts the next one if it is due. Returns whether the chunks of
    /// the view changed.
    fn fold(&mut self) -> bool {
        self.folder.as_mut().is_some_and(|(folder, _)| folder.advance(&mut self.state.view, &self.state.feed))
    }

    /// Applies a batch of commands, appends the changes to the log, publishes them and hands them
    /// to `persist`, in this order.
    fn commit(&mut self, batch: Vec<Command>) {
        let now = SystemTime::now();
        let ChangeSet { announcements, records, chunks, cursors, clusters, gaps, replaced } = self.state.view.apply_all(batch, now);
        let after = self.state.feed.head();
        let mut group = Group { records: records.into_iter().collect(), chunks, cursors, clusters, gaps, ..Group::default() };
        // notices are not changes of the mirror
        self.publisher.marks.count(&announcements);
        for announcement in announcements {
            let effects = self.state.feed.announce(announcement, now);
            // each start computes its findings again, so their tombstones are not stored
            let is_stored = |tombstone: &Option<Tombstone>| tombstone.as_ref().is_none_or(|one| one.key.kind != Kind::Problem);
            group.tombstones.extend(effects.tombstones.into_iter().filter(|(_, tombstone)| is_stored(tombstone)));
            group.floor = effects.floor.or(group.floor);
            group.times.extend(effects.times);
            group.covered_sequence = Some(self.state.feed.head());
        }
        self.publisher.marks.ring_bytes.record(self.state.feed.ring_bytes());
        let head = self.state.feed.head();
        if self.collects_replaced && head > after {
            group.replaced = Some(ReplacedRecords { after, last: head, times: vec![(after.next(), now)], records: replaced });
        }
        if head.0 + RESERVED_BLOCK / 2 > self.reserved.0 {
            // one batch may use more than a block
            self.reserved = Sequence(self.reserved.max(head).0 + RESERVED_BLOCK);
            group.sequence_reserved = Some(self.reserved);
        }
        debug_assert!(head <= self.reserved, "a restart would use the sequences above the reserved ones again");
        if let Some(log) = self.log.as_ref().filter(|_| !group.is_empty()) {
            self.persister.set_writing(&group);
            log.append(&mut group);
            self.publisher.marks.log_fails.store(log.is_failing(), Ordering::Relaxed);
        }
        self.fold();
        debug_assert!(head >= self.publisher.current.load().feed.head(), "readers never see an older state after a newer one");
        self.publisher.publish(self.state.clone());
        if !group.is_empty() {
            let (count, bytes) = self.persister.push(group);
            self.publisher.marks.changes.record(count);
            self.publisher.marks.change_bytes.record(bytes);
        }
    }
}

/// Returns the end of the first block of sequences that lies above every sequence that may already
/// have been used. It must be stored before the first sequence is used.
#[must_use]
pub fn first_reservation(stored: Sequence) -> Sequence {
    Sequence(stored.0 + RESERVED_BLOCK)
}

#[cfg(test)]
mod tests;
