//! The only writer: what the clusters' tasks send becomes visible, is announced, and is stored.
//!
//! Receives [`Command`]s through one bounded queue. Emits a new [`Published`] snapshot for each batch, then hands the batch's
//! effects to the `persist` half, which stores them in groups. Both halves run on threads of their own, because sled blocks.
//! Invariants kept here: entries and cursors of one command are stored in one atomic group (1); a sequence is handed out once,
//! from blocks that were reserved in the store ahead, and everything
//! is in the log before anybody hears of it (6). Deliberately lacks: knowledge of formats, of etcd, and of HTTP.

mod decoded;
mod folding;
mod gathered;
mod marks;
mod persist;
mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::feed::Feed;
use crate::model::{Command, DeleteReason, EntryKey, Epoch, EpochSpan, Kind, Position, Sequence, Tombstone};
use crate::store::{Group, Log};
use crate::view::{Effects, Live, View};

pub use decoded::{DecodedBudget, DecodedRoom, NoDecodedRoom};
pub use folding::{Folder, folder};
pub use marks::{ChangeCounts, QueueMarks};
pub use persist::{PersistState, Persistence, Persister, Unsynced, persister};
use queue::Batch;
pub use queue::{CommandQueue, CommandSender, WeakCommandSender, WriterGone, command_queue};

/// Between two snapshots, where commands come one by one: each costs some 40 µs, and readers of streams are woken less often anyway. A
/// change that comes alone is shown at once.
const PUBLISH_INTERVAL_MIN: Duration = Duration::from_millis(2);

/// Number of sequences that are reserved at once. At 20,000 changes/s they last 3 s, and the store is some 40 ms behind. A start counts from the
/// clock in microseconds, so they are also 66 ms of the clock: a start that follows another one sooner cannot count from it (`runtime/plan.rs`).
const RESERVED_BLOCK: u64 = 1 << 16;

/// Everything a reader may ask for, as of one moment. Immutable.
#[derive(Debug, Clone)]
pub struct Published {
    /// The mirror.
    pub view: View,
    /// The order of changes.
    pub feed: Feed,
    /// The epoch of this start.
    pub epoch: Epoch,
    /// Earlier starts whose positions can be honoured, and how far.
    pub earlier: Arc<[EpochSpan]>,
}

impl Published {
    /// The position of this moment.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.feed.head() }
    }

    /// What changed after a position, newest change of each key only, `count` of them at most, in order of sequence.
    #[must_use]
    pub fn changes_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, Changed<EntryKey>)> {
        let named = |changed| match changed {
            Changed::Live(live) => Changed::Live(Live::key(&live)),
            Changed::Gone(key, reason) => Changed::Gone(key, reason),
        };
        self.lacked_after(position, count).into_iter().map(|(sequence, changed)| (sequence, named(changed))).collect()
    }

    /// What changed after a position, newest change of each key only, with places in the view instead of keys, for a reader of this moment's records.
    #[must_use]
    pub fn lacked_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, Changed<Live>)> {
        let live = self.view.live_after(position, count).into_iter().map(|(sequence, live)| (sequence, Changed::Live(live)));
        let mut gone = self.feed.gone_after(position).take(count).peekable();
        let mut changes = Vec::new();
        for (sequence, live) in live {
            while let Some((earlier, tombstone)) = gone.next_if(|(at, _)| *at < sequence) {
                changes.push((earlier, Changed::Gone(tombstone.key.clone(), tombstone.reason)));
            }
            changes.push((sequence, live));
        }
        changes.extend(gone.map(|(sequence, tombstone)| (sequence, Changed::Gone(tombstone.key.clone(), tombstone.reason))));
        changes.truncate(count);
        changes
    }
}

/// The newest change of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed<L> {
    /// The key exists and last changed here.
    Live(L),
    /// The key went away here.
    Gone(EntryKey, DeleteReason),
}

/// The writer's half of what readers see.
#[derive(Debug)]
pub struct Publisher {
    current: Arc<ArcSwap<Published>>,
    head: watch::Sender<Sequence>,
    /// Counts snapshots, those without announcements included.
    count: watch::Sender<u64>,
    marks: Arc<QueueMarks>,
}

/// The readers' half: the newest snapshot, and a signal for each new one.
#[derive(Debug, Clone)]
pub struct Subscriber {
    current: Arc<ArcSwap<Published>>,
    head: watch::Receiver<Sequence>,
    count: watch::Receiver<u64>,
    marks: Arc<QueueMarks>,
}

impl Subscriber {
    /// The newest snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<Published> {
        self.current.load_full()
    }

    /// How full each queue ever was.
    #[must_use]
    pub fn marks(&self) -> &QueueMarks {
        &self.marks
    }

    /// Waits for a snapshot that fulfils a condition. Forever, if the writer ends before.
    pub async fn wait_for(&self, mut condition: impl FnMut(&Published) -> bool) -> Arc<Published> {
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

    /// A signal of its own: changes whenever a newer snapshot with new changes is there.
    #[must_use]
    pub fn signal(&self) -> watch::Receiver<Sequence> {
        self.head.clone()
    }
}

/// Makes both halves around a first snapshot.
#[must_use]
pub fn publication(first: Published) -> (Publisher, Subscriber) {
    let (head, head_receiver) = watch::channel(first.feed.head());
    let (count, count_receiver) = watch::channel(0);
    let current = Arc::new(ArcSwap::from_pointee(first));
    let marks = Arc::<QueueMarks>::default();
    let publisher = Publisher { current: Arc::clone(&current), head, count, marks: Arc::clone(&marks) };
    (publisher, Subscriber { current, head: head_receiver, count: count_receiver, marks })
}

