//! Global services: services that several clusters share under one namespace and name.
//!
//! The index maps a service to the keys that contribute to it. On request, these become one
//! [`GlobalService`], one set of [`MergedExports`], or a selection of backends
//! ([`select_backends`]).

mod exports;
mod merge;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdSet;
use smol_str::SmolStr;

use super::View;
use crate::model::{ClusterName, EntryKey, Kind, Object, PackedSlice, Record};

pub use exports::{ExportConflict, MergedExports};
pub use merge::{BackendPort, GlobalBackend, GlobalService, ServiceMember};
pub use selection::{LocalService, Selection, select_backends};

/// Kinds of keys that contribute to a service.
const CONTRIBUTING_KINDS: [Kind; 3] = [Kind::EndpointSlice, Kind::ServiceExport, Kind::Service];

/// Index of the keys that contribute to each service.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceIndex {
    /// Service as `<namespace>/<name>`, with a key that contributes to it.
    keys: OrdSet<(SmolStr, EntryKey)>,
    /// Number of services with at least one key.
    service_count: u64,
}

impl ServiceIndex {
    /// Adds a key that contributes to a service. Adding it twice changes nothing.
    pub(super) fn add(&mut self, key: &EntryKey, service: &SmolStr) {
        let is_first = self.keys_of(service).next().is_none();
        if self.keys.insert((service.clone(), key.clone())).is_none() && is_first {
            self.service_count += 1;
        }
    }

    /// Removes a key that contributes to a service. Removing a missing one changes nothing.
    pub(super) fn remove(&mut self, key: &EntryKey, service: &SmolStr) {
        let entry = (service.clone(), key.clone());
        if self.keys.remove(&entry).is_some() && self.keys_of(&entry.0).next().is_none() {
            self.service_count -= 1;
        }
    }

    /// Iterates over the keys that contribute to a service, in key order: endpoint slices, exports,
    /// services.
    fn keys_of<'a>(&'a self, service: &'a str) -> impl Iterator<Item = &'a EntryKey> {
        let start: (SmolStr, EntryKey) = (service.into(), EntryKey::lowest());
        self.keys.range(start..).take_while(move |(other, _)| **other == *service).map(|(_, key)| key)
    }
}

impl View {
    /// Returns the number of global services.
    #[must_use]
    pub fn global_service_count(&self) -> u64 {
        self.indices.services.service_count
    }

    /// Iterates over the global services from a name on, as `<namespace>/<name>`, in order.
    pub fn global_service_names(&self, start: &str) -> impl Iterator<Item = &SmolStr> {
        let start: (SmolStr, EntryKey) = (start.into(), EntryKey::lowest());
        let mut last: Option<&SmolStr> = None;
        self.indices.services.keys.range(start..).filter_map(move |(service, _)| {
            let is_new = last != Some(service);
            last = Some(service);
            is_new.then_some(service)
        })
    }

    /// Returns whether any of `clusters` contributes to a global service. Looks up one key per
    /// cluster and kind, independent of the number of other clusters.
    #[must_use]
    pub fn has_keys_of(&self, service: &SmolStr, clusters: &[ClusterName]) -> bool {
        let has = |kind, cluster: &ClusterName| {
            let first = (service.clone(), EntryKey::new(kind, cluster.clone(), ""));
            let next = self.indices.services.keys.range(first..).next();
            next.is_some_and(|(other, key)| other == service && key.kind == kind && key.cluster == *cluster)
        };
        CONTRIBUTING_KINDS.into_iter().any(|kind| clusters.iter().any(|cluster| has(kind, cluster)))
    }

    /// Returns a global service, by `<namespace>/<name>`.
    #[must_use]
    pub fn global_service(&self, service: &str) -> Option<GlobalService> {
        let records: Vec<Arc<Record>> = self.indices.services.keys_of(service).filter_map(|key| self.record(key)).collect();
        GlobalService::merge(service, &records)
    }

    /// Returns the merged exports of a global service, by `<namespace>/<name>`; `None` if no
    /// cluster exports it. Unlike [`Self::global_service`] it decodes no endpoint slices.
    #[must_use]
    pub fn merged_exports(&self, service: &str) -> Option<MergedExports> {
        let exports = self.indices.services.keys_of(service).filter(|key| key.kind == Kind::ServiceExport);
        MergedExports::merge(exports.filter_map(|key| self.record(key)).collect())
    }

    /// Returns the approximate memory that merging uses for the endpoint slices of a global
    /// service, in bytes per cluster.
    #[must_use]
    pub fn decoded_bytes_of(&self, service: &str) -> BTreeMap<ClusterName, u64> {
        let slices = self.indices.services.keys_of(service).filter(|key| key.kind == Kind::EndpointSlice);
        let mut by_cluster = BTreeMap::new();
        for record in slices.filter_map(|key| self.record(key)) {
            let slice = record.object.as_deref().and_then(Object::as_endpoint_slice);
            *by_cluster.entry(record.key.cluster.clone()).or_default() += slice.map_or(0, PackedSlice::decoded_bytes);
        }
        by_cluster
    }

    /// Returns the first endpoint slice of a global service in a cluster.
    #[must_use]
    pub fn first_slice_of(&self, service: &str, cluster: &ClusterName) -> Option<&EntryKey> {
        let first = (SmolStr::from(service), EntryKey::new(Kind::EndpointSlice, cluster.clone(), ""));
        let (found, key) = self.indices.services.keys.range(first..).next()?;
        (found == service && key.kind == Kind::EndpointSlice && key.cluster == *cluster).then_some(key)
    }

    /// Returns the service as the agents of one cluster see it locally, even if it is not shared.
    /// `None` if the cluster has neither the service nor endpoint slices of it.
    #[must_use]
    pub fn local_member(&self, cluster: &ClusterName, service: &str) -> Option<ServiceMember> {
        let own = self.record(&EntryKey::new(Kind::Service, cluster.clone(), service));
        let slices = self.indices.services.keys_of(service).filter(|key| key.kind == Kind::EndpointSlice && key.cluster == *cluster);
        ServiceMember::new(cluster.clone(), own, slices.filter_map(|key| self.record(key)).collect())
    }
}
