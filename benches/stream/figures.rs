//! The figures: each starts its processes, measures, and prints one paragraph.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::child::{RoleProcess, now_us, number};
use super::{Outcome, bare, put_to_event, sized};

/// Returns the duration of a load in seconds: some hundred ticks.
fn window() -> u64 {
    sized(8, 1)
}

/// Returns the number of readers: `full`, or 20 in a small run.
fn readers(full: u64) -> u64 {
    sized(full, 20)
}

/// Returns the tick of the bare program for a number of readers. Same as that of the server's event
/// hub.
const fn tick_ms(readers: u64) -> u64 {
    if readers < 20 { 1 } else { readers / 20 }
}

/// Maximum time for late events after the last change, in milliseconds.
const PATIENCE_MS: u64 = 5_000;

/// Number of entries that change.
const KEYS: u64 = 1_000;

type Figure = (&'static str, fn() -> Outcome<()>);

const FIGURES: [Figure; 7] = [
    ("put", put_to_event::run),
    ("thousand", || fan_out(readers(1_000))),
    ("five-thousand", || fan_out(readers(5_000))),
    ("filters", filters),
    ("idle", idle),
    ("replay", replay),
    ("stalled", stalled),
];

/// Runs the named figures, or all.
pub(crate) fn run(names: &[String]) -> Outcome<()> {
    let mut failed = Vec::new();
    for (name, figure) in FIGURES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            let began = Instant::now();
            println!("== {name}");
            match figure() {
                Ok(()) => println!("   ({:.0} s)", began.elapsed().as_secs_f64()),
                Err(error) => {
                    println!("   FAILED: {error}");
                    failed.push(name);
                }
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Measurements of a server and its readers while entries change.
#[derive(Debug, Clone, Copy)]
struct LoadResult {
    cpu_percent: f64,
    /// Share of all changes for all readers that arrived. Merged changes are missing from it.
    delivered: f64,
    events_per_second: f64,
    bytes: f64,
    resets: u64,
    behind: u64,
    p50_ms: f64,
    p99_ms: f64,
}

impl std::fmt::Display for LoadResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu_percent, delivered, events_per_second, bytes, resets, behind, p50_ms, p99_ms } = *self;
        let (megabytes, thousands, percent) = (bytes / 1e6, events_per_second / 1e3, delivered * 100.0);
        write!(f, "CPU {cpu_percent:.0} %, {thousands:.0}k events/s, {megabytes:.0} MB ({percent:.0} % of all changes for all), ")?;
        write!(f, "p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, ")?;
        write!(f, "{resets} resets (of the sampled readers), {behind} readers behind")
    }
}

/// Sends a server the order to feed, while readers read.
fn run_load(server: &mut RoleProcess, load: &mut RoleProcess, order: &str, changes: u64) -> Outcome<LoadResult> {
    let (cpu, began) = (server.cpu()?, Instant::now());
    let reached = server.ask(order)?;
    let sequence = reached.rsplit('.').next().unwrap_or_default().to_owned();
    let report = load.ask(&format!("wait {sequence} {PATIENCE_MS}"))?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_percent = (server.cpu()? - cpu).as_secs_f64() / seconds * 100.0;
    let words: Vec<String> = report.split(' ').map(str::to_owned).collect();
    if number(&words, 2)? > 0 {
        return Err("a reader's connection ended".into());
    }
    let ms = |index| Ok::<_, Box<dyn std::error::Error + Send + Sync>>(number(&words, index)? as f64 / 1e3);
    let (bytes, behind) = (number(&words, 0)? as f64, number(&words, 3)?);
    // the length of an event in the middle of a run: a sequence has one digit more at the end than
    // at the beginning
    let events = bytes / bare::event(window() * 500, now_us()).len() as f64;
    let (delivered, events_per_second) = (events / changes as f64, events / seconds);
    Ok(LoadResult { cpu_percent, delivered, events_per_second, bytes, resets: number(&words, 1)?, behind, p50_ms: ms(4)?, p99_ms: ms(5)? })
}

const PATH: &str = "/v1/events?kind=ipcache";

fn feed(server: &str, readers: u64, seconds: u64, more: &[&str]) -> Outcome<LoadResult> {
    let (mut server_role, address) = RoleProcess::start(&[server])?;
    let count = readers.to_string();
    let (mut load, _) = RoleProcess::start(&[&["role:load", &address, &count, PATH], more].concat())?;
    let order =
        if server == "role:bare" { format!("feed 1000 {seconds} {}", tick_ms(readers)) } else { format!("feed 1000 {seconds} {KEYS} 1") };
    run_load(&mut server_role, &mut load, &order, 1_000 * seconds * readers)
}

fn fan_out(readers: u64) -> Outcome<()> {
    println!("   {readers} subscribers, 1,000 changes/s of {KEYS} entries for {} s, one filter", window());
    let bare = feed("role:bare", readers, window(), &[])?;
    println!("   bare, tick {} ms: {bare}", tick_ms(readers));
    let ours = feed("role:server", readers, window(), &[])?;
    println!("   meshkeep: {ours}");
    println!("   CPU {:.2} x bare, CPU per byte {:.2} x", ours.cpu_percent / bare.cpu_percent, per_byte(ours) / per_byte(bare));
    Ok(())
}

