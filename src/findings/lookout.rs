//! Looks again and again at what is wrong, and has it told in the change stream and posted.

use std::time::{Duration, Instant, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::teller::{Found, Teller};
use super::{FindingSources, standing};

/// How often to look: a person counts such times in seconds, and 255 clusters take some milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How many times as long as a look took to rest behind it: so it takes a twentieth of a core at most, however much is wrong.
const REST_PER_LOOK: u32 = 20;

/// Looks again and again at what is wrong, so that it is known since when it is, not since when somebody asked, and tells the writer. Runs until it is
/// dropped, or the writer is gone.
pub(crate) async fn keep(sources: FindingSources) {
    let mut teller = Teller::default();
    loop {
        let begun = Instant::now();
        if let Some(reading) = sources.handle.try_reading() {
            let of_look = sources.clone();
            let look = move || {
                let survey = of_look.surveyor.newest();
                let found = Found::of(standing(&of_look, &reading), survey.as_ref(), &reading, SystemTime::now());
                of_look.ledger.note_untold(found.left_out);
                let changes = teller.changes(found);
                if !changes.is_empty() {
                    of_look.posts.show(teller.told());
                }
                (changes, teller)
            };
            let Ok((changes, after)) = spawn_blocking(look).await else { return };
            teller = after;
            let took = begun.elapsed();
            if !changes.is_empty() && sources.handle.tell_findings(changes).await.is_err() {
                return;
            }
            sleep(took.saturating_mul(REST_PER_LOOK).max(LOOK_INTERVAL)).await;
        } else {
            sleep(LOOK_INTERVAL).await;
        }
    }
}
