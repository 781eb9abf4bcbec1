//! Reads a dump from disk: a file, a directory, or a zip or tar archive.
//!
//! Nothing is written to disk. Only regular files of the archive or below the directory are read:
//! symbolic and hard links are not followed. Of an archive, only files that may have entries are
//! unpacked.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::SystemTime;

use super::DumpError;

/// Start of a zip archive: that of its first file, or of the end of an empty archive (APPNOTE
/// 4.3.7, 4.3.16).
const ZIP_MAGIC: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Start of a gzip file (RFC 1952, 2.3.1).
const GZIP_MAGIC: &[u8] = b"\x1f\x8b";

/// Mark of a tar archive, and its position in the first header (POSIX `ustar`).
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// Number of first bytes that decide about the kind of a file.
const HEAD_BYTES: u64 = 512;

/// Maximum depth of folders in a directory. A sysdump has three levels.
const DEPTH_MAX: usize = 16;

/// File of a bundle that describes the bundle.
pub(super) const BUNDLE_INFO: &str = "about.json";

/// File of a bundle with the answer of `/v1/clusters`.
pub(super) const BUNDLE_CLUSTERS: &str = "clusters.json";

/// A dump, read from disk.
#[derive(Debug)]
pub(super) struct UnpackedDump {
    /// The files that may have entries, by name. A dump that is no archive has one file without a
    /// name.
    pub(super) files: Vec<UnpackedFile>,
    pub(super) is_archive: bool,
    /// Time of the last change of the dump, or of the newest file in a directory.
    pub(super) modified: SystemTime,
}

/// One file of a dump.
#[derive(Debug)]
pub(super) struct UnpackedFile {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Reads a dump of at most `bytes_max` unpacked bytes.
///
/// # Errors
/// [`DumpError`], which names the dump or the file.
pub(super) fn unpack(path: &Path, bytes_max: u64) -> Result<UnpackedDump, DumpError> {
    let mut unpacker = Unpacker { path, remaining: bytes_max, bytes_max, files: Vec::new(), modified: None };
    let failed = |cause| failed(path, cause);
    let metadata = fs::metadata(path).map_err(failed)?;
    let modified = metadata.modified().map_err(failed)?;
    let is_archive = if metadata.is_dir() {
        unpacker.add_directory(path, 0)?;
        true
    } else {
        unpacker.add_file(File::open(path).map_err(failed)?)?
    };
    let mut files = unpacker.files;
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(UnpackedDump { files, is_archive, modified: unpacker.modified.unwrap_or(modified) })
}

/// Returns the name of a file without its folders.
pub(super) fn base_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// Returns whether a file of an archive may have entries: files of a bundle, and files of a sysdump
/// or of `cilium-bugtool` that are named after the kvstore.
fn may_have_entries(name: &str) -> bool {
    let name = base_name(name);
    let is_part = name.starts_with("entries") && name.ends_with(".ndjson");
    is_part || matches!(name, BUNDLE_INFO | BUNDLE_CLUSTERS) || name.starts_with("kvstore") || name.contains("kvstore-get")
}

struct Unpacker<'a> {
    path: &'a Path,
    remaining: u64,
    bytes_max: u64,
    files: Vec<UnpackedFile>,
    /// Time of the newest file in a directory.
    modified: Option<SystemTime>,
}

impl Unpacker<'_> {
    /// Adds a file that is no directory. Returns whether it is an archive.
    fn add_file(&mut self, mut file: File) -> Result<bool, DumpError> {
        let mut head = Vec::new();
        file.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(|cause| failed(self.path, cause))?;
        if head.starts_with(GZIP_MAGIC) {
            return Err(DumpError::Compressed { path: self.path.to_owned() });
        }
        let is_zip = ZIP_MAGIC.iter().any(|magic| head.starts_with(magic));
        let is_tar = head.get(TAR_MAGIC.0..).is_some_and(|rest| rest.starts_with(TAR_MAGIC.1));
        if !is_zip && !is_tar {
            // a pipe cannot be read from its start again
            self.add(String::new(), head.chain(file))?;
            return Ok(false);
        }
        file.rewind().map_err(|cause| failed(self.path, cause))?;
        if is_zip {
            self.add_zip(file)?
        } else {
            self.add_tar(file)?
        }
        Ok(true)
    }

    fn add_zip(&mut self, file: File) -> Result<(), DumpError> {
        let damaged = |error: zip::result::ZipError| DumpError::Damaged { path: self.path.to_owned(), reason: error.to_string() };
        let mut archive = zip::ZipArchive::new(file).map_err(damaged)?;
        for index in 0..archive.len() {
            let wanted = archive.name_for_index(index).is_some_and(may_have_entries);
            if !wanted {
                continue;
            }
            let file = archive.by_index(index).map_err(damaged)?;
            if file.is_file() && !file.is_symlink() {
                self.add(file.name().to_owned(), file)?;
            }
        }
        Ok(())
    }

    fn add_tar(&mut self, file: File) -> Result<(), DumpError> {
        let damaged = |error: io::Error| DumpError::Damaged { path: self.path.to_owned(), reason: error.to_string() };
        let mut archive = tar::Archive::new(file);
        for entry in archive.entries_with_seek().map_err(damaged)? {
            let entry = entry.map_err(damaged)?;
            let name = entry.path().map_err(damaged)?.to_string_lossy().into_owned();
            if entry.header().entry_type().is_file() && may_have_entries(&name) {
                self.add(name, entry)?;
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, directory: &Path, depth: usize) -> Result<(), DumpError> {
        for entry in fs::read_dir(directory).map_err(|cause| failed(directory, cause))? {
            let entry = entry.map_err(|cause| failed(directory, cause))?;
            let path = entry.path();
            // the type of a symbolic link is not that of its target
            let file_type = entry.file_type().map_err(|cause| failed(&path, cause))?;
            let name = path.strip_prefix(self.path).unwrap_or(&path).to_string_lossy().into_owned();
            if file_type.is_dir() && depth < DEPTH_MAX {
                self.add_directory(&path, depth + 1)?;
            } else if file_type.is_file() && may_have_entries(&name) {
                let file = File::open(&path).map_err(|cause| failed(&path, cause))?;
                let modified = file.metadata().and_then(|metadata| metadata.modified());
                self.modified = self.modified.max(modified.ok());
                self.add(name, file)?;
            }
        }
        Ok(())
    }

    /// Reads one file within the bytes that remain.
    fn add(&mut self, name: String, file: impl Read) -> Result<(), DumpError> {
        let mut bytes = Vec::new();
        let path = self.path.join(&name);
        file.take(self.remaining.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|cause| failed(if name.is_empty() { self.path } else { &path }, cause))?;
        let rest = u64::try_from(bytes.len()).ok().and_then(|length| self.remaining.checked_sub(length));
        self.remaining = rest.ok_or_else(|| DumpError::TooLarge { path: self.path.to_owned(), bytes_max: self.bytes_max })?;
        self.files.push(UnpackedFile { name, bytes });
        Ok(())
    }
}

fn failed(path: &Path, cause: io::Error) -> DumpError {
    DumpError::Io { path: path.to_owned(), cause }
}
