//! Encodes the items of a subscription as SSE or NDJSON.

use bytes::Bytes;

use crate::api::dto::status::readings;
use crate::api::paging::one_line::append_line;
use crate::api::problem::Problem;
use crate::dto::events::{BackendChanges, EventMeta, WatchEvent};
use crate::dto::objects::Backend;
use crate::dto::objects::last_change::LastChange;
use crate::dto::status::ClusterAge;
use crate::dto::streamed::StreamedObject;
use crate::dto::text::format_with_capacity;
use crate::dto::values::closed::{EventReason, EventType, StreamedKind};
use crate::handle::{BackendsPatch, DeleteCause, EncodedByteCount, Reading, ResetReason, StreamEvent};
use crate::model::{DeleteReason, EntryKey, Kind, Position, ReaderPosition, Revision};

/// Size in bytes at which a chunk is sent. A write costs 7 to 12 µs at any size
/// (docs/develop/http.md §5.2), and a chunk of this size does not delay later events.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// Length of the longest position: `v1.`, 32 digits, a dot and 20 digits.
const POSITION_LENGTH_MAX: usize = 56;

/// Initial capacity for a key, in bytes. The key of an IPv4 address in a cluster with a name of 32
/// bytes (Cilium's maximum) has 66. Longer names make longer keys.
const KEY_LENGTH: usize = 66;

/// Field with the time that a browser waits before it reconnects, in milliseconds.
///
/// The field is part of the first event's block, because httpx-sse turns a separate block into an
/// event without data, and fails.
const RETRY: &str = "retry: 2000\n";

/// Format of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    /// Server-sent events (`text/event-stream`).
    Sse,
    /// One JSON object per line.
    NdJson,
}

/// Encoded events: finished chunks, and the open one.
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

    /// Returns the bytes that a stream begins with.
    pub(crate) fn preamble(self) -> Option<Bytes> {
        match self {
            Self::Sse => Some(Bytes::from_static(RETRY.as_bytes())),
            Self::NdJson => None,
        }
    }
}

impl WatchEvent {
    fn new(event_type: EventType) -> Self {
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

    fn about(event_type: EventType, key: &EntryKey, revision: Option<Revision>, position: Option<ReaderPosition>) -> Self {
        let meta = EventMeta {
            cluster: key.cluster.to_string(),
            revision: revision.map(|revision| revision.0).filter(|revision| *revision > 0),
            position: position.map(|position| format_with_capacity(&position, POSITION_LENGTH_MAX)),
            change: LastChange::default(),
        };
        Self {
            kind: Some(StreamedKind(key.kind).into()),
            key: Some(format_with_capacity(key, KEY_LENGTH)),
            meta: Some(meta),
            ..Self::new(event_type)
        }
    }

    pub(super) fn of(item: &StreamEvent, reading: &Reading) -> Self {
        match item {
            StreamEvent::Reset(reason) => Self { reason: Some(EventReason::from(*reason).into()), ..Self::new(EventType::Reset) },
            StreamEvent::Upsert { key, object, revision, sequence, position } => {
                let event_type = if key.kind == Kind::Cluster { EventType::Cluster } else { EventType::Upsert };
                let object = StreamedObject::new(key, object, *sequence, reading);
                Self { object: Some(object), ..Self::about(event_type, key, *revision, *position) }
            }
            StreamEvent::Patch { key, patch, revision, sequence, position } => {
                let patch = Self { backends: Some(patch.into()), ..Self::about(EventType::Patch, key, *revision, *position) };
                patch.with_change(LastChange::of(reading, key, *sequence))
            }
            StreamEvent::Delete { key, reason, sequence, position } => {
                let delete =
                    Self { reason: Some(EventReason::from(*reason).into()), ..Self::about(EventType::Delete, key, None, *position) };
                delete.with_change(LastChange::of(reading, key, *sequence))
            }
            StreamEvent::Synced { mode, count, position } => {
                Self { mode: Some((*mode).into()), count: Some(*count), ..Self::mark(EventType::Synced, *position, reading) }
            }
        }
    }

    fn with_change(self, change: LastChange) -> Self {
        Self { meta: self.meta.map(|meta| EventMeta { change, ..meta }), ..self }
    }

    fn mark(event_type: EventType, position: Position, reading: &Reading) -> Self {
        let clusters = readings(reading).map(|cluster| ClusterAge::from(&cluster)).collect();
        Self { position: Some(position.to_string()), clusters: Some(clusters), ..Self::new(event_type) }
    }

    /// Returns the id that a browser sends back as `Last-Event-ID`. Returns `None` if the event has
    /// no position, because an empty id would clear the previous id.
    fn id(&self) -> Option<&str> {
        self.position.as_deref().or_else(|| self.meta.as_ref()?.position.as_deref())
    }
}

impl Encoder {
    pub(crate) const fn new(encoding: Encoding) -> Self {
        Self { encoding, chunks: Vec::new(), open: Vec::new() }
    }

    /// Encodes items in chunks of about 64 KiB and counts their bytes in `bytes`. Each item is
    /// dropped once it is encoded.
    pub(super) fn encoded(
        encoding: Encoding,
        items: impl Iterator<Item = StreamEvent>,
        bytes: &EncodedByteCount,
        reading: &Reading,
    ) -> Vec<Bytes> {
        let mut encoder = Self::new(encoding);
        for item in items {
            bytes.add(encoder.item(&item, reading));
        }
        encoder.finish()
    }

    /// Adds an item. Returns its size in bytes.
    pub(super) fn item(&mut self, item: &StreamEvent, reading: &Reading) -> usize {
        let before = self.open.len();
        self.event(&WatchEvent::of(item, reading)) - before
    }

    /// Adds a bookmark.
    pub(crate) fn bookmark(&mut self, position: Position, reading: &Reading) {
        self.event(&WatchEvent::mark(EventType::Bookmark, position, reading));
    }

    /// Adds an `error` event.
    pub(crate) fn error(&mut self, problem: Problem) {
        self.event(&WatchEvent { problem: Some(problem.document(None)), ..WatchEvent::new(EventType::Error) });
    }

    /// Adds an event. Returns the size of its chunk up to and including the event, in bytes.
    fn event(&mut self, event: &WatchEvent) -> usize {
        // an event of the benchmarks has about 420 bytes
        self.open.reserve(512);
        if self.encoding == Encoding::Sse {
            self.open.extend_from_slice(b"event: ");
            self.open.extend_from_slice(event.event_type.name().as_bytes());
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
            // capacity for another chunk, and one more event
            let next = Vec::with_capacity(CHUNK_BYTES + 1_024);
            self.chunks.push(std::mem::replace(&mut self.open, next).into());
        }
        length
    }

    /// Returns the total number of encoded bytes.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.chunks.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns all encoded events in chunks of about 64 KiB.
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

impl From<DeleteCause> for EventReason {
    fn from(cause: DeleteCause) -> Self {
        match cause {
            DeleteCause::Deleted(DeleteReason::Deleted) => Self::Deleted,
            DeleteCause::Deleted(DeleteReason::ClusterRemoved) => Self::ClusterRemoved,
            DeleteCause::LeftFilter => Self::LeftFilter,
            DeleteCause::Unknown => Self::Unknown,
        }
    }
}

impl From<ResetReason> for EventReason {
    fn from(reason: ResetReason) -> Self {
        match reason {
            ResetReason::Initial => Self::Initial,
            ResetReason::Expired => Self::Expired,
            ResetReason::ForeignEpoch => Self::ForeignEpoch,
            ResetReason::RolledBack => Self::RolledBack,
            ResetReason::Malformed => Self::Malformed,
        }
    }
}
