//! File modes of the data directory: only its owner may read it.
//!
//! This module changes the modes of files that were created by an earlier version or with another
//! umask. New files get their mode from the umask that `cli` sets.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permissions of the group and of others, and the sticky bit of a shared directory such as /tmp
/// (inode(7)).
const GROUP_AND_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Removes all permissions of the group and of others, from the directory and everything in it.
/// Logs one warning if that fails, for example on a volume of another user.
pub(in crate::store) fn restrict_to_owner(data_directory: &Path) {
    if let Err(error) = restrict_tree(data_directory) {
        let directory = data_directory.display();
        tracing::warn!(%directory, %error, "cannot make the data directory private: other users may be able to read the mirrored data");
    }
}

/// Continues after an error and returns the first one.
fn restrict_tree(directory: &Path) -> io::Result<()> {
    let mut outcome = restrict_path(directory);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // the type of a link, not of its target
        let kind = entry.file_type()?;
        let restricted = match (kind.is_dir(), kind.is_file()) {
            (true, _) => restrict_tree(&entry.path()),
            (false, true) => restrict_path(&entry.path()),
            (false, false) => Ok(()),
        };
        outcome = outcome.and(restricted);
    }
    outcome
}

fn restrict_path(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & GROUP_AND_OTHERS == 0 || mode & STICKY != 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !GROUP_AND_OTHERS))
}
