//! Properties of single rows, for announcements. An announcement keeps a chunk and a row instead of
//! a record, and decodes the record only if a reader needs it.

use super::chunk::Chunk;

impl Chunk {
    /// Returns an upper bound on the length of a row's value in bytes. Returns `None` if the last
    /// usable value of the row can differ from the newest.
    #[must_use]
    pub fn value_length_max(&self, row: usize) -> Option<usize> {
        self.0.extra(row).is_none().then_some(self.0.value_length_max)
    }

    /// Returns the number of clones that share the bytes of the chunk, this one included.
    #[cfg(test)]
    pub fn share_count(&self) -> usize {
        std::sync::Arc::strong_count(&self.0)
    }
}
