//! Clusters: their names and ids, their configs, and their current states.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sha2::{Digest, Sha256};
use smol_str::SmolStr;

use crate::model::api_enum::api_enum;
use crate::model::{EtcdClusterId, Kind, MissingConfigState, RawRecord, Revision, Verification, VerificationRun, WriterStatus};

/// Maximum length of a cluster name in bytes (Cilium's `pkg/clustermesh/types/option.go`).
const CLUSTER_NAME_LENGTH_MAX: usize = 32;

/// Valid cluster name: at most 32 characters, lower-case letters, digits and `-`, ending in a
/// letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(SmolStr);

/// Error for a text that is not a valid cluster name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid cluster name: it must be 1 to 32 characters of a-z, 0-9 and '-', begin and end with a letter or digit")]
pub struct InvalidClusterName {
    /// The refused text.
    pub name: String,
}

impl ClusterName {
    /// Checks a name. The rule is Cilium's `^([a-z0-9][-a-z0-9]*)?[a-z0-9]$` with at most 32
    /// characters.
    ///
    /// # Errors
    /// [`InvalidClusterName`] for any other text.
    pub fn parse(text: &str) -> Result<Self, InvalidClusterName> {
        let bytes = text.as_bytes();
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let valid = bytes.len() <= CLUSTER_NAME_LENGTH_MAX
            && bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|b| alphanumeric(b) || *b == b'-');
        if valid { Ok(Self(text.into())) } else { Err(InvalidClusterName { name: text.into() }) }
    }

    /// Placeholder for several clusters or none.
    pub const NONE: &str = "-";

    /// Returns a value that is not a valid name and sorts before all names: for the start of a
    /// scan, and for objects of several clusters or none.
    pub(in crate::model) fn lowest() -> Self {
        // '-' is the lowest character of a name and no name begins with it. In keys a '/' follows
        // the name, and '-' sorts before '/': "-/" comes after "--/", but "--" is not a name, so
        // this does not matter.
        Self(Self::NONE.into())
    }

    /// Returns whether this is the placeholder for several clusters or none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == Self::NONE
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares two names as keys do, where a `/` follows each name.
    pub(crate) fn cmp_in_keys(&self, other: &Self) -> Ordering {
        let length = |name: &Self| name.0.len();
        let common = length(self).min(length(other));
        let (left, right) = (self.0.as_bytes(), other.0.as_bytes());
        left[..common].cmp(&right[..common]).then_with(|| left.get(common).unwrap_or(&b'/').cmp(right.get(common).unwrap_or(&b'/')))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a cluster in the mesh: 1 to 255, or to 511 in meshes of that size; 0 means "not known".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub u32);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maximum number of clusters in a mesh. It decides which bits of an identity are the cluster's id
/// (`pkg/clustermesh/types/types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxConnectedClusters {
    /// Default: cluster ids have 8 bits.
    #[default]
    Clusters255,
    /// Option: cluster ids have 9 bits.
    Clusters511,
}

impl MaxConnectedClusters {
    /// Returns the highest cluster id.
    #[must_use]
    pub const fn id_max(self) -> u32 {
        match self {
            Self::Clusters255 => 255,
            Self::Clusters511 => 511,
        }
    }

    /// Converts 255 or 511; `None` for any other number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            255 => Some(Self::Clusters255),
            511 => Some(Self::Clusters511),
            _ => None,
        }
    }
}

/// Cluster config: the value at `cilium/cluster-config/<cluster>`
/// (`pkg/clustermesh/types/types.go`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterConfig {
    /// Id of the cluster; 0 if not given.
    pub id: ClusterId,
    /// True if the cluster writes a canary when a resource is complete.
    pub synced_canaries: bool,
    /// True if its data is in cache form, below `cilium/cache`: a copy by a KVStoreMesh.
    pub cached: bool,
    /// Maximum number of clusters in the mesh, 255 or 511; 0 if not given.
    pub max_connected_clusters: u32,
    /// `None`: service exports are not supported; `Some(false)`: supported but off.
    pub service_exports_enabled: Option<bool>,
    /// `endpointslices-only` or another mode; `None` if not given.
    pub endpoint_slices_export_mode: Option<String>,
}

/// State of a cluster that is kept across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterRecord {
    /// Last valid cluster config. A cluster that ever had one is never read without one
    /// (docs/develop/invariants.md, 3).
    pub config: Option<ClusterConfig>,
    /// Time of the source's last response, to within half a minute.
    pub last_contact: Option<SystemTime>,
    /// Notices of the cluster for clients that read the mirror as an etcd, in key order. Only the
    /// view changes them.
    pub notices: Vec<RawRecord>,
}

