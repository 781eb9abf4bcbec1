//! Measures the delay from a put into a real etcd to the event at a client: at a bare watch client,
//! and at a client of a stream of the real binary.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Txn, TxnOp, WatchOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::child::now_us;
use super::{Outcome, sized};
use crate::processes::{add_cluster, start_etcd, start_meshkeep, until};

/// Returns the number of keys in the mirror.
fn keys() -> u32 {
    sized(300_000, 2_000)
}

/// Number of puts per second.
const RATE: u64 = 325;

/// Returns the duration of the puts in seconds.
fn seconds() -> u64 {
    sized(12, 1)
}

/// Maximum number of operations in an etcd transaction.
const TXN_OPERATIONS_MAX: usize = 128;

const PREFIX: &str = "cilium/cache/ip/v1/paris/";
/// Beginning of a time stamp in microseconds, until the year 2033.
const MARK: &str = "\"t1";

pub(crate) fn run() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(measure())
}

fn entry(index: u32, stamp: u64) -> (String, String) {
    let address = std::net::Ipv4Addr::from((10 << 24) + index);
    let value = format!(
        "{{\"IP\":\"{address}\",\"Mask\":null,\"HostIP\":\"172.18.1.1\",\"ID\":65795,\"Key\":0,\"Metadata\":\"\",\"K8sNamespace\":\"shop\",\"K8sPodName\":\"t{stamp}\",\"K8sServiceAccount\":\"default\"}}"
    );
    (format!("{PREFIX}{address}"), value)
}

async fn load(client: &mut Client) -> Outcome<()> {
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255}}"#;
    client.put("cilium/cluster-config/paris", config, None).await?;
    client.put("cilium/.heartbeat", "2026-01-12T09:31:07Z", None).await?;
    for kind in ["nodes", "services", "identities", "ip", "serviceexports"] {
        client.put(format!("cilium/synced/paris/cilium/cache/{kind}/v1"), "2026-01-12T09:31:07Z", None).await?;
    }
    let mut puts: Vec<TxnOp> = Vec::new();
    for index in 0..keys() {
        let (key, value) = entry(index, 0);
        puts.push(TxnOp::put(key, value, None));
        if puts.len() == TXN_OPERATIONS_MAX || index + 1 == keys() {
            client.txn(Txn::new().and_then(std::mem::take(&mut puts))).await?;
        }
    }
    Ok(())
}

type Delays = Arc<Mutex<Vec<u64>>>;

/// Records the age of every time stamp in a text.
fn record_ages(text: &str, delays: &Delays) {
    let now = now_us();
    for (start, _) in text.match_indices(MARK) {
        if let Some(stamp) = text.get(start + 2..start + 18).and_then(|digits| digits.parse::<u64>().ok()) {
            delays.lock().unwrap_or_else(PoisonError::into_inner).push(now.saturating_sub(stamp));
        }
    }
}

async fn watch(mut client: Client, delays: Delays) -> Outcome<()> {
    let mut stream = client.watch(PREFIX, Some(WatchOptions::new().with_prefix())).await?;
    while let Some(response) = stream.message().await? {
        for event in response.events() {
            if let Some(pair) = event.kv() {
                record_ages(pair.value_str()?, &delays);
            }
        }
    }
    Ok(())
}

async fn stream(address: String, delays: Delays) -> Outcome<()> {
    let mut stream = tokio::net::TcpStream::connect(&address).await?;
    stream.write_all(b"GET /v1/events?kind=ipcache HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut buffer = vec![0; 64 * 1024];
    let mut text = String::new();
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Err("the stream ended".into());
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        if let Some(end) = text.rfind("\n\n") {
            record_ages(&text[..end], &delays);
            text.drain(..end);
        }
    }
}

async fn measure() -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, mut client) = start_etcd(home.path()).await?;
    load(&mut client).await?;
    add_cluster(home.path(), "paris", &url)?;
    let (_meshkeep, address) = start_meshkeep(home.path())?;
    until(&address, "/v1/status", &format!("\"ipcache\":{}", keys()), Duration::from_secs(120)).await?;
    println!("   {} keys in etcd and in the mirror; {RATE} puts/s for {} s", keys(), seconds());
    let (watched, streamed) = (Delays::default(), Delays::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(client.clone(), Arc::clone(&watched)));
    tasks.spawn(stream(address, Arc::clone(&streamed)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let total = u32::try_from(RATE * seconds())?;
    let began = tokio::time::Instant::now();
    let mut puts = JoinSet::new();
    for number in 0..total {
        tokio::time::sleep_until(began + Duration::from_micros(u64::from(number) * 1_000_000 / RATE)).await;
        let mut client = client.clone();
        puts.spawn(async move {
            let (key, value) = entry(number * 73 % keys(), now_us());
            client.put(key, value, None).await
        });
        while puts.try_join_next().is_some() {}
    }
    puts.join_all().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (watch, stream) = (percentiles(&watched), percentiles(&streamed));
    println!("   bare watch: {} events, p50 {:.2} ms, p99 {:.2} ms", watch.0, watch.1, watch.2);
    println!("   meshkeep:   {} events, p50 {:.2} ms, p99 {:.2} ms", stream.0, stream.1, stream.2);
    println!("   p50 {:+.2} ms, p99 {:+.2} ms", stream.1 - watch.1, stream.2 - watch.2);
    Ok(())
}

fn percentiles(delays: &Delays) -> (usize, f64, f64) {
    let mut delays = delays.lock().unwrap_or_else(PoisonError::into_inner);
    delays.sort_unstable();
    let percentile = |share: usize| delays.get(delays.len() * share / 100).map_or(f64::NAN, |delay| *delay as f64 / 1e3);
    (delays.len(), percentile(50), percentile(99))
}
