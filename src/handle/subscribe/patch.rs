//! What changed of a service where only its backends did: 100 bytes instead of all of some thousand backends.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{Backend, Object, Service};

/// How the backends of a service changed; each backend is named by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendsPatch {
    /// New or changed backends, ordered by address.
    pub upserted: Vec<Backend>,
    /// The addresses of those that are gone, in order.
    pub removed: Vec<IpAddr>,
}

impl BackendsPatch {
    /// What makes `new` of `old`; `None` unless both are services that differ in their backends alone.
    #[must_use]
    pub fn between(old: &Object, new: &Object) -> Option<Self> {
        match (old, new) {
            (Object::Service(old), Object::Service(new)) => Self::of_services(old, new),
            (_, _) => None,
        }
    }

    fn of_services(old: &Service, new: &Service) -> Option<Self> {
        // every member by name, so that one that comes later cannot be forgotten here
        let Service { namespace, name, cluster_id, frontends, backends, labels, selector, shared, include_external } = new;
        let rest_is_same = *namespace == old.namespace
            && *name == old.name
            && *cluster_id == old.cluster_id
            && *frontends == old.frontends
            && *labels == old.labels
            && *selector == old.selector
            && *shared == old.shared
            && *include_external == old.include_external;
        if !rest_is_same {
            return None;
        }
        let (before, after) = (by_address(&old.backends)?, by_address(backends)?);
        let upserted =
            after.iter().filter(|(ip, backend)| before.get(*ip) != Some(*backend)).map(|(_, backend)| (*backend).clone()).collect();
        let removed = before.into_keys().filter(|ip| !after.contains_key(ip)).collect();
        Some(Self { upserted, removed })
    }
}

/// Backends by address; `None` where an address is there twice and so names none of them.
fn by_address(backends: &[Backend]) -> Option<BTreeMap<IpAddr, &Backend>> {
    let by_address: BTreeMap<IpAddr, &Backend> = backends.iter().map(|backend| (backend.ip, backend)).collect();
    (by_address.len() == backends.len()).then_some(by_address)
}
