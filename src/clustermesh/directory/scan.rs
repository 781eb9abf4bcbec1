//! Reads the config directory and decides which of its files are cluster files.
//!
//! The result is a [`DirectoryScan`], which `diff` compares with the last one. The YAML is not
//! parsed here. The functions block, so they must run outside the runtime's async threads.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};

use crate::client_file::intended_key;
use crate::files::read_bounded;
use crate::model::{ClusterName, readable_error};

/// Maximum size of a cluster file. A client file has a few lines, and a whole Kubernetes Secret is
/// at most 1 MiB (`MaxSecretSize` in Kubernetes' `pkg/apis/core/types.go`).
const FILE_SIZE_BYTES_MAX: u64 = 1024 * 1024;

/// Maximum number of files: eight times the 511 possible clusters, which may have certificates next
/// to their files. A larger directory is not a config directory.
const ENTRY_COUNT_MAX: usize = 4096;

/// Bytes that make a file a cluster file, whatever its name (`pkg/clustermesh/common/config.go`).
const CLUSTER_FILE_MARK: &[u8] = b"endpoints:";

/// Keys of a client file other than `endpoints` (etcd's `clientv3/yaml`).
const CLIENT_FILE_KEYS: [&str; 5] = ["trusted-ca-file", "cert-file", "key-file", "insecure-transport", "username"];

/// SHA-256 of a file's content.
pub(super) type ContentDigest = [u8; 32];

/// Result of one scan of the directory.
#[derive(Debug)]
pub(super) struct DirectoryScan {
    /// Metadata from before the contents were read. A change during the scan then shows as a
    /// difference from the next metadata.
    pub(super) metadata: DirectoryMetadata,
    /// Files by name, or the reason why the directory cannot be read.
    pub(super) files: Result<ScannedFiles, String>,
}

/// Relevant files by name.
pub(super) type ScannedFiles = BTreeMap<String, ScannedFile>;

/// Classification of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScannedFile {
    /// A cluster file with a valid name.
    Cluster(ClusterFile),
    /// A file with the name of a cluster, whose content cannot be read.
    Unreadable { cluster: ClusterName, reason: String },
    /// A cluster file by its content, whose name is not a valid cluster name.
    InvalidName { reason: String },
    /// A file that looks like a cluster file, but that neither meshkeep nor Cilium's agents read as
    /// one. It is reported because its author probably expects a cluster.
    Skipped { reason: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterFile {
    pub(super) cluster: ClusterName,
    pub(super) content: Arc<[u8]>,
    pub(super) digest: ContentDigest,
}

/// Metadata of the directory and its files, with links followed. Cheap enough to be read every
/// second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectoryMetadata(Result<MetadataSnapshot, String>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct MetadataSnapshot {
    directory: DirectoryIdentity,
    files: BTreeMap<OsString, Option<FileMetadata>>,
}

/// Device and inode of the directory at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectoryIdentity(u64, u64);

/// Metadata that changes with every write, rename and link swap. The change time also covers a
/// modification time that was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileMetadata {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileMetadata {
    fn new(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl DirectoryMetadata {
    /// Reads the metadata of all files in the directory.
    pub(super) fn read(directory: &Path) -> Self {
        let read = || {
            let identity = identify(directory)?;
            let with_metadata = |name: OsString| {
                let metadata = fs::metadata(directory.join(&name)).ok().as_ref().map(FileMetadata::new);
                (name, metadata)
            };
            Ok(MetadataSnapshot { directory: identity, files: list_names(directory)?.into_iter().map(with_metadata).collect() })
        };
        Self(read().map_err(|error: io::Error| readable_error(error)))
    }

    /// Returns the identity of the directory, if it exists.
    pub(super) fn identity(&self) -> Option<DirectoryIdentity> {
        self.0.as_ref().ok().map(|snapshot| snapshot.directory)
    }
}

/// Returns the identity of the directory at the path.
///
/// # Errors
/// If there is no directory, or its metadata cannot be read.
fn identify(directory: &Path) -> io::Result<DirectoryIdentity> {
    fs::metadata(directory).map(|metadata| DirectoryIdentity(metadata.dev(), metadata.ino()))
}

/// Scans the directory once. Skips the files of ignored clusters.
pub(super) fn read_directory(directory: &Path, ignored_clusters: &BTreeSet<ClusterName>) -> DirectoryScan {
    let metadata = DirectoryMetadata::read(directory);
    let read = || {
        let mut files = ScannedFiles::new();
        for name in list_names(directory)? {
            let file_name = name.to_string_lossy().into_owned();
            if ignored_clusters.iter().any(|ignored| ignored.as_str() == file_name) {
                continue;
            }
            if let Some(file) = read_file(&directory.join(&name), &file_name) {
                files.insert(file_name, file);
            }
        }
        Ok(files)
    };
    DirectoryScan { metadata, files: read().map_err(|error: io::Error| readable_error(error)) }
}

/// Returns the names in the directory, except for those that begin with a dot: a Secret's `..data`
/// link, its `..2026_…` folders, and files of editors.
fn list_names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if names.len() == ENTRY_COUNT_MAX {
            return Err(io::Error::other(format!("more than {ENTRY_COUNT_MAX} files: this is not a directory of client files")));
        }
        names.push(name);
    }
    Ok(names)
}

