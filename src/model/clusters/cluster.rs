//! Clusters: their names and ids, what they say about themselves, and where each one is in its life.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sha2::{Digest, Sha256};
use smol_str::SmolStr;

use crate::model::{EtcdClusterId, Kind, MissingConfigState, RawRecord, Revision, WriterStatus};

/// The longest cluster name that Cilium accepts, in bytes (`pkg/clustermesh/types/option.go`).
const CLUSTER_NAME_LENGTH_MAX: usize = 32;

/// A valid cluster name: at most 32 characters, lower-case letters, digits and `-`, ending in a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(SmolStr);

/// A text that cannot be a cluster's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid cluster name: it must be 1 to 32 characters of a-z, 0-9 and '-', begin and end with a letter or digit")]
pub struct InvalidClusterName {
    /// The refused text.
    pub name: String,
}

impl ClusterName {
    /// Checks and keeps a name. The rule is Cilium's `^([a-z0-9][-a-z0-9]*)?[a-z0-9]$` with at most 32 characters.
    ///
    /// # Errors
    /// [`InvalidClusterName`] for anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidClusterName> {
        let bytes = text.as_bytes();
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let valid = bytes.len() <= CLUSTER_NAME_LENGTH_MAX
            && bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|b| alphanumeric(b) || *b == b'-');
        if valid { Ok(Self(text.into())) } else { Err(InvalidClusterName { name: text.into() }) }
    }

    /// What stands in the place of a name where no single cluster is meant.
    pub const NONE: &str = "-";

    /// Sorts before every valid name, and is none: for the start of a scan, and for what is of several clusters or of none.
    pub(in crate::model) fn lowest() -> Self {
        // '-' is the lowest character of a name and no name begins with it; keys compare the '/' behind a name, so one '-' is not
        // lower than "-…", which is no name either.
        Self(Self::NONE.into())
    }

    /// Whether it is no cluster's name but stands for several or none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == Self::NONE
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The order that two names have inside a key, where a `/` follows them.
    pub(crate) fn cmp_in_keys(&self, other: &Self) -> Ordering {
        let slashed = |name: &Self| name.0.len();
        let common = slashed(self).min(slashed(other));
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

/// A cluster's id in the mesh: 1 to 255, or to 511 in meshes of that size; 0 is "not known".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub u32);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many clusters a mesh can have: this decides which bits of an identity name its cluster (`pkg/clustermesh/types/types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxConnectedClusters {
    /// The default: cluster ids in 8 bits.
    #[default]
    Clusters255,
    /// The option: cluster ids in 9 bits.
    Clusters511,
}

impl MaxConnectedClusters {
    /// The highest cluster id.
    #[must_use]
    pub const fn id_max(self) -> u32 {
        match self {
            Self::Clusters255 => 255,
            Self::Clusters511 => 511,
        }
    }

    /// Reads 255 or 511; anything else is `None`.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            255 => Some(Self::Clusters255),
            511 => Some(Self::Clusters511),
            _ => None,
        }
    }
}

/// What a cluster says about itself at `cilium/cluster-config/<cluster>` (`pkg/clustermesh/types/types.go`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterConfig {
    /// Its id; 0 if it gives none.
    pub id: ClusterId,
    /// Whether it announces by canaries that a resource is complete.
    pub synced_canaries: bool,
    /// Whether its data is in cache form, below `cilium/cache`: a copy made by a KVStoreMesh.
    pub cached: bool,
    /// 255 or 511; 0 if not given.
    pub max_connected_clusters: u32,
    /// `None`: service exports not supported; `Some(false)`: supported but off.
    pub service_exports_enabled: Option<bool>,
    /// `endpointslices-only` and the like; `None` if not given.
    pub endpoint_slices_export_mode: Option<String>,
}

/// What is remembered of a cluster across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterRecord {
    /// The last valid cluster config; a cluster that ever had one is never read without one (docs/develop/invariants.md, 3).
    pub config: Option<ClusterConfig>,
    /// When its source last said anything, to within half a minute.
    pub last_contact: Option<SystemTime>,
    /// What clients that read the mirror as an etcd were told of it, in key order. The view alone changes it.
    pub notices: Vec<RawRecord>,
}

/// What the watcher of the config directory has to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryState {
    /// Whether the last scan could read the directory.
    pub readable: bool,
    /// Why not.
    pub error: Option<String>,
    /// Files that were refused, and why.
    pub invalid: std::collections::BTreeMap<String, String>,
}

/// Where a remote cluster is in its life (docs/develop/invariants.md, "Phases of a remote cluster").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Its file was not read since the start, or a certificate or key that it names is not there yet.
    WaitingForFiles,
    /// Opening a connection and waiting for the first answer.
    Connecting,
    /// Waiting for its cluster config.
    ReadingConfig,
    /// Waiting for the canary of at least one resource.
    WaitingForCanary,
    /// Reading at least one resource in full, or checking whether the last position is still good.
    Listing,
    /// Every resource is complete and watched.
    Live,
    /// Its data stands on leases that nobody renews any more (invariant 4).
    SourceLost,
    /// The last attempt failed; waiting before the next one.
    BackingOff,
    /// Its file is gone or its id changed: what it left is being removed.
    Draining,
}

