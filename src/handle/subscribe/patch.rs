//! What changed of a service where only its backends did: 100 bytes instead of all of some thousand backends.

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
        let is_ordered = |backends: &[Backend]| backends.is_sorted_by(|one, next| one.ip < next.ip);
        if !is_ordered(&old.backends) || !is_ordered(backends) {
            // an address that is there twice names none of them
            return None;
        }
        let (mut upserted, mut removed) = (Vec::new(), Vec::new());
        let mut before = old.backends.iter().peekable();
        for backend in backends {
            removed.extend(std::iter::from_fn(|| before.next_if(|old| old.ip < backend.ip)).map(|old| old.ip));
            if before.next_if(|old| old.ip == backend.ip) != Some(backend) {
                upserted.push(backend.clone());
            }
        }
        removed.extend(before.map(|old| old.ip));
        Some(Self { upserted, removed })
    }
}
