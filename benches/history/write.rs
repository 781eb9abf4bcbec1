//! Cost of writing the history, per change: CPU time, written bytes, and bytes on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{create_home, history_bytes, median, ratio, rounds};
use crate::processes::{Outcome, RunningProcess, add_cluster, ask, start_etcd, start_meshkeep_command, until};
use crate::sync::source::{change, fill, put};
use crate::view::data::{self, sized};

/// Maximum time for any step.
const TIME_MAX: Duration = Duration::from_secs(900);

/// Rates in changes per second, each with the duration of a round in seconds.
const RATES: [(u32, u64); 2] = [(1_000, 20), (20_000, 10)];

/// A sidecar that mirrors the etcd.
struct Sidecar {
    home: PathBuf,
    running: RunningProcess,
    address: String,
}

impl Sidecar {
    fn start(home: &Path, name: &str, etcd: &str, words: &[&str]) -> Outcome<Self> {
        let home = home.join(name);
        for number in 1..=data::clusters() {
            add_cluster(&home, data::cluster(number).as_str(), etcd)?;
        }
        let (running, address) = start_meshkeep_command(&home, words)?;
        Ok(Self { home, running, address })
    }

    /// Returns its CPU time and the bytes that it has written.
    fn counters(&self) -> Outcome<(Duration, u64)> {
        Ok((self.running.busy()?, self.running.written_bytes()?))
    }
}

pub(super) fn write() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(write_at_rates())
}

async fn write_at_rates() -> Outcome<()> {
    let home = create_home()?;
    let (_etcd, url, client) = start_etcd(&home).await?;
    let (count, _) = fill(&client, 1_000_000).await?;
    let sidecars =
        [Sidecar::start(&home, "with", &url, &["serve"])?, Sidecar::start(&home, "without", &url, &["serve", "--history", "off"])?];
    for sidecar in &sidecars {
        until(&sidecar.address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    }
    println!("write: {count} keys; two sidecars at the same time, with and without a history");
    // the work after a first list ends
    tokio::time::sleep(sized(Duration::from_secs(20), Duration::ZERO)).await;
    let mut total = 0;
    for (rate, seconds) in RATES {
        let (mut cpu_ratios, mut byte_ratios, mut changed, mut elapsed) = (Vec::new(), Vec::new(), 0, Duration::ZERO);
        let first = [sidecars[0].counters()?, sidecars[1].counters()?];
        for _ in 0..rounds() {
            let before = [sidecars[0].counters()?, sidecars[1].counters()?];
            let began = Instant::now();
            let (changes, _) = put(&client, rate, total, Duration::from_secs(sized(seconds, 1)), || Ok(())).await?;
            elapsed += began.elapsed();
            (total, changed) = (total + changes, changed + changes);
            let (_, _, last) = change(total)?;
            let (path, pod) = last.split_once('\n').ok_or("no path")?;
            for sidecar in &sidecars {
                until(&sidecar.address, path, pod, TIME_MAX).await?;
            }
            let after = [sidecars[0].counters()?, sidecars[1].counters()?];
            let [(with, with_bytes), (without, without_bytes)] = [0, 1].map(|at| difference(before[at], after[at]));
            cpu_ratios.push(with.as_secs_f64() / without.as_secs_f64().max(0.01));
            byte_ratios.push(ratio(with_bytes, without_bytes));
        }
        let [(with, with_bytes), (without, without_bytes)] =
            [difference(first[0], sidecars[0].counters()?), difference(first[1], sidecars[1].counters()?)];
        println!(
            "  {rate}/s ({:.0}/s reached): CPU {:.2} times ({:.2} in the median of {} rounds), {:.0} instead of {:.0} µs per change; written {:.2} times ({:.2}), {} instead of {} B per change",
            ratio(changed, 1) / elapsed.as_secs_f64(),
            with.as_secs_f64() / without.as_secs_f64().max(0.01),
            median(cpu_ratios),
            rounds(),
            with.as_secs_f64() * 1e6 / ratio(changed, 1),
            without.as_secs_f64() * 1e6 / ratio(changed, 1),
            ratio(with_bytes, without_bytes),
            median(byte_ratios),
            with_bytes / changed,
            without_bytes / changed,
        );
    }
    println!("  resident {} instead of {} MB", sidecars[0].running.resident_mb()?, sidecars[1].running.resident_mb()?);
    println!("  status: {}", history_status(&sidecars[0].address).await?);
    let data = sidecars[0].home.join("data");
    for sidecar in sidecars {
        // the end seals the rest of the history
        sidecar.running.terminate()?;
    }
    let (bytes, files) = history_bytes(&data)?;
    println!("  on the disk: {:.1} B per changed ipcache entry ({total} versions in {files} segments)", ratio(bytes, total));
    Ok(fs::remove_dir_all(&home)?)
}

fn difference(before: (Duration, u64), after: (Duration, u64)) -> (Duration, u64) {
    (after.0 - before.0, after.1 - before.1)
}

/// Returns the member `history` of the status.
pub(super) async fn history_status(address: &str) -> Outcome<String> {
    let status = ask(address, "/v1/status").await?;
    let (_, history) = status.split_once("\"history\":").ok_or("no history in the status")?;
    Ok(history.split_inclusive('}').next().unwrap_or_default().to_owned())
}
