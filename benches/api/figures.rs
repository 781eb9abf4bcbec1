//! The figures, each with its reference.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::client::{self, HttpRequest};
use super::{TestBed, source};
use crate::processes::{Outcome, child_of};
use crate::view::data::sized;

/// Number of concurrent connections.
const CONNECTIONS: u32 = 32;

/// Number of addresses in a batch.
const BATCH: u32 = 1_000;

/// Ten times the rate of changes in Cilium's own scale test.
const CHANGES_PER_SECOND: u32 = 3_250;

/// Number of streams: as many as a large mesh has subscribers.
const STREAMS: u32 = 100;

type Figure = fn(&TestBed, &Runtime) -> Outcome<()>;

pub(crate) const FIGURES: [(&str, Figure); 6] =
    [("lookup", lookup), ("batch", batch), ("gateway", gateway), ("churn", churn), ("lines", lines), ("command", command)];

/// Returns how often each figure is measured. The median is reported.
fn rounds() -> u32 {
    sized(5, 1)
}

/// Builds the requests in advance, because building them is not part of the measurement.
fn questions(count: u32, question: impl Fn(u32) -> HttpRequest) -> Vec<HttpRequest> {
    (0..sized(count, 50)).map(question).collect()
}

/// Returns the duration of one measurement of a rate.
fn measure_time() -> Duration {
    sized(Duration::from_secs(3), Duration::from_millis(100))
}

/// Measured values: one row per round, one column per quantity.
struct Columns(Vec<Vec<f64>>);

impl Columns {
    fn measure(rounds: u32, mut run: impl FnMut() -> Outcome<Vec<f64>>) -> Outcome<Self> {
        Ok(Self((0..rounds).map(|_| run()).collect::<Outcome<_>>()?))
    }