/// State of the config directory, as its watcher reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryState {
    /// True if the last scan could read the directory.
    pub readable: bool,
    /// Why the last scan could not read the directory.
    pub error: Option<String>,
    /// Files that were refused, and the reasons.
    pub invalid: std::collections::BTreeMap<String, String>,
}

// docs/develop/invariants.md, "Phases of a remote cluster"
api_enum! {
    /// Phase of the connection to a cluster.
    pub enum Phase {
        /// The client file was not read since the start, or a certificate or key that it names does
        /// not exist yet.
        WaitingForFiles = "waitingForFiles",
        /// Connecting, and waiting for the first response.
        Connecting = "connecting",
        /// Waiting for the cluster config.
        ReadingConfig = "readingConfig",
        /// Waiting for the canary of at least one resource.
        WaitingForCanary = "waitingForCanary",
        /// Reading at least one resource completely, or checking whether the stored cursor is still
        /// valid.
        Listing = "listing",
        /// Every resource is complete and watched.
        Live = "live",
        /// The source's leases are no longer renewed (invariant 4).
        SourceLost = "sourceLost",
        /// The last attempt failed, and the next one has not started.
        BackingOff = "backingOff",
        /// The client file was removed or the cluster's id changed: its data is being removed.
        Draining = "draining",
    }
}

api_enum! {
    /// `live`: the source confirmed the data since meshkeep started. `restored`: from the store,
    /// not confirmed yet. `neverRead`: no complete list was ever read. `dump`: from a dump that
    /// `meshkeep load` serves.
    pub enum Origin {
        /// Confirmed by the source.
        Live = "live",
        /// Restored from the store and not confirmed yet.
        Restored = "restored",
        /// Nothing was ever read.
        NeverRead = "neverRead",
        /// Read from a dump, not from the source.
        Dump = "dump",
    }
}

impl Origin {
    /// Combines the origins of several sources: restored or from a dump if any is, and live only if
    /// all are. `None` without sources.
    pub fn combine(origins: impl Iterator<Item = Self>) -> Option<Self> {
        origins.reduce(|all, one| if all == Self::Restored || one == Self::Restored { Self::Restored } else { all.max(one) })
    }
}

/// State of one remote cluster, as its task reports it. Ages come from the monotonic clock
/// (invariant 10).
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterStatus {
    /// Current phase.
    pub phase: Phase,
    /// Start of the current phase.
    pub phase_since: Instant,
    /// Cluster config in force, once one was read or restored.
    pub config: Option<ClusterConfig>,
    /// Id in the cluster config that was read last, whether the cluster may use it or not.
    pub claimed_id: Option<ClusterId>,
    /// True if the cluster config was read over the current connection.
    pub config_retrieved: bool,
    /// True if the cluster config that the source once had was missing at the last read.
    pub config_deleted: bool,
    /// State of the etcd while its cluster config is missing. `None` once a config was read, or
    /// while there is no connection.
    pub missing_config: Option<MissingConfigState>,
    /// True if the current connection has a usable cluster config, or belongs to a cluster that
    /// never had one. The mirrored data is then certainly the cluster's own.
    pub connected: bool,
    /// Etcd of the current or last connection.
    pub etcd_cluster_id: Option<EtcdClusterId>,
    /// Endpoint of the current or last attempt, without user, password and query.
    pub endpoint: Option<String>,
    /// Time of the source's last response: a reply, an event or a progress notification.
    pub last_contact: Option<Instant>,
    /// Wall-clock time of the last contact, for people.
    pub last_contact_time: Option<SystemTime>,
    /// State of the writer behind the etcd: its heartbeats, and its silence.
    pub writer: WriterStatus,
    /// Number of times since the start that the entries by which agents send traffic were removed
    /// (`--cache-ttl`).
    pub revocation_count: u64,
    /// Number of failed attempts since the start.
    pub failure_count: u64,
    /// Reason why the last attempt failed, or what the cluster waits for.
    pub last_error: Option<String>,
    /// Time of `last_error`.
    pub last_error_time: Option<SystemTime>,
    /// Phase in which the last attempt failed, until everything is read or the cluster waits for
    /// something else.
    pub failed_in: Option<Phase>,
    /// Reason why its client file cannot be used, until it can.
    pub file_error: Option<String>,
    /// Human-readable list of probable mistakes in its client file: ignored keys that are probably
    /// misspelt, and an incomplete client certificate.
    pub file_warnings: Option<String>,
    /// True if the current connection sends changes but does not answer requests for progress.
    pub progress_unanswered: bool,
    /// Limit that the cluster exceeds, from its detection until the cluster is read completely.
    pub too_large: Option<String>,
    /// Details if the etcd's revision decreased within a connection.
    pub revision_rollback: Option<RevisionRollback>,
    /// Time of the next attempt, while backing off.
    pub next_retry: Option<Instant>,
    /// Earliest expiry of its client certificate and its CA.
    pub certificate_expiry: Option<SystemTime>,
    /// State of each kind, in the order of [`Kind::ALL`].
    pub resources: [ResourceStatus; Kind::ALL.len()],
    /// Keys of the source that this version does not know, in key order; at most 16 below each of
    /// `cilium/cache` and `cilium/state`.
    pub unknown_prefixes: Vec<UnknownPrefix>,
    /// The cluster config if it cannot be used, and keys that are not entries, at most 16 per kind;
    /// in key order.
    pub refused: Vec<RefusedKey>,
    /// Result of the newest verification that a client requested.
    pub verification_run: Option<Arc<VerificationRun>>,
}