impl Phase {
    /// Every phase, in the order of a life.
    pub const ALL: [Self; 9] = [
        Self::WaitingForFiles,
        Self::Connecting,
        Self::ReadingConfig,
        Self::WaitingForCanary,
        Self::Listing,
        Self::Live,
        Self::SourceLost,
        Self::BackingOff,
        Self::Draining,
    ];

    /// The name that the API uses.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::WaitingForFiles => "waitingForFiles",
            Self::Connecting => "connecting",
            Self::ReadingConfig => "readingConfig",
            Self::WaitingForCanary => "waitingForCanary",
            Self::Listing => "listing",
            Self::Live => "live",
            Self::SourceLost => "sourceLost",
            Self::BackingOff => "backingOff",
            Self::Draining => "draining",
        }
    }
}

/// The state of one remote cluster as its own task tells it. Ages come from the monotonic clock (invariant 10).
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterStatus {
    /// Where it is.
    pub phase: Phase,
    /// When it got there.
    pub phase_since: Instant,
    /// The configuration in force, once one was read or restored.
    pub config: Option<ClusterConfig>,
    /// The id that its configuration claimed when it was read last, whether it may have it or not.
    pub claimed_id: Option<ClusterId>,
    /// Whether the configuration was read over the present connection.
    pub config_retrieved: bool,
    /// Whether the source was without the configuration that it once had when it was asked last.
    pub config_gone: bool,
    /// What the etcd has instead of a configuration that may be read, until one is read or there is no connection to it.
    pub missing_config: Option<MissingConfigState>,
    /// Whether the present connection has a usable configuration, or is one to a cluster that never had any: what is mirrored is its own.
    pub connected: bool,
    /// The etcd behind the present or last connection.
    pub etcd_cluster_id: Option<EtcdClusterId>,
    /// The endpoint of the present or last attempt, without user, password and query.
    pub endpoint: Option<String>,
    /// When the source last said anything: a reply, an event or a progress mark.
    pub last_contact: Option<Instant>,
    /// The last contact on the wall clock, for people.
    pub last_contact_time: Option<SystemTime>,
    /// What is known of the writer behind the etcd: its heartbeats, and its silence.
    pub writer: WriterStatus,
    /// How often what agents send traffic by was given up since meshkeep started (`--cache-ttl`).
    pub revocation_count: u64,
    /// How many attempts have failed since meshkeep started.
    pub failure_count: u64,
    /// Why the last attempt failed, or what is being waited for.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_time: Option<SystemTime>,
    /// In which phase the last attempt failed, until everything is read or something else is waited for.
    pub failed_in: Option<Phase>,
    /// Why its file cannot be used, until it can.
    pub file_error: Option<String>,
    /// Keys of its file that are ignored and were probably meant otherwise, in words.
    pub file_slips: Option<String>,
    /// Whether the present connection sends changes and answers no question for progress.
    pub progress_unanswered: bool,
    /// In which way the cluster has more than it may have, from when that was found until it is read in full.
    pub too_large: Option<String>,
    /// That its revision went back within a connection, where it did.
    pub went_back: Option<WentBack>,
    /// When the next attempt starts, while backing off.
    pub next_retry: Option<Instant>,
    /// When the first of its client certificate and its CA runs out.
    pub certificate_expiry: Option<SystemTime>,
    /// One for each kind, in the order of [`Kind::ALL`].
    pub resources: [ResourceStatus; Kind::ALL.len()],
    /// What the source has that this version does not know, in key order; at most 16 below each of `cilium/cache` and `cilium/state`.
    pub unknown_prefixes: Vec<UnknownPrefix>,
    /// Its configuration where that cannot be used, and keys that are no entries, at most 16 of each kind; in key order.
    pub refused: Vec<RefusedKey>,
}

/// An etcd whose answers were of an older state than one before over the same connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WentBack {
    /// How that was noticed last.
    pub error: String,
    /// When.
    pub last: Instant,
    /// How often, since meshkeep started.
    pub count: u64,
}

/// A key of the source that is none of the entries and could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedKey {
    /// [`Kind::Cluster`] for the cluster config; else the kind whose watched prefix the key is below.
    pub kind: Kind,
    /// The key as the source names it; of a key above 4 KiB the first 256 bytes, its length and its SHA-256.
    pub source_key: Vec<u8>,
    /// Its first bytes, at most 4,096 of them: the largest cluster config has some 300, and nobody knows what else this could be.
    pub value: Arc<[u8]>,
    /// Why.
    pub reason: Arc<str>,
    /// Since when, in this process.
    pub first_seen: SystemTime,
    /// When it was found last.
    pub last_seen: SystemTime,
}

impl RefusedKey {
    /// How many bytes of a value are kept.
    const VALUE_BYTES_MAX: usize = 4_096;

    /// Maximum length of a key that is kept whole, in bytes.
    const KEY_BYTES_MAX: usize = 4_096;

