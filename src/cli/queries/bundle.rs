//! `meshkeep bundle`: one tar with everything that is needed to diagnose a meshkeep from elsewhere.
//!
//! The command requests each file separately, and only from endpoints that any client may use. A
//! request that fails is noted in `errors.txt`, and the other files are still written.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::api_client::{ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{one_line, print};
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

/// Files with text answers, and their API paths. A probe that fails has text too.
const TEXTS: [(&str, &str); 3] = [("ready.txt", "/readyz?verbose"), ("synced.txt", "/readyz?synced&verbose"), ("metrics.txt", "/metrics")];

#[derive(Debug, Args)]
pub(in crate::cli) struct BundleOptions {
    /// File to write; `-` is standard output [default: meshkeep-bundle-TIME.tar in the current
    /// directory]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
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
    let is_complete = failures.is_empty();
    // only about.json: no request was answered
    if files.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return Err(failure);
    }
    if !is_complete {
        let mut text = String::new();
        for (name, failure) in &failures {
            let _ = writeln!(text, "{name}: {}", one_line(&failure.to_string()));
        }
        crate::cli::print_to_stderr(format!("some requests failed:\n{text}"));
        files.push(("errors.txt", text));
    }
    let bytes = write_tar(&files, now).map_err(|error| Failure::new(format!("cannot create the bundle: {error}")))?;
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{FOLDER}-{}.tar", now.strftime("%Y%m%dT%H%M%SZ"))));
    write(&path, &bytes).map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    if path != Path::new(STANDARD_OUTPUT) {
        print(&format!("{}: {} files, {} bytes\n", path.display(), files.len(), bytes.len()))?;
    }
    Ok(ExitStatus::from_success(is_complete))
}

/// Names and contents of the files in the tar.
type BundleFiles = Vec<(&'static str, String)>;

fn add_answer(files: &mut BundleFiles, failures: &mut Vec<(&'static str, Failure)>, name: &'static str, answer: Result<String, Failure>) {
    match answer {
        Ok(text) => files.push((name, text)),
        Err(failure) => failures.push((name, failure)),
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

fn write_tar(files: &BundleFiles, now: jiff::Timestamp) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(u64::try_from(now.as_second()).unwrap_or_default());
        tar.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    tar.into_inner()
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path == Path::new(STANDARD_OUTPUT) {
        let mut output = io::stdout().lock();
        return output.write_all(bytes).and_then(|()| output.flush());
    }
    // the process's umask makes it readable by its owner only
    std::fs::write(path, bytes)
}
