//! Folds changed records into chunks on a thread of its own, so that the mirror stays small.
//!
//! The committer hands out one job at a time and applies its result with a later batch. While few
//! records are unpacked, the thread pauses between jobs. If it falls behind, the committer waits
//! for it, so the number of unpacked records is bounded. The thread also unpacks the old values of
//! the announcements in the ring, which would otherwise keep replaced chunks in memory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use crate::feed::Announcement;
use crate::feed::Feed;
use crate::model::Sequence;
use crate::view::{FoldJob, FoldResult, View};

/// Number of unpacked records above which folding continues without a pause. A record uses about
/// 1 KB, including objects that the ring shares.
///
/// A fold takes 0.7 ms. At 20,000 changes/s over a million keys, a fold covers about 35 changes at
/// this limit (calculated, not measured). That is 570 folds/s, which use 40 % of a core.
const UNPACKED_MAX: usize = 16_384;

/// Maximum number of chunks in an urgent job. The committer can hand out about 170 jobs per second,
/// so this is enough for 680 folds/s.
const URGENT_FOLDS_MAX: usize = 4;

/// Number of unpacked or deleted records below which nothing is folded. A fold costs the same for
/// few changes as for many, and this number of records uses 4 MB.
const UNPACKED_MIN: usize = 4_096;

/// Pause after a job, as a multiple of its duration, while the number of unpacked records is
/// between the two limits. Folding then uses at most a fifth of a core. The number of unpacked
/// records then depends on the rate of changes: over a million keys, it is about 6,000 at 1,000
/// changes/s and exceeds the upper limit at 5,000 changes/s.
const PAUSE_FACTOR: u32 = 4;

/// Pause after a job that did not reduce the unpacked records, for example because every record
/// that the job packed was changed again before the result was applied.
const FRUITLESS_PAUSE: Duration = Duration::from_secs(10);

/// Interval at which an idle committer checks for a result. A job takes 2 to 3 ms.
const RESULT_INTERVAL: Duration = Duration::from_millis(5);

/// Number of revisions and leases stored outside their chunks above which folding is urgent. They
/// use 24 B each. A new full list gives every record a new revision and lease.
const RESTAMPED_MAX: usize = 262_144;

/// Work that the committer hands to the packing thread at a time.
#[derive(Debug)]
struct FoldBatch {
    folds: Vec<FoldJob>,
    /// Announcements since the previous job. Each may keep alive a chunk that the mirror no longer
    /// uses: 50 KB for the sake of a few records.
    announced: Vec<Arc<Announcement>>,
}

/// The committer's end of the queue of fold jobs.
#[derive(Debug)]
pub struct Folder {
    jobs: SyncSender<FoldBatch>,
    results: Receiver<(Vec<FoldResult>, Duration)>,
    /// Sequence up to which announcements were handed out.
    announced: Sequence,
    /// True while a job is being packed.
    busy: bool,
    next_fold_at: Instant,
    unpacked_max: usize,
    unpacked_min: usize,
}

/// The packing thread's end of the queue of fold jobs. [`FoldWorker::run`] blocks, so it needs its
/// own thread.
#[derive(Debug)]
pub struct FoldWorker {
    jobs: Receiver<FoldBatch>,
    /// Results with the duration of each job.
    results: SyncSender<(Vec<FoldResult>, Duration)>,
}

/// Creates both ends of the queue of fold jobs.
#[must_use]
pub fn folder() -> (Folder, FoldWorker) {
    // one job at a time
    let (jobs, queue) = sync_channel(1);
    let (results, folded) = sync_channel(1);
    let (unpacked_max, unpacked_min) = (UNPACKED_MAX, UNPACKED_MIN);
    let announced = Sequence(0);
    let folder = Folder { jobs, results: folded, announced, busy: false, next_fold_at: Instant::now(), unpacked_max, unpacked_min };
    (folder, FoldWorker { jobs: queue, results })
}

impl Folder {
    /// Sets the number of unpacked records at which folding begins.
    #[cfg(test)]
    #[must_use]
    pub fn with_unpacked_max(self, unpacked_max: usize) -> Self {
        Self { unpacked_max, unpacked_min: unpacked_max.min(self.unpacked_min), ..self }
    }

    /// Returns the time until [`Folder::advance`] must be called again even without commands.
    /// `None` while there is nothing to do.
    pub fn due_in(&self, view: &View) -> Option<Duration> {
        if self.busy {
            return Some(RESULT_INTERVAL);
        }
        self.is_worthwhile(view).then(|| self.next_fold_at.saturating_duration_since(Instant::now()))
    }

