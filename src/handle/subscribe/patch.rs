//! Patches for services of which only the backends have changed: 100 bytes instead of thousands of
//! backends.

use std::net::IpAddr;

use crate::model::{Backend, Object, Service};

/// Change of the backends of a service. Each backend is identified by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendsPatch {
    /// New or changed backends, sorted by address.
    pub upserted: Vec<Backend>,
    /// Addresses of the removed backends, sorted.
    pub removed: Vec<IpAddr>,
}

impl BackendsPatch {
    /// Returns the patch from `old` to `new`. `None` unless both are services that differ only in
    /// their backends.
    #[must_use]
    pub fn between(old: &Object, new: &Object) -> Option<Self> {
        match (old, new) {
            (Object::Service(old), Object::Service(new)) => Self::of_services(old, new),
            (_, _) => None,
        }
    }

    fn of_services(old: &Service, new: &Service) -> Option<Self> {
        // every field by name, so that the compiler reports a new one here
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
            // a duplicate address would identify two backends
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
