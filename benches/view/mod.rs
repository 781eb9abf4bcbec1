//! Bench of the mirror in memory, with a million keys: `just bench view
//! [packing|folding|memory|lookup|filters|apply|decode|service]` (default: all).
//!
//! Each figure is measured in its own process, with a reference in the same run. Other load on the
//! machine affects all of them, so only ratios are meaningful.

pub(crate) mod data;
mod decode;
mod figures;
mod filters;

use crate::processes::{Outcome, child_of};

const FIGURES: [(&str, fn()); 8] = [
    ("packing", figures::packing),
    ("folding", figures::folding),
    ("memory", figures::memory),
    ("lookup", figures::lookup),
    ("filters", filters::filters),
    ("apply", figures::apply),
    ("decode", decode::decode),
    ("service", decode::service),
];

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    if let [mark, name] = words
        && mark == "role:figure"
    {
        FIGURES.iter().filter(|(figure, _)| figure == name).for_each(|(_, measure)| measure());
        return Ok(());
    }
    for (name, _) in FIGURES.iter().filter(|(name, _)| words.is_empty() || words.iter().any(|word| word == name)) {
        println!("{name}:");
        let status = child_of("view")?.args(["role:figure", name]).status()?;
        if !status.success() {
            return Err(format!("{name}: {status}").into());
        }
    }
    Ok(())
}
