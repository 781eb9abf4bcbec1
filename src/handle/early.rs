//! Answers to single questions before the whole store is in memory.
//!
//! [`Handle::reading_for`] asks an [`Early`], which the runtime provides while the store loads.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::{Handle, LOADING_WAIT_MAX, Loading, Reading};
use crate::commit::Published;
use crate::model::RecordQuery;

/// Answers single questions while the store loads.
pub trait Early: Debug + Send + Sync {
    /// Returns a snapshot that answers `question` as the loaded store would, with everything that
    /// the matching records refer to. `None` if the answer has to wait for the store. Reads from
    /// the disk.
    fn published(&self, question: &RecordQuery) -> Option<Published>;
}

/// The current [`Early`], if the store is loading.
pub type EarlyWatch = watch::Receiver<Option<Arc<dyn Early>>>;

impl Handle {
    /// Sets the source of early answers.
    #[must_use]
    pub fn with_early(self, early: EarlyWatch) -> Self {
        self.with(|shared| shared.early = Some(early))
    }

    /// Returns the newest snapshot. While the store loads, the snapshot answers this question and
    /// possibly no other. Waits like [`Handle::reading`] if the question has no early answer.
    ///
    /// # Errors
    /// [`Loading`] after the wait.
    pub async fn reading_for(&self, question: RecordQuery) -> Result<Reading, Loading> {
        let deadline = Instant::now() + LOADING_WAIT_MAX;
        if let Some(reading) = self.try_reading() {
            return Ok(reading);
        }
        if let Some(early) = self.wait_for_early(deadline).await {
            let answering = tokio::task::spawn_blocking(move || early.published(&question));
            if let Some(published) = answering.await.ok().flatten() {
                return Ok(self.read(Arc::new(published)));
            }
        }
        self.reading_until(deadline).await
    }

    /// Waits for early answers. Returns `None` if the store is loaded first, or neither happens
    /// before `deadline`.
    async fn wait_for_early(&self, deadline: Instant) -> Option<Arc<dyn Early>> {
        let (mut early, mut loaded) = (self.0.early.clone()?, self.0.about.loaded.clone());
        tokio::select! {
            biased;
            _ = loaded.wait_for(Option::is_some) => None,
            // an error means that there will be no early answers: wait for the store
            Ok(early) = early.wait_for(Option::is_some) => early.clone(),
            () = tokio::time::sleep_until(deadline.into()) => None,
        }
    }
}
