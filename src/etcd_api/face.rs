//! What all calls share: readings, headers, and what each client may have.

use std::sync::Arc;

use etcd_client::proto::PbResponseHeader;
use tonic::{Request, Status};

use super::EtcdOptions;
use super::answers::{ANSWER_BYTES_MAX, QUICK_BYTES_MAX};
use super::pins::Pins;
use super::refusal;
use super::revisions::revision;
use super::window::Window;
use crate::admission::{Budget, Client, Places, Scanner, Share, StreamPermit};
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

/// How many bytes may wait in memory for the rest of their messages, which have 4 MiB at most; a client alone gets half.
const RECEIVED_BYTES_MAX: usize = 64 << 20;

/// How many bytes of events may wait for their clients to take them; a client alone gets half. As a stream has four answers of some 256 KiB at most, those
/// are 128 streams whose clients read nothing.
const TOLD_BYTES_MAX: usize = 256 << 20;

/// One face.
#[derive(Debug)]
pub(super) struct Face {
    pub(super) handle: Handle,
    pub(super) options: EtcdOptions,
    pub(super) pins: Pins,
    pub(super) window: Window,
    /// The answers of ranges and transactions.
    pub(super) answers: Arc<Budget>,
    /// Those of the quick ones.
    pub(super) quick_answers: Arc<Budget>,
    /// The keys of all watches.
    pub(super) watched: Arc<Budget>,
    /// Messages that are not whole yet.
    pub(super) received: Arc<Budget>,
    /// Events of watches that wait to be sent.
    pub(super) told: Arc<Budget>,
    streams: Places,
}

/// Who asks, told apart as over HTTP.
pub(super) fn client_of<T>(request: &Request<T>) -> Client {
    request.extensions().get().copied().unwrap_or(Client::Local)
}

impl Face {
    pub(super) fn new(handle: Handle, options: EtcdOptions) -> Self {
        Self {
            handle,
            options,
            pins: Pins::default(),
            window: Window::default(),
            answers: Budget::new(ANSWER_BYTES_MAX, Share::TimesFree(2)),
            quick_answers: Budget::new(QUICK_BYTES_MAX, Share::TimesFree(1)),
            watched: Budget::new(WATCHED_BYTES_MAX, Share::Bytes(WATCHED_BYTES_PER_CLIENT_MAX)),
            received: Budget::new(RECEIVED_BYTES_MAX, Share::TimesFree(1)),
            told: Budget::new(TOLD_BYTES_MAX, Share::TimesFree(1)),
            streams: Places::new(),
        }
    }

    /// A place among the requests that take long.
    pub(super) fn enter(&self, client: Client) -> Result<Scanner, Status> {
        self.options.scans.enter(client).map_err(|none| refusal::crowded(&none))
    }

    /// A place among the streams that stay open.
    pub(super) fn stream(&self, client: Client) -> Result<StreamPermit, Status> {
        self.streams.take(client).map_err(|none| refusal::crowded(&none))
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
        Ok(Some(header_at(&reading)))
    }
}

/// What stands at the head of an answer that is about a revision.
pub(super) fn header(reading: &Reading, revision: i64) -> PbResponseHeader {
    PbResponseHeader { cluster_id: reading.lineage(), member_id: MEMBER_ID, revision, raft_term: RAFT_TERM }
}

/// What stands at the head of an answer that is about the newest revision of a moment.
pub(super) fn header_at(reading: &Reading) -> PbResponseHeader {
    header(reading, revision(reading.position().sequence))
}
