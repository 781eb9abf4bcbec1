//! Access to single rows of a chunk. An announcement keeps a chunk and a row, and decodes the
//! record only if a reader needs it.

use std::sync::Arc;

use super::chunk::{Chunk, Packed};
use crate::model::{Record, Rows};

impl Chunk {
    /// Returns the records by row, for rooms that do not know the packed form.
    #[must_use]
    pub fn rows(&self) -> Arc<dyn Rows> {
        Arc::clone(&self.0) as Arc<dyn Rows>
    }

    /// Returns an upper bound on the length of a row's value in bytes. `None` if its last usable
    /// value can differ from the newest.
    #[must_use]
    pub fn value_length_max(&self, row: usize) -> Option<usize> {
        self.0.extra(row).is_none().then_some(self.0.value_length_max)
    }
}

impl Rows for Packed {
    fn record(self: Arc<Self>, row: usize) -> Record {
        Chunk(self).record(row)
    }
}
