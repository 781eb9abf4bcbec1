//! The impact on global services if a cluster or a namespace leaves the mesh.
//!
//! Which affinity a service has is a setting of each cluster that uses it, and no cluster publishes
//! it. The impact is therefore computed for every affinity, and for each cluster whose agents are
//! known to use the service.

use crate::handle::Reading;
use crate::model::{Affinity, ClusterName, ImpactEffect, Kind};
use crate::view::{GlobalBackend, GlobalService, LocalService, ServiceMember, select_backends};

/// Part of the mesh that is assumed to be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingPart {
    /// A whole cluster.
    Cluster(ClusterName),
    /// A namespace, in all clusters: each cluster keeps only its own backends.
    Namespace(String),
}

/// Impact on one global service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceImpact {
    /// Most severe effect over all affinities.
    pub effect: ImpactEffect,
    /// Most severe effect for each affinity, in the order of [`Affinity::ALL`].
    pub by_affinity: [ImpactEffect; Affinity::ALL.len()],
    /// Number of healthy backends that other clusters can no longer use.
    pub lost_count: usize,
    /// Number of healthy backends that other clusters can still use.
    pub remaining_count: usize,
    /// Clusters whose agents fall back to the backends of their own cluster, in order.
    pub fallback_clusters: Vec<ClusterName>,
}

/// Kinds of backends that the agents of a cluster use. Only healthy backends count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BackendsInUse {
    local: bool,
    remote: bool,
}

/// A cluster whose agents use the service, and what is healthy from its point of view.
struct ServiceUser<'a> {
    /// `None` stands for a cluster that does not announce the service.
    cluster: Option<&'a ClusterName>,
    local: LocalService<'a>,
    /// A healthy backend of another cluster, if there is one.
    remote: Option<&'a GlobalBackend>,
    /// A healthy backend of another cluster once the part is missing.
    remote_left: Option<&'a GlobalBackend>,
    /// True if a healthy backend of another cluster is lost.
    loses_remote: bool,
}

impl Reading {
    /// Returns the impact on a global service.
    #[must_use]
    pub fn service_impact(&self, service: &GlobalService, missing: &MissingPart) -> ServiceImpact {
        let healthy_count = |member: &ServiceMember| member.backends.iter().filter(|backend| is_healthy(backend)).count();
        let lost_count: usize = service.members.iter().filter(|member| missing.has_member(member)).map(healthy_count).sum();
        let total_count: usize = service.members.iter().map(healthy_count).sum();
        let mut impact = ServiceImpact {
            effect: ImpactEffect::Unnoticed,
            by_affinity: Affinity::ALL.map(|_| ImpactEffect::Unnoticed),
            lost_count,
            remaining_count: total_count - lost_count,
            fallback_clusters: Vec::new(),
        };
        for user in self.users_of(service, missing) {
            let effects = Affinity::ALL.map(|affinity| user.effect(affinity, missing));
            if effects.contains(&ImpactEffect::FallsBack) {
                impact.fallback_clusters.extend(user.cluster.cloned());
            }
            for (worst, effect) in impact.by_affinity.iter_mut().zip(effects) {
                *worst = effect.max(*worst);
            }
        }
        impact.effect = impact.by_affinity.into_iter().max().unwrap_or(ImpactEffect::Unnoticed);
        impact
    }

    /// Returns the clusters whose agents use the service and that stay in the mesh. A cluster that
    /// does not announce the service is assumed if no other cluster is known to use it.
    fn users_of<'a>(&'a self, service: &'a GlobalService, missing: &MissingPart) -> Vec<ServiceUser<'a>> {
        // two clusters with healthy backends are enough to find one other than a given cluster
        let healthy: Vec<&ServiceMember> = service.members.iter().filter(|member| member.backends.iter().any(is_healthy)).collect();
        let left: Vec<&ServiceMember> = healthy.iter().copied().filter(|member| !missing.has_member(member)).collect();
        let user = |cluster: Option<&'a ClusterName>, local| ServiceUser {
            cluster,
            local,
            remote: first_healthy_elsewhere(&healthy, cluster),
            remote_left: first_healthy_elsewhere(&left, cluster),
            loses_remote: healthy.iter().any(|member| missing.has_member(member) && cluster != Some(&member.cluster)),
        };
        let members = service.members.iter().filter(|member| member.includes_external() && !missing.is_cluster(&member.cluster));
        let mut users: Vec<_> = members.map(|member| user(Some(&member.cluster), LocalService::Known(member))).collect();
        let own = self.own_cluster().filter(|own| !missing.is_cluster(own) && !self.is_complete(own, Kind::Service));
        let own = own.filter(|own| service.members.iter().all(|member| member.cluster != **own));
        users.extend(own.map(|own| user(Some(own), LocalService::Unknown)));
        let has_other = users.iter().any(|user| user.loses_remote);
        if !has_other {
            users.push(user(None, LocalService::Unknown));
        }
        users
    }
}

impl MissingPart {
    fn is_cluster(&self, name: &ClusterName) -> bool {
        matches!(self, Self::Cluster(cluster) if cluster == name)
    }

    /// Returns whether other clusters lose the backends of a member.
    fn has_member(&self, member: &ServiceMember) -> bool {
        match self {
            Self::Cluster(cluster) => *cluster == member.cluster,
            Self::Namespace(_) => true,
        }
    }
}

impl ServiceUser<'_> {
    fn effect(&self, affinity: Affinity, missing: &MissingPart) -> ImpactEffect {
        let before = self.backends_in_use(affinity, self.remote);
        let after = match missing {
            MissingPart::Cluster(_) => self.backends_in_use(affinity, self.remote_left),
            MissingPart::Namespace(_) => BackendsInUse { local: self.has_local(), remote: false },
        };
        if !before.remote || !self.loses_remote {
            ImpactEffect::Unnoticed
        } else if !after.local && !after.remote {
            ImpactEffect::LosesAll
        } else if after.local && !before.local {
            ImpactEffect::FallsBack
        } else {
            ImpactEffect::LosesSome
        }
    }

    fn backends_in_use(&self, affinity: Affinity, remote: Option<&GlobalBackend>) -> BackendsInUse {
        let selection = select_backends(affinity, self.local, remote.into_iter());
        BackendsInUse { local: selection.local && self.has_local(), remote: selection.remote && remote.is_some() }
    }

    fn has_local(&self) -> bool {
        matches!(self.local, LocalService::Known(member) if member.backends.iter().any(is_healthy))
    }
}

fn is_healthy(backend: &GlobalBackend) -> bool {
    backend.is_usable() && backend.state.is_healthy()
}

/// Returns a healthy backend of a cluster other than the given one.
fn first_healthy_elsewhere<'a>(healthy: &[&'a ServiceMember], cluster: Option<&ClusterName>) -> Option<&'a GlobalBackend> {
    let elsewhere = healthy.iter().find(|member| cluster != Some(&member.cluster))?;
    elsewhere.backends.iter().find(|backend| is_healthy(backend))
}