fn per_byte(result: LoadResult) -> f64 {
    result.cpu_percent / result.bytes.max(1.0)
}

fn filters() -> Outcome<()> {
    println!(
        "   3,250 changes/s of 10,000 entries for {} s; each subscriber filters for another identity (0.1 % of the changes); in turn",
        window()
    );
    let (mut few, mut many) = (Vec::new(), Vec::new());
    filtered("0")?;
    for _ in 0..sized(3, 1) {
        few.push(filtered("10")?);
        many.push(filtered(&readers(1_000).to_string())?);
    }
    let median = |name, mut percents: Vec<f64>| {
        percents.sort_by(f64::total_cmp);
        println!("   {name} subscribers: CPU {:.1} % (median of {percents:.1?})", percents[percents.len() / 2]);
        percents[percents.len() / 2]
    };
    let (few, many) = (median("10", few), median("1,000", many));
    println!("   CPU of 1,000 is {:.2} x that of 10", many / few);
    Ok(())
}

/// Measures the CPU of a server with filtering subscribers, in percent of a core, including the
/// changes.
fn filtered(readers: &str) -> Outcome<f64> {
    let (mut server, address) = RoleProcess::start(&["role:server"])?;
    let (mut load, _) = RoleProcess::start(&["role:load", &address, readers, &format!("{PATH}&identity={{}}")])?;
    let (cpu, began) = (server.cpu()?, Instant::now());
    server.ask(&format!("feed 3250 {} 10000 1000", window()))?;
    let percent = (server.cpu()? - cpu).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let report = load.ask("wait 0 200")?;
    println!("   {readers} subscribers: CPU {percent:.1} % (bytes resets ended behind p50_us p99_us: {report})");
    Ok(percent)
}

fn idle() -> Outcome<()> {
    let count = readers(5_000);
    println!("   resident memory for each of {count} idle subscribers");
    for server in ["role:bare", "role:server"] {
        let (role, address) = RoleProcess::start(&[server])?;
        let before = role.resident_kib()?;
        let (_load, _) = RoleProcess::start(&["role:load", &address, &count.to_string(), PATH])?;
        std::thread::sleep(Duration::from_secs(2));
        let after = role.resident_kib()?;
        println!("   {server}: {:.1} KiB", (after - before) / count as f64);
    }
    Ok(())
}

/// Reads one answer until `synced`.
fn read_all(address: &str, path: &str) -> Outcome<(Duration, u64)> {
    let began = Instant::now();
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut buffer = vec![0; 256 * 1024];
    let (mut total, mut tail) = (0, Vec::new());
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err("the stream ended before synced".into());
        }
        total += length as u64;
        tail.extend_from_slice(&buffer[length.saturating_sub(256)..length]);
        if tail.windows(13).any(|window| window == b"event: synced") {
            return Ok((began.elapsed(), total));
        }
        let excess = tail.len().saturating_sub(256);
        tail.drain(..excess);
    }
}

fn replay() -> Outcome<()> {
    let entries: u64 = sized(1_000_000, 5_120);
    println!("   {entries} entries changed after the position, one subscriber");
    let (_bare, bare_address) = RoleProcess::start(&["role:bare"])?;
    let (mut server, address) = RoleProcess::start(&["role:server"])?;
    server.ask(&format!("fill {entries}"))?;
    println!("   resident with {entries} entries: {:.0} MiB", server.resident_kib()? / 1024.0);
    for (name, address, path) in
        [("bare", &bare_address, format!("/blast?{entries}")), ("meshkeep", &address, "/v1/events?after=v1.00000000000000be.1".to_owned())]
    {
        let mut rates = Vec::new();
        for _ in 0..3 {
            let (time, bytes) = read_all(address, &path)?;
            rates.push((entries as f64 / time.as_secs_f64(), bytes));
        }
        rates.sort_by(|a, b| a.0.total_cmp(&b.0));
        println!("   {name}: {:.0} events/s (median of three), {:.0} MB", rates[1].0, rates[1].1 as f64 / 1e6);
    }
    Ok(())
}

fn stalled() -> Outcome<()> {
    let count = readers(1_000);
    println!("   {count} subscribers, 1,000 changes/s for 4 s: p99 in ms, in turn without and with one more that reads nothing");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..sized(5, 1) {
        without.push(feed("role:server", count, sized(4, 1), &[])?.p99_ms);
        with.push(feed("role:server", count, sized(4, 1), &["stalled"])?.p99_ms);
    }
    for (name, mut times) in [("without", without), ("with", with)] {
        times.sort_by(f64::total_cmp);
        let all: Vec<String> = times.iter().map(|time| format!("{time:.1}")).collect();
        println!("   {name}: median {:.1} ({})", times[times.len() / 2], all.join(" "));
    }
    Ok(())
}
