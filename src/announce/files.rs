//! Reading and parsing of the input files, with limits on their number and size.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check;
use super::error::{ERRORS_MAX, FileError, ParsedFile};
use super::plan::ClusterPlan;
use crate::files::read_bounded;
use crate::yaml::{self, Limits};

/// Maximum size of a file, in bytes: 256 bytes for each of the 65,536 workloads that could have an
/// identity of their own in the largest range.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Limits of the YAML parser. A file of the maximum size has one event per four bytes at most, and
/// the format nests no deeper than six levels.
const LIMITS: Limits = Limits { nesting: 32, events: 4_000_000, bytes: FILE_BYTES_MAX };

/// Maximum number of files: one file per rack, for more racks than a data centre has.
const FILES_MAX: usize = 1_024;

/// Reads all files and returns their plan. Blocks.
///
/// # Errors
/// The first [`FileError`]s, up to twenty; at least one.
pub fn read_files(paths: &[PathBuf]) -> Result<ClusterPlan, Vec<FileError>> {
    check_count(paths)?;
    check_files(paths.iter().map(|path| read_file(path).map(Arc::new)))
}

/// Returns an error if there are more than [`FILES_MAX`] files.
pub(super) fn check_count(paths: &[PathBuf]) -> Result<(), Vec<FileError>> {
    let Some(path) = paths.get(FILES_MAX) else { return Ok(()) };
    let reason = format!("{} files are too many: at most {FILES_MAX} can be announced", paths.len());
    Err(vec![FileError { path: path.clone(), line: None, reason }])
}

/// Returns the plan of files that were read, or the first twenty errors in them.
pub(super) fn check_files(files: impl IntoIterator<Item = Result<Arc<ParsedFile>, FileError>>) -> Result<ClusterPlan, Vec<FileError>> {
    let (mut parsed_files, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match file {
            Ok(file) => parsed_files.push(file),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        let plan = check::check(&parsed_files, &mut errors);
        if let Some(plan) = plan.filter(|_| errors.is_empty()) {
            return Ok(plan);
        }
    }
    errors.truncate(ERRORS_MAX);
    Err(errors)
}

pub(super) fn read_file(path: &Path) -> Result<ParsedFile, FileError> {
    let file_error = |line, reason| FileError { path: path.to_owned(), line, reason };
    let bytes = read_bounded(path, FILE_BYTES_MAX).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => file_error(None, format!("is larger than {FILE_BYTES_MAX} bytes")),
        _ => file_error(None, format!("cannot be read: {error}")),
    })?;
    let text = String::from_utf8(bytes).map_err(|_| file_error(None, "cannot be read: the file is not UTF-8".to_owned()))?;
    yaml::check(&text, &LIMITS).map_err(|error| file_error(usize::try_from(error.line()).ok(), error.reason()))?;
    match serde_yaml_ng::from_str(&text) {
        Ok(yaml) => Ok(ParsedFile { path: path.to_owned(), text, yaml }),
        Err(error) => {
            let line = error.location().map(|location| location.line());
            let message = error.to_string();
            // `FileError` shows the line already
            let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason).to_owned();
            Err(file_error(line, reason))
        }
    }
}
