//! Disk space that the data directory uses, by class of files (docs/develop/store.md).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::ENGINE_DIRECTORY;

/// Unit of [`MetadataExt::blocks`], in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// Name of the history's directory in the data directory.
const HISTORY_DIRECTORY: &str = "history";

/// Classes of files. The order is that of the metric.
const CLASSES: [&str; 5] = ["store", "log", "history", "setAside", "other"];

/// Returns the allocated bytes of each class. Files that cannot be read count as 0.
#[must_use]
pub fn disk_usage_by_class(directory: &Path) -> Vec<(&'static str, u64)> {
    let mut bytes = CLASSES.map(|class| (class, 0));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let class = class_of(&entry.file_name().to_string_lossy());
        if let Some((_, sum)) = bytes.iter_mut().find(|(name, _)| *name == class) {
            *sum += disk_usage_of(&entry.path());
        }
    }
    bytes.to_vec()
}

fn class_of(name: &str) -> &'static str {
    match name {
        ENGINE_DIRECTORY => "store",
        super::log::files::LOG_DIRECTORY => "log",
        HISTORY_DIRECTORY => "history",
        _ if name.starts_with(super::directory::set_aside::SET_ASIDE_PREFIX) => "setAside",
        _ => "other",
    }
}

/// Returns the allocated bytes of a file, or of everything below a directory. Does not follow
/// links.
///
/// The recursion is shallow: meshkeep's own directories are at most two levels deep. A file that
/// cannot be read counts as 0: sled may remove its files at any time.
pub(super) fn disk_usage_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let bytes_below = if metadata.is_dir() {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| disk_usage_of(&entry.path())).sum()
    } else {
        0
    };
    metadata.blocks() * BLOCK_BYTES + bytes_below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_is_reported_by_class() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, length: usize| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![7; length]).unwrap();
        };
        write("store/db", 1 << 20);
        write("history/1-9", 3 << 20);
        write("set-aside-damaged-1/db", 2 << 20);
        write("reserve", 4 << 20);
        let bytes: Vec<(&str, u64)> =
            disk_usage_by_class(directory.path()).into_iter().map(|(class, bytes)| (class, bytes >> 20)).collect();
        assert_eq!(bytes, [("store", 1), ("log", 0), ("history", 3), ("setAside", 2), ("other", 4)]);
        assert_eq!(disk_usage_by_class(&directory.path().join("none")).iter().map(|(_, bytes)| bytes).sum::<u64>(), 0);
    }
}
