//! Values of global services: states of backends, rules that select backends, and conflicts
//! between exports.

use crate::model::api_enum::api_enum;

api_enum! {
    /// State of a backend.
    pub enum BackendState {
        /// Accepts connections.
        Active = "active",
        /// Terminating; accepts new connections only if no other backend does.
        Terminating = "terminating",
        /// Terminating; accepts no connections.
        TerminatingNotServing = "terminatingNotServing",
        /// Accepts no connections for now.
        Maintenance = "maintenance",
    }
}

// values of the annotation `service.cilium.io/affinity` (Cilium's `pkg/annotation`)
api_enum! {
    /// Preferred backends of a global service.
    pub enum Affinity {
        /// Local and remote backends alike.
        None = "none",
        /// Remote backends only if no local one is active.
        Local = "local",
        /// Local backends only if no remote one is healthy.
        Remote = "remote",
    }
}

api_enum! {
    /// The rule that decided which backends are used.
    pub enum SelectionRule {
        /// The cluster announces no such service: no frontend and no backends. Current releases do
        /// not announce a global service that is not shared either (docs/develop/protocol.md §2.2),
        /// although agents use the remote backends for such a service.
        NoLocalService = "noLocalService",
        /// The local service does not include external backends: only local backends.
        NotGlobal = "notGlobal",
        /// No affinity: both.
        NoAffinity = "noAffinity",
        /// Affinity `local`, and a local backend is active: only local backends.
        LocalActive = "localActive",
        /// Affinity `local`, no local backend is active, and a remote one is healthy: both.
        LocalInactive = "localInactive",
        /// Affinity `local`, no local backend is active, and no remote one is healthy: only local
        /// backends, although none is active.
        LocalInactiveRemoteUnhealthy = "localInactiveRemoteUnhealthy",
        /// Affinity `remote`, and a remote backend is healthy: only remote backends.
        RemoteHealthy = "remoteHealthy",
        /// Affinity `remote`, no remote backend is healthy, and a local one is: both.
        RemoteUnhealthy = "remoteUnhealthy",
        /// Affinity `remote`, and no backend is healthy: only remote backends, although none is
        /// healthy.
        NoneHealthy = "noneHealthy",
    }
}

api_enum! {
    /// Reason of a conflict between exports of the same name, as in the `Conflict` condition of a
    /// `ServiceExport`.
    pub enum ConflictReason {
        /// The annotations differ.
        Annotations = "AnnotationsConflict",
        /// There is no common IP family.
        IpFamily = "IPFamilyConflict",
        /// `internalTrafficPolicy` differs.
        InternalTrafficPolicy = "InternalTrafficPolicyConflict",
        /// The labels differ.
        Labels = "LabelsConflict",
        /// The ports differ.
        Port = "PortConflict",
        /// `sessionAffinityConfig` differs.
        SessionAffinityConfig = "SessionAffinityConfigConflict",
        /// `sessionAffinity` differs.
        SessionAffinity = "SessionAffinityConflict",
        /// `trafficDistribution` differs.
        TrafficDistribution = "TrafficDistributionConflict",
        /// `type` differs.
        Type = "TypeConflict",
    }
}