/// An etcd that answered with an older state than before over the same connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionRollback {
    /// Error of the last detection.
    pub error: String,
    /// Time of the last detection.
    pub last: Instant,
    /// Number of detections since meshkeep started.
    pub count: u64,
}

/// Key of the source that is not an entry and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedKey {
    /// [`Kind::Cluster`] for the cluster config; otherwise the kind whose watched prefix the key is
    /// below.
    pub kind: Kind,
    /// Key as the source names it. For a key above 4 KiB, its first 256 bytes, its length and its
    /// SHA-256.
    pub source_key: Vec<u8>,
    /// First bytes of the value, at most 4,096: the largest cluster config has some 300, and the
    /// content of other keys is unknown.
    pub value: Arc<[u8]>,
    /// Reason of the refusal.
    pub reason: Arc<str>,
    /// Time of the first detection in this process.
    pub first_seen: SystemTime,
    /// Time of the last detection.
    pub last_seen: SystemTime,
}

impl RefusedKey {
    /// Maximum bytes of a value that are kept.
    const VALUE_BYTES_MAX: usize = 4_096;

    /// Maximum length of a key that is kept whole, in bytes.
    const KEY_BYTES_MAX: usize = 4_096;

    /// Number of bytes that are kept of a longer key.
    const KEY_BYTES_SHOWN: usize = 256;

    /// Creates an entry for a key that was seen for the first time.
    #[must_use]
    pub fn new(kind: Kind, source_key: &[u8], value: &[u8], reason: &str, now: SystemTime) -> Self {
        let value = value.get(..Self::VALUE_BYTES_MAX).unwrap_or(value).into();
        Self { kind, source_key: Self::shown_key(source_key), value, reason: reason.into(), first_seen: now, last_seen: now }
    }

    /// Returns the key as it is listed. The hash distinguishes long keys with the same beginning.
    fn shown_key(source_key: &[u8]) -> Vec<u8> {
        if source_key.len() <= Self::KEY_BYTES_MAX {
            return source_key.to_vec();
        }
        let hash: String = Sha256::digest(source_key).iter().map(|byte| format!("{byte:02x}")).collect();
        let tail = format!("… ({} bytes, sha256 {hash})", source_key.len());
        [&source_key[..Self::KEY_BYTES_SHOWN], tail.as_bytes()].concat()
    }
}

/// Keys of the source that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPrefix {
    /// Common prefix of the keys, as far as it is text.
    pub prefix: String,
    /// Number of keys at the last scan.
    pub key_count: u64,
}

/// The state of one kind of one cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceStatus {
    /// True if the kind is complete and watched.
    pub synced: bool,
    /// Last contact before `synced` last became false. `None` if it never did since the start.
    pub observed_until: Option<SystemTime>,
    /// True if the cluster announces canaries and this kind's has not been seen yet.
    pub awaiting_canary: bool,
    /// True if this kind's canary was seen over the current connection and was then deleted.
    pub canary_deleted: bool,
    /// Number of held entries, which the source has lost (docs/develop/invariants.md, 4).
    pub held_count: usize,
    /// Number of keys that the source reported, while listing and afterwards.
    pub expected_count: Option<u64>,
    /// Arrival time of the last change.
    pub last_event_time: Option<SystemTime>,
    /// The source's revision up to which the kind is complete.
    pub revision: Option<Revision>,
    /// Results of the newest comparisons with the source.
    pub verification: Verification,
}

