//! Clients without a token that hold all the connections they can, and what a lookup with the token takes meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::harness::eventually;
use crate::harness::meshkeep::Home;

/// How many hold connections unless `MESHKEEP_ATTACK_STRANGERS` says otherwise: a tenth more than a test's places, so that each
/// that is closed comes back at once. For the attack 12,000, as many as there are places, of which some are kept free.
const STRANGERS: usize = 440;

/// The limit of descriptors in a test, which leaves 400 places: 344 are kept for etcd and the store (docs of `--max-connected-clusters`).
const FEW_PLACES: &str = "ulimit -n 744";

/// How many share an address: half of what one client may have where places are few.
const PER_ADDRESS: usize = 30;

/// What of all places may be free while all are held: those that are kept free (5 % of few, 128 of many), and as many on their way in and out.
const FREE_MAX: f64 = 0.1;

/// How many lookups are measured, each on a connection of its own, which is the hardest.
const LOOKUPS: usize = 2_000;

/// What 99 of 100 lookups may take: nobody who asks notices it.
const LOOKUP_MAX: Duration = Duration::from_millis(100);

/// What they say before they fall silent: nothing, the beginning of HTTP/2, half of a request, a request without a token.
const SAYINGS: [&[u8]; 4] =
    [b"", b"PRI ", b"GET /v1/status HTTP/1.1\r\nHost: local", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"];

/// Connects, says something, waits to be closed, and connects again.
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

/// Asks with the token on a new connection.
async fn ask(server: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// What a lookup takes.
async fn lookup(server: SocketAddr) -> Duration {
    let began = Instant::now();
    let answer = ask(server, "/v1/ipcache/lookup?ip=10.1.2.3").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 404 "), "{answer}");
    began.elapsed()
}

/// What the server counts itself: places taken, all of them, and strangers that it closed.
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
    // full to the end
    assert!(taken >= all * (1.0 - FREE_MAX), "{taken} of {all}");
    // lines of the log tell of an accept that failed
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
    assert!(at(99) <= LOOKUP_MAX, "p99 {:?}", at(99));
}
