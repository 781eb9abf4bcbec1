//! Keeps the mirror small: what changed is packed again, off the writer's way.
//!
//! The writer hands out one job at a time and takes its result in with a later batch; a thread of its own does the packing. Where that
//! falls behind, the writer waits for it, so that what is not packed stays bounded.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use crate::view::{FoldJob, Folded, View};

/// With more records than this not packed, folding begins. About 1 KB each, objects that the ring shares included; at 20,000 changes/s
/// over a million keys a fold then takes some 150 changes in, and 130 folds/s of 2 to 3 ms are a third of a core.
pub(super) const UNPACKED_MAX: usize = 65_536;

/// With more revisions and leases than this beside their chunks, folding begins. 24 B each; a relist of everything touches all.
const RESTAMPED_MAX: usize = 262_144;

/// The writer's end.
#[derive(Debug)]
pub struct Folder {
    jobs: SyncSender<FoldJob>,
    results: Receiver<Folded>,
    /// Whether a job is out.
    busy: bool,
    unpacked_max: usize,
}

/// The packing end: give its [`FoldWorker::run`] a thread.
#[derive(Debug)]
pub struct FoldWorker {
    jobs: Receiver<FoldJob>,
    results: SyncSender<Folded>,
}

/// Makes both ends.
#[must_use]
pub fn folder() -> (Folder, FoldWorker) {
    // one job at a time
    let (jobs, queue) = sync_channel(1);
    let (results, folded) = sync_channel(1);
    (Folder { jobs, results: folded, busy: false, unpacked_max: UNPACKED_MAX }, FoldWorker { jobs: queue, results })
}

impl Folder {
    /// The same, beginning earlier: for tests.
    #[must_use]
    pub fn beginning_at(self, unpacked_max: usize) -> Self {
        Self { unpacked_max, ..self }
    }

    /// Takes in what is done, and hands out what is to do. Waits only while twice as much is unpacked as should be, and folding helps.
    pub fn attend(&mut self, view: &mut View) {
        self.collect(view, false);
        loop {
            let before = view.unpacked_count();
            if !self.busy && (before > self.unpacked_max || view.restamped_count() > RESTAMPED_MAX) {
                self.hand_out(view);
            }
            if !self.busy || before <= 2 * self.unpacked_max {
                return;
            }
            self.collect(view, true);
            if view.unpacked_count() >= before {
                return;
            }
        }
    }

    fn collect(&mut self, view: &mut View, wait: bool) {
        if !self.busy {
            return;
        }
        let result = if wait { self.results.recv().map_err(|_| TryRecvError::Disconnected) } else { self.results.try_recv() };
        match result {
            Ok(folded) => view.fold(folded),
            Err(TryRecvError::Empty) => return,
            // the worker is gone: the next job is done here
            Err(TryRecvError::Disconnected) => {}
        }
        self.busy = false;
    }

    fn hand_out(&mut self, view: &mut View) {
        let Some(job) = view.fold_job() else { return };
        match self.jobs.send(job) {
            Ok(()) => self.busy = true,
            Err(unsent) => view.fold(unsent.0.run()),
        }
    }
}

impl FoldWorker {
    /// Packs until the writer has ended. Blocks.
    pub fn run(self) {
        while let Ok(job) = self.jobs.recv() {
            if self.results.send(job.run()).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::model::{
        Change, ClusterId, ClusterName, Command, EntryKey, Kind, MaxConnectedClusters, Revision, Scope, Sequence, SourceStamp,
    };
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

    fn churn(folder: &mut Folder) {
        let (mut view, mut plain) = (View::starting_at(Sequence(1)), View::starting_at(Sequence(1)));
        for number in 0..4_000 {
            view.apply(put(number), SystemTime::UNIX_EPOCH);
            plain.apply(put(number), SystemTime::UNIX_EPOCH);
            folder.attend(&mut view);
            assert!(view.unpacked_count() <= 20, "{} records are not packed", view.unpacked_count());
        }
        assert!(view.packed_size().0 > 0);
        let all = |view: &View| view.records_from(&EntryKey::lowest()).collect::<Vec<_>>();
        assert_eq!(all(&view), all(&plain));
    }

    #[test]
    fn what_is_not_packed_stays_bounded_and_nothing_is_lost() {
        let (folder, worker) = folder();
        let thread = std::thread::spawn(move || worker.run());
        let mut folder = folder.beginning_at(10);
        churn(&mut folder);
        drop(folder);
        thread.join().unwrap();
    }

    #[test]
    fn the_writer_folds_itself_where_the_worker_is_gone() {
        let (folder, worker) = folder();
        drop(worker);
        churn(&mut folder.beginning_at(10));
    }
}