    /// Applies a finished job and hands out the next one. Returns whether anything was applied.
    ///
    /// Waits for the thread only while the number of unpacked records is more than twice the limit
    /// and folding reduces it.
    pub fn advance(&mut self, view: &mut View, feed: &Feed) -> bool {
        let mut applied = self.collect_result(view, false);
        loop {
            let before = view.unpacked_count();
            let is_urgent = before > self.unpacked_max || view.restamped_row_count() > RESTAMPED_MAX;
            if !self.busy && (is_urgent || (self.is_worthwhile(view) && Instant::now() >= self.next_fold_at)) {
                applied |= self.start_job(view, feed, if is_urgent { URGENT_FOLDS_MAX } else { 1 });
            }
            if !self.busy || before <= 2 * self.unpacked_max {
                return applied;
            }
            applied |= self.collect_result(view, true);
            if view.unpacked_count() >= before {
                return applied;
            }
        }
    }

    /// Returns whether folding is worth its cost. Deleted records count only here: they use about
    /// 60 B each, so the committer need not wait for them.
    fn is_worthwhile(&self, view: &View) -> bool {
        view.unpacked_count() + view.deleted_row_count() > self.unpacked_min
    }

    fn collect_result(&mut self, view: &mut View, wait: bool) -> bool {
        if !self.busy {
            return false;
        }
        let result = if wait { self.results.recv().map_err(|_| TryRecvError::Disconnected) } else { self.results.try_recv() };
        match result {
            Err(TryRecvError::Empty) => return false,
            Ok((folded, took)) => self.apply_folded(view, folded, took),
            // the worker has ended: the next job runs on this thread
            Err(TryRecvError::Disconnected) => {}
        }
        self.busy = false;
        true
    }

    /// Hands out a job, or runs it on this thread if the worker has ended. Returns whether a result
    /// was applied.
    fn start_job(&mut self, view: &mut View, feed: &Feed, folds_max: usize) -> bool {
        let folds = view.fold_jobs(folds_max);
        if folds.is_empty() {
            self.pause(FRUITLESS_PAUSE);
            return false;
        }
        let announced = feed.recent_after(self.announced).cloned().collect();
        self.announced = feed.head();
        let Err(unsent) = self.jobs.send(FoldBatch { folds, announced }) else {
            self.busy = true;
            return false;
        };
        let (folded, took) = run_timed(unsent.0);
        self.apply_folded(view, folded, took);
        true
    }

    fn apply_folded(&mut self, view: &mut View, folded: Vec<FoldResult>, took: Duration) {
        let mut gained = false;
        for folded in folded {
            gained |= view.fold(folded);
        }
        self.pause(if gained { took * PAUSE_FACTOR } else { FRUITLESS_PAUSE });
    }

    fn pause(&mut self, time: Duration) {
        self.next_fold_at = Instant::now() + time;
    }
}

impl FoldWorker {
    /// Packs until the committer has ended. Blocks.
    pub fn run(self) {
        while let Ok(job) = self.jobs.recv() {
            if self.results.send(run_timed(job)).is_err() {
                return;
            }
        }
    }
}

