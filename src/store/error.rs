//! What can go wrong with the store, in words for the operator.
//!
//! Owns: the errors of this room. Deliberately lacks: damage that the store repairs by itself, which is reported in `Opened` and `Loaded`.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why the store cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another living process uses the directory. Nothing in it was touched.
    #[error("the data directory {directory} is in use by {holder}: stop that process or choose another directory", directory = directory.display())]
    Locked {
        /// The data directory.
        directory: PathBuf,
        /// The process id and command line of the holder, as it wrote them.
        holder: String,
    },
    /// The directory cannot be created or written: missing rights, a read-only or full file system.
    #[error("the data directory {directory} cannot be written: {cause}", directory = directory.display())]
    NotWritable {
        /// The data directory.
        directory: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// Something that is not meshkeep's has the place of a file of its own. It is left as it is.
    #[error("{path} is {found}, which meshkeep does not follow or overwrite: remove it, or choose another --data-dir", path = path.display())]
    Foreign {
        /// The entry.
        path: PathBuf,
        /// Its type, in words.
        found: &'static str,
    },
    /// Nothing was ever stored there. Only looking at a store says so: a start makes one.
    #[error("{directory} contains no store: meshkeep has never run with this --data-dir", directory = directory.display())]
    Nothing {
        /// The data directory.
        directory: PathBuf,
    },
    /// The engine has taken nothing for so long that the log has reached its bound.
    #[error("the log in {directory} has reached its limit because the engine does not accept writes: {cause}", directory = directory.display())]
    LogFull {
        /// The data directory.
        directory: PathBuf,
        /// What the engine said last.
        cause: String,
    },
    /// The engine failed. After such an error [`super::Store::apply`] opens it anew and may be tried again.
    #[error("the store in {directory} failed: {cause}", directory = directory.display())]
    Engine {
        /// The directory of the engine's files.
        directory: PathBuf,
        /// What the engine says.
        cause: EngineError,
    },
}

/// What the engine says, without its own types.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A handle of this process or another program has the engine's files open.
    #[error("another process has its files open: {0}")]
    Busy(String),
    /// The system refused a read or a write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The system refused to read, write or sync the log.
    #[error("its log cannot be written: {0}")]
    Log(io::Error),
    /// The files do not hold what the engine expects.
    #[error("its files are damaged: {0}")]
    Damaged(String),
    /// A value is longer than the engine keeps safely. A bug: values are cut before.
    #[error("the value for slot {slot} has {length} bytes, which is too many")]
    Oversized {
        /// The slot.
        slot: String,
        /// How long the value is, in bytes.
        length: usize,
    },
    /// The engine panicked.
    #[error("the engine panicked: {0}")]
    Panicked(String),
    /// The files on disk are older than what was applied: they were replaced or lost under the running process.
    #[error("its files were replaced while in use: restart meshkeep to read them")]
    Replaced,
}

impl StoreError {
    /// Whether there is no room, which may pass.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::NotWritable { cause, .. } | Self::Engine { cause: EngineError::Io(cause) | EngineError::Log(cause), .. } => {
                is_full(cause)
            }
            Self::Locked { .. } | Self::Foreign { .. } | Self::Nothing { .. } | Self::LogFull { .. } | Self::Engine { .. } => false,
        }
    }
}

/// Whether there is no room, for us or for anybody.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Whether the process has no file descriptors or memory left, which says nothing of what it wanted to read.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    /// `ENFILE` and `EMFILE`: no file descriptors left.
    const DESCRIPTORS_EXHAUSTED: [i32; 2] = [23, 24];
    error.raw_os_error().is_some_and(|code| DESCRIPTORS_EXHAUSTED.contains(&code))
        || matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted)
}

impl EngineError {
    /// Whether the machine is the reason and not the files, so that they must be left where they are.
    pub(super) fn is_environment(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Replaced | Self::Oversized { .. } | Self::Log(_) => true,
            Self::Damaged(_) | Self::Panicked(_) => false,
            Self::Io(error) => {
                is_exhausted(error)
                    || matches!(
                        error.kind(),
                        io::ErrorKind::StorageFull
                            | io::ErrorKind::QuotaExceeded
                            | io::ErrorKind::FileTooLarge
                            | io::ErrorKind::PermissionDenied
                            | io::ErrorKind::ReadOnlyFilesystem
                    )
            }
        }
    }
}
