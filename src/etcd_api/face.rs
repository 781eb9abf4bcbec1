//! What all calls share: readings, headers, and the few threads for what takes long.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use etcd_client::proto::PbResponseHeader;
use tokio::sync::Semaphore;
use tonic::{Request, Status};

use super::EtcdOptions;
use super::answers::Answers;
use super::pins::Pins;
use super::refusal;
use super::revisions::revision;
use super::window::Window;
use crate::admission::{Budget, Client, Share};
use crate::handle::{Handle, Reading};
use crate::model::{EntryKey, Question, RangeOutcome};

/// The one member of the cluster that this is.
pub(super) const MEMBER_ID: u64 = 1;

/// There are no elections.
pub(super) const RAFT_TERM: u64 = 1;

/// How many bytes the watches of all clients may take with their keys.
const WATCHED_BYTES_MAX: usize = 64 << 20;

/// How many of them those of one client may take: a fourth. Six watches for each of 511 clusters, which is what an agent has at most, take less than
/// 1 MiB.
const WATCHED_BYTES_PER_CLIENT_MAX: usize = 16 << 20;

/// One face.
#[derive(Debug)]
pub(super) struct Face {
    pub(super) handle: Handle,
    pub(super) options: EtcdOptions,
    pub(super) pins: Pins,
    pub(super) window: Window,
    pub(super) answers: Answers,
    /// The keys of all watches.
    pub(super) watched: Arc<Budget>,
    threads: Arc<Semaphore>,
}

/// Set once nobody waits for a piece of work any more.
#[derive(Debug, Clone, Default)]
pub(super) struct Given(Arc<AtomicBool>);

impl Given {
    /// Whether its client is gone.
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct GiveUp(Given);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Who asks, told apart as over HTTP.
pub(super) fn client_of<T>(request: &Request<T>) -> Client {
    request.extensions().get().copied().unwrap_or(Client::Local)
}

/// What stands at the head of every answer.
pub(super) fn header(reading: &Reading, revision: i64) -> PbResponseHeader {
    PbResponseHeader { cluster_id: reading.lineage(), member_id: MEMBER_ID, revision, raft_term: RAFT_TERM }
}

impl Face {
    pub(super) fn new(handle: Handle, options: EtcdOptions) -> Self {
        // half of the cores, as for the HTTP face, so that the other half answers what is quick
        let threads = (thread::available_parallelism().map_or(1, NonZero::get) / 2).max(1);
        Self {
            handle,
            options,
            pins: Pins::default(),
            window: Window::default(),
            answers: Answers::default(),
            watched: Budget::new(WATCHED_BYTES_MAX, Share::Bytes(WATCHED_BYTES_PER_CLIENT_MAX)),
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// The newest moment; waits for the store to load.
    pub(super) async fn reading(&self) -> Result<Reading, Status> {
        self.handle.reading().await.map_err(|_| refusal::loading())
    }

    /// The newest moment for a question about one key; while the store loads one that has no other key, where the key is of an entry.
    pub(super) async fn reading_for(&self, key: &[u8]) -> Result<Reading, Status> {
        let entry = str::from_utf8(key).ok().and_then(EntryKey::from_cache_form).filter(|key| key.kind.is_mirrored());
        let Some(entry) = entry else { return self.reading().await };
        self.handle.reading_for(Question::Key(entry)).await.map_err(|_| refusal::loading())
    }

    /// Counts what became of a range.
    pub(super) fn counted<T>(&self, answer: Result<T, Status>) -> Result<T, Status> {
        let outcome = answer.as_ref().map_or_else(refusal::outcome, |_| RangeOutcome::Answered);
        self.handle.etcd_counts().add_range(outcome);
        answer
    }

    /// The head of an answer at the newest moment.
    pub(super) async fn header_now(&self) -> Result<Option<PbResponseHeader>, Status> {
        let reading = self.reading().await?;
        Ok(Some(header(&reading, revision(reading.position().sequence))))
    }

    /// Does what may take long on one of the few threads for that. It ends early once nobody waits for it.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Given) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let _turn = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| refusal::stopping())?;
        let given = Given::default();
        let _give_up = GiveUp(given.clone());
        tokio::task::spawn_blocking(move || work(&given)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a call of the etcd face panicked");
            Err(Status::internal("this is a fault in meshkeep: its log has the details"))
        })
    }
}
