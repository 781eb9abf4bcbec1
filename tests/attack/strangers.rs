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

/// How many hold connections unless `MESHKEEP_ATTACK_STRANGERS` says otherwise: some for a test, 12,000, as many as there are places, for the attack.
const STRANGERS: usize = 400;

/// How many share an address: half of what one client may have.
const PER_ADDRESS: usize = 600;

/// How many lookups are measured, each on a connection of its own, which is the hardest.
const LOOKUPS: usize = 2_000;

/// What they say before they fall silent: nothing, the beginning of HTTP/2, half of a request, a request without a token.
const SAYINGS: [&[u8]; 4] =
    [b"", b"PRI ", b"GET /v1/status HTTP/1.1\r\nHost: local", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"];

/// Connects, says something, waits to be closed, and connects again.
async fn stranger(number: usize, server: SocketAddr, held: Arc<AtomicUsize>) {
    let host = u8::try_from(number / PER_ADDRESS + 1).unwrap();
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 2, host), 0).into()).unwrap();
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

/// A lookup with the token on a new connection, and what it took.
async fn lookup(server: SocketAddr) -> Duration {
    let began = Instant::now();
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head =
        "GET /v1/ipcache/lookup?ip=10.1.2.3 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 404 "), "{answer}");
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn strangers_that_hold_all_they_can_lock_out_nobody() {
    let count = std::env::var("MESHKEEP_ATTACK_STRANGERS").map_or(STRANGERS, |text| text.parse().unwrap());
    let mut home = Home::new();
    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "sesame").unwrap();
    home = home.with_flags(&[&format!("--token-file={}", token.display())]);
    let meshkeep = home.start().await;
    let server: SocketAddr = meshkeep.url().trim_start_matches("http://").parse().unwrap();
    let held = Arc::new(AtomicUsize::new(0));
    let mut strangers = JoinSet::new();
    for number in 0..count {
        strangers.spawn(stranger(number, server, Arc::clone(&held)));
    }
    // with more of them than there are places some are always on their way back
    let most = count - count / 100;
    eventually("the strangers to hold what they can", || async { (held.load(Ordering::Relaxed) >= most).then_some(()) }).await;
    let mut took = Vec::with_capacity(LOOKUPS);
    let mut fewest = usize::MAX;
    for _ in 0..LOOKUPS {
        took.push(lookup(server).await);
        fewest = fewest.min(held.load(Ordering::Relaxed));
    }
    took.sort();
    let at = |part: usize| took[LOOKUPS * part / 100];
    println!(
        "{count} strangers (never fewer than {fewest} held): {LOOKUPS} lookups with a token on new connections: p50 {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(99),
        took[LOOKUPS - 1]
    );
    // lines of the log tell of an accept that failed
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
    assert!(at(99) <= Duration::from_millis(100), "p99 {:?}", at(99));
}
