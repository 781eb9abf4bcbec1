//! HTTP clients: connections that repeat requests without a pause, one with pauses, one that reads
//! a long answer, and streams whose data is discarded.
//!
//! Requests are written by hand and answers are only searched for their end, so that the clients
//! need little CPU.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::processes::Outcome;
use crate::view::data::{address, cluster, clusters, sized};

/// Factor that spreads consecutive numbers over the addresses in a seemingly random order. It is a
/// prime, so that every address is visited.
const STRIDE: u32 = 7_919;

/// Returns the number of ipcache entries per cluster that the bench looks up. In a small run, each
/// cluster has at least 300 entries.
fn ips_per_cluster() -> u32 {
    sized(super::data::IPS, 300)
}

/// A request without its final blank line.
pub(crate) struct HttpRequest {
    head: String,
    body: String,
}

/// Returns the cluster and the index of the `number`th address to look up.
fn numbered_address(number: u32) -> (u32, u32) {
    let index = number.wrapping_mul(STRIDE);
    (index % clusters() + 1, index / clusters() % ips_per_cluster())
}

impl HttpRequest {
    /// Returns a lookup of an address that an entry covers.
    pub(crate) fn lookup(number: u32) -> Self {
        Self::get(&Self::address(number, "/v1/ipcache/lookup?ip="), "*/*")
    }

    /// Returns a path that ends with an address that an entry covers.
    pub(crate) fn address(number: u32, path: &str) -> String {
        let (cluster, index) = numbered_address(number);
        format!("{path}{}", address(cluster, index))
    }

    /// Returns a lookup of an address that no entry covers.
    pub(crate) fn miss(number: u32) -> Self {
        Self::get(&format!("/v1/ipcache/lookup?ip=192.0.2.{}", number % 250), "*/*")
    }

    pub(crate) fn get(path: &str, accept: &str) -> Self {
        Self { head: format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"), body: String::new() }
    }

    fn post(path: &str, body: String) -> Self {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
        Self { head, body }
    }

    /// Returns a request that looks up `count` addresses at once.
    pub(crate) fn batch(number: u32, count: u32) -> Self {
        let ips: Vec<String> = (0..count)
            .map(|part| {
                let (cluster, index) = numbered_address(number * count + part);
                format!("\"{}\"", address(cluster, index))
            })
            .collect();
        Self::post("/v1/ipcache/lookup", format!("{{\"ips\":[{}]}}", ips.join(",")))
    }

    /// Returns a request to etcd's JSON gateway for the key that answers a lookup. The gateway
    /// returns only the value, without labels and node.
    pub(crate) fn gateway(number: u32) -> Self {
        let (number, index) = numbered_address(number);
        let key = EntryKey::new(Kind::Ip, cluster(number), address(number, index).to_string()).to_string();
        Self::post("/v3/kv/range", format!("{{\"key\":\"{}\",\"serializable\":true}}", BASE64.encode(key)))
    }

    fn bytes(&self) -> Vec<u8> {
        format!("{}\r\n{}", self.head, self.body).into_bytes()
    }
}

/// Returns the lengths of an answer's head and body, or `None` while the head is incomplete. The
/// length of a chunked body is `None`.
fn lengths(bytes: &[u8]) -> Outcome<Option<(usize, Option<usize>)>> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    if !bytes.starts_with(b"HTTP/1.1 200") {
        return Err(String::from_utf8_lossy(bytes).into());
    }
    let head = std::str::from_utf8(&bytes[..end])?;
    let length = head.lines().filter_map(|line| line.split_once(": ")).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    Ok(Some((end + 4, length.map(|(_, text)| text.parse()).transpose()?)))
}

