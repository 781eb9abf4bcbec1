//! Foreign entries of the data directory: a symbolic link, a FIFO or a directory that has the name
//! of one of the store's files.
//!
//! The store never follows a link and never opens a FIFO, which may block forever. A foreign entry
//! is renamed if the store can create the file again. Among the engine's files it counts as damage,
//! and `recovery` sets the store aside.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::set_aside;
use crate::store::error::StoreError;

/// Type that an entry must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum ExpectedType {
    File,
    Directory,
}

/// Names in the engine's directory that this version or an earlier one writes. sled's snapshots
/// (`snap.*`) are files too.
const ENGINE_ENTRIES: [(&str, ExpectedType); 5] = [
    ("db", ExpectedType::File),
    ("conf", ExpectedType::File),
    ("format", ExpectedType::File),
    ("synced", ExpectedType::File),
    ("blobs", ExpectedType::Directory),
];

/// Prefix of the names of sled's snapshots. sled can do without them (docs/develop/measurements.md
/// §1.3, trap 6).
pub(in crate::store) const SNAPSHOT_PREFIX: &str = "snap.";

/// Returns the human-readable type of an entry that does not have the expected type. `None` if the
/// type is the expected one, or if there is no entry.
pub(in crate::store) fn foreign_type(path: &Path, expected: ExpectedType) -> io::Result<Option<&'static str>> {
    let file_type = match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        outcome => outcome?.file_type(),
    };
    let is_expected = match expected {
        ExpectedType::File => file_type.is_file(),
        ExpectedType::Directory => file_type.is_dir(),
    };
    Ok((!is_expected).then(|| type_name(file_type)))
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        _ if file_type.is_symlink() => "a symbolic link",
        _ if file_type.is_fifo() => "a FIFO",
        _ if file_type.is_dir() => "a directory",
        _ if file_type.is_file() => "a file",
        _ if file_type.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Refuses a foreign entry. Used for files that must not be renamed, because another process may
/// use them.
pub(super) fn refuse_foreign_file(path: &Path) -> Result<(), StoreError> {
    match foreign_type(path, ExpectedType::File) {
        Ok(Some(found)) => Err(StoreError::Foreign { path: path.to_owned(), file_type: found }),
        // the caller opens the file next, which returns a more specific error
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Opens a regular file. Follows no link and does not wait for the other end of a FIFO.
pub(in crate::store) fn open_file(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options.clone().custom_flags(i32::try_from(flags).unwrap_or_default()).open(path)?;
    let file_type = file.metadata()?.file_type();
    if file_type.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is {}", path.display(), type_name(file_type))))
    }
}

/// Returns a description of the first foreign entry among the engine's files. The engine must then
/// not be opened.
pub(in crate::store) fn find_foreign_engine_file(directory: &Path) -> io::Result<Option<String>> {
    let describe = |path: &Path, found| format!("{} is {found}, which meshkeep does not write there", path.display());
    if let Some(found) = foreign_type(directory, ExpectedType::Directory)? {
        return Ok(Some(describe(directory, found)));
    }
    let mut entries: Vec<(PathBuf, ExpectedType)> = ENGINE_ENTRIES.map(|(name, expected)| (directory.join(name), expected)).into();
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        files => {
            for file in files? {
                let file = file?;
                let is_snapshot = file.file_name().as_encoded_bytes().starts_with(SNAPSHOT_PREFIX.as_bytes());
                entries.extend(is_snapshot.then(|| (file.path(), ExpectedType::File)));
            }
        }
    }
    for (path, expected) in entries {
        if let Some(found) = foreign_type(&path, expected)? {
            return Ok(Some(describe(&path, found)));
        }
    }
    Ok(None)
}

/// Renames a foreign entry whose file the store can create again. Returns a description of it.
pub(in crate::store) fn set_foreign_aside(data_directory: &Path, name: &str, expected: ExpectedType) -> io::Result<Option<String>> {
    let path = data_directory.join(name);
    let Some(found) = foreign_type(&path, expected)? else { return Ok(None) };
    let target = set_aside::unused_path(data_directory, &format!("foreign-{name}"));
    fs::rename(&path, &target)?;
    let description = format!("{name} was {found}, which was renamed to {}", target.display());
    tracing::warn!("{description}");
    Ok(Some(description))
}
