//! Domain values of the mesh: what a remote cluster says, where it came from and how old it is.
//!
//! Owns: names, positions, keys, objects, records and the changes between them. Deliberately lacks: IO, async, serde and
//! any knowledge of Cilium's wire formats (`wire` has that) or of sled's layout (`store` has that).

mod announcement;
mod backoff;
mod causes;
mod change;
mod cluster;
mod etcd_counts;
mod exact_name;
mod export;
mod footprint;
mod histogram;
mod identity_labels;
mod in_words;
mod key;
mod listen;
mod log_tail;
mod missing_config;
mod nearest;
mod numeric_identity;
mod object;
mod packed_slice;
mod position;
mod printable;
mod question;
mod record;
mod reminders;
mod secret_url;
mod setting;
mod size;
mod told_finding;
mod writer;

pub use announcement::{Announcement, Rows, Version};
pub use backoff::Backoff;
pub use causes::{Causes, Due};
pub use change::{Change, Command, Cursor, DeletePoint, DeleteReason, PutPoint, Scope, Sentinel, Tombstone};
pub use cluster::{
    ClusterConfig, ClusterId, ClusterName, ClusterRecord, ClusterStatus, DirectoryState, EtcdClusterId, MaxConnectedClusters, Phase,
    RefusedKey, ResourceStatus, UnknownPrefix, WentBack,
};
pub use etcd_counts::{EtcdCounts, OpenOne, RangeOutcome};
pub use exact_name::check_exact_name;
pub use export::{EndpointSlice, ExportPort, ServiceExport, SliceEndpoint, SlicePort};
pub use histogram::{HISTOGRAM_STEPS, Histogram, Times};
pub use identity_labels::IdentityLabels;
pub use in_words::in_words;
pub(crate) use key::NODE_IP_MARK;
pub use key::{EntryKey, Kind};
pub use listen::{ETCD_VERSION, ListenAddress};
pub use log_tail::LogTail;
pub use missing_config::{MissingConfig, MissingConfigState};
pub use nearest::nearest;
pub use numeric_identity::{ALLOCATED_IDENTITY_MIN, IDENTITY_REMOTE_NODE, IdentityScope};
pub use object::{
    Backend, BackendZone, CLUSTER_LABEL, ClusterPhase, Frontend, Identity, IpEntry, LabelSet, NamedPort, Node, NodeAddress, Object,
    ObjectPrefix, Port, Service,
};
pub use packed_slice::PackedSlice;
pub use position::{Epoch, EpochSpan, LeaseId, Position, ReaderPosition, Revision, Sequence};
pub use printable::{is_acted_on, printable, printable_with_colours};
pub use question::Question;
pub use record::{RawRecord, Record, Rejection, SourceStamp};
pub use reminders::{REMINDER_INTERVAL, Reminders};
pub use secret_url::{SecretUrl, shown_path, with_bare_urls, without_url_secrets};
pub use setting::{Setting, SettingSource};
pub use size::{ScopeSize, Size};
pub use told_finding::{FindingChange, Severity, ToldFinding};
pub use writer::{Heartbeat, SilenceLimits, WriterStatus};
