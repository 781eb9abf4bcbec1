//! Reference for the time until a group is durable: writes and syncs a block repeatedly, on the
//! disk of the store and at the same time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Outcome, millis};

/// Size of the block: a part of a commit at 20,000 changes/s.
pub(crate) const SYNC_BYTES: usize = 32 << 10;

/// Number of blocks that are written in turn. Like the store's slots, the file does not grow.
const BLOCKS: u64 = 64;

/// Interval of the writes: that of groups at high rates.
const PERIOD: Duration = Duration::from_millis(25);

/// The loop of writes, in its own thread.
pub(crate) struct SyncLoop {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Vec<(Instant, Duration)>>>,
}

impl SyncLoop {
    /// Starts the loop with a file next to the store's directory.
    pub(crate) fn begin(directory: &Path) -> Outcome<Self> {
        let path = directory.with_extension("sync");
        let (file, stop) = (File::create(&path)?, Arc::new(AtomicBool::new(false)));
        let stop_flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut times = Vec::new();
            while !stop_flag.load(Ordering::Relaxed) {
                let began = Instant::now();
                let block = times.len() as u64 % BLOCKS;
                file.write_all_at(&[7; SYNC_BYTES], block * SYNC_BYTES as u64)?;
                file.sync_data()?;
                times.push((began, began.elapsed()));
                std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
            }
            Ok(times)
        });
        Ok(Self { path, stop, thread })
    }

    /// Stops the loop. Returns the start and the duration of each sync.
    pub(crate) fn end(self) -> Outcome<Vec<(Instant, Duration)>> {
        self.stop.store(true, Ordering::Relaxed);
        let times = self.thread.join().map_err(|_| "the loop of syncs panicked")??;
        fs::remove_file(self.path)?;
        Ok(times)
    }
}

/// Times of a group of changes.
pub(crate) struct Wait {
    pub(crate) taken: Instant,
    /// Time since the previous group was taken.
    pub(crate) since: Duration,
    pub(crate) storing: Duration,
    pub(crate) tending: Duration,
    pub(crate) end: Instant,
}

/// Prints how the slowest groups spent their time, with the longest sync during each.
pub(crate) fn print_slowest_groups(mut groups: Vec<Wait>, syncs: &[(Instant, Duration)], started: Instant) {
    groups.sort_by_key(|group| std::cmp::Reverse(group.storing + group.tending));
    for Wait { taken, since, storing, tending, end } in groups.into_iter().take(8) {
        let meanwhile = syncs.iter().filter(|(began, duration)| *began < end && *began + *duration > taken);
        let longest = meanwhile.map(|(_, duration)| *duration).max().unwrap_or_default();
        println!(
            "  slow, at {:.1} s: {:.0} ms after the previous group, {:.0} ms storing, {:.0} ms folding; longest sync meanwhile {:.0} ms",
            (taken - started).as_secs_f64(),
            since.as_secs_f64() * 1e3,
            storing.as_secs_f64() * 1e3,
            tending.as_secs_f64() * 1e3,
            longest.as_secs_f64() * 1e3
        );
    }
    let mut times: Vec<Duration> = syncs.iter().map(|(_, duration)| *duration).collect();
    println!(
        "  a loop that writes and syncs {} KB meanwhile: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        SYNC_BYTES >> 10,
        millis(&mut times, 50),
        millis(&mut times, 99),
        millis(&mut times, 100)
    );
}
