//! The task that detects findings each second, and passes changes to the change stream and the
//! poster.

use std::time::{Duration, Instant, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::publisher::{FindingPublisher, FindingSet};
use super::{FindingSources, standing};

/// Interval between two detections. One over 255 clusters takes some milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a detection, as a multiple of the time that it took. It bounds detection to a
/// twentieth of a core.
const REST_PER_LOOK: u32 = 20;

/// Detects findings until it is dropped or the committer has ended. Without it, the start of a
/// finding would be the time of the first request that sees it.
pub(crate) async fn keep(sources: FindingSources) {
    let mut publisher = FindingPublisher::default();
    loop {
        let begun = Instant::now();
        if let Some(reading) = sources.handle.try_reading() {
            let of_look = sources.clone();
            let look = move || {
                let survey = of_look.surveyor.newest();
                let found = FindingSet::of(standing(&of_look, &reading), survey.as_ref(), &reading, SystemTime::now());
                of_look.ledger.note_untold(found.left_out);
                let changes = publisher.changes(found);
                if !changes.is_empty() {
                    of_look.posts.show(publisher.told());
                }
                (changes, publisher)
            };
            let Ok((changes, after)) = spawn_blocking(look).await else { return };
            publisher = after;
            let took = begun.elapsed();
            if !changes.is_empty() && sources.handle.send_findings(changes).await.is_err() {
                return;
            }
            sleep(took.saturating_mul(REST_PER_LOOK).max(LOOK_INTERVAL)).await;
        } else {
            sleep(LOOK_INTERVAL).await;
        }
    }
}
