//! Names of stores and files that were set aside in the data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Prefix of the names of stores and files that were set aside.
pub(in crate::store) const SET_ASIDE_PREFIX: &str = "set-aside";

/// Returns an unused path: the prefix, the reason, and the time in seconds since 1970.
pub(in crate::store) fn unused_path(data_directory: &Path, reason: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let is_unused = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    let mut paths = (seconds..).map(|seconds| data_directory.join(format!("{SET_ASIDE_PREFIX}-{reason}-{seconds}")));
    paths.find(is_unused).unwrap_or_else(|| data_directory.join(SET_ASIDE_PREFIX))
}