impl Publisher {
    /// Shows a snapshot.
    pub fn publish(&self, published: Published) {
        let head = published.feed.head();
        self.current.store(Arc::new(published));
        self.head.send_if_modified(|current| {
            let newer = head > *current;
            *current = head;
            newer
        });
        self.count.send_modify(|count| *count += 1);
    }
}

/// The writer's state.
#[derive(Debug)]
pub struct Committer {
    state: Published,
    publisher: Publisher,
    persister: Persister,
    log: Option<Arc<Log>>,
    /// With the runtime whose clock wakes the writer while there is something to fold and no command comes.
    folder: Option<(Folder, Handle)>,
    reserved: Sequence,
}

impl Committer {
    /// A writer that goes on from `state`, in which no sequence above `reserved` may be handed out before the next block is stored.
    #[must_use]
    pub fn new(state: Published, publisher: Publisher, persister: Persister, reserved: Sequence) -> Self {
        publisher.marks.stored_in(persister.times());
        Self { state, publisher, persister, log: None, folder: None, reserved }
    }

    /// Writes everything to the log before anybody hears of it.
    #[must_use]
    pub fn with_log(self, log: Arc<Log>) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Packs what changed again and again, so that the mirror stays small. `runtime` must have its clock enabled, and [`Committer::run`]
    /// must not be called on one of its own threads that drive tasks.
    #[must_use]
    pub fn with_folder(self, folder: Folder, runtime: Handle) -> Self {
        Self { folder: Some((folder, runtime)), ..self }
    }

    /// Runs until every sender is gone and everything that they sent is visible and handed over. Blocks: give it a thread.
    pub fn run(mut self, mut commands: CommandQueue) {
        let mut published = Instant::now();
        loop {
            let mut batch = Batch::default();
            if !self.receive(&mut commands, &mut batch) {
                break;
            }
            commands.fill(&mut batch);
            let early = PUBLISH_INTERVAL_MIN.saturating_sub(published.elapsed());
            if !early.is_zero() && commands.is_empty() {
                std::thread::sleep(early);
            }
            commands.fill(&mut batch);
            commands.note(&batch, &self.publisher.marks);
            let (begun, came) = (Instant::now(), batch.came());
            self.commit(batch.take());
            published = Instant::now();
            self.publisher.marks.commit.note(published.saturating_duration_since(begun));
            self.publisher.marks.publish.note(published.saturating_duration_since(came.unwrap_or(begun)));
        }
        self.persister.finish();
    }

    /// Waits for commands, and folds meanwhile. Returns whether there are any; else every sender is gone.
    fn receive(&mut self, commands: &mut CommandQueue, batch: &mut Batch) -> bool {
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

    /// Returns whether the view has changed its form.
    fn fold(&mut self) -> bool {
        self.folder.as_mut().is_some_and(|(folder, _)| folder.attend(&mut self.state.view, &self.state.feed))
    }

    /// Applies a batch of commands, writes what changed to the log, shows and announces it, and hands it over to be stored, in that order.
    fn commit(&mut self, batch: Vec<Command>) {
        let now = SystemTime::now();
        let Effects { announcements, records, cursors, clusters } = self.state.view.apply_all(batch, now);
        let mut group = Group { records: records.into_iter().collect(), cursors, clusters, ..Group::default() };
        // notices are no changes of the mirror
        self.publisher.marks.count(announcements.iter().filter(|announcement| announcement.key.kind != Kind::Notice));
        for announcement in announcements {
            let effects = self.state.feed.announce(announcement, now);
            // findings are made anew by each start, which knows nothing of those before
            let is_kept = |tombstone: &Option<Tombstone>| tombstone.as_ref().is_none_or(|one| one.key.kind != Kind::Problem);
            group.tombstones.extend(effects.tombstones.into_iter().filter(|(_, tombstone)| is_kept(tombstone)));
            group.floor = effects.floor.or(group.floor);
            group.covered = Some(self.state.feed.head());
        }
        self.publisher.marks.ring_bytes.note(self.state.feed.ring_bytes());
        let head = self.state.feed.head();
        if head.0 + RESERVED_BLOCK / 2 > self.reserved.0 {
            // one batch may use more than a block
            self.reserved = Sequence(self.reserved.max(head).0 + RESERVED_BLOCK);
            group.sequence_reserved = Some(self.reserved);
        }
        if let Some(log) = self.log.as_ref().filter(|_| !group.is_empty()) {
            self.persister.note_writing(&group);
            log.append(&mut group);
            self.publisher.marks.log_fails.store(log.is_failing(), Ordering::Relaxed);
        }
        self.fold();
        self.publisher.publish(self.state.clone());
        if !group.is_empty() {
            let (count, bytes) = self.persister.push(group);
            self.publisher.marks.changes.note(count);
            self.publisher.marks.change_bytes.note(bytes);
        }
    }
}

/// The first block of sequences above everything that may have been handed out before. Store it before the first is used.
#[must_use]
pub fn first_reservation(stored: Sequence) -> Sequence {
    Sequence(stored.0 + RESERVED_BLOCK)
}

#[cfg(test)]
mod tests;
