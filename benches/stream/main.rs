//! Bench of the change stream, with ratios to bare programs in the same run: `cargo bench --bench
//! stream -- [figure…]`.
//!
//! Each figure runs its servers and its load in separate processes (this binary in several roles),
//! so that a server's CPU time is its own. It prints the measurements with the size of the data and
//! the target. There are no thresholds.

mod bare;
mod child;
mod figures;
mod load;
#[path = "../processes/mod.rs"]
#[allow(dead_code, reason = "another bench needs more of it")]
mod processes;
mod put_to_event;
mod server;
#[path = "../processes/sized.rs"]
mod small;

use self::processes::Outcome;
use self::small::sized;

/// The allocator of the real process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (role, arguments) = words.split_first().map_or(("", &words[..]), |(first, rest)| (first.as_str(), rest));
    match role {
        "role:server" => server::run(),
        "role:bare" => bare::run(),
        "role:load" => load::run(arguments),
        _ => figures::run(&words),
    }
}
