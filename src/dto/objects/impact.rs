//! JSON shape of the impact that a cluster or a namespace has if it leaves the mesh.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::labels::LabelsOfIdentity;
use crate::dto::values::{ImpactEffect, ImpactKind};

/// An object that is affected if a cluster or a namespace leaves the mesh.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Impact {
    /// `service`: a global service. `identity`, `cidr`: an identity or a CIDR that no other cluster
    /// announces.
    pub(crate) kind: ImpactKind,
    /// Most severe effect, over all affinities of a service and all clusters that use it.
    pub(crate) effect: ImpactEffect,
    /// Namespace of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// Name of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Effect on the service for each affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) affinities: Option<AffinityEffects>,
    /// Number of healthy backends that other clusters can no longer use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_backends: Option<usize>,
    /// Number of healthy backends that other clusters can still use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_backends: Option<usize>,
    /// Clusters whose agents fall back to the backends of their own cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) fallback_clusters: Vec<String>,
    /// Number of the identity, or of the identity of the CIDR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<u32>,
    /// Labels of the identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub(crate) labels: Option<LabelsOfIdentity>,
    /// The CIDR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
}

/// Effect on a service for each value of the annotation `service.cilium.io/affinity`, which every
/// cluster sets for itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct AffinityEffects {
    /// Effect on clusters without an affinity.
    pub(crate) none: ImpactEffect,
    /// Effect on clusters that prefer their own backends.
    pub(crate) local: ImpactEffect,
    /// Effect on clusters that prefer the backends of other clusters.
    pub(crate) remote: ImpactEffect,
}

impl Impact {
    /// Creates an impact with only the required members.
    pub(crate) fn new(kind: ImpactKind, effect: ImpactEffect) -> Self {
        Self {
            kind,
            effect,
            namespace: None,
            name: None,
            affinities: None,
            lost_backends: None,
            remaining_backends: None,
            fallback_clusters: Vec::new(),
            identity: None,
            labels: None,
            prefix: None,
        }
    }
}
