//! `meshkeep announce`: what a cluster of machines outside Kubernetes would be published as, from files.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::failure::{Failure, Verdict};
use super::output::print;
use crate::announce::{FileError, dry_run};

/// What to announce.
#[derive(Debug, Args)]
pub(super) struct AnnounceOptions {
    /// The files: one cluster in all of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print the keys and values; the numbers of identities are examples
    #[arg(long, required = true)]
    dry_run: bool,
}

/// Prints what would be written.
pub(super) fn run(options: &AnnounceOptions) -> Result<Verdict, Failure> {
    let wrong = |faults: Vec<FileError>| Failure::not_found(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let mut text = String::new();
    for (key, value) in dry_run(&options.files).map_err(wrong)? {
        let _ = writeln!(text, "{key} => {value}");
    }
    print(&text)?;
    Ok(Verdict::of(options.dry_run))
}
