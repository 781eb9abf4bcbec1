//! The remote clusters: which there are, and the life of each.
//!
//! Owns: the config directory (the only importer of `notify`).

mod directory;

pub use directory::{DirectoryEvent, DirectoryOptions, DirectoryState, watch_directory};
