//! Ids of findings, which can be sorted, used as page tokens and parsed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use smol_str::SmolStr;

use crate::model::{ApiEnum, ClusterName, EntryKey, FindingKind, ObjectPrefix};

/// A problem that a comparison of keys shows. [`fmt::Display`] writes its id, for instance
/// `danglingIdentity/paris/68352`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// Ipcache entries of a cluster refer to a host that is not a node of any cluster.
    DanglingHostIp(ClusterName, IpAddr),
    /// Ipcache entries of a cluster refer to an identity that the cluster does not announce.
    DanglingIdentity(ClusterName, u32),
    /// Several clusters have an entry for the same prefix.
    DuplicateAddress(ObjectPrefix),
    /// The exports of a service, by `<namespace>/<name>`, disagree.
    ExportConflict(SmolStr),
    /// A key was rejected because its identity is not in its cluster's range.
    IdentityOutOfRange(EntryKey),
    /// Pod CIDRs of a cluster are announced by several of its nodes, or overlap each other.
    OverlappingNodePodCidr(ClusterName),
    /// Pod CIDRs of a cluster overlap another cluster's.
    OverlappingPodCidr(ClusterName),
    /// The endpoint slices of a service, by `<namespace>/<name>`, exceed the memory for decoded
    /// values.
    ServiceTooLarge(SmolStr),
}

/// Error: a text is not the id of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedFinding;

impl Finding {
    /// Returns the kind of the finding.
    #[must_use]
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::DanglingHostIp(..) => FindingKind::DanglingHostIp,
            Self::DanglingIdentity(..) => FindingKind::DanglingIdentity,
            Self::DuplicateAddress(_) => FindingKind::DuplicateAddress,
            Self::ExportConflict(_) => FindingKind::ExportConflict,
            Self::IdentityOutOfRange(_) => FindingKind::IdentityOutOfRange,
            Self::OverlappingNodePodCidr(_) => FindingKind::OverlappingNodePodCidr,
            Self::OverlappingPodCidr(_) => FindingKind::OverlappingPodCidr,
            Self::ServiceTooLarge(_) => FindingKind::ServiceTooLarge,
        }
    }

    /// Returns the subject of the finding: its id without the kind.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::DanglingHostIp(cluster, ip) => format!("{cluster}/{ip}"),
            Self::DanglingIdentity(cluster, identity) => format!("{cluster}/{identity}"),
            Self::DuplicateAddress(ObjectPrefix { net, host: true }) => format!("host/{}", net.addr()),
            Self::DuplicateAddress(ObjectPrefix { net, host: false }) => format!("cidr/{net}"),
            Self::ExportConflict(service) | Self::ServiceTooLarge(service) => service.to_string(),
            Self::IdentityOutOfRange(key) => key.to_string(),
            Self::OverlappingNodePodCidr(cluster) | Self::OverlappingPodCidr(cluster) => cluster.to_string(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind(), self.subject())
    }
}

impl FromStr for Finding {
    type Err = MalformedFinding;

    fn from_str(text: &str) -> Result<Self, MalformedFinding> {
        let parse_id = || {
            let (kind, rest) = text.split_once('/')?;
            let cluster_and_rest = || {
                let (cluster, rest) = rest.split_once('/')?;
                Some((ClusterName::parse(cluster).ok()?, rest))
            };
            let service = || Some(SmolStr::from(Some(rest).filter(|service| service.contains('/'))?));
            Some(match FindingKind::from_api_name(kind)? {
                FindingKind::DanglingHostIp => {
                    cluster_and_rest().and_then(|(cluster, ip)| Some(Self::DanglingHostIp(cluster, ip.parse().ok()?)))?
                }
                FindingKind::DanglingIdentity => {
                    cluster_and_rest().and_then(|(cluster, id)| Some(Self::DanglingIdentity(cluster, id.parse().ok()?)))?
                }
                FindingKind::DuplicateAddress => Self::DuplicateAddress(match rest.split_once('/')? {
                    ("host", ip) => ObjectPrefix { net: ip.parse::<IpAddr>().ok()?.into(), host: true },
                    ("cidr", net) => ObjectPrefix { net: net.parse().ok()?, host: false },
                    _ => return None,
                }),
                FindingKind::ExportConflict => Self::ExportConflict(service()?),
                FindingKind::IdentityOutOfRange => Self::IdentityOutOfRange(EntryKey::from_cache_form(rest)?),
                FindingKind::OverlappingNodePodCidr => Self::OverlappingNodePodCidr(ClusterName::parse(rest).ok()?),
                FindingKind::OverlappingPodCidr => Self::OverlappingPodCidr(ClusterName::parse(rest).ok()?),
                FindingKind::ServiceTooLarge => Self::ServiceTooLarge(service()?),
                _ => return None,
            })
        };
        parse_id().ok_or(MalformedFinding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_ids_round_trip() {
        for text in [
            "danglingHostIP/paris/172.18.1.2",
            "danglingIdentity/paris/68352",
            "duplicateAddress/host/fd00::1",
            "duplicateAddress/cidr/10.1.0.0/16",
            "exportConflict/shop/cart",
            "identityOutOfRange/cilium/cache/ip/v1/paris/10.1.2.40",
            "overlappingNodePodCIDR/paris",
            "overlappingPodCIDR/paris",
            "serviceTooLarge/shop/cart",
        ] {
            assert_eq!(text.parse::<Finding>().map(|finding| finding.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            "danglingIdentity/paris",
            "danglingIdentity/Paris/1",
            "duplicateAddress/10.0.0.1",
            "exportConflict/cart",
            "serviceTooLarge/cart",
            "other/x",
        ] {
            assert_eq!(text.parse::<Finding>(), Err(MalformedFinding), "{text}");
        }
    }
}
