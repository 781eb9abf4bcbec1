//! Reads chunks with their pending changes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::ChunkStore;
use crate::pack;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::SlotStorage;
use crate::store::error::EngineError;
use crate::store::objects::object::{self, damaged};
use crate::store::objects::packing::RangeContent;
use crate::store::objects::pending::PendingChanges;
use crate::store::objects::stored_chunk::StoredChunk;
use crate::store::threads::map_in_threads;

/// Content of a chunk that a start has read.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) enum ChunkBody {
    /// Bytes as stored.
    Stored(Vec<u8>),
    /// Decoded entries.
    Unpacked(Vec<pack::Chunk>),
}

impl ChunkBody {
    fn content(self, low: &[u8], chunk: &StoredChunk) -> Result<RangeContent, EngineError> {
        match self {
            Self::Stored(body) => RangeContent::decode(low, &body).map_err(|error| damaged(&chunk.slots, &error)),
            Self::Unpacked(chunks) => Ok(RangeContent::entries(chunks)),
        }
    }
}

impl<S: SlotStorage> ChunkStore<S> {
    /// Returns the content of all ranges, in the order of the keys. `bodies` are the chunks that
    /// were already read. Decodes on several threads, because a start waits for it.
    pub(in crate::store) fn contents(&self, bodies: BTreeMap<KeyBytes, ChunkBody>) -> Result<Vec<RangeContent>, EngineError> {
        let mut bodies = bodies;
        let ranges = self.chunks.iter().map(|(low, chunk)| (low, chunk, Mutex::new(bodies.remove(low))));
        let ranges: Vec<(&KeyBytes, &StoredChunk, Mutex<Option<ChunkBody>>)> = ranges.collect();
        let contents = map_in_threads(&ranges, |(low, chunk, body)| {
            let body = body.lock().ok().and_then(|mut body| body.take());
            let body = body.map_or_else(|| self.read_body(chunk).map(ChunkBody::Stored), Ok)?;
            with_pending(body.content(low, chunk)?, chunk, chunk.pending.clone())
        })?;
        contents.into_iter().collect()
    }

    /// Reads a chunk and applies its pending changes.
    pub(super) fn read(&self, low: &KeyBytes, chunk: &StoredChunk, pending: PendingChanges) -> Result<RangeContent, EngineError> {
        let content = ChunkBody::Stored(self.read_body(chunk)?).content(low, chunk)?;
        with_pending(content, chunk, pending)
    }

    fn read_body(&self, chunk: &StoredChunk) -> Result<Vec<u8>, EngineError> {
        object::read(self.storage(), &chunk.slots, |head| head.stamp == chunk.stamp).map(|(_, body)| body)
    }
}

fn with_pending(mut content: RangeContent, chunk: &StoredChunk, pending: PendingChanges) -> Result<RangeContent, EngineError> {
    content.apply(pending).map_err(|error| damaged(&chunk.slots, &error))?;
    Ok(content)
}
