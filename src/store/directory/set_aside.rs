//! The names of what is set aside in the data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The beginning of all of them.
pub(in crate::store) const SET_ASIDE: &str = "set-aside";

/// Returns a path that nothing has yet: the prefix, a word that says why, and the time in seconds since 1970.
pub(in crate::store) fn unused_path(data_directory: &Path, why: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let is_unused = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    let mut paths = (seconds..).map(|seconds| data_directory.join(format!("{SET_ASIDE}-{why}-{seconds}")));
    paths.find(is_unused).unwrap_or_else(|| data_directory.join(SET_ASIDE))
}
