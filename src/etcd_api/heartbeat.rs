//! Heartbeat key for Cilium's agents. They reconnect if an etcd's heartbeat is older than two
//! minutes (docs/develop/protocol.md §9.2).

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::handle::Handle;

/// Interval between heartbeats. Same as Cilium's own (`pkg/kvstore/heartbeat`).
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Writes a heartbeat once the store is loaded and every minute after that, until `stop` is
/// cancelled.
pub async fn write_heartbeats(handle: Handle, stop: CancellationToken) {
    let task = async {
        if handle.signal_once_loaded().await.is_none() {
            return;
        }
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if handle.write_heartbeat().await.is_err() {
                tracing::debug!("cannot write the heartbeat: the committer is not running");
            }
        }
    };
    stop.run_until_cancelled(task).await;
}
