//! Reading the certificate and key files that a client file names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest certificate or key file that is read: a bundle of all public CAs has about 250 kB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a file of at most 4 MiB. Blocks.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= FILE_BYTES_MAX) {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 4 MiB"))
    }
}
