//! Errors of the store, with texts for the operator.
//!
//! Damage that the store repairs itself is not an error. `OpenReport` and `StoreContents` report
//! it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Error of opening, reading or writing the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process uses the data directory. Nothing in it was changed.
    #[error("the data directory {directory} is in use by {holder}: stop that process or choose another directory", directory = directory.display())]
    Locked {
        /// The data directory.
        directory: PathBuf,
        /// Process id and command line, which the other process wrote into the lock file.
        holder: String,
    },
    /// The directory cannot be created or written: missing permissions, or a read-only or full file
    /// system.
    #[error("the data directory {directory} cannot be written: {cause}", directory = directory.display())]
    NotWritable {
        /// The data directory.
        directory: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// A link, FIFO or directory has the name of one of meshkeep's files. It was not changed.
    #[error("{path} is {file_type}, which meshkeep does not follow or overwrite: remove it, or choose another --data-dir", path = path.display())]
    Foreign {
        /// Path of the foreign entry.
        path: PathBuf,
        /// Type of the entry, human-readable.
        file_type: &'static str,
    },
    /// The directory has no store. Only an inspection reports this; a start creates a store.
    #[error("{directory} contains no store: meshkeep has never run with this --data-dir", directory = directory.display())]
    NoStore {
        /// The data directory.
        directory: PathBuf,
    },
    /// The engine has failed for so long that the log has reached its size limit.
    #[error("the log in {directory} has reached its limit because the engine does not accept writes: {cause}", directory = directory.display())]
    LogFull {
        /// The data directory.
        directory: PathBuf,
        /// Last error of the engine.
        cause: String,
    },
    /// The engine failed. [`super::Store::apply`] reopens it and may be called again.
    #[error("the store in {directory} failed: {cause}", directory = directory.display())]
    Engine {
        /// Directory of the engine's files.
        directory: PathBuf,
        /// Error of the engine.
        cause: EngineError,
    },
}

/// Error of the engine, without sled's types.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Another handle of this process, or another process, has the engine's files open.
    #[error("its files are still open in this or another process: {0}")]
    Busy(String),
    /// The operating system failed to read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The operating system failed to write or sync the log.
    #[error("cannot write or sync the log: {0}")]
    Log(io::Error),
    /// The files do not have the expected content.
    #[error("its files are damaged: {0}")]
    Damaged(String),
    /// The value is longer than the engine can store safely. This is a bug, because objects are
    /// split before they are written.
    #[error("the value for slot {slot} has {length} bytes, which is too many")]
    Oversized {
        /// Name of the slot.
        slot: String,
        /// Length of the value, in bytes.
        length: usize,
    },
    /// The engine panicked.
    #[error("the engine panicked: {0}")]
    Panicked(String),
    /// The files on disk are older than the applied groups: they were replaced or lost while the
    /// process ran.
    #[error("its files were replaced while in use: restart meshkeep to read them")]
    Replaced,
}

impl StoreError {
    /// Returns whether the disk is full, which may be temporary.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::NotWritable { cause, .. } | Self::Engine { cause: EngineError::Io(cause) | EngineError::Log(cause), .. } => {
                is_full(cause)
            }
            _ => false,
        }
    }
}

/// Returns whether a file system, quota or file size limit is reached.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Returns whether the process ran out of file descriptors or memory, or was interrupted. The error
/// then says nothing about the file.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    /// `ENFILE` and `EMFILE`: no file descriptors left.
    const DESCRIPTORS_EXHAUSTED: [i32; 2] = [23, 24];
    error.raw_os_error().is_some_and(|code| DESCRIPTORS_EXHAUSTED.contains(&code))
        || matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted)
}

impl EngineError {
    /// Returns whether the content of the files may be the cause. Otherwise the cause is the
    /// machine (a full disk, missing permissions), another process, or a bug, and the files must
    /// stay where they are.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) | Self::Panicked(_) => true,
            Self::Busy(_) | Self::Replaced | Self::Oversized { .. } | Self::Log(_) => false,
            Self::Io(error) => {
                let is_read_only = matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
                !is_exhausted(error) && !is_full(error) && !is_read_only
            }
        }
    }
}
