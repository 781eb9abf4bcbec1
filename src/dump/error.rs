//! Reasons why a dump cannot be read, each with the cure.

use std::io;
use std::path::PathBuf;

/// The reason why a dump cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file system refuses the dump or a file in it.
    #[error("cannot read {}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The dump has too many bytes.
    #[error("{} has more than {bytes_max} bytes after unpacking: dump a part of the keys, such as those below one prefix", path.display())]
    TooLarge {
        /// The dump.
        path: PathBuf,
        /// The limit.
        bytes_max: u64,
    },
    /// The dump is compressed as a whole.
    #[error("{} is compressed: unpack it with `gunzip` first", path.display())]
    Compressed {
        /// The dump.
        path: PathBuf,
    },
    /// The archive is damaged.
    #[error("{} is a damaged archive: {reason}; copy it again", path.display())]
    Damaged {
        /// The dump.
        path: PathBuf,
        /// Error of the decoder.
        reason: String,
    },
    /// The bundle was made without `--entries`.
    #[error("{} is a bundle without entries: make one with `meshkeep bundle --entries`", path.display())]
    BundleWithoutEntries {
        /// The dump.
        path: PathBuf,
    },
    /// No file in the archive has keys of an etcd.
    #[error(
        "{} has no file with the content of an etcd: a Cilium sysdump has kvstore-*.json only if Cilium's `kvstore` is etcd; instead, save the output of `etcdctl get --prefix cilium/ -w json` in the etcd container of the clustermesh-apiserver",
        path.display()
    )]
    NoKvstore {
        /// The dump.
        path: PathBuf,
    },
    /// The form is unknown.
    #[error(
        "{} is no dump: give the output of `cilium-dbg kvstore get --recursive cilium/`, of `etcdctl get --prefix cilium/ -w json`, of `meshkeep store export`, or of /v1/entries as NDJSON, or a Cilium sysdump or a bundle",
        path.display()
    )]
    Unrecognised {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a table of an agent.
    #[error(
        "{} is not a table of an agent: give the output of `cilium-dbg bpf ipcache list -o json`, of `cilium-dbg ip list -o json`, of `cilium-dbg identity list -o json` or of `cilium-dbg node list -o json`",
        path.display()
    )]
    UnrecognisedTable {
        /// The file.
        path: PathBuf,
    },
    /// A file has the shape of a known form, but cannot be parsed.
    #[error("{} cannot be parsed: {reason}; make the dump again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        reason: String,
    },
    /// The dump has no keys of Cilium.
    #[error("{} has no nodes, services, identities or addresses of a cluster: dump the keys below cilium/", path.display())]
    Empty {
        /// The dump.
        path: PathBuf,
    },
    /// The keys below `cilium/state` do not name their cluster.
    #[error("{} does not name the cluster of its keys below cilium/state: give its name with --cluster-name", path.display())]
    NoClusterName {
        /// The dump.
        path: PathBuf,
    },
    /// The keys below `cilium/state` name several clusters.
    #[error(
        "{} has keys of several clusters below cilium/state ({names}): give the cluster of its identities and addresses with --cluster-name, or a dump for each etcd",
        path.display()
    )]
    SeveralClusters {
        /// The dump.
        path: PathBuf,
        /// The clusters.
        names: String,
    },
}
