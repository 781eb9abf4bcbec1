//! Reads files that untrusted users may write: regular files only, up to a maximum size. A FIFO
//! would block its reader forever, and a device such as `/dev/zero` never ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads a regular file of at most `max` bytes. Follows symbolic links. Blocks while it reads from
/// the file system, but never waits for a writer.
///
/// # Errors
/// Errors of the file system; [`io::ErrorKind::FileTooLarge`]; [`io::ErrorKind::InvalidInput`] if
/// it is not a regular file.
pub fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes"));
    // refuses a sparse file of a terabyte before reading it
    if file.metadata()?.len() > max {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= max) { Ok(bytes) } else { Err(too_large()) }
}

/// Opens a file and then checks its type. A check before the opening could be evaded by replacing
/// the file.
fn open_regular(path: &Path) -> io::Result<File> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("four"), "four").unwrap();
        std::os::unix::fs::symlink("four", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        File::create(path("sparse")).unwrap().set_len(1 << 40).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(read_bounded(&path("link"), 4).unwrap(), b"four");
        let error_text = |name: &str| read_bounded(&path(name), 3).unwrap_err().to_string();
        assert_eq!(error_text("four"), "larger than 3 bytes");
        assert_eq!(error_text("sparse"), "larger than 3 bytes");
        assert_eq!(error_text("fifo"), "not a regular file");
        assert_eq!(error_text("zero"), "not a regular file");
        assert_eq!(read_bounded(directory.path(), 3).unwrap_err().to_string(), "not a regular file");
    }
}
