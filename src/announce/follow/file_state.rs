//! State of a followed file: metadata that shows without reading whether the file changed.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The state of a path as the system reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileState {
    /// No file exists at the path.
    Missing,
    /// The system reports an error other than "not found". Never treated as a deleted file.
    Unreadable(String),
    Present(FileVersion),
}

/// Metadata that differs between any two versions of a file: each write and each replacement
/// changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Time of the last write, in seconds and nanoseconds since 1970.
    pub(super) modified: (i64, i64),
    /// Time of the last change of content or attributes, in seconds and nanoseconds since 1970.
    /// Programs cannot set it.
    pub(super) changed: (i64, i64),
}

impl FileState {
    /// Reads the current state of a path. Blocks.
    pub(super) fn read(path: &Path) -> Self {
        match std::fs::metadata(path) {
            Ok(metadata) => Self::Present(FileVersion {
                device: metadata.dev(),
                inode: metadata.ino(),
                size: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    /// Returns the time since the last change of the file. Zero for a time in the future, and if
    /// there is no file.
    pub(super) fn age(&self, now: SystemTime) -> Duration {
        let Self::Present(FileVersion { changed: (seconds, nanos), .. }) = self else { return Duration::ZERO };
        let (seconds, nanos) = (u64::try_from(*seconds).unwrap_or(0), u32::try_from(*nanos).unwrap_or(0));
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
        changed.and_then(|changed| now.duration_since(changed).ok()).unwrap_or_default()
    }
}
