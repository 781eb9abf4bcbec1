//! Reading chunks back.
//!
//! Owns: the bodies of chunks, from their slots or from what a start has read already. Deliberately lacks: which chunks there are (`chunk_store`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::ChunkStore;
use crate::pack;
use crate::store::encoding::change::Key;
use crate::store::engine::slots::Slots;
use crate::store::error::EngineError;
use crate::store::objects::object::{self, damaged};
use crate::store::objects::packing::Content;
use crate::store::objects::pending::Pending;
use crate::store::objects::stored_range::StoredRange;
use crate::store::threads::in_threads;

/// What a chunk holds, as far as a start has taken it apart.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) enum Body {
    /// As it is stored.
    Stored(Vec<u8>),
    /// Entries.
    Unpacked(Vec<pack::Chunk>),
}

impl Body {
    fn content(self, low: &[u8], chunk: &StoredRange) -> Result<Content, EngineError> {
        match self {
            Self::Stored(body) => Content::read(low, &body).map_err(|error| damaged(&chunk.slots, &error)),
            Self::Unpacked(chunks) => Ok(Content::entries(chunks)),
        }
    }
}

impl<S: Slots> ChunkStore<S> {
    /// Everything that is stored, range by range in the order of the keys; `bodies` are those of chunks that were read already. Unpacked by
    /// several threads: a start waits for it.
    pub(in crate::store) fn contents(&self, bodies: BTreeMap<Key, Body>) -> Result<Vec<Content>, EngineError> {
        let mut bodies = bodies;
        let ranges = self.chunks.iter().map(|(low, chunk)| (low, chunk, Mutex::new(bodies.remove(low))));
        let ranges: Vec<(&Key, &StoredRange, Mutex<Option<Body>>)> = ranges.collect();
        let contents = in_threads(&ranges, |(low, chunk, body)| {
            let body = body.lock().ok().and_then(|mut body| body.take());
            let body = body.map_or_else(|| self.read_body(chunk).map(Body::Stored), Ok)?;
            with_pending(body.content(low, chunk)?, chunk, chunk.pending.clone())
        })?;
        contents.into_iter().collect()
    }

    /// Reads a chunk, with what the log has for it.
    pub(super) fn read(&self, low: &Key, chunk: &StoredRange, pending: Pending) -> Result<Content, EngineError> {
        let content = Body::Stored(self.read_body(chunk)?).content(low, chunk)?;
        with_pending(content, chunk, pending)
    }

    /// Reads the body of a chunk.
    fn read_body(&self, chunk: &StoredRange) -> Result<Vec<u8>, EngineError> {
        object::read(self.slots(), &chunk.slots, |head| head.stamp == chunk.stamp).map(|(_, body)| body)
    }
}

fn with_pending(mut content: Content, chunk: &StoredRange, pending: Pending) -> Result<Content, EngineError> {
    content.apply(pending).map_err(|error| damaged(&chunk.slots, &error))?;
    Ok(content)
}