/// Runs a job and measures its duration. Also unpacks its announcements.
fn run_timed(job: FoldBatch) -> (Vec<FoldResult>, Duration) {
    let started = Instant::now();
    job.announced.iter().for_each(|announcement| announcement.release_chunks());
    (job.folds.into_iter().map(FoldJob::run).collect(), started.elapsed())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use tokio::runtime::Handle;
    use tokio::sync::watch;

    use super::super::{Committer, MirrorSnapshot, PersistState, Persistence, persister, snapshot_channel};
    use super::*;
    use crate::feed::Version;
    use crate::feed::{Feed, Retention};
    use crate::model::{
        Change, ClusterId, ClusterName, Command, DeleteReason, EntryKey, Epoch, Kind, MaxConnectedClusters, Revision, Scope, Sequence,
        SourceStamp,
    };
    use crate::store::{Group, StoreError};
    use crate::wire::{self, Context};

    fn put(number: i64) -> Command {
        let cluster = ClusterName::parse("paris").unwrap();
        let key = EntryKey::new(Kind::Identity, cluster.clone(), (70_000 + number % 500).to_string());
        let value = format!("k8s:app=a{number};k8s:io.cilium.k8s.policy.cluster=paris;").into_bytes();
        let context = Context { cluster: &cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::Clusters255 };
        let decoded = wire::decode(&key, &value, &context).map(Arc::new).map_err(Arc::from);
        let source = SourceStamp { mod_revision: Revision(number), ..SourceStamp::default() };
        let change = Change::Put { key, value: value.into(), decoded, source };
        Command::Apply { scope: Scope { cluster, kind: Kind::Identity }, changes: vec![change], cursor: None }
    }

    fn no_feed() -> Feed {
        Feed::starting_at(Sequence(0), Retention { age_max: Duration::MAX, count_max: 1 })
    }

    fn churn(folder: &mut Folder) {
        let (mut view, mut plain) = (View::starting_at(Sequence(1)), View::starting_at(Sequence(1)));
        for number in 0..4_000 {
            view.apply(put(number), SystemTime::UNIX_EPOCH);
            plain.apply(put(number), SystemTime::UNIX_EPOCH);
            folder.advance(&mut view, &no_feed());
            assert!(view.unpacked_count() <= 20, "{} records are not packed", view.unpacked_count());
        }
        assert!(view.packed_size().0 > 0);
        let all = |view: &View| view.records_from(&EntryKey::lowest()).collect::<Vec<_>>();
        assert_eq!(all(&view), all(&plain));
    }

    #[test]
    fn unpacked_records_stay_bounded_and_none_is_lost() {
        let (folder, worker) = folder();
        let thread = std::thread::spawn(move || worker.run());
        let mut folder = folder.with_unpacked_max(10);
        churn(&mut folder);
        drop(folder);
        thread.join().unwrap();
    }

    #[test]
    fn the_committer_folds_if_the_worker_has_ended() {
        let (folder, worker) = folder();
        drop(worker);
        churn(&mut folder.with_unpacked_max(10));
    }

    #[test]
    fn with_enough_time_few_records_stay_unpacked() {
        let (folder, worker) = folder();
        let thread = std::thread::spawn(move || worker.run());
        let mut folder = Folder { unpacked_min: 10, ..folder };
        let (mut view, mut plain) = (View::starting_at(Sequence(1)), View::starting_at(Sequence(1)));
        for number in 0..400 {
            view.apply(put(number), SystemTime::UNIX_EPOCH);
            plain.apply(put(number), SystemTime::UNIX_EPOCH);
        }
        while let Some(due) = folder.due_in(&view) {
            assert!(due < FRUITLESS_PAUSE, "a fold gained nothing");
            // do not wait until it is due, so that the test does not depend on the duration of a
            // fold
            folder.next_fold_at = Instant::now();
            folder.advance(&mut view, &no_feed());
        }
        assert!(view.unpacked_count() <= 10, "{} records are not packed", view.unpacked_count());
        let all = |view: &View| view.records_from(&EntryKey::lowest()).collect::<Vec<_>>();
        assert_eq!(all(&view), all(&plain));
        drop(folder);
        thread.join().unwrap();
    }

    #[test]
    fn removing_deleted_records_counts_as_a_gain() {
        let mut view = View::starting_at(Sequence(1));
        (0..400).for_each(|number| drop(view.apply(put(number), SystemTime::UNIX_EPOCH)));
        let mut fold = || view.fold_jobs(1).pop().map(|job| view.fold(job.run()));
        assert_eq!((fold(), fold()), (Some(true), None));
        let scope = Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Identity };
        let delete = |number: i64| Change::Delete { key: EntryKey::new(scope.kind, scope.cluster.clone(), (70_000 + number).to_string()) };
        let changes = (0..100).map(delete).collect();
        view.apply(Command::Apply { scope: scope.clone(), changes, cursor: None }, SystemTime::UNIX_EPOCH);
        let mut fold = || view.fold_jobs(1).pop().map(|job| view.fold(job.run()));
        assert_eq!((fold(), fold()), (Some(true), None));
    }

    /// Otherwise a removed cluster would use memory for as long as the other clusters do not
    /// change.
    #[test]
    fn deleted_records_are_removed_without_further_changes() {
        let (mut folder, worker) = folder();
        drop(worker);
        let mut view = View::starting_at(Sequence(1));
        (0..400).for_each(|number| drop(view.apply(put(number), SystemTime::UNIX_EPOCH)));
        while let Some(job) = view.fold_jobs(1).pop() {
            view.fold(job.run());
        }
        assert_eq!((view.packed_size().0, folder.due_in(&view)), (1, None));
        let cluster = ClusterName::parse("paris").unwrap();
        view.apply(Command::Remove { cluster, reason: DeleteReason::ClusterRemoved }, SystemTime::UNIX_EPOCH);
        assert_eq!((view.deleted_row_count(), view.packed_size().0, folder.due_in(&view)), (400, 1, None), "too few to be worth a fold");
        folder.unpacked_min = 10;
        assert!(folder.due_in(&view).is_some());
        folder.advance(&mut view, &no_feed());
        assert_eq!((view.deleted_row_count(), view.packed_size().0, folder.due_in(&view)), (0, 0, None));
    }

    #[test]
    fn folds_without_a_gain_are_not_repeated_at_once() {
        let (mut folder, worker) = folder();
        drop(worker);
        folder.pause(FRUITLESS_PAUSE);
        let mut view = View::starting_at(Sequence(1));
        assert_eq!(folder.due_in(&view), None);
        folder.unpacked_min = 0;
        view.apply(put(1), SystemTime::UNIX_EPOCH);
        assert!(folder.due_in(&view).unwrap() > FRUITLESS_PAUSE / 2);
        folder.advance(&mut view, &no_feed());
        assert_eq!(view.unpacked_count(), 1);
    }

    /// Otherwise the old copy of a chunk, repacked because of five changes, would stay in memory
    /// until 16,384 further announcements push it out of the ring.
    #[test]
    fn announcements_retain_no_rows_of_repacked_chunks() {
        let (folder, worker) = folder();
        let thread = std::thread::spawn(move || worker.run());
        let mut folder = folder.with_unpacked_max(10);
        let (mut view, mut feed, now) = (View::starting_at(Sequence(1)), no_feed(), SystemTime::UNIX_EPOCH);
        let (mut chunks, mut announced_values) = (Vec::new(), Vec::new());
        for number in 0..2_000 {
            for announcement in view.apply(put(number), now).announcements {
                let record = view.record(&announcement.key).unwrap();
                announced_values.push(Arc::clone(&record.value));
                chunks.extend(crate::pack::build([&*record]));
                let old = Some(Version::from_packed(chunks.last().unwrap().clone(), 0, 100));
                feed.announce(Announcement { old, ..announcement }, now);
            }
            folder.advance(&mut view, &feed);
            let retained = chunks.iter().filter(|chunk| chunk.share_count() > 1).count();
            // the announcements of the job in progress, and those since it was handed out
            assert!(retained <= 50, "{retained} of {} keep their chunks", chunks.len());
        }
        let before = feed.recent_after(Sequence(0)).map(|announcement| Arc::clone(&announcement.old.as_ref().unwrap().bytes().value));
        assert_eq!(before.collect::<Vec<_>>(), announced_values);
        drop(folder);
        thread.join().unwrap();
    }

    struct NoStore;

    impl Persistence for NoStore {
        fn persist(&self, _: &Group) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_committer_folds_without_commands() {
        let (folder, worker) = folder();
        let fold_thread = std::thread::spawn(move || worker.run());
        let folder = Folder { unpacked_min: 10, ..folder };
        let (view, feed) = (
            View::starting_at(Sequence(1)),
            Feed::starting_at(Sequence(1), Retention { count_max: 100, age_max: Duration::from_secs(60) }),
        );
        let published = MirrorSnapshot { view, feed, epoch: Epoch(7), earlier_runs: Arc::default() };
        let (publisher, subscriber) = snapshot_channel(published.clone());
        let (persist, persist_worker) = persister(NoStore, watch::channel(PersistState::Healthy).0);
        let persist_thread = std::thread::spawn(move || persist_worker.run());
        let committer = Committer::new(published, publisher, persist, Sequence(1 << 40)).with_folder(folder, Handle::current());
        let (commands, queue) = super::super::queue::queue_with_limits(400, 1 << 20);
        for number in 0..400 {
            commands.send(put(number)).await.unwrap();
        }
        let committer_thread = std::thread::spawn(move || committer.run(queue));
        let count = |published: &MirrorSnapshot| published.view.records_from(&EntryKey::lowest()).count();
        let folded = subscriber.wait_for(|published| count(published) == 400 && published.view.unpacked_count() <= 10);
        // fails, instead of hanging, if the committer does not wake up
        let folded = tokio::time::timeout(Duration::from_secs(60), folded).await.expect("must be folded");
        assert!(folded.view.packed_size().0 > 0);
        drop(commands);
        committer_thread.join().unwrap();
        fold_thread.join().unwrap();
        persist_thread.join().unwrap();
    }
}
