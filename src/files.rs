//! Functions that read files up to a maximum size.
//!
//! A running sidecar reads regular files only: a FIFO would block its reader for ever, and a device
//! such as `/dev/zero` never ends. A command reads any file that its user names, including a FIFO
//! of the shell.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Maximum size of a certificate, key, token or client file in bytes. Real ones have a few KiB.
pub(crate) const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a regular file of at most `max` bytes and follows links. Blocks, but never for a writer.
///
/// # Errors
/// Returns the error of the file system, [`io::ErrorKind::FileTooLarge`], or
/// [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub(crate) fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    // rejects a sparse file of a terabyte without reading it
    if file.metadata()?.len() > max {
        return Err(too_large(max));
    }
    read_at_most(file, max)
}

/// Reads at most `max` bytes of a file that a command's user names. Blocks on a FIFO until its
/// writers have closed it.
///
/// # Errors
/// Returns the error of the file system or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_argument(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_at_most(File::open(path)?, max)
}

fn read_at_most(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    let is_small = u64::try_from(bytes.len()).is_ok_and(|length| length <= max);
    if is_small { Ok(bytes) } else { Err(too_large(max)) }
}

fn too_large(max: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes"))
}

/// Opens a regular file. It checks the type of the open file, so that the file cannot be replaced
/// between check and opening.
fn open_regular(path: &Path) -> io::Result<File> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_read_up_to_the_limit_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("four"), "four").unwrap();
        std::os::unix::fs::symlink("four", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        File::create(path("sparse")).unwrap().set_len(1 << 40).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(read_bounded(&path("link"), 4).unwrap(), b"four");
        let refused = |name: &str| read_bounded(&path(name), 3).unwrap_err().to_string();
        assert_eq!(refused("four"), "larger than 3 bytes");
        assert_eq!(refused("sparse"), "larger than 3 bytes");
        assert_eq!(refused("fifo"), "not a regular file");
        assert_eq!(refused("zero"), "not a regular file");
        assert_eq!(read_argument(&path("zero"), 3).unwrap_err().to_string(), "larger than 3 bytes");
        assert_eq!(read_argument(&path("link"), 4).unwrap(), b"four");
        assert_eq!(read_bounded(directory.path(), 3).unwrap_err().to_string(), "not a regular file");
    }
}
