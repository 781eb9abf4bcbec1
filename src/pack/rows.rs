//! Rows of a chunk as the ring's announcements keep them: one row each, decoded later if at all.

use std::sync::Arc;

use super::chunk::{Chunk, Packed};
use crate::model::{Record, Rows};

impl Chunk {
    /// Its records by row, for rooms that know nothing of the packed form.
    #[must_use]
    pub fn rows(&self) -> Arc<dyn Rows> {
        Arc::clone(&self.0) as Arc<dyn Rows>
    }

    /// How many bytes the value of a row has at most; `None` where its last usable value may be another.
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
