//! Clients without a token that hold as many connections as they can, and the times of lookups with
//! the token meanwhile.

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
/// more than the slots in a test, so that each closed connection is replaced at once. The attack
/// uses 12,000, the number of slots, of which some are kept free.
const STRANGERS: usize = 440;

/// Limit of file descriptors in a test. It leaves 400 slots: 344 descriptors are reserved for etcd
/// and the store (docs of `--max-connected-clusters`).
const FEW_PLACES: &str = "ulimit -n 744";

/// Number of clients per address: half of the connections that one client may have if there are few
/// slots.
const PER_ADDRESS: usize = 30;

/// Maximum share of free slots while all are occupied: those that are kept free (5 % of few, 128 of
/// many), and as many that are being opened or closed.
const FREE_MAX: f64 = 0.1;

/// Number of measured lookups. Each uses its own connection, which is the hardest case.
const LOOKUPS: usize = 2_000;

/// Maximum time of 99 % of the lookups at full size: not noticeable for a user.
const LOOKUP_MAX: Duration = Duration::from_millis(100);

/// Maximum time of 99 % of the lookups in the small run, which shares the processors with other
/// tests. A client that is locked out waits for seconds.
const LOOKUP_MAX_SMALL: Duration = Duration::from_secs(1);

/// Bytes that a client sends before it stays silent: nothing, the start of HTTP/2, half a request,
/// a request without a token.
const SAYINGS: [&[u8]; 4] =
    [b"", b"PRI ", b"GET /v1/status HTTP/1.1\r\nHost: local", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"];

/// Connects, sends something, waits until the connection is closed, and starts again.
async fn stranger(number: usize, server: SocketAddr, held: Arc<AtomicUsize>) {
    let [.., network, host] = u32::try_from(number / PER_ADDRESS + 1).unwrap().to_be_bytes();
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 1, network, host), 0).into()).unwrap();
        let Ok(mut stream) = socket.connect(server).await else { continue };
        held.fetch_add(1, Ordering::Relaxed);
        let mut heard = Vec::new();
        if stream.write_all(SAYINGS[number % SAYINGS.len()]).await.is_ok() {
            // a reset is an end too
            let _ = stream.read_to_end(&mut heard).await;
        }
        held.fetch_sub(1, Ordering::Relaxed);
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

/// Returns the server's own counters: slots in use, all slots, and closed anonymous connections.
async fn places(server: SocketAddr) -> [f64; 3] {
    let metrics = ask(server, "/metrics").await;
    ["meshkeep_connections ", "meshkeep_connections_max ", "meshkeep_connections_evicted_total "].map(|name| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}in {metrics}"));
        value.parse().unwrap()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn strangers_that_hold_all_they_can_lock_out_nobody() {
    let _measuring = super::MEASURING.lock().await;
    let wanted = std::env::var("MESHKEEP_ATTACK_STRANGERS").ok();
    let count = wanted.as_ref().map_or(STRANGERS, |text| text.parse().unwrap());
    let mut home = Home::new();
    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "sesame").unwrap();
    home = home.with_flags(&[&format!("--token-file={}", token.display())]);
    if wanted.is_none() {
        home = home.behind_shell(FEW_PLACES);
    }
    let meshkeep = home.start().await;
    let server: SocketAddr = meshkeep.url().trim_start_matches("http://").parse().unwrap();
    let held = Arc::new(AtomicUsize::new(0));
    let mut strangers = JoinSet::new();
    for number in 0..count {
        strangers.spawn(stranger(number, server, Arc::clone(&held)));
    }
    eventually("the server to be full, and to close strangers for others", || async {
        let [taken, all, closed] = places(server).await;
        (taken >= all * (1.0 - FREE_MAX) && closed > all).then_some(())
    })
    .await;
    let mut took = Vec::with_capacity(LOOKUPS);
    let mut fewest = usize::MAX;
    for _ in 0..LOOKUPS {
        took.push(lookup(server).await);
        fewest = fewest.min(held.load(Ordering::Relaxed));
    }
    let [taken, all, closed] = places(server).await;
    took.sort();
    let at = |part: usize| took[LOOKUPS * part / 100];
    println!(
        "{count} strangers (never fewer than {fewest} held; {taken} of {all} places, {closed} closed): {LOOKUPS} lookups with a token on new \
         connections: p50 {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(99),
        took[LOOKUPS - 1]
    );
    // all slots are occupied until the end
    assert!(taken >= all * (1.0 - FREE_MAX), "{taken} of {all}");
    // the log would report a failed accept
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
    let bound = if wanted.is_none() { LOOKUP_MAX_SMALL } else { LOOKUP_MAX };
    assert!(at(99) <= bound, "p99 {:?}", at(99));
}