    fn median_by(&self, value: impl Fn(&[f64]) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(|row| value(row)).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn median(&self, column: usize) -> f64 {
        self.median_by(|row| row[column])
    }

    fn ratio(&self, column: usize, reference: usize) -> f64 {
        self.median_by(|row| row[column] / row[reference])
    }
}

fn lookup(bed: &TestBed, runtime: &Runtime) -> Outcome<()> {
    let ask = |address: &str, questions: &[HttpRequest]| runtime.block_on(client::rate(address, CONNECTIONS, measure_time(), questions));
    let (hits, misses) = (questions(20_000, HttpRequest::lookup), questions(250, HttpRequest::miss));
    let bare_question = [HttpRequest::get("/", "*/*")];
    let columns = Columns::measure(rounds(), || {
        let busy = bed.meshkeep.busy()?;
        let ours = ask(&bed.address, &hits)?;
        let cpu_us = (bed.meshkeep.busy()? - busy).as_secs_f64() * 1e6 / (ours * measure_time().as_secs_f64());
        let bare = ask(&bed.bare.address, &bare_question)?;
        Ok(vec![ours, bare, cpu_us, ask(&bed.address, &misses)?])
    })?;
    println!(
        "lookup: {:.0}/s, {:.1} us of a processor each; bare handler {:.0}/s (ratio {:.2}); addresses without an entry {:.0}/s (ratio {:.2})",
        columns.median(0),
        columns.median(2),
        columns.median(1),
        columns.ratio(0, 1),
        columns.median(3),
        columns.ratio(3, 1)
    );
    Ok(())
}

fn batch(bed: &TestBed, runtime: &Runtime) -> Outcome<()> {
    let (hits, batches) = (questions(20_000, HttpRequest::lookup), questions(50, |number| HttpRequest::batch(number, BATCH)));
    let columns = Columns::measure(rounds(), || {
        let single = runtime.block_on(client::rate(&bed.address, CONNECTIONS, measure_time(), &hits))?;
        let batches = runtime.block_on(client::rate(&bed.address, 4, measure_time(), &batches))?;
        Ok(vec![batches * f64::from(BATCH), single])
    })?;
    println!(
        "batches of {BATCH}: {:.0} addresses/s; single lookups {:.0}/s (ratio {:.1})",
        columns.median(0),
        columns.median(1),
        columns.ratio(0, 1)
    );
    Ok(())
}

fn gateway(bed: &TestBed, runtime: &Runtime) -> Outcome<()> {
    let (hits, keys) = (questions(20_000, HttpRequest::lookup), questions(20_000, HttpRequest::gateway));
    let columns = Columns::measure(rounds(), || {
        let ours = runtime.block_on(client::rate(&bed.address, CONNECTIONS, measure_time(), &hits))?;
        let theirs = runtime.block_on(client::rate(&bed.gateway, CONNECTIONS, measure_time(), &keys))?;
        Ok(vec![ours, theirs])
    })?;
    println!("lookup: {:.0}/s; etcd's JSON gateway {:.0}/s (ratio {:.1})", columns.median(0), columns.median(1), columns.ratio(0, 1));
    Ok(())
}

/// A separate program that reads streams, ended on drop.
struct Sink(Child);

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Sink {
    fn start(address: &str, streams: u32) -> Outcome<Self> {
        let words = ["role:sink".to_owned(), address.to_owned(), streams.to_string()];
        let mut child = child_of("api")?.args(words).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        Ok(Self(child))
    }
}

fn churn(bed: &TestBed, runtime: &Runtime) -> Outcome<()> {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    // number of changes in earlier rounds
    let mut before = 0;
    let columns = Columns::measure(rounds(), || {
        let (idle, idle_high) = client::percentiles(&bed.address, HttpRequest::lookup)?;
        let _sink = Sink::start(&bed.address, STREAMS)?;
        let (etcd, address) = (bed.etcd.clone(), bed.address.clone());
        let time = sized(Duration::from_secs(8), Duration::from_millis(300));
        let putting = runtime.spawn(async move { source::put(&etcd, CHANGES_PER_SECOND, before, time, || Ok(())).await });
        // wait until all streams and changes are in progress
        std::thread::sleep(time / 8);
        let (busy, busy_high) = client::percentiles(&address, HttpRequest::lookup)?;
        let (changes, _) = runtime.block_on(putting)??;
        before += changes;
        Ok(vec![micros(busy), micros(idle), micros(busy_high), micros(idle_high), changes as f64 / time.as_secs_f64()])
    })?;
    println!(
        "lookups during {:.0} changes/s and {STREAMS} streams: p50 {:.0} us, p99 {:.0} us; idle p50 {:.0} us (ratio {:.2}), p99 {:.0} us (ratio {:.2})",
        columns.median(4),
        columns.median(0),
        columns.median(2),
        columns.median(1),
        columns.ratio(0, 1),
        columns.median(3),
        columns.ratio(2, 3)
    );
    Ok(())
}

fn lines(bed: &TestBed, _: &Runtime) -> Outcome<()> {
    let megabytes = |(bytes, time): (u64, Duration)| bytes as f64 / 1e6 / time.as_secs_f64();
    let columns = Columns::measure(rounds(), || {
        let before = bed.meshkeep.resident_mb()?;
        let mut peak = before;
        let list = client::read_until(&bed.address, "/v1/ipcache", b"{\"meta\":{", || {
            peak = peak.max(bed.meshkeep.resident_mb()?);
            Ok(())
        })?;
        let snapshot = "/v1/events?snapshot=true&kind=ipcache";
        let stream = client::read_until(&bed.address, snapshot, b"\"type\":\"synced\"", || Ok(()))?;
        let grown = f64::from(u32::try_from(peak - before)?);
        Ok(vec![megabytes(list), megabytes(stream), grown, list.0 as f64 / 1e6])
    })?;
    println!(
        "the ipcache as lines: {:.0} MB at {:.0} MB/s; as the snapshot of a stream {:.0} MB/s (ratio {:.2}); resident + {:.0} MB meanwhile",
        columns.median(3),
        columns.median(0),
        columns.median(1),
        columns.ratio(0, 1),
        columns.median(2)
    );
    Ok(())
}

/// Measures the milliseconds from exec to the end of a program.
fn timed(program: &str, arguments: &[&str]) -> Outcome<f64> {
    let began = Instant::now();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let time = began.elapsed().as_secs_f64() * 1e3;
    if output.status.success() { Ok(time) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

fn command(bed: &TestBed, _: &Runtime) -> Outcome<()> {
    let ip = super::data::address(1, 7).to_string();
    let (server, url) = (format!("http://{}", bed.address), format!("http://{}/v1/ipcache/lookup?ip={ip}", bed.address));
    let columns = Columns::measure(sized(41, 1), || {
        let ours = timed(env!("CARGO_BIN_EXE_meshkeep"), &["lookup", &ip, "--server", &server])?;
        Ok(vec![ours, timed("curl", &["--silent", "--fail", &url])?])
    })?;
    println!(
        "meshkeep lookup, exec to answer: {:.1} ms; curl {:.1} ms (ratio {:.2})",
        columns.median(0),
        columns.median(1),
        columns.ratio(0, 1)
    );
    Ok(())
}