/// Reads and classifies a file. Returns `None` if it has nothing to do with clusters.
fn read_file(path: &Path, file_name: &str) -> Option<ScannedFile> {
    let name = ClusterName::parse(file_name);
    let content = match read_content(path) {
        Ok(content) => content?,
        Err(reason) => return name.ok().map(|cluster| ScannedFile::Unreadable { cluster, reason }),
    };
    if !is_cluster_file(&content) {
        // other files of the directory, such as certificates, have names with dots
        return name.ok().and_then(|_| skip_reason(&content)).map(|reason| ScannedFile::Skipped { reason });
    }
    Some(match name {
        Ok(cluster) => ScannedFile::Cluster(ClusterFile { cluster, digest: Sha256::digest(&content).into(), content: content.into() }),
        Err(invalid) => ScannedFile::InvalidName { reason: invalid.to_string() },
    })
}

/// Returns the content of a cluster file. `None` for any other file, and for anything that is not a
/// regular file.
pub(in crate::clustermesh) fn read_cluster_file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    Ok(read_content(path)?.filter(|content| is_cluster_file(content)))
}

fn is_cluster_file(content: &[u8]) -> bool {
    content.windows(CLUSTER_FILE_MARK.len()).any(|window| window == CLUSTER_FILE_MARK)
}

/// Returns the reason why a file with the name of a cluster is not a cluster file, or `None` if it
/// is something else altogether. Quotes only keys that resemble those of a client file.
fn skip_reason(content: &[u8]) -> Option<String> {
    let agents = "Cilium's agents do not read it either";
    if let Some(cause) = encoded_mark(content) {
        return Some(format!("it is {cause}, so it does not contain the bytes \"endpoints:\": {agents}"));
    }
    let Ok(text) = std::str::from_utf8(content) else { return None };
    if text.trim().is_empty() {
        return Some(format!("it is empty, so there is no cluster of this name: {agents}"));
    }
    let keys: Vec<&str> = text.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.trim_matches([' ', '"', '\''])).collect();
    // agents search for exactly these bytes: `Endpoints:` does not match, although etcd's client
    // would accept it
    let is_misspelt_endpoints = |key: &&&str| key.eq_ignore_ascii_case("endpoints") || intended_key(key) == Some("endpoints");
    if let Some(key) = keys.iter().find(is_misspelt_endpoints) {
        return Some(format!("it has \"{key}:\" instead of \"endpoints:\" (in this spelling, with no space before the colon): {agents}"));
    }
    let is_client_file = keys.iter().any(|key| CLIENT_FILE_KEYS.contains(&key.replace('_', "-").as_str()));
    is_client_file.then(|| format!("it has no endpoints: {agents}"))
}

