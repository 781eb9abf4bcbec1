//! The meshkeep binary: parse, run, exit code.

use std::process::ExitCode;

#[cfg(feature = "jemalloc")]
use tikv_jemallocator::Jemalloc;

/// Thousands of connections and a million keys come and go: jemalloc keeps an idle stream at 9 KiB
/// where glibc needs 13, and gives memory back after a resync. Its settings are in
/// `.cargo/config.toml`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    meshkeep::cli::run(std::env::args_os())
}
