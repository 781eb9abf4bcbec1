//! Measures the delay from a put in the source to the same put in the target.

use std::time::{Duration, Instant};

use etcd_client::{Client, EventType, WatchOptions, WatchStream};
use tokio::task::JoinSet;

use super::{ROUNDS, TIME_MAX, filled, median, sized, start_reflect, write_files};
use crate::processes::{Outcome, start_etcd};
use crate::sync::source::{change as entry_of, fill};

/// Number of keys that the source has before the changes.
const KEYS: u32 = 20_000;

/// Pause between two changes, so that the work of one is finished when the next begins.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) async fn change(changes: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let mut etcds = Vec::new();
    for name in ["source", "target", "bare"] {
        let etcd_home = home.path().join(name);
        std::fs::create_dir_all(&etcd_home)?;
        etcds.push(start_etcd(&etcd_home).await?);
    }
    let [(_source, source_url, source), (_target, target_url, target), (_bare, _, bare)] = etcds.as_slice() else {
        return Err("no etcds".into());
    };
    let (total, _) = fill(source, sized(KEYS, 2_000)).await?;
    write_files(home.path(), source_url, target_url)?;
    let (meshkeep, _) = start_reflect(home.path())?;
    filled(target, total).await?;
    // wait until its canaries are written and nothing else is in progress
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut copying = JoinSet::new();
    copying.spawn(copy(source.clone(), bare.clone()));
    println!("change: {total} keys; {changes} changes a round, one after another");
    let (mut number, mut ratios) = (0, Vec::new());
    for _ in 0..sized(ROUNDS, 1) {
        let (mut reflected, mut copied) = (Vec::new(), Vec::new());
        let (mut in_target, mut in_bare) = (watch(target).await?, watch(bare).await?);
        for _ in 0..changes {
            number += 1;
            let (key, value, _) = entry_of(number)?;
            let began = Instant::now();
            source.clone().put(key.as_str(), value.as_str(), None).await?;
            let arrived = async |stream: &mut WatchStream| arrival(stream, value.as_bytes()).await;
            let (reflected_at, copied_at) = tokio::try_join!(arrived(&mut in_target), arrived(&mut in_bare))?;
            reflected.push(reflected_at.duration_since(began).as_secs_f64() * 1e3);
            copied.push(copied_at.duration_since(began).as_secs_f64() * 1e3);
            tokio::time::sleep(PAUSE).await;
        }
        let (reflected, copied) = (median(reflected), median(copied));
        ratios.push(reflected / copied);
        println!("  p50: reflected {reflected:.2} ms, watch and put {copied:.2} ms (ratio {:.2})", reflected / copied);
    }
    println!("  median ratio {:.2}", median(ratios));
    copying.shutdown().await;
    meshkeep.terminate()
}

async fn watch(client: &Client) -> Outcome<WatchStream> {
    Ok(client.clone().watch("cilium/cache/", Some(WatchOptions::new().with_prefix())).await?)
}

/// Waits for a value and returns the time of its arrival.
async fn arrival(stream: &mut WatchStream, value: &[u8]) -> Outcome<Instant> {
    let arrived = async {
        loop {
            let reply = stream.message().await?.ok_or("a watch ended")?;
            let is_wanted = |event: &etcd_client::Event| event.kv().is_some_and(|kv| kv.value() == value);
            if reply.events().iter().any(is_wanted) {
                return Ok(Instant::now());
            }
        }
    };
    tokio::time::timeout(TIME_MAX, arrived).await?
}

/// Watches a source and puts its changes into a target, without storing or comparing them.
async fn copy(source: Client, mut target: Client) -> Outcome<()> {
    let mut stream = watch(&source).await?;
    while let Some(reply) = stream.message().await? {
        for event in reply.events().iter().filter(|event| event.event_type() == EventType::Put) {
            let kv = event.kv().ok_or("an event without a key")?;
            target.put(kv.key(), kv.value(), None).await?;
        }
    }
    Ok(())
}
