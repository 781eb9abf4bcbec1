//! `meshkeep bundle`: one tar with everything that is needed to diagnose a meshkeep from elsewhere.
//!
//! The command requests each file separately, and only from endpoints that any client may use. A
//! request that fails is noted in `errors.txt`, and the other files are still written. With
//! `--entries`, the bundle also has all mirrored keys, in files of some MiB each, so that the
//! command needs no more memory for a large mesh.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tar::{Builder, Header};
use tokio::time::timeout;

use super::api_client::{ANSWER_TIME_MAX, ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{one_line, print};
use crate::cli::terminal::progress::ProgressLine;
use crate::dto::log::Log;

const FOLDER: &str = "meshkeep-bundle";

/// Argument that selects standard output instead of a file.
const STANDARD_OUTPUT: &str = "-";

/// Mode of files in the tar: only the user who ran the command may read data about the mesh.
const FILE_MODE: u32 = 0o600;

/// Files with JSON answers, and their API paths. Of each list, the bundle has only the first page,
/// at most 4 MiB: far more problems than anybody reads.
const ANSWERS: [(&str, &str); 5] = [
    ("status.json", "/v1/status"),
    ("clusters.json", "/v1/clusters?limit=10000"),
    ("problems.json", "/v1/problems?limit=10000"),
    ("rejected.json", "/v1/rejected?limit=10000"),
    ("config.json", "/v1/config"),
];

/// Minimum size of a file of entries, in bytes. Only the last file may be smaller.
const ENTRIES_FILE_BYTES: usize = 8 << 20;

/// Maximum size of one entry, in bytes.
const ENTRY_BYTES_MAX: usize = super::api_client::ANSWER_BYTES_MAX;

/// Files with text answers, and their API paths. A probe that fails has text too.
const TEXTS: [(&str, &str); 3] = [("ready.txt", "/readyz?verbose"), ("synced.txt", "/readyz?synced&verbose"), ("metrics.txt", "/metrics")];

#[derive(Debug, Args)]
pub(in crate::cli) struct BundleOptions {
    /// File to write; `-` is standard output [default: meshkeep-bundle-TIME.tar in the current
    /// directory]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Add all mirrored keys, so that `meshkeep load` can serve the bundle; they contain the
    /// topology: names, labels and addresses of all nodes, services and pods
    #[arg(long)]
    entries: bool,
}

/// Requests and writes all files. Returns [`ExitStatus::Failed`] if a request was not answered.
pub(in crate::cli) async fn run(options: &BundleOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    let now = jiff::Timestamp::now();
    let (mut files, mut failures) = (vec![("about.json", pretty(&bundle_info(now)))], Vec::new());
    for (name, path) in ANSWERS {
        add_answer(&mut files, &mut failures, name, client.get(path, &[]).await.map(|answer| pretty(&answer)));
    }
    add_answer(&mut files, &mut failures, "log.txt", client.get("/v1/log", &[]).await.map(lines));
    for (name, path) in TEXTS {
        add_answer(&mut files, &mut failures, name, client.probe(path).await.map(|(_, text)| text));
    }
    // only about.json: no request was answered
    if files.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return Err(failure);
    }
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{FOLDER}-{}.tar", now.strftime("%Y%m%dT%H%M%SZ"))));
    let unwritable = |error: io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    let mut tar = BundleWriter::create(&path, now).map_err(unwritable)?;
    for (name, text) in &files {
        tar.add(name, text.as_bytes()).map_err(unwritable)?;
    }
    if options.entries
        && let Err(failure) = add_entries(&client, &mut tar, &path).await?
    {
        failures.push(("entries", failure));
    }
    if !failures.is_empty() {
        let mut text = String::new();
        for (name, failure) in &failures {
            let _ = writeln!(text, "{name}: {}", one_line(&failure.to_string()));
        }
        crate::cli::print_to_stderr(format!("some requests failed:\n{text}"));
        tar.add("errors.txt", text.as_bytes()).map_err(unwritable)?;
    }
    let (file_count, byte_count) = tar.finish().map_err(unwritable)?;
    if path != Path::new(STANDARD_OUTPUT) {
        print(&format!("{}: {file_count} files, {byte_count} bytes\n", path.display()))?;
    }
    Ok(ExitStatus::from_success(failures.is_empty()))
}

