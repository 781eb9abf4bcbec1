//! Parsed input files and the errors in them, with their position.

use std::path::PathBuf;

use super::yaml::FileYaml;
use super::yaml_path::YamlPath;

/// Maximum number of reported errors. The author of a file corrects the first ones and runs again.
pub(super) const ERRORS_MAX: usize = 20;

/// An error in an input file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {reason}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line of the error, counted from 1, if it is known.
    pub line: Option<usize>,
    /// Path within the document, and the reason.
    pub reason: String,
}

/// An input file that could be parsed.
#[derive(Debug)]
pub(super) struct ParsedFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) yaml: FileYaml,
}

impl ParsedFile {
    /// Returns the content of a deleted file, which is empty.
    pub(super) fn missing(path: PathBuf) -> Self {
        Self { path, text: String::new(), yaml: FileYaml::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.yaml.nodes.is_empty() && self.yaml.workloads.is_empty() && self.yaml.services.is_empty()
    }

    /// Returns an error at the position that `path` leads to.
    pub(super) fn error_at(&self, path: &YamlPath, reason: &str) -> FileError {
        FileError { path: self.path.clone(), line: Some(path.line(&self.text)), reason: format!("{path}: {reason}") }
    }
}
