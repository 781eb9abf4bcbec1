//! Bench of writing to an etcd, with the real sidecar and real etcds: `cargo bench -- kvstore
//! [refill [keys] | change [count] | allocate [count] | memory [keys]]` (default: all).
//!
//! - `refill`: an etcd that `meshkeep reflect` had filled loses its data. Measures the keys per
//!   second until it is full again; the reference is bare puts of the same keys by etcd's client
//!   with the same concurrency.
//! - `change`: the delay from a put at a source to the target; the reference is a program that only
//!   watches and puts.
//! - `allocate`: identities per second that 16 tasks allocate for new labels over one etcd; the
//!   reference is 16 tasks that make only the calls that an allocation needs at least.
//! - `memory`: the memory that reflecting needs in addition to mirroring.
//!
//! There are no thresholds.

mod allocate;
mod bare;
mod change;
mod memory;
mod refill;

use crate::view::data;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};

use crate::processes::{Outcome, RunningProcess, add_cluster, start_meshkeep_command};
use crate::view::data::sized;

/// Number of measurements of each figure. The median is reported.
const ROUNDS: usize = 5;

/// Maximum time for any step.
const TIME_MAX: Duration = Duration::from_secs(900);

/// The pause between two counts of the target's keys is the elapsed time divided by this. An etcd
/// counts by walking over all keys (some 30 ms for 300,000), and with a count every 20 ms it did
/// little else.
const PAUSE_DIVISOR: u32 = 50;

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let count = |full, small| words.get(1).map_or(Ok(sized(full, small)), |word| word.parse::<u32>());
    match words.first().map(String::as_str) {
        Some("refill") => runtime.block_on(refill::refill(count(300_000, 3_000)?)),
        Some("change") => runtime.block_on(change::change(count(500, 20)?)),
        Some("allocate") => runtime.block_on(allocate::allocate(count(5_000, 64)?)),
        Some("memory") => runtime.block_on(memory::memory(count(1_000_000, 3_000)?)),
        Some(other) => Err(format!("there is no figure {other}: refill, change, allocate, memory").into()),
        None => runtime.block_on(async {
            change::change(sized(500, 20)).await?;
            allocate::allocate(sized(5_000, 64)).await?;
            refill::refill(sized(300_000, 3_000)).await?;
            memory::memory(sized(1_000_000, 3_000)).await
        }),
    }
}

/// Writes the client files of all clusters of a source, and that of the target.
fn write_files(home: &Path, source: &str, target: &str) -> Outcome<()> {
    for number in 1..=data::clusters() {
        add_cluster(home, data::cluster(number).as_str(), source)?;
    }
    Ok(std::fs::write(home.join("target.yaml"), format!("endpoints:\n- {target}\n"))?)
}

/// Starts `meshkeep reflect` with the target of [`write_files`].
fn start_reflect(home: &Path) -> Outcome<(RunningProcess, String)> {
    let target = home.join("target.yaml");
    start_meshkeep_command(home, &["reflect", "--to", target.to_str().ok_or("the path is not UTF-8")?])
}

/// Counts the entries of a target.
async fn count(client: &Client) -> Outcome<u64> {
    let options = GetOptions::new().with_prefix().with_count_only().with_serializable();
    Ok(u64::try_from(client.clone().get("cilium/cache/", Some(options)).await?.count())?)
}

/// Waits until a target has `expected` entries. Returns the arrival time of the first and the time
/// from it to the last.
async fn filled(client: &Client, expected: u64) -> Outcome<(Instant, Duration)> {
    let began = Instant::now();
    let mut first = None;
    loop {
        let found = count(client).await.unwrap_or_default();
        if found > 0 {
            first.get_or_insert_with(Instant::now);
        }
        if let Some(first) = first.filter(|_| found >= expected) {
            return Ok((first, first.elapsed()));
        }
        if began.elapsed() > TIME_MAX {
            return Err(format!("the target has {found} of {expected} entries after {TIME_MAX:?}").into());
        }
        tokio::time::sleep((began.elapsed() / PAUSE_DIVISOR).max(Duration::from_millis(1))).await;
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