/// Measures the answers per second of `connections`, each of which sends the next request as soon
/// as it has an answer.
pub(crate) async fn rate(address: &str, connections: u32, time: Duration, questions: &[HttpRequest]) -> Outcome<f64> {
    let mut tasks = JoinSet::new();
    let questions: std::sync::Arc<[Vec<u8>]> = questions.iter().map(HttpRequest::bytes).collect();
    let began = Instant::now();
    for connection in 0..connections {
        let (address, questions) = (address.to_owned(), std::sync::Arc::clone(&questions));
        tasks.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let (mut answer, mut count) = (Vec::with_capacity(1 << 20), 0_u32);
            while began.elapsed() < time {
                let index = (connection * 613 + count) as usize % questions.len();
                stream.write_all(&questions[index]).await?;
                answer.clear();
                while !is_whole(&answer)? {
                    if stream.read_buf(&mut answer).await? == 0 {
                        return Err("the connection was closed".into());
                    }
                }
                count += 1;
            }
            Outcome::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(answers) = tasks.join_next().await {
        count += answers??;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

fn is_whole(answer: &[u8]) -> Outcome<bool> {
    Ok(match lengths(answer)? {
        None => false,
        Some((head, Some(body))) => answer.len() >= head + body,
        // the last chunk
        Some((_, None)) => answer.ends_with(b"0\r\n\r\n"),
    })
}

pub(crate) fn answer(address: &str, question: &HttpRequest) -> Outcome<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&question.bytes())?;
    let mut bytes = Vec::new();
    while !is_whole(&bytes)? {
        let mut part = [0; 64 << 10];
        let length = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..length]);
    }
    let head = lengths(&bytes)?.map_or(0, |(head, _)| head);
    Ok(bytes.split_off(head))
}

/// Measures the median and the 99th percentile of the response time on one connection.
pub(crate) fn percentiles(address: &str, question: impl Fn(u32) -> HttpRequest) -> Outcome<(Duration, Duration)> {
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    stream.get_ref().set_nodelay(true)?;
    let count = sized(3_000, 20);
    let mut times = Vec::with_capacity(count as usize);
    for number in 0..count {
        let bytes = question(number).bytes();
        let began = Instant::now();
        stream.get_mut().write_all(&bytes)?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Err("the connection was closed".into());
            }
        }
        let length = lengths(head.as_bytes())?.and_then(|(_, body)| body).ok_or("an answer without a length")?;
        stream.read_exact(&mut vec![0; length])?;
        times.push(began.elapsed());
        // pause like a client that does other work, so that the server's thread sleeps and has to
        // be woken
        std::thread::sleep(Duration::from_micros(500));
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

/// Reads a long answer until it contains `end_text`, and calls `sample` every 20 ms. Returns the
/// number of bytes and the elapsed time.
pub(crate) fn read_until(address: &str, path: &str, end_text: &[u8], mut sample: impl FnMut() -> Outcome<()>) -> Outcome<(u64, Duration)> {
    let mut stream = TcpStream::connect(address)?;
    let began = Instant::now();
    stream.write_all(&HttpRequest::get(path, "application/x-ndjson").bytes())?;
    let (mut count, mut buffer, mut carried_over, mut last_sample) = (0, vec![0; 256 << 10], 0, began);
    loop {
        let length = stream.read(&mut buffer[carried_over..])?;
        count += length as u64;
        if length == 0 {
            return Err("the answer ended too early".into());
        }
        let filled = carried_over + length;
        if memchr::memmem::find(&buffer[..filled], end_text).is_some() {
            return Ok((count, began.elapsed()));
        }
        // the text may be split between two reads
        carried_over = filled.min(end_text.len());
        buffer.copy_within(filled - carried_over..filled, 0);
        if last_sample.elapsed() > Duration::from_millis(20) {
            last_sample = Instant::now();
            sample()?;
        }
    }
}

/// Program that reads and discards `streams` streams until it is killed. Prints a line once all
/// have started.
pub(crate) fn sink(address: &str, streams: u32) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reading = JoinSet::new();
        for _ in 0..streams {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            stream.write_all(&HttpRequest::get("/v1/events", "text/event-stream").bytes()).await?;
            let mut buffer = vec![0; 64 << 10];
            if stream.read(&mut buffer).await? == 0 {
                return Err("a stream did not begin".into());
            }
            reading.spawn(async move { while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {} });
        }
        println!("reading");
        match reading.join_next().await {
            Some(_) => Err("a stream ended".into()),
            None => Ok(()),
        }
    })
}
