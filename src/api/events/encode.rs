//! Items of a subscription as bytes.

use bytes::Bytes;

use crate::api::dto::objects::ClusterIds;
use crate::api::dto::status::readings;
use crate::api::paging::one_line::append_line;
use crate::api::problem::Problem;
use crate::dto::events::{BackendChanges, EventMeta, WatchEvent};
use crate::dto::objects::Backend;
use crate::dto::status::ClusterAge;
use crate::dto::streamed::StreamedObject;
use crate::dto::text::text_of;
use crate::handle::{BackendsPatch, ByteCount, Departure, Item, Reading, ResetReason, SyncMode};
use crate::model::{DeleteReason, EntryKey, Kind, Position, ReaderPosition, Revision};

/// Up to here events are sent as one chunk: a write costs 7 to 12 µs whatever its size (docs/develop/http.md §5.2), and this much at once does not
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
            event_type: event_type.into(),
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
        Self { kind: Some(key.kind.api_name().into()), key: Some(text_of(key, KEY_LENGTH)), meta: Some(meta), ..Self::new(event_type) }
    }

    pub(super) fn of(item: &Item, reading: &Reading, ids: &ClusterIds<'_>) -> Self {
        match item {
            Item::Reset(reason) => Self { reason: Some(reset_reason(*reason).into()), ..Self::new("reset") },
            Item::Upsert { key, object, revision, position } => {
                let event_type = if key.kind == Kind::Cluster { "cluster" } else { "upsert" };
                Self { object: Some(StreamedObject::new(key, object, ids)), ..Self::about(event_type, key, *revision, *position) }
            }
            Item::Patch { key, patch, revision, position } => {
                Self { backends: Some(patch.into()), ..Self::about("patch", key, *revision, *position) }
            }
            Item::Delete { key, reason, position } => {
                Self { reason: Some(departure(*reason).into()), ..Self::about("delete", key, None, *position) }
            }
            Item::Synced { mode, count, position } => {
                Self { mode: Some(sync_mode(*mode).into()), count: Some(*count), ..Self::mark("synced", *position, reading) }
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
