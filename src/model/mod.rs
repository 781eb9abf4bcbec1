//! Domain types of the mesh: names, keys, objects, records, positions, and the changes between
//! them.
//!
//! The module has no IO, no async code and no serde. `wire` decodes Cilium's formats, and `store`
//! defines the layout on disk.

mod api_enum;
mod changes;
mod clusters;
mod exact_name;
mod key;
mod objects;
mod process;
mod record_query;
mod size;
mod text;

pub use cilium_kvstore::{Backoff, EtcdClusterId, LeaseId, Revision};

pub use api_enum::ApiEnum;
pub(crate) use api_enum::api_enum;
pub use changes::catch_up::{ResetReason, SyncMode};
pub use changes::change::{CanaryPoint, Change, Command, Cursor, DeletePoint, DeleteReason, PutPoint, Scope, Tombstone};
pub use changes::finding::{FindingChange, FindingObject};
pub use changes::finding_kind::{FindingKind, Severity};
pub use changes::observation::{ChangeTime, GapEnd, ObservationGap, SequenceRun};
pub use changes::position::{Epoch, EpochSpan, Position, ReaderPosition, Sequence};
pub use changes::record::{RawRecord, Record, Rejection, SourceStamp};
pub use changes::replaced::{ReplacedRecord, ReplacedRecordSink, ReplacedRecords};
pub use clusters::cluster::{
    ClusterConfig, ClusterId, ClusterName, ClusterRecord, ClusterStatus, DirectoryState, MaxConnectedClusters, Origin, Phase, RefusedKey,
    ResourceStatus, RevisionRollback, UnknownPrefix,
};
pub use clusters::missing_config::{MissingConfig, MissingConfigState};
pub use clusters::verification::{Divergence, KindVerification, Verification, VerificationRun};
pub use clusters::writer::{Heartbeat, SilenceLimits, WriterStatus};
pub use exact_name::check_exact_name;
pub(crate) use key::NODE_IP_MARK;
pub use key::{EntryKey, Kind};
pub use objects::export::{EndpointSlice, ExportPort, ServiceExport, SliceEndpoint, SlicePort};
pub use objects::global_service::{Affinity, BackendState, ConflictReason, SelectionRule};
pub use objects::identity_labels::IdentityLabels;
pub use objects::impact::{ImpactEffect, ImpactKind};
pub use objects::numeric_identity::{ALLOCATED_IDENTITY_MIN, IDENTITY_REMOTE_NODE, IdentityScope};
pub use objects::object::{
    Backend, BackendZone, CLUSTER_LABEL, ClusterPhase, Frontend, Identity, IpEntry, LabelSet, NAMESPACE_LABEL, NamedPort, Node,
    NodeAddress, Object, ObjectPrefix, Port, SERVICE_ACCOUNT_LABEL, Service,
};
pub use objects::packed_slice::PackedSlice;
pub use process::dump_source::{DumpSource, DumpTimeSource};
pub use process::listen::{ETCD_VERSION, ListenAddress};
pub use process::metrics_detail::MetricsDetail;
pub use process::page_origin::{OtherOriginError, PageHeaders};
pub use process::setting::{Setting, SettingSource};
pub use process::webhook_format::WebhookFormat;
pub use record_query::RecordQuery;
pub use size::{ScopeSize, Size};
pub use text::duration::parse_duration;
pub use text::printable::{is_terminal_control, printable, printable_with_colours, without_colours};
pub use text::readable_error::readable_error;
pub use text::secret_url::{SecretUrl, redact_url_secrets, redact_urls, redacted_path};
pub use text::suggestion::suggest_word;
