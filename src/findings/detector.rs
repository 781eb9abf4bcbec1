//! The task that detects findings each second, and passes changes to the change stream and the
//! webhook.

use std::time::{Duration, Instant, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::publisher::{FindingPublisher, FindingSet};
use super::{FindingSources, current_findings};

/// Interval between two detections. One over 255 clusters takes some milliseconds.
const DETECTION_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a detection, as a multiple of the time that it took. It limits detection to a
/// twentieth of a core.
const PAUSE_PER_DETECTION: u32 = 20;

/// Detects findings until the future is dropped or the committer has ended. Without this task, a
/// finding would start at the first request that sees it.
pub(crate) async fn detect_findings(sources: FindingSources) {
    let mut publisher = FindingPublisher::default();
    loop {
        let started = Instant::now();
        if let Some(reading) = sources.handle.try_reading() {
            let sources_copy = sources.clone();
            let detect = move || {
                let index = sources_copy.index.newest();
                let current = FindingSet::collect(current_findings(&sources_copy, &reading), index.as_ref(), &reading, SystemTime::now());
                sources_copy.start_times.set_omitted_count(current.omitted_count);
                let changes = publisher.changes(current);
                if !changes.is_empty() {
                    sources_copy.webhook.set_current(publisher.published());
                }
                (changes, publisher)
            };
            let Ok((changes, returned)) = spawn_blocking(detect).await else { return };
            publisher = returned;
            let duration = started.elapsed();
            if !changes.is_empty() && sources.handle.send_findings(changes).await.is_err() {
                return;
            }
            sleep(duration.saturating_mul(PAUSE_PER_DETECTION).max(DETECTION_INTERVAL)).await;
        } else {
            sleep(DETECTION_INTERVAL).await;
        }
    }
}
