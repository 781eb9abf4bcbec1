//! From a put into a real etcd to the event at a client: a bare watch client beside a stream of the real binary.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, Txn, TxnOp, WatchOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::Outcome;
use super::child::now_us;

/// How many keys the mirror holds.
const KEYS: u32 = 300_000;

/// How many puts each second.
const RATE: u64 = 325;

/// For how long.
const SECONDS: u64 = 12;

/// How many operations etcd takes in one transaction.
const TXN_OPERATIONS_MAX: usize = 128;

const PREFIX: &str = "cilium/cache/ip/v1/paris/";
const MARK: &str = "\"t17";

/// Ends a process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) fn run() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(measure())
}

fn free_port() -> Outcome<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn start_etcd(home: &std::path::Path) -> Outcome<(Running, String, Client)> {
    let (url, peer) = (format!("http://127.0.0.1:{}", free_port()?), format!("http://127.0.0.1:{}", free_port()?));
    let mut command = Command::new(std::env::var("ETCD_BIN").unwrap_or_else(|_| "etcd".to_owned()));
    command.args(["--name=bench", "--quota-backend-bytes=4000000000", "--log-level=error"]);
    command.arg(format!("--data-dir={}", home.join("etcd").display()));
    command.args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")]);
    command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
    command.arg(format!("--initial-cluster=bench={peer}"));
    let running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(mut client) = Client::connect([&url], None).await
            && client.status().await.is_ok()
        {
            return Ok((running, url, client));
        }
        if Instant::now() > deadline {
            return Err("etcd does not start".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn put(index: u32, stamp: u64) -> (String, String) {
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
    for index in 0..KEYS {
        let (key, value) = put(index, 0);
        puts.push(TxnOp::put(key, value, None));
        if puts.len() == TXN_OPERATIONS_MAX || index + 1 == KEYS {
            client.txn(Txn::new().and_then(std::mem::take(&mut puts))).await?;
        }
    }
    Ok(())
}

fn start_meshkeep(home: &std::path::Path, etcd: &str) -> Outcome<(Running, String)> {
    let clusters = home.join("clustermesh");
    fs::create_dir(&clusters)?;
    fs::write(clusters.join("paris"), format!("endpoints:\n- {etcd}\n"))?;
    let (output, log) = (home.join("meshkeep.out"), home.join("meshkeep.log"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.arg("serve").arg("--clustermesh-config").arg(&clusters).arg("--data-dir").arg(home.join("data"));
    command.args(["--listen", "127.0.0.1:0"]).stdout(fs::File::create(&output)?).stderr(fs::File::create(&log)?);
    let running = Running(command.spawn()?);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(address) = fs::read_to_string(&output)?.lines().find_map(|line| line.strip_prefix("listening on http://")) {
            return Ok((running, address.to_owned()));
        }
        if Instant::now() > deadline {
            return Err(format!("meshkeep does not start: {}", fs::read_to_string(&log)?).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

type Delays = Arc<Mutex<Vec<u64>>>;

/// Notes the age of every stamp in a text.
fn note(text: &str, delays: &Delays) {
    let now = now_us();
    for (at, _) in text.match_indices(MARK) {
        if let Some(stamp) = text.get(at + 2..at + 18).and_then(|digits| digits.parse::<u64>().ok()) {
            delays.lock().unwrap_or_else(PoisonError::into_inner).push(now.saturating_sub(stamp));
        }
    }
}

async fn watch(mut client: Client, delays: Delays) -> Outcome<()> {
    let mut stream = client.watch(PREFIX, Some(WatchOptions::new().with_prefix())).await?;
    while let Some(response) = stream.message().await? {
        for event in response.events() {
            if let Some(pair) = event.kv() {
                note(pair.value_str()?, &delays);
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
            note(&text[..end], &delays);
            text.drain(..end);
        }
    }
}

/// Waits until the mirror holds everything.
async fn mirrored(address: &str) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    let wanted = format!("\"ipcache\":{KEYS}");
    while Instant::now() < deadline {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.contains(&wanted) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err("the mirror is not complete".into())
}

async fn measure() -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, mut client) = start_etcd(home.path()).await?;
    load(&mut client).await?;
    let (_meshkeep, address) = start_meshkeep(home.path(), &url)?;
    mirrored(&address).await?;
    println!("   {KEYS} keys in etcd and in the mirror; {RATE} puts/s for {SECONDS} s");
    let (watched, streamed) = (Delays::default(), Delays::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(client.clone(), Arc::clone(&watched)));
    tasks.spawn(stream(address, Arc::clone(&streamed)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let total = u32::try_from(RATE * SECONDS)?;
    let began = tokio::time::Instant::now();
    let mut puts = JoinSet::new();
    for number in 0..total {
        tokio::time::sleep_until(began + Duration::from_micros(u64::from(number) * 1_000_000 / RATE)).await;
        let mut client = client.clone();
        puts.spawn(async move {
            let (key, value) = put(number * 73 % KEYS, now_us());
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
    let at = |share: usize| delays.get(delays.len() * share / 100).map_or(f64::NAN, |delay| *delay as f64 / 1e3);
    (delays.len(), at(50), at(99))
}