/// Returns the encoding of a content that contains the mark only in encoded form.
fn encoded_mark(content: &[u8]) -> Option<&'static str> {
    let has_utf16_mark = |unit: fn([u8; 2]) -> u16| {
        let units = content.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        is_cluster_file(&units.flat_map(u8::try_from).collect::<Vec<u8>>())
    };
    if has_utf16_mark(u16::from_le_bytes) || has_utf16_mark(u16::from_be_bytes) {
        return Some("UTF-16");
    }
    let encoded: Vec<u8> = content.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if BASE64.decode(encoded).is_ok_and(|decoded| is_cluster_file(&decoded)) {
        return Some("base64 (perhaps encoded twice in a Secret's data)");
    }
    let quoted = content.windows(9).enumerate().filter(|(_, word)| *word == b"endpoints").any(|(start, _)| match &content[start + 9..] {
        [b'"' | b'\'', rest @ ..] => rest.trim_ascii_start().starts_with(b":"),
        _ => false,
    });
    quoted.then_some("JSON or YAML with its keys in quotes")
}

/// Returns the content of a regular file, with links followed. `None` for anything else.
fn read_content(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match read_bounded(path, FILE_SIZE_BYTES_MAX) {
        Ok(content) => Ok(Some(content)),
        Err(error) => match error.kind() {
            // a directory, a FIFO, a device
            io::ErrorKind::InvalidInput => Ok(None),
            io::ErrorKind::NotFound => Err("the file or the target of its link does not exist".to_owned()),
            io::ErrorKind::FileTooLarge => Err(format!("larger than {FILE_SIZE_BYTES_MAX} bytes, so it is not a client file")),
            _ => Err(readable_error(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_file_has_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let utf16: Vec<u8> = "\u{feff}endpoints:\n- a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let cases: [(&str, &[u8], Option<&str>); 16] = [
            ("tokyo", b"endpoint:\n- https://tokyo:2379\n", Some("it has \"endpoint:\" instead of \"endpoints:\"")),
            ("osaka", b"Endpoints:\n- https://osaka:2379\n", Some("it has \"Endpoints:\"")),
            ("kyoto", b"endpoints :\n- https://kyoto:2379\n", Some("it has \"endpoints:\" instead")),
            ("nara", b" \n", Some("it is empty")),
            ("kobe", b"trusted-ca-file: /ca.crt\nusername: joe\npassword: hunter2\n", Some("it has no endpoints")),
            ("otsu", b"end_points:\n- https://otsu:2379\n", Some("it has \"end_points:\" instead")),
            ("tsu", b"trusted_ca_file: /ca.crt\npassword: hunter2\n", Some("it has no endpoints")),
            ("notes", b"to do: key rotation\nhint: ask paris\n", None),
            ("paris", b"endpoints:\n- https://paris:2379\n", None),
            ("readme", b"Put one file for each cluster here: see the manual.\n", None),
            ("ca.crt", b"", None),
            ("etcd.config", b"endpoint: [x]\n", None),
            ("fukui", &utf16, Some("it is UTF-16, so it does not contain")),
            ("gifu", b"ZW5kcG9p\nbnRzOgotIGE=\n", Some("it is base64 (perhaps encoded twice")),
            ("mito", b"{\"endpoints\": [\"https://mito:2379\"]}", Some("it is JSON or YAML with its keys in quotes")),
            ("saga", b"\xff\xfe\x00binary", None),
        ];
        for (name, content, _) in cases {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let files = read_directory(directory.path(), &BTreeSet::new()).files.unwrap();
        for (name, _, expected) in cases {
            match (files.get(name), expected) {
                (Some(ScannedFile::Skipped { reason }), Some(expected)) => {
                    assert!(reason.starts_with(expected) && reason.contains("Cilium's agents do not read it either"), "{name}: {reason}");
                    assert!(!reason.contains("hunter2"), "{reason}");
                }
                (Some(ScannedFile::Cluster(_)) | None, None) => {}
                (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn the_same_files_are_cluster_files_for_agents() {
        let table: Vec<serde_json::Value> = serde_json::from_str(include_str!("../../../tests/data/client_files.json")).unwrap();
        for row in table {
            let text = row.get("text").and_then(|text| Some(text.as_str()?.as_bytes().to_vec()));
            let content = text.unwrap_or_else(|| BASE64.decode(row["bytes"].as_str().unwrap()).unwrap());
            assert_eq!(is_cluster_file(&content), row["seen"]["isClientFile"], "{}", row["name"]);
        }
    }
}
