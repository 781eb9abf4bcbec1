//! Clients: many connections that ask again and again, one that asks now and then, one that reads a long answer, and streams that are read into
//! nothing. Requests are written by hand and answers are looked at only for where they end, so that the client takes little of the machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::data::{address, cluster, clusters, sized};
use super::processes::Outcome;

/// A step through all addresses that seems random: prime.
const STRIDE: u32 = 7_919;

/// How many ip entries a cluster has that the bench asks for: of what the small run has too.
fn ips() -> u32 {
    sized(super::data::IPS, 300)
}

/// A request as it is written, without its end.
pub(crate) struct Question {
    head: String,
    body: String,
}

/// The address of a number.
fn asked(number: u32) -> (u32, u32) {
    let at = number.wrapping_mul(STRIDE);
    (at % clusters() + 1, at / clusters() % ips())
}

impl Question {
    /// A lookup of an address that an entry covers.
    pub(crate) fn lookup(number: u32) -> Self {
        let (cluster, index) = asked(number);
        Self::get(&format!("/v1/ipcache/lookup?ip={}", address(cluster, index)), "*/*")
    }

    /// A lookup of an address that nothing covers.
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

    /// Lookups of so many addresses at once.
    pub(crate) fn batch(number: u32, count: u32) -> Self {
        let ips: Vec<String> = (0..count)
            .map(|at| {
                let (cluster, index) = asked(number * count + at);
                format!("\"{}\"", address(cluster, index))
            })
            .collect();
        Self::post("/v1/ipcache/lookup", format!("{{\"ips\":[{}]}}", ips.join(",")))
    }

    /// The key of a lookup's answer, of etcd's JSON gateway: the value alone, as that has nothing to join.
    pub(crate) fn gateway(number: u32) -> Self {
        let (number, index) = asked(number);
        let key = EntryKey::new(Kind::Ip, cluster(number), address(number, index).to_string()).to_string();
        Self::post("/v3/kv/range", format!("{{\"key\":\"{}\",\"serializable\":true}}", BASE64.encode(key)))
    }

    fn bytes(&self) -> Vec<u8> {
        format!("{}\r\n{}", self.head, self.body).into_bytes()
    }
}

/// Where an answer ends: its head's length and its body's, once the head is there; `None` of the body where it comes in pieces.
fn lengths(bytes: &[u8]) -> Outcome<Option<(usize, Option<usize>)>> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    if !bytes.starts_with(b"HTTP/1.1 200") {
        return Err(String::from_utf8_lossy(bytes).into());
    }
    let head = std::str::from_utf8(&bytes[..end])?;
    let length = head.lines().filter_map(|line| line.split_once(": ")).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    Ok(Some((end + 4, length.map(|(_, text)| text.parse()).transpose()?)))
}

/// How many answers a second so many connections get, each asking anew as soon as it has an answer.
pub(crate) async fn rate(address: &str, connections: u32, time: Duration, questions: &[Question]) -> Outcome<f64> {
    let mut asking = JoinSet::new();
    let questions: std::sync::Arc<[Vec<u8>]> = questions.iter().map(Question::bytes).collect();
    let began = Instant::now();
    for connection in 0..connections {
        let (address, questions) = (address.to_owned(), std::sync::Arc::clone(&questions));
        asking.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let (mut answer, mut count) = (Vec::with_capacity(1 << 20), 0_u32);
            while began.elapsed() < time {
                let at = (connection * 613 + count) as usize % questions.len();
                stream.write_all(&questions[at]).await?;
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
    while let Some(asked) = asking.join_next().await {
        count += asked??;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Whether all of an answer is there.
fn is_whole(answer: &[u8]) -> Outcome<bool> {
    Ok(match lengths(answer)? {
        None => false,
        Some((head, Some(body))) => answer.len() >= head + body,
        // the last piece
        Some((_, None)) => answer.ends_with(b"0\r\n\r\n"),
    })
}

/// The body of an answer.
pub(crate) fn answer(address: &str, question: &Question) -> Outcome<Vec<u8>> {
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

/// The median and the 99th percentile of what an answer takes on one connection.
pub(crate) fn percentiles(address: &str, question: impl Fn(u32) -> Question) -> Outcome<(Duration, Duration)> {
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
        // as a client that has something else to do: a thread that slept must be woken
        std::thread::sleep(Duration::from_micros(500));
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

/// Reads a long answer until a text comes. Returns how many bytes came, and in what time.
pub(crate) fn read_until(address: &str, path: &str, last: &[u8], mut look: impl FnMut() -> Outcome<()>) -> Outcome<(u64, Duration)> {
    let mut stream = TcpStream::connect(address)?;
    let began = Instant::now();
    stream.write_all(&Question::get(path, "application/x-ndjson").bytes())?;
    let (mut count, mut buffer, mut kept, mut looked) = (0, vec![0; 256 << 10], 0, began);
    loop {
        let length = stream.read(&mut buffer[kept..])?;
        count += length as u64;
        if length == 0 {
            return Err("the answer ended too early".into());
        }
        let filled = kept + length;
        if memchr::memmem::find(&buffer[..filled], last).is_some() {
            return Ok((count, began.elapsed()));
        }
        // the text may be cut in two
        kept = filled.min(last.len());
        buffer.copy_within(filled - kept..filled, 0);
        if looked.elapsed() > Duration::from_millis(20) {
            looked = Instant::now();
            look()?;
        }
    }
}

/// A program that reads so many streams into nothing, until it is killed. Says when all have begun.
pub(crate) fn sink(address: &str, streams: u32) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reading = JoinSet::new();
        for _ in 0..streams {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            stream.write_all(&Question::get("/v1/events", "text/event-stream").bytes()).await?;
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
