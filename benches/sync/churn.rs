//! Measures the sidecar while remote clusters change at a rate: memory, disk, bytes written, CPU
//! time, and delay.

use std::path::Path;
use std::time::{Duration, Instant};

use super::source::{SAMPLE_INTERVAL, change, fill, put};
use super::{TIME_MAX, data};
use crate::processes::{Outcome, RunningProcess, add_cluster, ask, start_etcd, start_meshkeep, until};

/// Time after which the memory of a start should be released.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// Unit of a file's blocks, in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// Peak values so far, in MB.
#[derive(Default)]
struct Peaks {
    resident: u64,
    disk: u64,
}

impl Peaks {
    fn sample(&mut self, meshkeep: &RunningProcess, home: &Path) -> Outcome<()> {
        self.resident = self.resident.max(meshkeep.resident_mb()?);
        self.disk = self.disk.max(disk_mb(&home.join("data/store"))?);
        Ok(())
    }
}

pub(crate) async fn churn(rate: u32, seconds: Duration) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, raw) = fill(&client, 1_000_000).await?;
    for number in 1..=data::clusters() {
        add_cluster(home.path(), data::cluster(number).as_str(), &url)?;
    }
    println!("churn: {count} keys of {} clusters, {} MB", data::clusters(), raw / 1_000_000);
    let (meshkeep, _) = start_synced(home.path(), "cold").await?;
    meshkeep.terminate()?;
    let (meshkeep, address) = start_synced(home.path(), "again").await?;
    let (mut peaks, written, busy, began) = (Peaks::default(), meshkeep.written_bytes()?, meshkeep.busy()?, Instant::now());
    let (changes, bytes) = put(&client, rate, 0, seconds, || peaks.sample(&meshkeep, home.path())).await?;
    let (elapsed, ended) = (began.elapsed(), Instant::now());
    let (_, _, last) = change(changes)?;
    let (path, pod) = last.split_once('\n').ok_or("no path")?;
    until(&address, path, pod, TIME_MAX).await?;
    let delay = ended.elapsed();
    let (written, busy) = (meshkeep.written_bytes()? - written, meshkeep.busy()? - busy);
    println!(
        "  {changes} changes of {} MB in {elapsed:.0?} ({:.0}/s of {rate}): written {} MB ({:.2} of them); {:.0} % of a core; the last change is served {:.0?} later",
        bytes / 1_000_000,
        changes as f64 / elapsed.as_secs_f64(),
        written / 1_000_000,
        written as f64 / bytes as f64,
        busy.as_secs_f64() * 100.0 / elapsed.as_secs_f64(),
        delay
    );
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    println!(
        "  resident at most {} MB, {} MB {SAMPLE_INTERVAL:.0?} later; disk at most {} MB ({:.2} of raw); status: {}",
        peaks.resident,
        meshkeep.resident_mb()?,
        peaks.disk,
        peaks.disk as f64 * 1e6 / raw as f64,
        ask(&address, "/readyz?synced").await?.lines().next().unwrap_or_default()
    );
    meshkeep.terminate()
}

/// Starts a sidecar and waits until it is synced.
async fn start_synced(home: &Path, description: &str) -> Outcome<(RunningProcess, String)> {
    let (meshkeep, address) = start_meshkeep(home)?;
    until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    let soon = meshkeep.resident_mb()?;
    tokio::time::sleep(SETTLED_AFTER - SAMPLE_INTERVAL).await;
    let later = meshkeep.resident_mb()?;
    println!("  {soon} MB resident {SAMPLE_INTERVAL:.0?}, {later} MB {SETTLED_AFTER:.0?} after a start ({description}) was synced");
    Ok((meshkeep, address))
}

/// Returns the disk usage of the files in a directory, in MB.
fn disk_mb(directory: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut blocks = 0;
    for file in std::fs::read_dir(directory)? {
        // sled can remove a file at any time
        let Ok(metadata) = file?.metadata() else { continue };
        blocks += metadata.blocks();
    }
    Ok(blocks * BLOCK_BYTES / 1_000_000)
}
