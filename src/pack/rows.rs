//! Rows of a chunk for those who keep one for later: the ring's announcements.

use std::sync::Arc;

use super::chunk::{Chunk, Packed};
use crate::model::{Record, Rows};

impl Chunk {
    /// Its records by row, for those who do not know how they are packed.
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
