//! Functions that read files up to a maximum size.
//!
//! A running sidecar reads regular files only: a FIFO would block its reader for ever, and a device
//! such as `/dev/zero` never ends. A command reads any file that its user names, including a FIFO
//! of the shell.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(crate) use cilium_kvstore::read_bounded;

/// Maximum size of a certificate, key, token or client file in bytes. Real ones have a few KiB.
pub(crate) const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads at most `max` bytes of a file that a command's user names. Blocks on a FIFO until its
/// writers have closed it.
///
/// # Errors
/// Returns the error of the file system or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_argument(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= max) {
        return Ok(bytes);
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_is_read_up_to_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("four");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_argument(&path, 4).unwrap(), b"four");
        assert_eq!(read_argument(&path, 3).unwrap_err().to_string(), "larger than 3 bytes");
        assert_eq!(read_argument(Path::new("/dev/zero"), 3).unwrap_err().to_string(), "larger than 3 bytes");
    }
}
