//! Measures how many identities per second 16 tasks allocate for new labels over one etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, EtcdBackend, IdRange};
use cilium_kvstore::{ClientOptions, EtcdConfig, Session, SessionOptions};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{ROUNDS, median, per_second, sized};
use crate::processes::{Outcome, start_etcd};

const TASKS: u32 = 16;
const BASE: &str = "cilium/state/identities/v1";

/// Returns the `number`th labels of a round. No two rounds have the same labels.
fn labels(round: usize, number: u32) -> AllocatorKey {
    let app = format!("app-{round}-{number}");
    AllocatorKey::from_labels([("k8s:app", app.as_str()), ("k8s:io.cilium.k8s.policy.cluster", "berlin")])
}

pub(crate) async fn allocate(count: u32) -> Outcome<()> {
    println!("allocate: {count} new keys a round, {TASKS} tasks, one etcd for each program");
    let mut ratios = Vec::new();
    for round in 0..sized(ROUNDS, 1) {
        let bare = time_bare_calls(round, count).await?;
        let allocated = time_allocations(round, count).await?;
        let [bare, allocated] = [bare, allocated].map(|elapsed| per_second(u64::from(count), elapsed));
        ratios.push(allocated / bare);
        println!("  the bare calls {bare:.0}/s; allocations {allocated:.0}/s (ratio {:.2})", allocated / bare);
    }
    println!("  median ratio {:.2}", median(ratios));
    Ok(())
}

async fn time_allocations(round: usize, count: u32) -> Outcome<Duration> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, _) = start_etcd(home.path()).await?;
    let file = EtcdConfig::new(url);
    let client = ClientOptions { requests_per_second_max: 1_000_000, requests_in_flight_max: 64, ..ClientOptions::default() };
    let session = Session::start(file, SessionOptions { client, ..SessionOptions::default() }, CancellationToken::new());
    session.connected().await?;
    let range = IdRange::new(65_536, 131_071).ok_or("no range")?;
    let options = AllocatorOptions { range, ..AllocatorOptions::default() };
    let allocator = Allocator::start(EtcdBackend::new(session.clone(), BASE, "10.0.0.1"), options)?;
    allocator.wait_for_initial_sync(Duration::from_secs(10)).await?;
    let next = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..TASKS {
        let (allocator, next) = (allocator.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, cilium_kvstore::allocator::AllocateError>(());
                }
                allocator.allocate(&labels(round, number)).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let elapsed = began.elapsed();
    allocator.delete().await;
    session.close().await;
    Ok(elapsed)
}

/// Measures the fewest calls with which labels can be given a new number: lock, search for the
/// labels, create the number and its reference, unlock.
async fn time_bare_calls(round: usize, count: u32) -> Outcome<Duration> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, _, client) = start_etcd(home.path()).await?;
    let lease = client.clone().lease_grant(900, None).await?.id();
    let next = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..TASKS {
        let (client, next) = (client.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, etcd_client::Error>(());
                }
                allocate_with_bare_calls(client.clone(), lease, &labels(round, number), 65_536 + number).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(began.elapsed())
}

async fn allocate_with_bare_calls(mut client: Client, lease: i64, key: &AllocatorKey, id: u32) -> Result<(), etcd_client::Error> {
    let leased = || Some(PutOptions::new().with_lease(lease));
    let (path, below) = (format!("{BASE}/locks/{key}"), GetOptions::new().with_prefix().with_limit(1));
    let lock = format!("{path}/{lease:x}");
    let absent = Compare::create_revision(lock.as_str(), CompareOp::Equal, 0);
    let first = TxnOp::get(format!("{path}/"), Some(below.clone()));
    client.txn(Txn::new().when([absent]).and_then([TxnOp::put(lock.as_str(), "", leased()), first])).await?;
    let held = Compare::create_revision(lock.as_str(), CompareOp::Greater, 0);
    let users = TxnOp::get(format!("{BASE}/value/{key}/"), Some(below));
    client.txn(Txn::new().when([held.clone()]).and_then([users])).await?;
    let (entry, reference) = (format!("{BASE}/id/{id}"), format!("{BASE}/value/{key}/10.0.0.1"));
    let free = Compare::version(entry.as_str(), CompareOp::Equal, 0);
    let puts = [TxnOp::put(entry.as_str(), key.as_str(), None), TxnOp::put(reference, id.to_string(), leased())];
    client.txn(Txn::new().when([held, free]).and_then(puts)).await?;
    client.delete(lock, None).await?;
    Ok(())
}
