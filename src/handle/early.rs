//! Answers to single queries before the whole store is in memory.
//!
//! [`Handle::reading_for`] asks an [`EarlyLookup`], which the runtime provides while the store
//! loads.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::summary::SummaryCache;
use super::{Handle, LOADING_WAIT_MAX, Reading, StoreLoading};
use crate::commit::MirrorSnapshot;
use crate::model::RecordQuery;

/// Answers single queries while the store loads.
pub trait EarlyLookup: Debug + Send + Sync {
    /// Returns a snapshot that answers `query` as the loaded store would, with everything that the
    /// matching records refer to. `None` if the answer has to wait for the store. Reads from the
    /// disk.
    fn snapshot_for(&self, query: &RecordQuery) -> Option<MirrorSnapshot>;
}

/// The current [`EarlyLookup`], if the store is loading.
pub type EarlyLookupReceiver = watch::Receiver<Option<Arc<dyn EarlyLookup>>>;

impl Handle {
    /// Sets the source of early answers.
    #[must_use]
    pub fn with_early_lookup(self, early: EarlyLookupReceiver) -> Self {
        self.with(|state| state.early = Some(early))
    }

    /// Returns the newest snapshot. While the store loads, the snapshot answers this query and
    /// possibly no other. Waits like [`Handle::reading`] if the query has no early answer.
    ///
    /// # Errors
    /// [`StoreLoading`] after the wait.
    pub async fn reading_for(&self, query: RecordQuery) -> Result<Reading, StoreLoading> {
        let deadline = Instant::now() + LOADING_WAIT_MAX;
        if let Some(reading) = self.try_reading() {
            return Ok(reading);
        }
        if let Some(early) = self.wait_for_early(deadline).await {
            let answer = tokio::task::spawn_blocking(move || early.snapshot_for(&query));
            if let Some(published) = answer.await.ok().flatten() {
                // this snapshot has only a part of the mirror, so its summary is not that of others
                return Ok(Reading { summary: SummaryCache::default(), ..self.reading_from(Arc::new(published)) });
            }
        }
        self.reading_until(deadline).await
    }

    /// Waits for early answers. Returns `None` if the store is loaded first, or neither happens
    /// before `deadline`.
    async fn wait_for_early(&self, deadline: Instant) -> Option<Arc<dyn EarlyLookup>> {
        let (mut early, mut loaded) = (self.0.early.clone()?, self.0.process.loaded.clone());
        tokio::select! {
            biased;
            _ = loaded.wait_for(Option::is_some) => None,
            // an error means that there will be no early answers: wait for the store
            Ok(early) = early.wait_for(Option::is_some) => early.clone(),
            () = tokio::time::sleep_until(deadline.into()) => None,
        }
    }
}
