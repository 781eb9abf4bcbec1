//! Bench of the mirror in memory, with a million keys: `just bench view
//! [packing|folding|memory|lookup|apply|decode|service]` (default: all).
//!
//! Each figure is measured in its own process, with a reference in the same run. Other load on the
//! machine affects all of them, so only ratios are meaningful.

mod data;
mod decode;
mod figures;

use std::process::Command;

/// The allocator of the real process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FIGURES: [(&str, fn()); 7] = [
    ("packing", figures::packing),
    ("folding", figures::folding),
    ("memory", figures::memory),
    ("lookup", figures::lookup),
    ("apply", figures::apply),
    ("decode", decode::decode),
    ("service", decode::service),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mark, name] = arguments.as_slice()
        && mark == "--figure"
    {
        FIGURES.iter().filter(|(figure, _)| figure == name).for_each(|(_, measure)| measure());
        return;
    }
    let executable = std::env::current_exe().expect("must know the executable");
    for (name, _) in FIGURES.iter().filter(|(name, _)| arguments.is_empty() || arguments.iter().any(|argument| argument == name)) {
        println!("{name}:");
        let status = Command::new(&executable).args(["--figure", name]).status().expect("must start");
        assert!(status.success(), "{name} failed");
    }
}