    /// Number of bytes that are kept of a longer key.
    const KEY_BYTES_SHOWN: usize = 256;

    /// One that is seen for the first time.
    #[must_use]
    pub fn new(kind: Kind, source_key: &[u8], value: &[u8], reason: &str, now: SystemTime) -> Self {
        let value = value.get(..Self::VALUE_BYTES_MAX).unwrap_or(value).into();
        Self { kind, source_key: Self::shown_key(source_key), value, reason: reason.into(), first_seen: now, last_seen: now }
    }

    /// Returns a key as it is listed. The hash keeps apart long keys that begin alike.
    fn shown_key(source_key: &[u8]) -> Vec<u8> {
        if source_key.len() <= Self::KEY_BYTES_MAX {
            return source_key.to_vec();
        }
        let hash: String = Sha256::digest(source_key).iter().map(|byte| format!("{byte:02x}")).collect();
        let tail = format!("… ({} bytes, sha256 {hash})", source_key.len());
        [&source_key[..Self::KEY_BYTES_SHOWN], tail.as_bytes()].concat()
    }
}

/// Keys at the source that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPrefix {
    /// What they have in common, as far as it is text.
    pub prefix: String,
    /// How many there were when they were last looked for.
    pub key_count: u64,
}

/// The state of one kind of one cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceStatus {
    /// Complete and watched.
    pub synced: bool,
    /// The cluster announces canaries, and this kind's has not been seen yet.
    pub awaiting_canary: bool,
    /// This kind's canary was seen over the present connection, and has gone from the source.
    pub canary_gone: bool,
    /// How many keys stay although the source has lost them (docs/develop/invariants.md, 4).
    pub held_count: usize,
    /// How many keys the source said that it has, while listing and after.
    pub expected_count: Option<u64>,
    /// When the last change arrived.
    pub last_event_time: Option<SystemTime>,
    /// The source's revision that it is complete up to.
    pub revision: Option<Revision>,
}

impl ClusterStatus {
    /// The state of a cluster whose file has just been found.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Connecting,
            phase_since: now,
            config: None,
            claimed_id: None,
            config_retrieved: false,
            config_gone: false,
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
            file_slips: None,
            progress_unanswered: false,
            too_large: None,
            went_back: None,
            next_retry: None,
            certificate_expiry: None,
            resources: Default::default(),
            unknown_prefixes: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// From now on these are what is refused of a kind, each for as long as it has been.
    pub fn refuse(&mut self, kind: Kind, refused: impl IntoIterator<Item = RefusedKey>) {
        let (before, mut others): (Vec<RefusedKey>, Vec<RefusedKey>) = self.refused.drain(..).partition(|known| known.kind == kind);
        others.extend(refused.into_iter().map(|refused| {
            let known = before.iter().find(|known| known.source_key == refused.source_key);
            RefusedKey { first_seen: known.map_or(refused.first_seen, |known| known.first_seen), ..refused }
        }));
        others.sort_by(|one, other| one.source_key.cmp(&other.source_key));
        self.refused = others;
    }

    /// The state of one mirrored kind.
    #[must_use]
    pub fn resource(&self, kind: Kind) -> &ResourceStatus {
        &self.resources[kind.place()]
    }

    /// The state of one mirrored kind, to be changed.
    pub fn resource_mut(&mut self, kind: Kind) -> &mut ResourceStatus {
        &mut self.resources[kind.place()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_listed_with_its_beginning_its_length_and_its_hash() {
        let listed = |length: usize| RefusedKey::new(Kind::Node, &vec![b'k'; length], b"", "why", SystemTime::UNIX_EPOCH).source_key;
        assert_eq!(listed(4_096), vec![b'k'; 4_096]);
        let long = String::from_utf8(listed(20_000)).unwrap();
        let expected = "k".repeat(256) + "… (20000 bytes, sha256 ";
        assert!(long.starts_with(&expected) && long.len() == expected.len() + 65, "{long}");
        assert_ne!(listed(20_000)[256..], listed(20_001)[256..]);
    }

    #[test]
    fn what_is_refused_again_is_refused_since_it_was_first_and_each_kind_apart() {
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let refused = |kind, key: &[u8], seconds| RefusedKey::new(kind, key, &[7; 5_000], "why", at(seconds));
        let mut status = ClusterStatus::new(Instant::now());
        status.refuse(Kind::Node, [refused(Kind::Node, b"b", 1), refused(Kind::Node, b"a", 1)]);
        status.refuse(Kind::Cluster, [refused(Kind::Cluster, b"c", 2)]);
        status.refuse(Kind::Node, [refused(Kind::Node, b"b", 3), refused(Kind::Node, b"d", 3)]);
        let told: Vec<_> =
            status.refused.iter().map(|refused| (refused.source_key.as_slice(), refused.first_seen, refused.last_seen)).collect();
        assert_eq!(told, [(b"b".as_slice(), at(1), at(3)), (b"c", at(2), at(2)), (b"d", at(3), at(3))]);
        assert_eq!(status.refused[0].value.len(), 4_096);
        status.refuse(Kind::Node, []);
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
