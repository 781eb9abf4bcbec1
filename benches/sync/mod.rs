//! Bench of reading remote clusters, with the real sidecar and a real etcd that has all clusters in
//! cache form, one client file for each: `cargo bench -- sync [cold [keys] | resume [keys]
//! | churn [rate] [seconds] | page [keys]]` (default: `cold` and `resume`).
//!
//! - `cold`: the time from an empty store until everything is served and stored; the reference is a
//!   bare client that lists the same ranges and discards them.
//! - `resume`: the bytes that a start reads after it has missed changes, also if the etcd was
//!   compacted meanwhile; the references are the bytes of these changes and of a full list.
//! - `churn`: the resources of the sidecar while the remote clusters change, with a million keys.
//! - `page`: the page at `/` in a Chromium.
//!
//! There are no thresholds.

mod churn;
mod counting_proxy;
mod page;
pub(crate) mod source;

use crate::view::data;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, GetOptions};
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::task::JoinSet;

use self::counting_proxy::CountingProxy;
use self::source::{KINDS, fill, share};
use crate::processes::{Outcome, add_cluster, ask, start_etcd, start_meshkeep, until};

/// Number of keys in a page, and number of ranges that are listed concurrently. The sidecar's own
/// defaults are 256 (`etcd.limit`) and 8 (`LISTS_PER_ETCD_MAX`).
const PAGE_KEYS: i64 = 1_000;
const RANGES_AT_ONCE: u32 = 4;

/// Number of changes that the sidecar misses: 60 s at the rate of Cilium's own scale test (325
/// changes/s).
const MISSED_CHANGES: u32 = 60 * 325;

/// Interval, in changes, between two deletes, and between two new keys.
const DELETE_INTERVAL: u32 = 20;

/// Maximum time for any step.
const TIME_MAX: Duration = Duration::from_secs(600);

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let keys = |default| words.get(1).map_or(Ok(default), |word| word.parse::<u32>());
    match words.first().map(String::as_str) {
        Some("cold") => runtime.block_on(cold(keys(1_000_000)?)),
        Some("resume") => runtime.block_on(resume(keys(300_000)?)),
        Some("churn") => {
            let seconds = words.get(2).map_or(Ok(600), |word| word.parse())?;
            runtime.block_on(churn::churn(keys(20_000)?, Duration::from_secs(seconds)))
        }
        Some("page") => runtime.block_on(page::page(keys(1_000_000)?)),
        Some(other) => Err(format!("there is no figure {other}: cold, resume, churn, page").into()),
        None => runtime.block_on(async {
            cold(1_000_000).await?;
            resume(300_000).await
        }),
    }
}

/// Lists every range of every cluster and discards the answers.
async fn list_all(client: &Client) -> Outcome<(Duration, u64)> {
    let began = Instant::now();
    let next = Arc::new(AtomicU32::new(0));
    let mut listing = JoinSet::new();
    for _ in 0..RANGES_AT_ONCE {
        let (mut client, next) = (client.clone(), Arc::clone(&next));
        listing.spawn(async move {
            let mut count = 0;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(kind) = KINDS.get((index % 4) as usize).filter(|_| index < data::clusters() * 4) else {
                    return Ok::<u64, etcd_client::Error>(count);
                };
                count += list(&mut client, *kind, index / 4 + 1).await?;
            }
        });
    }
    let mut count = 0;
    while let Some(listed) = listing.join_next().await {
        count += listed??;
    }
    Ok((began.elapsed(), count))
}

async fn list(client: &mut Client, kind: Kind, number: u32) -> Result<u64, etcd_client::Error> {
    let first = EntryKey::new(kind, data::cluster(number), "").to_string();
    let end = format!("{}0", first.trim_end_matches('/'));
    let (mut start, mut count) = (first.into_bytes(), 0);
    loop {
        let options = GetOptions::new().with_range(end.as_str()).with_limit(PAGE_KEYS).with_serializable();
        let page = client.get(start.clone(), Some(options)).await?;
        count += page.kvs().len() as u64;
        match page.kvs().last().filter(|_| page.more()) {
            Some(last) => start = [last.key(), b"\0"].concat(),
            None => return Ok(count),
        }
    }
}

async fn cold(keys: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, bytes) = fill(&client, keys).await?;
    for number in 1..=data::clusters() {
        add_cluster(home.path(), data::cluster(number).as_str(), &url)?;
    }
    println!("cold sync: {count} keys of {} clusters, {} MB, one etcd", data::clusters(), bytes / 1_000_000);
    for _ in 0..3 {
        let (listed, found) = list_all(&client).await?;
        let data = home.path().join("data");
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
        let began = Instant::now();
        let (meshkeep, address) = start_meshkeep(home.path())?;
        until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
        let synced = began.elapsed();
        let (resident, busy) = (meshkeep.resident_mb()?, meshkeep.busy()?);
        let ended = Instant::now();
        meshkeep.terminate()?;
        let stored = ended.elapsed();
        println!(
            "  bare list of {found} keys, discarded: {:.2} s; meshkeep: all served {:.2} s after exec (ratio {:.2}), and stored at most {:.2} s later (ratio {:.2}); {resident} MB; {:.2} s of a processor until served",
            listed.as_secs_f64(),
            synced.as_secs_f64(),
            listed.as_secs_f64() / synced.as_secs_f64(),
            stored.as_secs_f64(),
            listed.as_secs_f64() / (synced + stored).as_secs_f64(),
            busy.as_secs_f64()
        );
    }
    Ok(())
}

