//! Serves a dump: a mirror that never changes, without a store and without remote clusters.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::signals::{ReloadTriggers, Signals};
use super::{REQUEST_GRACE, RunError, addresses, print_addresses};
use crate::api::{ApiOptions, BoundApi};
use crate::commit::{MirrorSnapshot, snapshot_channel};
use crate::dump::Dump;
use crate::feed::{Feed, Retention};
use crate::handle::{ClientFileLocation, Handle, ProcessState};
use crate::model::{Epoch, ListenAddress, Sequence};
use crate::telemetry::Log;
use crate::view::View;

/// Sequence of the first entry.
const START: Sequence = Sequence(1);

/// Retention of the tombstones, of which there are none.
const RETENTION: Retention = Retention { age_max: Duration::from_secs(3_600), count_max: 1 };

/// Serves a dump until a signal arrives.
///
/// # Errors
/// [`RunError::Bind`], which names the address.
pub async fn serve_dump(dump: Dump, listen: &[ListenAddress], mut signals: Signals, log: &Log) -> Result<(), RunError> {
    let reload = ReloadTriggers::default();
    let bound = BoundApi::bind(listen, &ApiOptions::default()).await?;
    let addresses = addresses(&bound);
    let (source, max_connected_clusters) = (dump.source.clone(), dump.max_connected_clusters());
    let mut filling = spawn_blocking(move || fill_mirror(dump));
    let filled = tokio::select! {
        filled = &mut filling => filled.map_err(|_| RunError::TaskEnded("reader of the dump"))?,
        () = signals.end(&reload) => return Ok(()),
    };
    // nothing changes, but without a publisher, readers would end
    let (_publisher, mirror) = snapshot_channel(filled);
    let (_loaded, loaded) = watch::channel(Some(mirror));
    let process = ProcessState { max_connected_clusters, lost_lines: log.lost(), ..ProcessState::without_clusters(loaded) };
    let files = ClientFileLocation { allow_no_clusters: true, ..ClientFileLocation::default() };
    let handle = Handle::new(process).with_dump(source).with_log(log.tail()).with_cluster_files(files);
    let stop = CancellationToken::new();
    let mut serving = std::pin::pin!(bound.serve(handle, stop.clone(), REQUEST_GRACE));
    print_addresses(addresses).await;
    tokio::select! {
        () = serving.as_mut() => return Err(RunError::TaskEnded("server")),
        () = signals.end(&reload) => stop.cancel(),
    }
    serving.await;
    Ok(())
}

/// Applies the dump to an empty view. The feed starts at its end, because nothing follows.
fn fill_mirror(dump: Dump) -> MirrorSnapshot {
    let (mut view, now, mut head) = (View::starting_at(START), SystemTime::now(), START);
    for command in dump.into_commands() {
        let change_set = view.apply_all(vec![command], now);
        head = change_set.announcements.last().map_or(head, |last| last.sequence);
    }
    let feed = Feed::starting_at(head, RETENTION);
    MirrorSnapshot { view, feed, epoch: Epoch(rand::random()), earlier_runs: Arc::default() }
}
