//! Which backends of a global service an agent would use (`SelectBackends`, Cilium's
//! `pkg/clustermesh/loadbalancer/selectbackends.go`).

use super::{BackendState, GlobalBackend, ServiceShare};

/// What a service's annotation `service.cilium.io/affinity` says (Cilium's `pkg/annotation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// Local and remote backends alike.
    None,
    /// Remote ones only where no local one is active.
    Local,
    /// Local ones only where no remote one is healthy.
    Remote,
}

/// The service as the cluster has it whose agents choose.
#[derive(Debug, Clone, Copy)]
pub enum LocalService<'a> {
    /// The cluster is not mirrored: its service is taken for global, and for one without backends.
    Unknown,
    /// The cluster announces no such service.
    Missing,
    /// The cluster has it.
    Known(&'a ServiceShare),
}

/// Which side's backends are used, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Whether the cluster's own are.
    pub local: bool,
    /// Whether those of other clusters are.
    pub remote: bool,
    /// The rule that decided.
    pub rule: SelectionRule,
}

/// The rules, each with the outcome that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionRule {
    /// No frontend, no backends. Today's releases do not announce a global service that is not shared either (docs/develop/protocol.md §2.2): with
    /// one, agents would use the remote backends.
    NoLocalService,
    /// The local service does not include external backends: its own alone.
    NotGlobal,
    /// No affinity: both.
    NoAffinity,
    /// Affinity `local`, and a local backend is active: the local ones alone.
    LocalActive,
    /// Affinity `local`, no local backend is active and a remote one is healthy: both.
    LocalInactive,
    /// Affinity `local`, no local backend is active and no remote one is healthy: the local ones, such as they are.
    LocalInactiveRemoteUnhealthy,
    /// Affinity `remote`, and a remote backend is healthy: the remote ones alone.
    RemoteHealthy,
    /// Affinity `remote`, no remote backend is healthy and a local one is: both.
    RemoteUnhealthy,
    /// Affinity `remote`, and no backend is healthy: the remote ones, such as they are.
    NoneHealthy,
}

impl Affinity {
    /// Every affinity.
    pub const ALL: [Self; 3] = [Self::None, Self::Local, Self::Remote];

    /// The name that the annotation and the API use.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl SelectionRule {
    /// Every rule.
    pub const ALL: [Self; 9] = [
        Self::NoLocalService,
        Self::NotGlobal,
        Self::NoAffinity,
        Self::LocalActive,
        Self::LocalInactive,
        Self::LocalInactiveRemoteUnhealthy,
        Self::RemoteHealthy,
        Self::RemoteUnhealthy,
        Self::NoneHealthy,
    ];

    /// The name that the API uses.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::NoLocalService => "noLocalService",
            Self::NotGlobal => "notGlobal",
            Self::NoAffinity => "noAffinity",
            Self::LocalActive => "localActive",
            Self::LocalInactive => "localInactive",
            Self::LocalInactiveRemoteUnhealthy => "localInactiveRemoteUnhealthy",
            Self::RemoteHealthy => "remoteHealthy",
            Self::RemoteUnhealthy => "remoteUnhealthy",
            Self::NoneHealthy => "noneHealthy",
        }
    }

    /// The rule in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoLocalService => {
                "the cluster announces no such service: if its service does not exist or is not global, no backend is used; a global service that it does not share is not visible here"
            }
            Self::NotGlobal => "the service is not global in the cluster: only its own backends are used",
            Self::NoAffinity => "without an affinity, local and remote backends are used equally",
            Self::LocalActive => "the affinity is local and a local backend is active: only local backends are used",
            Self::LocalInactive => "the affinity is local, but no local backend is active: remote backends are used too",
            Self::LocalInactiveRemoteUnhealthy => "the affinity is local, but no backend is healthy: only local backends are used",
            Self::RemoteHealthy => "the affinity is remote and a remote backend is healthy: only remote backends are used",
            Self::RemoteUnhealthy => "the affinity is remote, but no remote backend is healthy: local backends are used too",
            Self::NoneHealthy => "the affinity is remote, but no backend is healthy: only remote backends are used",
        }
    }

    /// Whether the local and the remote backends are used.
    const fn sides(self) -> (bool, bool) {
        match self {
            Self::NoLocalService => (false, false),
            Self::NotGlobal | Self::LocalActive | Self::LocalInactiveRemoteUnhealthy => (true, false),
            Self::RemoteHealthy | Self::NoneHealthy => (false, true),
            Self::NoAffinity | Self::LocalInactive | Self::RemoteUnhealthy => (true, true),
        }
    }
}

/// Chooses. `remote` are the backends of all other clusters that share the service. A backend without ports is none: agents know backends
/// by address and port.
pub fn select<'a>(affinity: Affinity, local: LocalService<'_>, remote: impl Iterator<Item = &'a GlobalBackend>) -> Selection {
    let own: &[GlobalBackend] = match local {
        LocalService::Unknown | LocalService::Missing => &[],
        LocalService::Known(share) => &share.backends,
    };
    let is_healthy = |backend: &&GlobalBackend| backend.is_usable() && backend.state.is_healthy();
    let remote_healthy = remote.filter(is_healthy).count();
    let local_healthy = own.iter().filter(is_healthy).count();
    let local_active = own.iter().filter(is_healthy).filter(|backend| backend.state == BackendState::Active).count();
    let rule = match (local, affinity) {
        (LocalService::Missing, _) => SelectionRule::NoLocalService,
        (LocalService::Known(share), _) if !share.includes_external() => SelectionRule::NotGlobal,
        (_, Affinity::None) => SelectionRule::NoAffinity,
        (_, Affinity::Local) if local_active > 0 => SelectionRule::LocalActive,
        (_, Affinity::Local) if remote_healthy > 0 => SelectionRule::LocalInactive,
        (_, Affinity::Local) => SelectionRule::LocalInactiveRemoteUnhealthy,
        (_, Affinity::Remote) if remote_healthy > 0 => SelectionRule::RemoteHealthy,
        (_, Affinity::Remote) if local_healthy > 0 => SelectionRule::RemoteUnhealthy,
        (_, Affinity::Remote) => SelectionRule::NoneHealthy,
    };
    let (local, remote) = rule.sides();
    Selection { local, remote, rule }
}

impl GlobalBackend {
    /// Whether an agent has it as a backend at all: it knows them by address and port.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.ports.is_empty()
    }
}
