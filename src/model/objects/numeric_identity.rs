//! Meaning of an identity's number: its scope, and the cluster that may have allocated it
//! (Cilium's `pkg/identity/numericidentity.go` and `pkg/clustermesh/types/types.go`).

use std::ops::RangeInclusive;

use crate::model::api_enum::api_enum;
use crate::model::{ClusterId, MaxConnectedClusters};

/// Lowest identity that a cluster may allocate. Those below are reserved and have the same meaning
/// everywhere (`MinimalNumericIdentity`).
pub const ALLOCATED_IDENTITY_MIN: u32 = 256;

/// `remote-node`: identity of hosts of other clusters (`pkg/identity/numericidentity.go`).
pub const IDENTITY_REMOTE_NODE: u32 = 6;

/// Number of bits below the scope.
const SCOPE_SHIFT: u32 = 24;

// the top 8 bits of an identity (`IdentityScopeMask`)
api_enum! {
    /// Scope of a numeric identity.
    pub enum IdentityScope {
        /// `0x00`: the whole mesh, including reserved identities.
        Global = "global",
        /// `0x01`: one node, for CIDRs.
        Local = "local",
        /// `0x02`: remote nodes.
        RemoteNode = "remoteNode",
        /// Any other value.
        Unknown = "unknown",
    }
}

impl IdentityScope {
    /// Returns the scope of a numeric identity.
    #[must_use]
    pub const fn of(id: u32) -> Self {
        match id >> SCOPE_SHIFT {
            0 => Self::Global,
            1 => Self::Local,
            2 => Self::RemoteNode,
            _ => Self::Unknown,
        }
    }
}

impl MaxConnectedClusters {
    /// Returns the number of bits below the cluster's id: 24 minus the 8 bits of a mesh of 255
    /// clusters, or the 9 bits of a mesh of 511 (`GetClusterIDShift`).
    #[must_use]
    pub const fn identity_shift(self) -> u32 {
        match self {
            Self::Clusters255 => 16,
            Self::Clusters511 => 15,
        }
    }

    /// Returns the identities that a cluster allocates; `None` for an id beyond this size of mesh.
    /// A cluster in no mesh has the id 0 and allocates from 256 on (`GetMinimalAllocationIdentity`,
    /// `GetMaximumAllocationIdentity`).
    #[must_use]
    pub const fn identities_of(self, cluster: ClusterId) -> Option<RangeInclusive<u32>> {
        if cluster.0 > self.id_max() {
            return None;
        }
        let first = cluster.0 << self.identity_shift();
        let last = first + (1 << self.identity_shift()) - 1;
        Some(if cluster.0 == 0 { ALLOCATED_IDENTITY_MIN..=last } else { first..=last })
    }

    /// Returns the cluster that may have allocated a number; 0 for a cluster in no mesh. `None` for
    /// reserved numbers and for numbers outside the global scope.
    #[must_use]
    pub const fn cluster_of_identity(self, id: u32) -> Option<ClusterId> {
        match IdentityScope::of(id) {
            IdentityScope::Global if id >= ALLOCATED_IDENTITY_MIN => Some(ClusterId(id >> self.identity_shift())),
            IdentityScope::Global | IdentityScope::Local | IdentityScope::RemoteNode | IdentityScope::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use MaxConnectedClusters::{Clusters255, Clusters511};

    #[test]
    fn the_top_bits_are_the_scope() {
        let cases = [
            (0, "global"),
            (255, "global"),
            (0x00ff_ffff, "global"),
            (0x0100_0000, "local"),
            (0x01ff_ffff, "local"),
            (0x0200_0000, "remoteNode"),
            (0x02ff_ffff, "remoteNode"),
            (0x0300_0000, "unknown"),
            (u32::MAX, "unknown"),
        ];
        for (id, expected) in cases {
            assert_eq!(IdentityScope::of(id).api_name(), expected, "{id:#x}");
        }
    }

    #[test]
    fn the_bits_of_the_cluster_are_below_the_scope() {
        let cases = [
            (Clusters255, 0, Some(256..=65_535)),
            (Clusters255, 1, Some(65_536..=131_071)),
            (Clusters255, 255, Some(0x00ff_0000..=0x00ff_ffff)),
            (Clusters255, 256, None),
            (Clusters511, 0, Some(256..=32_767)),
            (Clusters511, 1, Some(32_768..=65_535)),
            (Clusters511, 2, Some(65_536..=98_303)),
            (Clusters511, 511, Some(0x00ff_8000..=0x00ff_ffff)),
            (Clusters511, 512, None),
        ];
        for (mesh, cluster, expected) in cases {
            assert_eq!(mesh.identities_of(ClusterId(cluster)), expected, "{mesh:?} {cluster}");
            for id in expected.into_iter().flat_map(|range| [*range.start(), *range.end()]) {
                assert_eq!(mesh.cluster_of_identity(id), Some(ClusterId(cluster)), "{mesh:?} {id}");
            }
        }
    }

    #[test]
    fn reserved_and_local_identities_have_no_cluster() {
        for mesh in [Clusters255, Clusters511] {
            for id in [0, 1, 100, 255, 0x0100_0000, 0x0101_0000, 0x0200_0001, u32::MAX] {
                assert_eq!(mesh.cluster_of_identity(id), None, "{mesh:?} {id:#x}");
            }
        }
        assert_eq!(
            (Clusters255.cluster_of_identity(256), Clusters511.cluster_of_identity(98_304)),
            (Some(ClusterId(0)), Some(ClusterId(3)))
        );
    }
}
