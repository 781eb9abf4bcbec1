//! `meshkeep store inspect|verify|export`: reads a store that no process uses.
//!
//! Exit codes: 0 success, 1 damaged, 2 incorrect usage, 3 in use.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::failure::{CommandResult, ExitStatus, Failure};
use crate::cli::terminal::output::{EscapingWriter, print_document};
use crate::cli::terminal::progress::ProgressLine;
use crate::runtime::{Inspection, StoreError, inspect_store};

/// Number of entries that are printed between two updates of the progress line. Printing them takes
/// some milliseconds.
const ENTRIES_PER_UPDATE: usize = 1_000;

/// Length of the longest bar of the chart, in characters.
const BAR_WIDTH: u64 = 40;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum StoreCommand {
    /// Show the content of the store and its use of disk space
    Inspect(StoreOptions),
    /// Verify every checksum, and that no data is missing
    Verify(StoreOptions),
    /// Print every entry as a line of JSON
    Export(StoreOptions),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct StoreOptions {
    /// Data directory of a meshkeep that does not run
    #[arg(long, value_name = "DIR", env = "MESHKEEP_DATA_DIR", default_value = "/var/lib/meshkeep")]
    data_dir: PathBuf,
}

/// Function that prints the result of an inspection.
type PrintFn = fn(&Inspection, &mut dyn Write) -> io::Result<()>;

pub(in crate::cli) fn run(command: &StoreCommand) -> CommandResult {
    let (options, print): (&StoreOptions, PrintFn) = match command {
        StoreCommand::Inspect(options) => (options, print_summary),
        StoreCommand::Verify(options) => (options, print_verification),
        StoreCommand::Export(options) => (options, print_entries),
    };
    inspect(&options.data_dir, print)
}

fn inspect(data_directory: &Path, print: PrintFn) -> CommandResult {
    let progress = ProgressLine::start("reading the store");
    let inspection = inspect_store(data_directory, &|step| progress.set_text(step)).map_err(|error| match error {
        StoreError::Locked { .. } => Failure::unavailable(error.to_string()),
        error => Failure::new(error.to_string()),
    })?;
    drop(progress);
    for loss in &inspection.losses {
        crate::cli::print_error(loss);
    }
    print_document(|out| print(&inspection, &mut EscapingWriter(BufWriter::new(out))))?;
    Ok(ExitStatus::from_success(inspection.losses.is_empty()))
}

fn print_verification(inspection: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    if inspection.losses.is_empty() {
        writeln!(out, "intact: {} entries, up to group {}", inspection.contents.record_count(), inspection.group_number)?;
    }
    out.flush()
}

fn print_summary(inspection: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    let loaded = &inspection.contents;
    writeln!(out, "layout {}, group {}", inspection.layout, inspection.group_number)?;
    writeln!(
        out,
        "{} entries, {} cursors, {} clusters, {} tombstones; sequences up to {}, stored up to {}",
        loaded.record_count(),
        loaded.cursors.len(),
        loaded.clusters.len(),
        loaded.tombstones.len(),
        loaded.sequence_reserved,
        loaded.covered_sequence
    )?;
    let stored: u64 = inspection.usage.iter().map(|usage| usage.stored_bytes).sum();
    writeln!(out, "\n{:<42} {:>8} {:>10} {:>12} {:>12}", "data", "objects", "keys", "raw bytes", "stored")?;
    for usage in &inspection.usage {
        let bar = "#".repeat(usize::try_from(usage.stored_bytes * BAR_WIDTH / inspection.disk_bytes.max(1)).unwrap_or(0));
        writeln!(
            out,
            "{:<42} {:>8} {:>10} {:>12} {:>12} {bar}",
            usage.name, usage.objects, usage.keys, usage.raw_bytes, usage.stored_bytes
        )?;
    }
    let other_bytes = inspection.disk_bytes.saturating_sub(stored);
    let bar = "#".repeat(usize::try_from(other_bytes * BAR_WIDTH / inspection.disk_bytes.max(1)).unwrap_or(0));
    writeln!(out, "{:<42} {:>8} {:>10} {:>12} {other_bytes:>12} {bar}", "the engine's own data and free space", "", "", "")?;
    writeln!(out, "{:<42} {:>8} {:>10} {:>12} {:>12}", "on disk", "", "", "", inspection.disk_bytes)?;
    out.flush()
}

fn print_entries(inspection: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    // on a terminal the printed lines themselves show the progress
    let progress = (!io::stdout().is_terminal()).then(|| ProgressLine::start("reading the store"));
    let records = inspection.contents.records();
    for (number, record) in records.iter().enumerate() {
        if let Some(progress) = progress.as_ref().filter(|_| number % ENTRIES_PER_UPDATE == 0) {
            progress.set_text(format!("printed {number} of {} entries", records.len()));
        }
        let mut line = json!({
            "key": record.key.to_string(),
            "modRevision": record.source.mod_revision.0,
            "lease": record.source.lease.0,
            "createSequence": record.create_sequence.0,
            "lastSequence": record.last_sequence.0,
            "version": record.version,
        });
        match std::str::from_utf8(&record.value) {
            Ok(text) => line["value"] = json!(text),
            Err(_) => line["valueBase64"] = json!(STANDARD.encode(&record.value)),
        }
        if let Some(rejection) = &record.rejection {
            line["rejected"] = json!(*rejection.reason);
        }
        writeln!(out, "{line}")?;
    }
    out.flush()
}
