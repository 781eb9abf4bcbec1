//! Bench of the history: `cargo bench -- history [write | large [versions] [versions per segment]]`
//! (default: both, with 20 million versions).
//!
//! - `write`: the CPU time and the written bytes of the real sidecar while clusters change; the
//!   reference is a second sidecar with `--history off` that mirrors the same changes at the same
//!   time. Also the bytes of a version on the disk.
//! - `large`: a sidecar with a store of a million keys and a large generated history: its memory,
//!   its starts, and its answers about earlier times. The reference is the same store without a
//!   history.
//!
//! A history at 325 changes per second has 200 million versions after a week. There are no
//! thresholds.

mod generate;
mod large;
mod write;

use std::path::{Path, PathBuf};

use crate::processes::Outcome;
use crate::view::data::sized;

/// Returns how often each figure is measured.
fn rounds() -> u32 {
    sized(5, 1)
}

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    let run_large = || large::large(number(1, sized(20_000_000, 20_000))?, number(2, sized(generate::SEGMENT_VERSIONS, 4_096))?);
    match words.first() {
        Some(&"role:fill") => generate::fill(Path::new(words[1]), number(2, 0)?),
        Some(&"role:generate") => generate::generate(Path::new(words[1]), number(2, 0)?, number(3, 1)?),
        Some(&"write") => write::write(),
        Some(&"large") => run_large(),
        Some(other) => Err(format!("there is no figure {other}: write, large").into()),
        None => {
            write::write()?;
            run_large()
        }
    }
}

/// Creates a directory for a figure, on the disk that `MESHKEEP_BENCH_DIRECTORY` names.
fn create_home() -> Outcome<PathBuf> {
    let parent = std::env::var("MESHKEEP_BENCH_DIRECTORY").unwrap_or_else(|_| "target".to_owned());
    let home = std::fs::canonicalize(parent)?.join(format!("bench-history-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    Ok(home)
}

/// Returns the length of all files of a history in bytes, and their number.
fn history_bytes(data: &Path) -> Outcome<(u64, u64)> {
    let (mut bytes, mut count) = (0, 0);
    for file in std::fs::read_dir(data.join("history"))? {
        bytes += file?.metadata()?.len();
        count += 1;
    }
    Ok((bytes, count))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[allow(clippy::cast_precision_loss, reason = "only printed")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}
