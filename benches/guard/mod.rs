//! Bench of expensive requests, which shows how much the worst queries slow down other clients:
//! `cargo bench -- guard` (1M keys of 255 clusters).
//!
//! 20 clients repeatedly scan the whole ipcache without a match, while another client with one
//! connection requests `/livez` and looks up addresses. The reference is a bare axum handler with
//! answers of the same length, in a process with as many busy threads as there are concurrent
//! scans. Both alternate several times. There are no thresholds and no etcd.

use crate::start::fill;
use crate::view::data;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::processes::{Outcome, add_cluster, child_of, start_meshkeep, until};

/// Number of clients that scan. Twenty delayed `/livez` by 16.5 s when scans ran on the async
/// threads.
const SCANNERS: usize = 20;

/// Request for a page without a match. The server inspects every entry, or stops after 5 s.
const WORST_SCAN: &str = "/v1/ipcache?namespace=none&limit=1";

/// Length of an answer, about that of a lookup.
const BARE_ANSWER_BYTES: usize = 800;

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["role:fill", directory, clusters] => fill::fill(Path::new(directory), clusters.parse()?),
        ["role:bare", busy] => bare(busy.parse()?),
        _ => measure(),
    }
}

/// Returns the number of concurrent scans: half of the cores, at least one
/// (`admission/executor.rs`).
fn scans_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn measure() -> Outcome<()> {
    let clusters = data::clusters();
    let home = fs::canonicalize("target")?.join(format!("bench-guard-{}", std::process::id()));
    for number in 1..=clusters {
        add_cluster(&home, data::cluster(number).as_str(), "http://127.0.0.1:1")?;
    }
    let store = home.join("data");
    let filled = start_role(&["role:fill", store.to_str().ok_or("the path is not UTF-8")?, &clusters.to_string()])?.wait_with_output()?;
    println!("{clusters} clusters: {}", String::from_utf8_lossy(&filled.stdout).trim());
    let (meshkeep, address) = start_meshkeep(&home)?;
    tokio::runtime::Runtime::new()?.block_on(until(&address, "/readyz?verbose", "readyz check passed", Duration::from_secs(60)))?;
    let lookup = format!("/v1/ipcache/lookup?ip={}", data::address(clusters, 7));
    let mut bare = start_role(&["role:bare", &scans_at_once().to_string()])?;
    let mut bare_address = String::new();
    BufReader::new(bare.stdout.take().ok_or("no standard output")?).read_line(&mut bare_address)?;
    let mut figures = [const { Vec::new() }; 4];
    for _ in 0..data::sized(5, 1) {
        let (idle, _) = measure_during_scans(&address, &lookup, 0)?;
        let (livez, _) = measure_during_scans(&address, "/livez", SCANNERS)?;
        let (looked_up, scans) = measure_during_scans(&address, &lookup, SCANNERS)?;
        let (reference, _) = measure_during_scans(bare_address.trim(), "/", 0)?;
        println!(
            "  p99: lookups alone {idle:?}, with {SCANNERS} scanners {looked_up:?}, /livez {livez:?}, bare {reference:?}; {scans} scans ended"
        );
        for (figure, time) in figures.iter_mut().zip([idle, livez, looked_up, reference]) {
            figure.push(time);
        }
    }
    let [idle, livez, looked_up, reference] = figures.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    });
    println!(
        "p99, medians: bare handler with {} busy threads {reference:.2} ms; /livez with {SCANNERS} scanners {livez:.2} ms ({:.1} x bare), \
         lookups {looked_up:.2} ms ({:.1} x), alone {idle:.2} ms; resident {} MB",
        scans_at_once(),
        livez / reference,
        looked_up / reference,
        meshkeep.resident_mb()?,
    );
    bare.kill()?;
    bare.wait()?;
    meshkeep.terminate()?;
    Ok(fs::remove_dir_all(&home)?)
}

fn start_role(words: &[&str]) -> Outcome<Child> {
    Ok(child_of("guard")?.args(words).stdout(Stdio::piped()).spawn()?)
}

/// Measures the 99th percentile of the response time on one connection while `scanners` scanners
/// are active. Returns it with the number of scans that ended meanwhile.
fn measure_during_scans(address: &str, path: &str, scanners: usize) -> Outcome<(Duration, u64)> {
    let scans = AtomicU64::new(0);
    let connections = (0..scanners).map(|_| Connection::open(address)).collect::<Outcome<Vec<_>>>()?;
    let sockets = connections.iter().map(|connection| connection.0.get_ref().try_clone()).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        for mut connection in connections {
            let scans = &scans;
            scope.spawn(move || {
                // repeat until the socket is closed
                while connection.ask(WORST_SCAN).is_ok() {
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let measured = percentile(address, path);
        // closing the socket ends the scan; otherwise each would take 5 s, and twenty of them share
        // one core
        sockets.iter().try_for_each(|socket| socket.shutdown(Shutdown::Both))?;
        Ok((measured?, scans.load(Ordering::Relaxed)))
    })
}

fn percentile(address: &str, path: &str) -> Outcome<Duration> {
    // wait until every scanner has sent a request
    std::thread::sleep(Duration::from_millis(data::sized(500, 50)));
    let count = data::sized(3_000, 50);
    let mut connection = Connection::open(address)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        connection.ask(path)?;
        times.push(began.elapsed());
        // pause like a client that does other work, so that the server's thread sleeps and has to
        // be woken
        std::thread::sleep(Duration::from_micros(500));
    }
    times.sort_unstable();
    Ok(times[count * 99 / 100])
}

/// A client's persistent connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and reads the whole answer.
    fn ask(&mut self, path: &str) -> Outcome<()> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut length = None;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err("the connection was closed".into());
            }
            if line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 200") {
                return Err(format!("{path}: {line}").into());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = Some(value.trim().parse::<usize>()?);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length.ok_or("an answer without a length")?];
        Ok(self.0.read_exact(&mut body)?)
    }
}

/// Runs one axum handler and `busy` threads that only compute, until the process is killed.
fn bare(busy: usize) -> Outcome<()> {
    for _ in 0..busy {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let answer = axum::routing::get(|| async { "x".repeat(BARE_ANSWER_BYTES) });
        Ok(axum::serve(
            axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))),
            axum::Router::new().route("/", answer),
        )
        .await?)
    })
}
