//! The load: many readers in one process with one thread. Every reader counts bytes; some parse
//! each event's time stamp.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::Outcome;
use super::child::{answer, now_us, number, orders};

/// One in this many readers parses time stamps.
const SAMPLED_EVERY: usize = 50;

/// Number of readers from one loopback address. It is below the limit of streams per client.
const READERS_PER_ADDRESS: usize = 900;

/// Number of bytes that a reader keeps of the end of its stream: more than the longest event.
const TAIL_BYTES: usize = 2_048;

/// Number of bytes per read.
const READ_BYTES: usize = 256 * 1024;

#[derive(Default)]
struct Totals {
    ready: AtomicUsize,
    bytes: AtomicU64,
    resets: AtomicU64,
    ended: AtomicUsize,
    delays_us: Mutex<Vec<u64>>,
    /// Sequence of each reader's last event.
    reached: Vec<AtomicU64>,
}

/// Runs the load with the arguments `ADDRESS COUNT PATH [stalled]`; `{}` in the path is replaced by
/// the reader's number. Prints `ready` when all readers are in sync. With `stalled`, one more
/// reader reads nothing. The order `wait SEQUENCE MS` waits until all readers have reached the
/// sequence or the time is over. Its answer is `bytes resets ended behind p50_us p99_us`. The
/// counters `bytes` and `resets` and the delays then start again from zero.
pub(crate) fn run(arguments: &[String]) -> Outcome<()> {
    let address: SocketAddr = arguments.first().ok_or("no address")?.parse()?;
    let count = usize::try_from(number(arguments, 1)?)?;
    let path = arguments.get(2).ok_or("no path")?.clone();
    let totals = Arc::new(Totals { reached: (0..count).map(|_| AtomicU64::new(0)).collect(), ..Totals::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut tasks = JoinSet::new();
    for index in 0..count {
        let request = path.replace("{}", &(70_000 + index).to_string());
        tasks.spawn_on(read(address, index, request, Arc::clone(&totals)), runtime.handle());
    }
    let _stalled = match arguments.get(3) {
        Some(_) => Some(runtime.block_on(connect(address, count, &path))?),
        None => None,
    };
    while totals.ready.load(Ordering::Relaxed) < count {
        if totals.ended.load(Ordering::Relaxed) > 0 {
            return Err("a reader was refused".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    answer("ready");
    for words in orders() {
        totals.wait(number(&words, 1)?, Duration::from_millis(number(&words, 2)?));
        answer(&totals.report(number(&words, 1)?));
    }
    Ok(())
}

async fn connect(address: SocketAddr, index: usize, path: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let last_octet = u8::try_from(1 + index / READERS_PER_ADDRESS).unwrap_or(u8::MAX);
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, last_octet), 0)))?;
    let mut stream = socket.connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

async fn read(address: SocketAddr, index: usize, path: String, totals: Arc<Totals>) {
    drop(follow(address, index, &path, &totals).await);
    totals.ended.fetch_add(1, Ordering::Relaxed);
}

async fn follow(address: SocketAddr, index: usize, path: &str, totals: &Totals) -> std::io::Result<()> {
    let stream = connect(address, index, path).await?;
    let mut state = ReaderState { index, tail: Vec::new(), ready: false };
    loop {
        stream.readable().await?;
        // all readers share one buffer, which stays in the processor's cache, as the buffer of a
        // single reader does if each reader has its own machine
        let length = BUFFER.with_borrow_mut(|buffer| -> std::io::Result<usize> {
            let length = stream.try_read(buffer)?;
            state.receive(&buffer[..length], totals);
            Ok(length)
        });
        match length {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}

thread_local! {
    static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]);
}

/// State of a reader, with the end of its stream.
struct ReaderState {
    index: usize,
    tail: Vec<u8>,
    ready: bool,
}

impl ReaderState {
    fn receive(&mut self, bytes: &[u8], totals: &Totals) {
        totals.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let sampled = self.index.is_multiple_of(SAMPLED_EVERY);
        let kept_length = self.tail.len();
        // readers that are not sampled inspect only the end, once they are in sync
        let from = if sampled || !self.ready { 0 } else { bytes.len().saturating_sub(TAIL_BYTES) };
        self.tail.extend_from_slice(&bytes[from..]);
        if !self.ready && find_last(&self.tail, b"event: synced").is_some() {
            self.ready = true;
            totals.ready.fetch_add(1, Ordering::Relaxed);
        }
        if sampled {
            // an event that began in the kept part counts once, because its stamp ends in the new
            // part
            sample(&self.tail, kept_length, now_us(), totals);
            totals.resets.fetch_add(count(&self.tail[kept_length.saturating_sub(12)..], b"event: reset"), Ordering::Relaxed);
        }
        if let Some(sequence) = last_sequence(&self.tail) {
            totals.reached[self.index].store(sequence, Ordering::Relaxed);
        }
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
    }
}

fn find_last(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).rposition(|window| window == wanted)
}

fn count(text: &[u8], wanted: &[u8]) -> u64 {
    text.windows(wanted.len()).filter(|window| *window == wanted).count() as u64
}

/// Returns the sequence of the last complete `id:` line.
fn last_sequence(tail: &[u8]) -> Option<u64> {
    let end = find_last(tail, b"\ndata: ")?;
    let start = find_last(&tail[..end], b"\nid: ")?;
    let id = std::str::from_utf8(&tail[start + 5..end]).ok()?;
    id.rsplit('.').next()?.parse().ok()
}

/// Records the age of every time stamp that ends after the first `kept_length` bytes.
fn sample(text: &[u8], kept_length: usize, now: u64, totals: &Totals) {
    const MARK: &[u8] = b"\"podName\":\"t";
    const DIGITS: usize = 16;
    let from = kept_length.saturating_sub(MARK.len() + DIGITS);
    let mut delays = totals.delays_us.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (at, _) in text[from..].windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK) {
        let start = from + at + MARK.len();
        let stamp = text.get(start..start + DIGITS).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        if start + DIGITS > kept_length
            && let Some(stamp) = stamp
        {
            delays.push(now.saturating_sub(stamp));
        }
    }
}

impl Totals {
    fn behind(&self, sequence: u64) -> usize {
        self.reached.iter().filter(|reached| reached.load(Ordering::Relaxed) < sequence).count()
    }

    fn wait(&self, sequence: u64, longest: Duration) {
        let began = std::time::Instant::now();
        while self.behind(sequence) > 0 && began.elapsed() < longest {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn report(&self, sequence: u64) -> String {
        let mut delays = std::mem::take(&mut *self.delays_us.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        delays.sort_unstable();
        let percentile = |share: usize| delays.get(delays.len() * share / 100).copied().unwrap_or(0);
        let (bytes, resets) = (self.bytes.swap(0, Ordering::Relaxed), self.resets.swap(0, Ordering::Relaxed));
        let (ended, behind) = (self.ended.load(Ordering::Relaxed), self.behind(sequence));
        format!("{bytes} {resets} {ended} {behind} {} {}", percentile(50), percentile(99))
    }
}
