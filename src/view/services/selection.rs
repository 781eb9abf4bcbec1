//! Selection of the backends of a global service that an agent uses (`SelectBackends`, Cilium's
//! `pkg/clustermesh/loadbalancer/selectbackends.go`).

use super::{GlobalBackend, ServiceMember};
use crate::model::{Affinity, BackendState, SelectionRule};

/// The service in the cluster whose agents select backends.
#[derive(Debug, Clone, Copy)]
pub enum LocalService<'a> {
    /// The cluster is not mirrored. Its service counts as global and without backends.
    Unknown,
    /// The cluster announces no such service.
    Missing,
    /// The cluster announces the service.
    Known(&'a ServiceMember),
}

/// Selected backends, and the rule that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Whether the cluster's own backends are used.
    pub local: bool,
    /// Whether the backends of other clusters are used.
    pub remote: bool,
    /// Rule that decided.
    pub rule: SelectionRule,
}

impl SelectionRule {
    /// Returns the human-readable rule.
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
            Self::LocalInactiveRemoteUnhealthy => {
                "the affinity is local, no local backend is active and no remote one is healthy: only local backends are used"
            }
            Self::RemoteHealthy => "the affinity is remote and a remote backend is healthy: only remote backends are used",
            Self::RemoteUnhealthy => "the affinity is remote, but no remote backend is healthy: local backends are used too",
            Self::NoneHealthy => "the affinity is remote, but no backend is healthy: only remote backends are used",
        }
    }

    /// Returns whether local backends are used, and whether remote ones are.
    const fn uses_local_and_remote(self) -> (bool, bool) {
        match self {
            Self::NoLocalService => (false, false),
            Self::NotGlobal | Self::LocalActive | Self::LocalInactiveRemoteUnhealthy => (true, false),
            Self::RemoteHealthy | Self::NoneHealthy => (false, true),
            Self::NoAffinity | Self::LocalInactive | Self::RemoteUnhealthy => (true, true),
        }
    }
}

/// Selects backends. `remote` are the backends of all other clusters that share the service.
/// Backends without ports are ignored, because agents identify a backend by address and port.
pub fn select_backends<'a>(affinity: Affinity, local: LocalService<'_>, remote: impl Iterator<Item = &'a GlobalBackend>) -> Selection {
    let own: &[GlobalBackend] = match local {
        LocalService::Unknown | LocalService::Missing => &[],
        LocalService::Known(member) => &member.backends,
    };
    let is_healthy = |backend: &&GlobalBackend| backend.is_usable() && backend.state.is_healthy();
    let remote_healthy = remote.filter(is_healthy).count();
    let local_healthy = own.iter().filter(is_healthy).count();
    let local_active = own.iter().filter(is_healthy).filter(|backend| backend.state == BackendState::Active).count();
    let rule = match (local, affinity) {
        (LocalService::Missing, _) => SelectionRule::NoLocalService,
        (LocalService::Known(member), _) if !member.includes_external() => SelectionRule::NotGlobal,
        (_, Affinity::None) => SelectionRule::NoAffinity,
        (_, Affinity::Local) if local_active > 0 => SelectionRule::LocalActive,
        (_, Affinity::Local) if remote_healthy > 0 => SelectionRule::LocalInactive,
        (_, Affinity::Local) => SelectionRule::LocalInactiveRemoteUnhealthy,
        (_, Affinity::Remote) if remote_healthy > 0 => SelectionRule::RemoteHealthy,
        (_, Affinity::Remote) if local_healthy > 0 => SelectionRule::RemoteUnhealthy,
        (_, Affinity::Remote) => SelectionRule::NoneHealthy,
    };
    let (local, remote) = rule.uses_local_and_remote();
    Selection { local, remote, rule }
}

impl GlobalBackend {
    /// Returns whether an agent can use the backend, which it identifies by address and port.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.ports.is_empty()
    }
}
