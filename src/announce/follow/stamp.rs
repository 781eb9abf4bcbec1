//! What tells two states of a file apart without reading it.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The state of a path as the system reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileStamp {
    /// Nothing is at the path.
    Missing,
    /// The system does not say whether a file is there. Never taken for a deleted file.
    Unreadable(String),
    /// A file is there.
    Present(FileVersion),
}

/// A version of a file: each write and each replacement makes another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Time of the last write, in seconds and nanoseconds since 1970.
    pub(super) modified: (i64, i64),
    /// Time of the last change of content or attributes, in seconds and nanoseconds since 1970. No program can set it.
    pub(super) changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of what is at a path now. Blocks.
    pub(super) fn of(path: &Path) -> Self {
        match std::fs::metadata(path) {
            Ok(found) => Self::Present(FileVersion {
                device: found.dev(),
                inode: found.ino(),
                size: found.size(),
                modified: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    /// How long ago the file was changed last. Zero for a time in the future, and where there is no file.
    pub(super) fn age(&self, now: SystemTime) -> Duration {
        let Self::Present(FileVersion { changed: (seconds, nanos), .. }) = self else { return Duration::ZERO };
        let (seconds, nanos) = (u64::try_from(*seconds).unwrap_or(0), u32::try_from(*nanos).unwrap_or(0));
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
        changed.and_then(|changed| now.duration_since(changed).ok()).unwrap_or_default()
    }
}