/// Existing ipcache entries of each cluster.
type Pods = Vec<Vec<(EntryKey, String)>>;

/// Makes changes while the sidecar is stopped, with one revision each. Returns the bytes of the
/// puts and deletes.
async fn change(client: &Client, pods: &mut Pods, round: u32) -> Outcome<u64> {
    const POD: &str = "\"K8sPodName\":\"";
    let (mut bytes, mut changing) = (0, JoinSet::new());
    for change in 0..MISSED_CHANGES {
        let number = change % data::clusters() + 1;
        let pods_of_cluster = &mut pods[number as usize - 1];
        let index = (change * 7 + round) as usize % pods_of_cluster.len();
        let (key, value) = match change % DELETE_INTERVAL {
            0 => (pods_of_cluster.swap_remove(index).0, None),
            1 => {
                let [high, low] = u16::try_from(0xc000 + (round * MISSED_CHANGES + change) % 0x3fff)?.to_be_bytes();
                let address = format!("10.{number}.{high}.{low}");
                let (old, value) = &pods_of_cluster[index];
                let value = value.replace(&*old.name, &address);
                pods_of_cluster.push((EntryKey::new(Kind::Ip, old.cluster.clone(), address), value));
                pods_of_cluster.last().map(|(key, value)| (key.clone(), Some(value.clone()))).ok_or("no pod")?
            }
            _ => {
                let (key, value) = &pods_of_cluster[index];
                (key.clone(), Some(value.replace(POD, &format!("{POD}moved-{round}-{change}-"))))
            }
        };
        let key = key.to_string();
        bytes += (key.len() + value.as_ref().map_or(0, String::len)) as u64;
        let mut client = client.clone();
        changing.spawn(async move {
            match value {
                Some(value) => client.put(key, value, None).await.map(drop),
                None => client.delete(key, None).await.map(drop),
            }
        });
        while changing.len() >= 64 {
            changing.join_next().await.ok_or("nothing changes")???;
        }
    }
    while let Some(changed) = changing.join_next().await {
        changed??;
    }
    Ok(bytes)
}

async fn resume(keys: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, bytes) = fill(&client, keys).await?;
    let wire = CountingProxy::start(url.trim_start_matches("http://").parse()?).await?;
    for number in 1..=data::clusters() {
        add_cluster(home.path(), data::cluster(number).as_str(), &wire.url())?;
    }
    println!(
        "resume: {count} keys of {} clusters, {} MB raw; {MISSED_CHANGES} changes are missed, one in {DELETE_INTERVAL} a delete",
        data::clusters(),
        bytes / 1_000_000
    );
    let bytes_of_start = async |what: &str| -> Outcome<u64> {
        let before = wire.received_bytes();
        let began = Instant::now();
        let (meshkeep, address) = start_meshkeep(home.path())?;
        until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
        let elapsed = began.elapsed();
        let received = wire.received_bytes() - before;
        let status = ask(&address, "/v1/status").await?;
        let entries = status.split_once("\"entries\":").and_then(|(_, rest)| rest.split(',').next()).unwrap_or("?").to_owned();
        meshkeep.terminate()?;
        println!("  {what}: {:.2} MB read, synced after {:.2} s, {entries} entries", received as f64 / 1e6, elapsed.as_secs_f64());
        Ok(received)
    };
    let mut pods: Pods = (1..=data::clusters()).map(|number| share(Kind::Ip, number, keys)).collect();
    let full = bytes_of_start("a full list").await?;
    let nothing = bytes_of_start("nothing missed").await?;
    for (round, is_compacted) in [(0, false), (1, true), (2, false)] {
        let missed = change(&client, &mut pods, round).await?;
        if is_compacted {
            let revision = client.clone().status().await?.header().ok_or("no header")?.revision();
            client.clone().compact(revision, Some(CompactionOptions::new().with_physical())).await?;
        }
        let received = bytes_of_start(if is_compacted { "missed, and the etcd compacted" } else { "missed" }).await?;
        println!(
            "    {:.2} MB of changes: {:.2} times as many bytes read ({:.2} without those of a start that missed nothing), {:.3} of a full list",
            missed as f64 / 1e6,
            received as f64 / missed as f64,
            received.saturating_sub(nothing) as f64 / missed as f64,
            received as f64 / full as f64
        );
    }
    Ok(())
}
