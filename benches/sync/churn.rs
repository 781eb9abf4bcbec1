//! What the sidecar takes while the remotes change at a rate: memory, disk, bytes written, time on the processor, and how far it is behind.

use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, Txn, TxnOp};
use meshkeep::model::{EntryKey, Kind};
use tokio::task::JoinSet;

use super::processes::{Outcome, Running, add_cluster, ask, start_etcd, start_meshkeep, until};
use super::{TIME_MAX, TXN_OPERATIONS_MAX, data, fill};

/// How many transactions are under way at once: more than the disk's syncs need, fewer than would hide that etcd is too slow.
const TXNS_AT_ONCE: usize = 8;

/// How often memory and disk are looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// When what a start took should have been given back.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// How often the etcd is compacted, as its history would fill the disk, and its heartbeat written.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(30);

/// A step through all entries that meets each once: prime, and none of their number's factors.
const STRIDE: u64 = 7_919;

/// A block of a file, in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// The highest of what was seen, in MB.
#[derive(Default)]
struct Most {
    resident: u64,
    disk: u64,
}

impl Most {
    fn look(&mut self, meshkeep: &Running, home: &Path) -> Outcome<()> {
        self.resident = self.resident.max(meshkeep.resident_mb()?);
        self.disk = self.disk.max(disk_mb(&home.join("data/store"))?);
        Ok(())
    }
}

/// The change of a number: another pod has the address of an entry.
fn change(number: u64) -> Outcome<(String, String, String)> {
    let entries = u64::from(data::clusters()) * u64::from(data::IPS);
    let at = number * STRIDE % entries;
    let (cluster, index) = (u32::try_from(at / u64::from(data::IPS))? + 1, u32::try_from(at % u64::from(data::IPS))?);
    let address = data::address(cluster, index).to_string();
    let pod = format!("cart-7-{:08x}-{:05x}", number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff, number & 0xf_ffff);
    let key = EntryKey::new(Kind::Ip, data::cluster(cluster), address.as_str()).to_string();
    Ok((key, data::ip_value(cluster, index, &pod), format!("/v1/ipcache/lookup?ip={address}\n{pod}")))
}

/// Changes entries at a rate for so long. Returns how many and their bytes.
async fn put(client: &Client, rate: u32, seconds: Duration, mut look: impl FnMut() -> Outcome<()>) -> Outcome<(u64, u64)> {
    let (mut number, mut bytes, mut putting) = (0, 0, JoinSet::new());
    let began = Instant::now();
    let (mut sample, mut compaction) = (began, began + COMPACTION_INTERVAL);
    while began.elapsed() < seconds {
        let mut puts = Vec::with_capacity(TXN_OPERATIONS_MAX);
        for _ in 0..TXN_OPERATIONS_MAX {
            number += 1;
            let (key, value, _) = change(number)?;
            bytes += (key.len() + value.len()) as u64;
            puts.push(TxnOp::put(key, value, None));
        }
        let mut client = client.clone();
        let now = Instant::now();
        let is_due = now >= compaction;
        if is_due {
            compaction = now + COMPACTION_INTERVAL;
        }
        putting.spawn(async move {
            let revision = client.txn(Txn::new().and_then(puts)).await?.header().map_or(0, etcd_client::ResponseHeader::revision);
            if is_due {
                client.put("cilium/.heartbeat", "2026-01-12T09:31:07Z", None).await?;
                client.compact(revision - 1, Some(CompactionOptions::new())).await?;
            }
            Ok::<_, etcd_client::Error>(())
        });
        while putting.len() >= TXNS_AT_ONCE {
            putting.join_next().await.ok_or("nothing is put")???;
        }
        if now >= sample {
            sample = now + SAMPLE_INTERVAL;
            look()?;
        }
        let due = began + Duration::from_secs(1) * u32::try_from(number)? / rate;
        tokio::time::sleep_until(due.into()).await;
    }
    while let Some(done) = putting.join_next().await {
        done??;
    }
    Ok((number, bytes))
}

pub(crate) async fn churn(rate: u32, seconds: Duration) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, raw) = fill(&client, 1_000_000).await?;
    for number in 1..=data::clusters() {
        add_cluster(home.path(), data::cluster(number).as_str(), &url)?;
    }
    println!("churn: {count} keys of {} clusters, {} MB", data::clusters(), raw / 1_000_000);
    let (meshkeep, _) = started(home.path(), "cold").await?;
    meshkeep.terminate()?;
    let (meshkeep, address) = started(home.path(), "again").await?;
    let (mut most, written, busy, began) = (Most::default(), meshkeep.written_bytes()?, meshkeep.busy()?, Instant::now());
    let (changes, bytes) = put(&client, rate, seconds, || most.look(&meshkeep, home.path())).await?;
    let (elapsed, ended) = (began.elapsed(), Instant::now());
    let (_, _, last) = change(changes)?;
    let (path, pod) = last.split_once('\n').ok_or("no path")?;
    until(&address, path, pod, TIME_MAX).await?;
    let behind = ended.elapsed();
    let (written, busy) = (meshkeep.written_bytes()? - written, meshkeep.busy()? - busy);
    println!(
        "  {changes} changes of {} MB in {elapsed:.0?} ({:.0}/s of {rate}): written {} MB ({:.2} of them); {:.0} % of a core; the last is answered {:.0?} later",
        bytes / 1_000_000,
        changes as f64 / elapsed.as_secs_f64(),
        written / 1_000_000,
        written as f64 / bytes as f64,
        busy.as_secs_f64() * 100.0 / elapsed.as_secs_f64(),
        behind
    );
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    println!(
        "  resident at most {} MB, {} MB {SAMPLE_INTERVAL:.0?} later; disk at most {} MB ({:.2} of raw); status: {}",
        most.resident,
        meshkeep.resident_mb()?,
        most.disk,
        most.disk as f64 * 1e6 / raw as f64,
        ask(&address, "/readyz?synced").await?.lines().next().unwrap_or_default()
    );
    meshkeep.terminate()
}

/// A sidecar that is synced.
async fn started(home: &Path, how: &str) -> Outcome<(Running, String)> {
    let (meshkeep, address) = start_meshkeep(home)?;
    until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    let soon = meshkeep.resident_mb()?;
    tokio::time::sleep(SETTLED_AFTER - SAMPLE_INTERVAL).await;
    let later = meshkeep.resident_mb()?;
    println!("  {soon} MB resident {SAMPLE_INTERVAL:.0?}, {later} MB {SETTLED_AFTER:.0?} after a start ({how}) was synced");
    Ok((meshkeep, address))
}

/// What the files below a directory take, in MB.
fn disk_mb(directory: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut blocks = 0;
    for file in std::fs::read_dir(directory)? {
        // sled removes files at any time
        let Ok(metadata) = file?.metadata() else { continue };
        blocks += metadata.blocks();
    }
    Ok(blocks * BLOCK_BYTES / 1_000_000)
}
