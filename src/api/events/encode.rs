//! Items of a subscription as bytes.

use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::dto::objects::{Backend, ClusterIds};
use crate::api::dto::status::{ClusterAge, readings};
use crate::api::dto::streamed::StreamedObject;
use crate::api::dto::text_of;
use crate::api::one_line::append_line;
use crate::api::problem::{Problem, ProblemDocument};
use crate::handle::{BackendsPatch, ByteCount, Departure, Item, Reading, ResetReason, SyncMode};
use crate::model::{DeleteReason, EntryKey, Kind, Position, ReaderPosition, Revision};

/// Up to here events are sent as one chunk: a write costs 7 to 12 µs whatever its size (docs/http.md §5.2), and this much at once does not
/// delay what follows.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// A position of a reader: `v1.`, 32 digits, a dot and 20 digits.
const POSITION_LENGTH_MAX: usize = 56;

/// Keys are longer than this if names are: that of an IPv4 address of a cluster whose name has 32 bytes, the most that Cilium allows, has 66.
const KEY_LENGTH: usize = 66;

/// How long a browser waits before it connects again, in milliseconds. Part of the first event's block: of a block of its own httpx-sse makes an
/// event without data, and fails.
const RETRY: &str = "retry: 2000\n";

/// The form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    /// `text/event-stream`.
    Sse,
    /// One JSON object for each line.
    NdJson,
}

/// One event of the stream. Which members are there depends on `type`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WatchEvent {
    /// `reset`, `upsert`, `patch`, `delete`, `cluster`, `synced`, `bookmark` or `error`.
    #[serde(rename = "type")]
    event_type: &'static str,
    /// Of `upsert`, `patch`, `delete` and `cluster`: what the key is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// Of `upsert`, `patch`, `delete` and `cluster`: the key in cache form, for a cluster that of its cluster config, for a problem
    /// `problem/<type>/<cluster>/<subject>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Of `upsert` and `cluster`: the whole object, as the lists of its kind show it. `kind` says which it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<StreamedObject>,
    /// Of `patch`: how the backends changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    backends: Option<BackendChanges>,
    /// Of `delete`: `deleted`, `leftFilter`, `clusterRemoved` or `unknown`. Of `reset`: `initial`, `expired`, `foreignEpoch`,
    /// `rolledBack` or `malformed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Of `synced`: `snapshot` or `replay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    /// Of `synced`: how many upserts and deletes that took.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// Of `synced` and `bookmark`: everything up to here was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// Of `synced` and `bookmark`: how old each cluster is.
    #[serde(skip_serializing_if = "Option::is_none")]
    clusters: Option<Vec<ClusterAge>>,
    /// Of `upsert`, `patch`, `delete` and `cluster`: where it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<EventMeta>,
    /// Of `error`: what happened; the stream ends after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemDocument>,
}

/// How the backends of a service changed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendChanges {
    /// New or changed backends; each replaces the one with the same address.
    upserted: Vec<Backend>,
    /// The addresses of those that are gone.
    removed: Vec<String>,
}

/// Where an event comes from.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventMeta {
    /// The cluster; `-` for a problem of several or none.
    cluster: String,
    /// The source's revision, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    /// The position after the event; left out inside a snapshot, which has none until `synced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
}

/// Bytes in the making.
#[derive(Debug)]
pub(crate) struct Encoder {
    encoding: Encoding,
    chunks: Vec<Bytes>,
    open: Vec<u8>,
}

impl Encoding {
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::NdJson => "application/x-ndjson",
        }
    }

    /// What a stream begins with.
    pub(crate) fn preamble(self) -> Option<Bytes> {
        match self {
            Self::Sse => Some(Bytes::from_static(RETRY.as_bytes())),
            Self::NdJson => None,
        }
    }
}

impl WatchEvent {
    fn new(event_type: &'static str) -> Self {
        Self {
            event_type,
            kind: None,
            key: None,
            object: None,
            backends: None,
            reason: None,
            mode: None,
            count: None,
            position: None,
            clusters: None,
            meta: None,
            problem: None,
        }
    }

    fn about(event_type: &'static str, key: &EntryKey, revision: Option<Revision>, position: Option<ReaderPosition>) -> Self {
        let meta = EventMeta {
            cluster: key.cluster.to_string(),
            revision: revision.map(|revision| revision.0),
            position: position.map(|position| text_of(&position, POSITION_LENGTH_MAX)),
        };
        Self { kind: Some(key.kind.api_name()), key: Some(text_of(key, KEY_LENGTH)), meta: Some(meta), ..Self::new(event_type) }
    }

