//! Clients without a token hold as many connections as they can, while the test measures lookups
//! with the token.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::harness::eventually;
use crate::harness::meshkeep::Home;

/// Number of clients that hold connections, unless `MESHKEEP_ATTACK_STRANGERS` sets it: a tenth
/// more than there are slots in a test, so that each closed connection is replaced at once. At full
/// size there are 12,000 clients for 12,000 slots, of which the server keeps some free.
const STRANGERS: usize = 440;

/// Shell command that limits the file descriptors of meshkeep in a test. It leaves 400 slots: 344
/// descriptors are reserved for etcd and the store (docs of `--max-connected-clusters`).
const FEW_SLOTS: &str = "ulimit -n 744";

/// Number of clients per address: half of the connections that one address may have if there are
/// few slots.
const CLIENTS_PER_ADDRESS: usize = 30;

/// Maximum share of free slots during the attack: the slots that the server keeps free (5 % if
/// there are few, 128 if there are many), and as many again whose connections are being opened or
/// closed.
const FREE_MAX: f64 = 0.1;

/// Number of measured lookups. Each uses a new connection, which is the hardest case.
const LOOKUPS: usize = 2_000;

/// Upper bound on the 99th percentile of the lookup times at full size: a user does not notice it.
const LOOKUP_MAX: Duration = Duration::from_millis(100);

/// Upper bound on the 99th percentile of the lookup times in a test, which shares the processors
/// with other tests. A client that is locked out waits for seconds.
const LOOKUP_MAX_SMALL: Duration = Duration::from_secs(1);

/// Bytes that a client sends before it falls silent: nothing, the start of HTTP/2, half a request,
/// a request without a token.
const FIRST_BYTES: [&[u8]; 4] =
    [b"", b"PRI ", b"GET /v1/status HTTP/1.1\r\nHost: local", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"];

/// Connects, sends something, waits until the connection is closed, and starts again.
async fn hold_connections(number: usize, server: SocketAddr, open_count: Arc<AtomicUsize>) {
    let [.., network, host] = u32::try_from(number / CLIENTS_PER_ADDRESS + 1).unwrap().to_be_bytes();
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 1, network, host), 0).into()).unwrap();
        let Ok(mut stream) = socket.connect(server).await else { continue };
        open_count.fetch_add(1, Ordering::Relaxed);
        let mut answer = Vec::new();
        if stream.write_all(FIRST_BYTES[number % FIRST_BYTES.len()]).await.is_ok() {
            // a reset closes the connection too
            let _ = stream.read_to_end(&mut answer).await;
        }
        open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a request with the token on a new connection.
async fn ask(server: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn lookup(server: SocketAddr) -> Duration {
    let began = Instant::now();
    let answer = ask(server, "/v1/ipcache/lookup?ip=10.1.2.3").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 404 "), "{answer}");
    began.elapsed()
}

/// Returns the server's own counters: slots in use, all slots, and evicted connections.
async fn connection_counts(server: SocketAddr) -> [f64; 3] {
    let metrics = ask(server, "/metrics").await;
    ["meshkeep_connections ", "meshkeep_connections_max ", "meshkeep_connections_evicted_total "].map(|name| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}in {metrics}"));
        value.parse().unwrap()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn anonymous_connections_do_not_lock_out_clients_with_a_token() {
    let _measuring = super::MEASUREMENT_LOCK.lock().await;
    let count_at_full_size = std::env::var("MESHKEEP_ATTACK_STRANGERS").ok();
    let count = count_at_full_size.as_ref().map_or(STRANGERS, |text| text.parse().unwrap());
    let mut home = Home::new();
    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "sesame").unwrap();
    home = home.with_flags(&[&format!("--token-file={}", token.display())]);
    if count_at_full_size.is_none() {
        home = home.after_shell_commands(FEW_SLOTS);
    }
    let meshkeep = home.start().await;
    let server: SocketAddr = meshkeep.url().trim_start_matches("http://").parse().unwrap();
    let is_ready = || async { ask(server, "/readyz").await.starts_with("HTTP/1.1 200 ").then_some(()) };
    eventually("the store to be loaded", is_ready).await;
    let open_count = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..count {
        clients.spawn(hold_connections(number, server, Arc::clone(&open_count)));
    }
    eventually("the server to be full, and to evict connections for new ones", || async {
        let [used, slots, evicted] = connection_counts(server).await;
        (used >= slots * (1.0 - FREE_MAX) && evicted > slots).then_some(())
    })
    .await;
    let mut times = Vec::with_capacity(LOOKUPS);
    let mut open_count_min = usize::MAX;
    for _ in 0..LOOKUPS {
        times.push(lookup(server).await);
        open_count_min = open_count_min.min(open_count.load(Ordering::Relaxed));
    }
    let [used, slots, evicted] = connection_counts(server).await;
    times.sort();
    let percentile = |part: usize| times[LOOKUPS * part / 100];
    println!(
        "{count} clients without a token (never fewer than {open_count_min} connections; {used} of {slots} slots, {evicted} evicted): \
         {LOOKUPS} lookups with a token on new connections: p50 {:?}, p99 {:?}, longest {:?}",
        percentile(50),
        percentile(99),
        times[LOOKUPS - 1]
    );
    // nearly all slots are still in use at the end
    assert!(used >= slots * (1.0 - FREE_MAX), "{used} of {slots}");
    // the log would report a failed accept
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
    let lookup_max = if count_at_full_size.is_none() { LOOKUP_MAX_SMALL } else { LOOKUP_MAX };
    assert!(percentile(99) <= lookup_max, "p99 {:?}", percentile(99));
}