/// Names and contents of the files in the tar.
type BundleFiles = Vec<(&'static str, String)>;

fn add_answer(files: &mut BundleFiles, failures: &mut Vec<(&'static str, Failure)>, name: &'static str, answer: Result<String, Failure>) {
    match answer {
        Ok(text) => files.push((name, text)),
        Err(failure) => failures.push((name, failure)),
    }
}

/// Adds all mirrored keys, in files of whole lines. If the request fails, returns its failure in
/// the inner result: the bundle then has the entries that arrived before, but not the list's last
/// line.
async fn add_entries(client: &ApiClient, tar: &mut BundleWriter, path: &Path) -> Result<Result<(), Failure>, Failure> {
    let progress = ProgressLine::start("requesting entries");
    let mut response = match client.stream("/v1/entries", &[]).await {
        Ok(response) => response,
        Err(failure) => return Ok(Err(failure)),
    };
    let (mut lines, mut number, mut outcome) = (Vec::new(), 0, Ok(()));
    loop {
        let chunk = match timeout(ANSWER_TIME_MAX, response.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => {
                outcome = Err(Failure::unavailable(format!("the list of entries broke off: {}", error.without_url())));
                None
            }
            Err(_) => {
                let silence = ANSWER_TIME_MAX.as_secs();
                outcome = Err(Failure::unavailable(format!("the list of entries broke off: no data for {silence} s")));
                None
            }
        };
        let is_end = chunk.is_none();
        lines.extend(chunk.into_iter().flatten());
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if lines.len() - whole > ENTRY_BYTES_MAX {
            return Ok(Err(client.too_large("an entry", ENTRY_BYTES_MAX)));
        }
        if whole > 0 && (is_end || whole >= ENTRIES_FILE_BYTES) {
            number += 1;
            let rest = lines.split_off(whole);
            tar.add(&format!("entries-{number:06}.ndjson"), &lines)
                .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
            lines = rest;
            progress.set_text(format!("{number} files of entries so far"));
        }
        if is_end {
            return Ok(outcome);
        }
    }
}

/// Returns when the bundle was made, and the version of this command. The sidecar's version is in
/// `status.json`.
fn bundle_info(now: jiff::Timestamp) -> Value {
    json!({ "made": now.to_string(), "by": format!("meshkeep {}", env!("MESHKEEP_VERSION")) })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns the lines of the log as one file.
fn lines(log: Log) -> String {
    log.lines.into_iter().fold(String::new(), |text, line| text + &line + "\n")
}

/// Writes the files of a bundle into a tar as they arrive.
struct BundleWriter {
    tar: Builder<ArchiveOutput>,
    /// Time of all files, in seconds since 1970.
    mtime: u64,
    file_count: usize,
}

impl BundleWriter {
    fn create(path: &Path, now: jiff::Timestamp) -> io::Result<Self> {
        let output: Box<dyn Write> = if path == Path::new(STANDARD_OUTPUT) {
            Box::new(io::stdout())
        } else {
            // the process's umask makes it readable by its owner only
            Box::new(File::create(path)?)
        };
        let output = ArchiveOutput { output: BufWriter::new(output), byte_count: 0 };
        Ok(Self { tar: Builder::new(output), mtime: u64::try_from(now.as_second()).unwrap_or_default(), file_count: 0 })
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(self.mtime);
        self.file_count += 1;
        self.tar.append_data(&mut header, format!("{FOLDER}/{name}"), bytes)
    }

    /// Ends the archive. Returns the number of its files and of its bytes.
    fn finish(self) -> io::Result<(usize, u64)> {
        let mut output = self.tar.into_inner()?;
        output.flush()?;
        Ok((self.file_count, output.byte_count))
    }
}

/// Output of the archive, with the number of its bytes.
struct ArchiveOutput {
    output: BufWriter<Box<dyn Write>>,
    byte_count: u64,
}

impl Write for ArchiveOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.output.write(bytes)?;
        self.byte_count += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
