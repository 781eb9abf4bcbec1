//! Who may read the data directory: its owner alone.
//!
//! Owns: the modes of what an earlier version or another umask left. What is created from now on has them from the umask that
//! `cli` sets.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The permissions of a group and of others, and the sticky bit of a directory that everybody shares, such as /tmp (inode(7)).
const GROUP_AND_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Takes the directory and what is in it from everybody but the owner. What cannot be taken is told once: a volume whose owner is
/// another user is as private as whoever mounts it makes it.
pub(in crate::store) fn narrow(data_directory: &Path) {
    if let Err(error) = narrow_all(data_directory) {
        let directory = data_directory.display();
        tracing::warn!(%directory, %error, "cannot make the data directory private: other users may be able to read the mirrored data");
    }
}

/// Goes on after an error, and gives the first.
fn narrow_all(directory: &Path) -> io::Result<()> {
    let mut outcome = narrow_one(directory);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // not the target of a link
        let kind = entry.file_type()?;
        let narrowed = match (kind.is_dir(), kind.is_file()) {
            (true, _) => narrow_all(&entry.path()),
            (false, true) => narrow_one(&entry.path()),
            (false, false) => Ok(()),
        };
        outcome = outcome.and(narrowed);
    }
    outcome
}

fn narrow_one(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & GROUP_AND_OTHERS == 0 || mode & STICKY != 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !GROUP_AND_OTHERS))
}
