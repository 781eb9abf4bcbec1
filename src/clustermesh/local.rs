//! Watches the client file of the own cluster's etcd (`--local-etcd`), which is not in the config
//! directory.
//!
//! It sends the same [`DirectoryEvent`]s as the directory does. If the file is missing, unreadable
//! or half written, nothing changes and nothing is removed. Unchanged bytes cause no event. A
//! change is announced within 2 s.

use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::DirectoryEvent;
use super::directory::read_cluster_file;
use crate::model::ClusterName;

/// Interval between two reads. The file has a few lines, and a change must take effect within 2 s.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// Client file of the own cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEtcd {
    /// Name of the own cluster.
    pub cluster: ClusterName,
    /// Path of the file, which has the same form as those in the config directory.
    pub path: PathBuf,
}

impl LocalEtcd {
    fn upserted(&self, content: &[u8]) -> DirectoryEvent {
        let digest = Sha256::digest(content).into();
        DirectoryEvent::Upserted { cluster: self.cluster.clone(), path: self.path.clone(), content: content.into(), digest }
    }
}

/// Sends an event for every change of the file, until `stop` is cancelled or the receiver is
/// dropped.
pub async fn watch_local_etcd(local: LocalEtcd, events: mpsc::Sender<DirectoryEvent>, stop: CancellationToken) {
    stop.run_until_cancelled(watch(local, events)).await;
}

async fn watch(local: LocalEtcd, events: mpsc::Sender<DirectoryEvent>) {
    let path = local.path.display();
    let (mut announced, mut last) = (None, None);
    loop {
        let file = local.path.clone();
        let reading = tokio::task::spawn_blocking(move || read_cluster_file(&file)).await;
        let reading = reading.unwrap_or_else(|error| Err(error.to_string())).and_then(|content| content.ok_or_else(no_cluster_file));
        // a file that reads the same twice is not half written
        let is_settled = last.as_ref() == Some(&reading);
        match &reading {
            Ok(content) if is_settled && announced.as_ref() != Some(content) => {
                if events.send(local.upserted(content)).await.is_err() {
                    return;
                }
                announced = Some(content.clone());
            }
            Err(reason) if !is_settled => {
                tracing::warn!(%path, reason, "the client file of --local-etcd cannot be used: trying again, the mirrored state is kept");
                // the cluster is announced even if its file cannot be used at the start, so that it
                // is listed as unreachable
                if last.is_none() && events.send(local.upserted(&[])).await.is_err() {
                    return;
                }
            }
            Ok(_) | Err(_) => {}
        }
        last = Some(reading);
        sleep(READ_INTERVAL).await;
    }
}

fn no_cluster_file() -> String {
    "it is not an etcd client file: it has no endpoints".to_owned()
}
