//! Bench of the CPU time of requests, changes and first lists: `cargo bench -- cost [answers |
//! changes | first]` (default: all).
//!
//! - `answers`: CPU time for each request, with 3 and with 255 clusters, and while idle.
//! - `changes`: CPU time for each change that has an etcd revision of its own.
//! - `first`: CPU time for each key of a first list, and the resident memory after it.
//!
//! `MESHKEEP_BENCH_BEFORE` can name an older meshkeep. It is measured in turns with this one, so
//! that both columns of a table are from the same run. Each value is the median of five rounds.
//! There are no thresholds.

mod answers;
mod changes;
mod first;

use std::path::{Path, PathBuf};

use tokio::runtime::Runtime;

use crate::processes::Outcome;
use crate::view::data::sized;

/// A figure of this bench.
type Figure = fn(&Runtime, &[Program]) -> Outcome<()>;

const FIGURES: [(&str, Figure); 3] = [("answers", answers::run), ("changes", changes::run), ("first", first::run)];

/// A meshkeep to measure.
struct Program {
    /// Heading of its column.
    name: &'static str,
    path: PathBuf,
}

pub(crate) fn run(names: &[String]) -> Outcome<()> {
    if let Some(unknown) = names.iter().find(|name| FIGURES.iter().all(|(figure, _)| figure != name)) {
        return Err(format!("there is no figure {unknown}: {}", FIGURES.map(|(figure, _)| figure).join(", ")).into());
    }
    let before = std::env::var_os("MESHKEEP_BENCH_BEFORE").map(|path| Program { name: "before", path: path.into() });
    let after = Program { name: "after", path: env!("CARGO_BIN_EXE_meshkeep").into() };
    let programs: Vec<Program> = before.into_iter().chain([after]).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for (name, figure) in FIGURES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            println!("== {name}");
            figure(&runtime, &programs)?;
        }
    }
    Ok(())
}

/// Returns how often each value is measured.
fn rounds() -> usize {
    sized(5, 1)
}

/// A table with one row for each measured thing and one column for each program.
struct Table {
    /// Values of each row by program, one for each round.
    rows: Vec<(String, Vec<Vec<f64>>)>,
}

impl Table {
    const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds the value of one round.
    fn add(&mut self, row: &str, program: usize, value: f64) {
        let index = self.rows.iter().position(|(name, _)| name == row).unwrap_or_else(|| {
            self.rows.push((row.to_owned(), Vec::new()));
            self.rows.len() - 1
        });
        let values = &mut self.rows[index].1;
        values.resize_with(values.len().max(program + 1), Vec::new);
        values[program].push(value);
    }

    /// Prints the medians, and the ratio of the last program to the first.
    fn print(&self, title: &str, programs: &[Program]) {
        let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
        println!("| {title} | {} | ratio |", names.join(" | "));
        println!("|---|{}---|", "---|".repeat(names.len()));
        for (name, values) in &self.rows {
            let medians: Vec<f64> = values.iter().map(|values| median(values)).collect();
            let texts: Vec<String> = medians.iter().map(|value| format!("{value:.1}")).collect();
            let ratio = medians.last().zip(medians.first()).map_or(0.0, |(last, first)| last / first);
            println!("| {name} | {} | {ratio:.2} |", texts.join(" | "));
        }
    }
}

/// Returns the median, or 0 without values.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Creates the directory of a program below `home`.
fn create_directory(home: &Path, program: &Program, suffix: &str) -> Outcome<PathBuf> {
    let directory = home.join(format!("{}{suffix}", program.name));
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}
