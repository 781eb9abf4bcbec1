//! Closed sets of values. Each is an enum in the OpenAPI document, which generators turn into a
//! type.
//!
//! Free text from a source, such as a protocol or a session affinity, is not a closed set.

use crate::model::{ApiEnum, api_enum};

pub(crate) use crate::model::{
    Affinity, BackendState, ConflictReason, FindingKind, IdentityScope, ImpactEffect, ImpactKind, Kind, Origin, Phase, ResetReason,
    SelectionRule, SettingSource, Severity, SyncMode,
};

api_enum! {
    /// `unknown`: the source is itself a copy, and the age of the copied data cannot be known.
    pub(crate) enum UnknownAge { Unknown = "unknown" }
}

api_enum! {
    /// State of the store.
    pub(crate) enum StoreState { Loading = "loading", Healthy = "healthy", Lost = "lost", Failing = "failing", Stopped = "stopped" }
}

api_enum! {
    /// Source of an ipcache entry: `clustermesh`, or `node` if it is derived from a node's
    /// addresses or pod CIDRs.
    pub(crate) enum EntrySource { Clustermesh = "clustermesh", Node = "node" }
}

api_enum! {
    /// Verdict on an entry that covers an address: `wins`, `shadowed` by a host entry for the same
    /// address, `lessSpecific`, or `outranked` by another entry of the same prefix.
    pub(crate) enum Verdict { Wins = "wins", Shadowed = "shadowed", LessSpecific = "lessSpecific", Outranked = "outranked" }
}

api_enum! {
    /// The kind of object that the backends come from.
    pub(crate) enum BackendSource { Service = "service", EndpointSlice = "endpointSlice" }
}

api_enum! {
    /// Backends that the service's own cluster uses.
    pub(crate) enum TrafficPolicy { Cluster = "Cluster", Local = "Local" }
}

// in order of HTTP status
api_enum! {
    /// Machine-readable type of an error. Each has a page below `/problems/`.
    pub(crate) enum ProblemCode {
        BadParameter = "badParameter",
        BadRequest = "badRequest",
        Unauthorized = "unauthorized",
        Forbidden = "forbidden",
        NotFound = "notFound",
        UnknownRoute = "unknownRoute",
        MethodNotAllowed = "methodNotAllowed",
        NotAcceptable = "notAcceptable",
        BodyTimeout = "bodyTimeout",
        ExpiredPosition = "expiredPosition",
        TooLarge = "tooLarge",
        UnsupportedMediaType = "unsupportedMediaType",
        UnknownHost = "unknownHost",
        TooManyStreams = "tooManyStreams",
        TooBusy = "tooBusy",
        Internal = "internal",
        Loading = "loading",
        MemoryLimitReached = "memoryLimitReached",
        Stopping = "stopping",
        TooOld = "tooOld",
    }
}

api_enum! {
    /// Kind of a possible reason why an address has no entry of its own, or an outdated one. For a
    /// CIDR, `inside` reports more specific entries.
    pub(crate) enum HintKind {
        Rejected = "rejected",
        Inside = "inside",
        PodCidr = "podCIDR",
        Deleted = "deleted",
        NeverRead = "neverRead",
        Restored = "restored",
        Nearest = "nearest",
    }
}

api_enum! {
    /// Type of an event.
    pub(crate) enum EventType {
        Reset = "reset",
        Upsert = "upsert",
        Patch = "patch",
        Delete = "delete",
        Cluster = "cluster",
        Synced = "synced",
        Bookmark = "bookmark",
        Error = "error",
    }
}

api_enum! {
    /// Reason of a `delete` (the first four values) or of a `reset`.
    pub(crate) enum EventReason {
        Deleted = "deleted",
        LeftFilter = "leftFilter",
        ClusterRemoved = "clusterRemoved",
        Unknown = "unknown",
        Initial = "initial",
        Expired = "expired",
        ForeignEpoch = "foreignEpoch",
        RolledBack = "rolledBack",
        Malformed = "malformed",
    }
}

api_enum! {
    /// Way in which a version of an entry ended.
    pub(crate) enum VersionEnd {
        Updated = "updated",
        Deleted = "deleted",
        ClusterRemoved = "clusterRemoved",
    }
}

api_enum! {
    /// Level of detail of `meta`.
    pub(crate) enum MetaDetail { Full = "full", None = "none" }
}

api_enum! {
    /// Handling of clusters that were never read.
    pub(crate) enum NeverRead { Ignore = "ignore" }
}

api_enum! {
    /// Reaction to a position that can no longer be served.
    pub(crate) enum OnExpired { Fail = "fail", Reset = "reset" }
}

/// A kind that the change stream names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamedKind(pub(crate) Kind);

impl ApiEnum for StreamedKind {
    const SCHEMA: &'static str = "StreamedKind";
    const DESCRIPTION: &'static str = "A kind of object in the change stream.";

    fn values() -> impl Iterator<Item = Self> {
        Kind::STREAMED.into_iter().map(Self)
    }

    fn api_name(self) -> &'static str {
        self.0.api_name()
    }
}

/// The reason of a conflict that a list is filtered by; `None` for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConflictFilter(pub(crate) Option<ConflictReason>);

impl ApiEnum for ConflictFilter {
    const SCHEMA: &'static str = "ConflictFilter";
    const DESCRIPTION: &'static str = "List only services with this conflict between their exports. `any`: with any conflict.";

    fn values() -> impl Iterator<Item = Self> {
        std::iter::once(None).chain(ConflictReason::ALL.into_iter().map(Some)).map(Self)
    }

    fn api_name(self) -> &'static str {
        self.0.map_or("any", ConflictReason::api_name)
    }
}
