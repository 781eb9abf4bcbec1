//! A file as it was read, and what is wrong in it.

use std::path::PathBuf;

use super::locate::Way;
use super::yaml::FileYaml;

/// How many faults are told: who wrote them wants the first ones.
pub(super) const FAULTS_MAX: usize = 20;

/// Something wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {reason}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1, where it has one.
    pub line: Option<usize>,
    /// Where in the file, and what is wrong.
    pub reason: String,
}

/// A file that has the right form.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) yaml: FileYaml,
}

impl ReadFile {
    /// The content of a file that was deleted.
    pub(super) fn missing(path: PathBuf) -> Self {
        Self { path, text: String::new(), yaml: FileYaml::default() }
    }

    /// Whether the file has no entry of any kind.
    pub(super) fn is_empty(&self) -> bool {
        self.yaml.nodes.is_empty() && self.yaml.workloads.is_empty() && self.yaml.services.is_empty()
    }

    /// Something wrong at the end of a way.
    pub(super) fn fault(&self, way: &Way, reason: &str) -> FileError {
        FileError { path: self.path.clone(), line: Some(way.line(&self.text)), reason: format!("{way}: {reason}") }
    }
}
