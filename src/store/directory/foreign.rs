//! Foreign entries of the data directory: a symbolic link, a FIFO or a directory where the store has a file of its own.
//!
//! The store never follows a link, never writes to the target of one, and never opens a FIFO, which may block for ever. A foreign entry in the
//! place of a file that can be made anew is renamed; one among the engine's files makes the store count as damaged, so that `recovery` sets it aside.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::set_aside;
use crate::store::error::StoreError;

/// What the store has in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Expected {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// The names of the engine's directory that this version or an earlier one writes; the engine's snapshots, `snap.*`, are files as well.
const ENGINE_ENTRIES: [(&str, Expected); 5] = [
    ("db", Expected::File),
    ("conf", Expected::File),
    ("format", Expected::File),
    ("synced", Expected::File),
    ("blobs", Expected::Directory),
];

/// The beginning of the names of the engine's snapshots.
const SNAPSHOT_PREFIX: &str = "snap.";

/// Returns the type of an entry in words where it is not the expected one. `None` where it is, or where there is no entry.
pub(in crate::store) fn foreign_type(path: &Path, expected: Expected) -> io::Result<Option<&'static str>> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        outcome => outcome?.file_type(),
    };
    let is_expected = match expected {
        Expected::File => found.is_file(),
        Expected::Directory => found.is_dir(),
    };
    Ok((!is_expected).then(|| type_name(found)))
}

fn type_name(found: FileType) -> &'static str {
    match found {
        _ if found.is_symlink() => "a symbolic link",
        _ if found.is_fifo() => "a FIFO",
        _ if found.is_dir() => "a directory",
        _ if found.is_file() => "a file",
        _ if found.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Refuses a foreign entry in the place of a file that cannot be renamed, as another process may use it.
pub(super) fn refuse(path: &Path) -> Result<(), StoreError> {
    match foreign_type(path, Expected::File) {
        Ok(Some(found)) => Err(StoreError::Foreign { path: path.to_owned(), found }),
        // the open that follows says it better
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Opens a regular file. Never follows a link and never waits for the other end of a FIFO.
pub(in crate::store) fn open_file(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options.clone().custom_flags(i32::try_from(flags).unwrap_or_default()).open(path)?;
    let found = file.metadata()?.file_type();
    if found.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}", type_name(found)))) }
}

/// Returns why the engine's directory cannot be used: the first foreign entry among the engine's files, in words.
pub(in crate::store) fn in_engine_directory(directory: &Path) -> io::Result<Option<String>> {
    let says = |path: &Path, found| format!("{} is {found}, which meshkeep does not write there", path.display());
    if let Some(found) = foreign_type(directory, Expected::Directory)? {
        return Ok(Some(says(directory, found)));
    }
    let mut entries: Vec<(PathBuf, Expected)> = ENGINE_ENTRIES.map(|(name, expected)| (directory.join(name), expected)).into();
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        files => {
            for file in files? {
                let file = file?;
                let is_snapshot = file.file_name().as_encoded_bytes().starts_with(SNAPSHOT_PREFIX.as_bytes());
                entries.extend(is_snapshot.then(|| (file.path(), Expected::File)));
            }
        }
    }
    for (path, expected) in entries {
        if let Some(found) = foreign_type(&path, expected)? {
            return Ok(Some(says(&path, found)));
        }
    }
    Ok(None)
}

/// Renames a foreign entry in the place of something that can be made anew. Returns what was done, in words.
pub(in crate::store) fn put_aside(data_directory: &Path, name: &str, expected: Expected) -> io::Result<Option<String>> {
    let path = data_directory.join(name);
    let Some(found) = foreign_type(&path, expected)? else { return Ok(None) };
    let target = set_aside::unused_path(data_directory, &format!("foreign-{name}"));
    fs::rename(&path, &target)?;
    let said = format!("{name} was {found}, which is now {}", target.display());
    tracing::warn!("{said}");
    Ok(Some(said))
}