    pub(super) fn of(item: &Item, reading: &Reading, ids: &ClusterIds<'_>) -> Self {
        match item {
            Item::Reset(reason) => Self { reason: Some(reset_reason(*reason)), ..Self::new("reset") },
            Item::Upsert { key, object, revision, position } => {
                let event_type = if key.kind == Kind::Cluster { "cluster" } else { "upsert" };
                Self { object: Some(StreamedObject::new(key, object, ids)), ..Self::about(event_type, key, *revision, *position) }
            }
            Item::Patch { key, patch, revision, position } => {
                Self { backends: Some(patch.into()), ..Self::about("patch", key, *revision, *position) }
            }
            Item::Delete { key, reason, position } => {
                Self { reason: Some(departure(*reason)), ..Self::about("delete", key, None, *position) }
            }
            Item::Synced { mode, count, position } => {
                Self { mode: Some(sync_mode(*mode)), count: Some(*count), ..Self::mark("synced", *position, reading) }
            }
        }
    }

    fn mark(event_type: &'static str, position: Position, reading: &Reading) -> Self {
        let clusters = readings(reading).map(|cluster| ClusterAge::from(&cluster)).collect();
        Self { position: Some(position.to_string()), clusters: Some(clusters), ..Self::new(event_type) }
    }

    /// What a browser sends back as `Last-Event-ID`; an empty id would clear it, so there is none then.
    fn id(&self) -> Option<&str> {
        self.position.as_deref().or_else(|| self.meta.as_ref()?.position.as_deref())
    }
}

impl Encoder {
    pub(crate) const fn new(encoding: Encoding) -> Self {
        Self { encoding, chunks: Vec::new(), open: Vec::new() }
    }

    /// Items as chunks of about 64 KiB, whose bytes are counted. Each item is gone when it is written.
    pub(super) fn encoded(encoding: Encoding, items: impl Iterator<Item = Item>, bytes: &ByteCount, reading: &Reading) -> Vec<Bytes> {
        let (mut encoder, ids) = (Self::new(encoding), ClusterIds::new(reading));
        for item in items {
            bytes.add(encoder.item(&item, reading, &ids));
        }
        encoder.finish()
    }

    /// Adds one item, and says how many bytes it has.
    pub(super) fn item(&mut self, item: &Item, reading: &Reading, ids: &ClusterIds<'_>) -> usize {
        let before = self.open.len();
        self.event(&WatchEvent::of(item, reading, ids)) - before
    }

    /// Adds a bookmark.
    pub(crate) fn bookmark(&mut self, position: Position, reading: &Reading) {
        self.event(&WatchEvent::mark("bookmark", position, reading));
    }

    /// Adds an error.
    pub(crate) fn error(&mut self, problem: Problem) {
        self.event(&WatchEvent { problem: Some(problem.document(None)), ..WatchEvent::new("error") });
    }

    /// Says how many bytes there were with it in the chunk that it is part of.
    fn event(&mut self, event: &WatchEvent) -> usize {
        // one of the measurements has some 420 bytes
        self.open.reserve(512);
        if self.encoding == Encoding::Sse {
            self.open.extend_from_slice(b"event: ");
            self.open.extend_from_slice(event.event_type.as_bytes());
            if let Some(id) = event.id() {
                self.open.extend_from_slice(b"\nid: ");
                self.open.extend_from_slice(id.as_bytes());
            }
            self.open.extend_from_slice(b"\ndata: ");
        }
        append_line(&mut self.open, event).expect("must be JSON: every member is a text, a number or a list of them");
        self.open.extend_from_slice(if self.encoding == Encoding::Sse { b"\n\n" } else { b"\n" });
        let length = self.open.len();
        if length >= CHUNK_BYTES {
            // another as long, and one more event
            let next = Vec::with_capacity(CHUNK_BYTES + 1_024);
            self.chunks.push(std::mem::replace(&mut self.open, next).into());
        }
        length
    }

    /// How much was added.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.chunks.iter().map(Bytes::len).sum::<usize>()
    }

    /// Everything that was added, in chunks of about 64 KiB.
    pub(crate) fn finish(mut self) -> Vec<Bytes> {
        if !self.open.is_empty() {
            self.chunks.push(self.open.into());
        }
        self.chunks
    }
}

impl From<&BackendsPatch> for BackendChanges {
    fn from(patch: &BackendsPatch) -> Self {
        Self {
            upserted: patch.upserted.iter().map(Backend::from).collect(),
            removed: patch.removed.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The name that the API uses.
pub(super) const fn sync_mode(mode: SyncMode) -> &'static str {
    match mode {
        SyncMode::Snapshot => "snapshot",
        SyncMode::Replay => "replay",
    }
}

/// The name that the API uses.
const fn departure(reason: Departure) -> &'static str {
    match reason {
        Departure::Gone(DeleteReason::Deleted) => "deleted",
        Departure::Gone(DeleteReason::ClusterRemoved) => "clusterRemoved",
        Departure::LeftFilter => "leftFilter",
        Departure::Unknown => "unknown",
    }
}

pub(super) const fn reset_reason(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::Initial => "initial",
        ResetReason::Expired => "expired",
        ResetReason::ForeignEpoch => "foreignEpoch",
        ResetReason::RolledBack => "rolledBack",
        ResetReason::Malformed => "malformed",
    }
}
