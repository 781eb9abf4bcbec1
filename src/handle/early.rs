//! Answers before everything of the store is in memory.
//!
//! Owns: which questions can be asked so early, and what each waits for. Deliberately lacks: how the answers come about ([`Early`] is the
//! runtime's).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::{Handle, LOADING_WAIT_MAX, Loading, Reading};
use crate::commit::Published;
use crate::model::Question;

/// Something that answers single questions while the store loads.
pub trait Early: Debug + Send + Sync {
    /// A snapshot that has all that a question needs, with what the records that answer it name, and answers it as the loaded store does; `None` where it has to wait for that.
    /// Reads from the disk.
    fn published(&self, question: &Question) -> Option<Published>;
}

/// Set while there is one.
pub type EarlyWatch = watch::Receiver<Option<Arc<dyn Early>>>;

impl Handle {
    /// The handle, with early answers while the store loads.
    #[must_use]
    pub fn with_early(self, early: EarlyWatch) -> Self {
        self.with(|shared| shared.early = Some(early))
    }

    /// The newest snapshot; while the store loads one that answers this question, and possibly no other. Waits as [`Handle::reading`] does
    /// where that cannot be.
    ///
    /// # Errors
    /// [`Loading`] after that.
    pub async fn reading_for(&self, question: Question) -> Result<Reading, Loading> {
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

    /// Waits for early answers; `None` where the store is loaded before, or neither comes in time.
    async fn wait_for_early(&self, deadline: Instant) -> Option<Arc<dyn Early>> {
        let (mut early, mut loaded) = (self.0.early.clone()?, self.0.about.loaded.clone());
        tokio::select! {
            biased;
            _ = loaded.wait_for(Option::is_some) => None,
            // an error says that there will be none: the store is loaded instead
            Ok(early) = early.wait_for(Option::is_some) => early.clone(),
            () = tokio::time::sleep_until(deadline.into()) => None,
        }
    }
}
