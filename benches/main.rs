//! All benches, in one program: `cargo bench -- BENCH [argument…]`.
//!
//! Each folder except `processes` is a bench. Benches measure processes rather than functions. A
//! bench starts this program again as a child for each role that it needs, such as the bare server
//! that it compares with.

mod api;
mod cost;
mod etcd;
mod guard;
mod history;
mod kvstore;
mod processes;
mod start;
mod store;
mod stream;
mod sync;
mod view;

use processes::Outcome;

/// The allocator of the sidecar.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs a bench with its arguments.
type Bench = fn(&[String]) -> Outcome<()>;

const BENCHES: [(&str, Bench); 11] = [
    ("api", api::run),
    ("cost", cost::run),
    ("etcd", etcd::run),
    ("guard", guard::run),
    ("history", history::run),
    ("kvstore", kvstore::run),
    ("start", start::run),
    ("store", store::run),
    ("stream", stream::run),
    ("sync", sync::run),
    ("view", view::run),
];

fn main() -> Outcome<()> {
    // cargo adds `--bench`
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let Some((name, arguments)) = words.split_first() else { return Err(usage().into()) };
    let Some((_, run)) = BENCHES.iter().find(|(bench, _)| bench == name) else { return Err(usage().into()) };
    run(arguments)
}

fn usage() -> String {
    format!("name a bench: {}", BENCHES.map(|(name, _)| name).join(", "))
}