impl ResourceStatus {
    /// Sets `synced`, given the last contact of the cluster.
    pub fn set_synced(&mut self, synced: bool, last_contact: Option<SystemTime>) {
        if self.synced && !synced {
            self.observed_until = last_contact;
        }
        self.synced = synced;
    }
}

impl ClusterStatus {
    /// Creates the state of a cluster whose client file was just found.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Connecting,
            phase_since: now,
            config: None,
            claimed_id: None,
            config_retrieved: false,
            config_deleted: false,
            missing_config: None,
            connected: false,
            etcd_cluster_id: None,
            endpoint: None,
            last_contact: None,
            last_contact_time: None,
            writer: WriterStatus::default(),
            revocation_count: 0,
            failure_count: 0,
            last_error: None,
            last_error_time: None,
            failed_in: None,
            file_error: None,
            file_warnings: None,
            progress_unanswered: false,
            too_large: None,
            revision_rollback: None,
            next_retry: None,
            certificate_expiry: None,
            resources: Default::default(),
            unknown_prefixes: Vec::new(),
            refused: Vec::new(),
            verification_run: None,
        }
    }

    /// Replaces the refused keys of a kind. Keys that were refused before keep their `first_seen`.
    pub fn set_refused_keys(&mut self, kind: Kind, refused: impl IntoIterator<Item = RefusedKey>) {
        let (before, mut others): (Vec<RefusedKey>, Vec<RefusedKey>) = self.refused.drain(..).partition(|known| known.kind == kind);
        others.extend(refused.into_iter().map(|refused| {
            let known = before.iter().find(|known| known.source_key == refused.source_key);
            RefusedKey { first_seen: known.map_or(refused.first_seen, |known| known.first_seen), ..refused }
        }));
        others.sort_by(|one, other| one.source_key.cmp(&other.source_key));
        self.refused = others;
    }

    /// Returns the state of one mirrored kind.
    #[must_use]
    pub fn resource(&self, kind: Kind) -> &ResourceStatus {
        &self.resources[kind.index()]
    }

    /// Returns the state of one mirrored kind for changes.
    pub fn resource_mut(&mut self, kind: Kind) -> &mut ResourceStatus {
        &mut self.resources[kind.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_listed_with_its_prefix_length_and_hash() {
        let listed = |length: usize| RefusedKey::new(Kind::Node, &vec![b'k'; length], b"", "why", SystemTime::UNIX_EPOCH).source_key;
        assert_eq!(listed(4_096), vec![b'k'; 4_096]);
        let long = String::from_utf8(listed(20_000)).unwrap();
        let expected = "k".repeat(256) + "… (20000 bytes, sha256 ";
        assert!(long.starts_with(&expected) && long.len() == expected.len() + 65, "{long}");
        assert_ne!(listed(20_000)[256..], listed(20_001)[256..]);
    }

    #[test]
    fn refused_keys_keep_their_first_detection_per_kind() {
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let refused = |kind, key: &[u8], seconds| RefusedKey::new(kind, key, &[7; 5_000], "why", at(seconds));
        let mut status = ClusterStatus::new(Instant::now());
        status.set_refused_keys(Kind::Node, [refused(Kind::Node, b"b", 1), refused(Kind::Node, b"a", 1)]);
        status.set_refused_keys(Kind::Cluster, [refused(Kind::Cluster, b"c", 2)]);
        status.set_refused_keys(Kind::Node, [refused(Kind::Node, b"b", 3), refused(Kind::Node, b"d", 3)]);
        let listed: Vec<_> =
            status.refused.iter().map(|refused| (refused.source_key.as_slice(), refused.first_seen, refused.last_seen)).collect();
        assert_eq!(listed, [(b"b".as_slice(), at(1), at(3)), (b"c", at(2), at(2)), (b"d", at(3), at(3))]);
        assert_eq!(status.refused[0].value.len(), 4_096);
        status.set_refused_keys(Kind::Node, []);
        assert_eq!(status.refused.len(), 1);
    }

    #[test]
    fn cluster_names_follow_ciliums_rule() {
        for good in ["a", "0", "paris", "eu-west-1", "a--b", &"x".repeat(32)] {
            assert!(ClusterName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "Paris", "a_b", "a.b", "foo.yaml", "..data", &"x".repeat(33), "ü"] {
            assert_eq!(ClusterName::parse(bad), Err(InvalidClusterName { name: bad.into() }), "{bad}");
        }
    }
}
