//! State shared by all calls of the etcd API: snapshots, response headers and the budgets of
//! clients.

use std::sync::Arc;

use etcd_client::proto::PbResponseHeader;
use tonic::{Request, Status};

use super::EtcdOptions;
use super::errors;
use super::pinned_snapshots::PinnedSnapshots;
use super::recent_changes::RecentChanges;
use super::responses::{QUICK_RESPONSE_BYTES_MAX, RESPONSE_BYTES_MAX};
use super::revisions::to_revision;
use crate::admission::{Client, ClientShare, MemoryBudget, Scanner, StreamLimiter, StreamPermit};
use crate::handle::{Handle, Reading};
use crate::instruments::RangeOutcome;
use crate::model::{EntryKey, RecordQuery};

/// Id of the only member of the cluster: this process.
pub(super) const MEMBER_ID: u64 = 1;

/// Constant Raft term, because there are no elections.
pub(super) const RAFT_TERM: u64 = 1;

/// Maximum bytes of the watches of all clients, including their keys.
const WATCH_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of the watches of one client: a fourth of the total.
///
/// An agent has at most six watches for each of 511 clusters, which need less than 1 MiB.
const WATCH_BYTES_PER_CLIENT_MAX: usize = 16 << 20;

/// Maximum bytes of incomplete request messages. One client can use half. A message has at most 4
/// MiB.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of events that wait to be sent. One client can use half.
///
/// A stream has at most four answers of about 256 KiB, so half of the budget is enough for 128
/// streams whose clients read nothing.
const EVENT_BYTES_MAX: usize = 256 << 20;

/// State that all calls of the etcd API share.
#[derive(Debug)]
pub(super) struct EtcdApi {
    pub(super) handle: Handle,
    pub(super) options: EtcdOptions,
    pub(super) pinned_snapshots: PinnedSnapshots,
    pub(super) recent_changes: RecentChanges,
    /// Budget for the answers of ranges and transactions.
    pub(super) response_budget: Arc<MemoryBudget>,
    /// Budget for quick answers.
    pub(super) quick_response_budget: Arc<MemoryBudget>,
    /// Budget for the keys of all watches.
    pub(super) watch_budget: Arc<MemoryBudget>,
    /// Budget for incomplete request messages.
    pub(super) request_budget: Arc<MemoryBudget>,
    /// Budget for events that wait to be sent.
    pub(super) event_budget: Arc<MemoryBudget>,
    streams: StreamLimiter,
}

/// Returns the client of a request, identified as in the HTTP API.
pub(super) fn client_of<T>(request: &Request<T>) -> Client {
    request.extensions().get().copied().unwrap_or(Client::Local)
}

impl EtcdApi {
    pub(super) fn new(handle: Handle, options: EtcdOptions) -> Self {
        Self {
            handle,
            options,
            pinned_snapshots: PinnedSnapshots::default(),
            recent_changes: RecentChanges::default(),
            response_budget: MemoryBudget::new(RESPONSE_BYTES_MAX, ClientShare::TimesFree(2)),
            quick_response_budget: MemoryBudget::new(QUICK_RESPONSE_BYTES_MAX, ClientShare::TimesFree(1)),
            watch_budget: MemoryBudget::new(WATCH_BYTES_MAX, ClientShare::Bytes(WATCH_BYTES_PER_CLIENT_MAX)),
            request_budget: MemoryBudget::new(REQUEST_BYTES_MAX, ClientShare::TimesFree(1)),
            event_budget: MemoryBudget::new(EVENT_BYTES_MAX, ClientShare::TimesFree(1)),
            streams: StreamLimiter::new(),
        }
    }

    /// Admits a long request of a client to the scheduler.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the client or the queue has no slot left.
    pub(super) fn acquire_scanner(&self, client: Client) -> Result<Scanner, Status> {
        self.options.scans.admit(client).map_err(|exhausted| errors::resource_exhausted(&exhausted))
    }

    /// Counts one more open stream of a client.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if there is no slot left.
    pub(super) fn open_stream(&self, client: Client) -> Result<StreamPermit, Status> {
        self.streams.try_acquire(client).map_err(|exhausted| errors::resource_exhausted(&exhausted))
    }

    /// Returns the newest snapshot. Waits up to 2 s for the store to load.
    ///
    /// # Errors
    /// Returns `Unavailable` while the store is still loading.
    pub(super) async fn reading(&self) -> Result<Reading, Status> {
        self.handle.reading().await.map_err(|_| errors::loading())
    }

    /// Returns the newest snapshot for a request about one key.
    ///
    /// While the store is loading, the snapshot has only this key, if it is the key of an entry.
    pub(super) async fn reading_for(&self, key: &[u8]) -> Result<Reading, Status> {
        let entry = str::from_utf8(key).ok().and_then(EntryKey::from_cache_form).filter(|key| key.kind.is_mirrored());
        let Some(entry) = entry else { return self.reading().await };
        self.handle.reading_for(RecordQuery::Key(entry)).await.map_err(|_| errors::loading())
    }

    /// Counts the outcome of a range request in the metrics, and returns the answer unchanged.
    pub(super) fn count_outcome<T>(&self, answer: Result<T, Status>) -> Result<T, Status> {
        let outcome = answer.as_ref().map_or_else(errors::range_outcome, |_| RangeOutcome::Answered);
        self.handle.etcd_counts().add_range(outcome);
        answer
    }

    /// Returns a response header at the newest revision.
    pub(super) async fn current_header(&self) -> Result<Option<PbResponseHeader>, Status> {
        let reading = self.reading().await?;
        Ok(Some(newest_header(&reading)))
    }
}

/// Builds a response header for the given revision.
pub(super) fn header(reading: &Reading, revision: i64) -> PbResponseHeader {
    PbResponseHeader { cluster_id: reading.lineage(), member_id: MEMBER_ID, revision, raft_term: RAFT_TERM }
}

/// Builds a response header for the newest revision of a snapshot.
pub(super) fn newest_header(reading: &Reading) -> PbResponseHeader {
    header(reading, to_revision(reading.position().sequence))
}
