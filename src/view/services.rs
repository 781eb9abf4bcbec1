//! Global services: what several clusters share under one namespace and name, and which cluster has a share in which.
//!
//! Owns: the index from a service to the keys that have a share in it, kept up by each change in the time of a tree lookup, and how the shares
//! become one service ([`GlobalService`]), one set of exports ([`MergedExports`]) and a choice of backends ([`select`]). Deliberately lacks:
//! the records themselves, which are read by their keys when somebody asks for a service.

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

pub use exports::{CONFLICT_REASONS, ExportConflict, MergedExports};
pub use merge::{BackendPort, BackendState, GlobalBackend, GlobalService, ServiceShare};
pub use selection::{Affinity, LocalService, Selection, SelectionRule, select};

/// What a cluster has a share in a service by.
const SHARES: [Kind; 3] = [Kind::EndpointSlice, Kind::ServiceExport, Kind::Service];

/// Who has a share in which service.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceIndex {
    /// `<namespace>/<name>` of a service, and a key that has a share in it.
    shares: OrdSet<(SmolStr, EntryKey)>,
    /// How many services have a share.
    service_count: u64,
}

impl ServiceIndex {
    /// Takes in a key that has a share in a service. Adding it twice changes nothing.
    pub(super) fn add(&mut self, key: &EntryKey, service: &SmolStr) {
        let is_first = self.shares_in(service).next().is_none();
        if self.shares.insert((service.clone(), key.clone())).is_none() && is_first {
            self.service_count += 1;
        }
    }

    /// Takes out a key that had a share in a service. Removing one that is not there changes nothing.
    pub(super) fn remove(&mut self, key: &EntryKey, service: &SmolStr) {
        let share = (service.clone(), key.clone());
        if self.shares.remove(&share).is_some() && self.shares_in(&share.0).next().is_none() {
            self.service_count -= 1;
        }
    }

    /// The keys that have a share in a service, in key order: endpoint slices, exports, services.
    fn shares_in<'a>(&'a self, service: &'a str) -> impl Iterator<Item = &'a EntryKey> {
        let start: (SmolStr, EntryKey) = (service.into(), EntryKey::lowest());
        self.shares.range(start..).take_while(move |(at, _)| **at == *service).map(|(_, key)| key)
    }
}

impl View {
    /// How many global services there are.
    #[must_use]
    pub fn global_service_count(&self) -> u64 {
        self.indices.services.service_count
    }

    /// `<namespace>/<name>` of every global service from a name on, that one included, in order.
    pub fn global_service_names(&self, start: &str) -> impl Iterator<Item = &SmolStr> {
        let start: (SmolStr, EntryKey) = (start.into(), EntryKey::lowest());
        let mut last: Option<&SmolStr> = None;
        self.indices.services.shares.range(start..).filter_map(move |(service, _)| {
            let is_new = last != Some(service);
            last = Some(service);
            is_new.then_some(service)
        })
    }

    /// Whether one of some clusters has a share in a global service. Looks at no record, and at one share for each cluster and kind of share,
    /// however many other clusters have shares in it.
    #[must_use]
    pub fn has_share_of(&self, service: &SmolStr, clusters: &[ClusterName]) -> bool {
        let has = |kind, cluster: &ClusterName| {
            let first = (service.clone(), EntryKey::new(kind, cluster.clone(), ""));
            let share = self.indices.services.shares.range(first..).next();
            share.is_some_and(|(at, key)| at == service && key.kind == kind && key.cluster == *cluster)
        };
        SHARES.into_iter().any(|kind| clusters.iter().any(|cluster| has(kind, cluster)))
    }

    /// A global service, by `<namespace>/<name>`: what is held of every cluster that has a share in it.
    #[must_use]
    pub fn global_service(&self, service: &str) -> Option<GlobalService> {
        let records: Vec<Arc<Record>> = self.indices.services.shares_in(service).filter_map(|key| self.record(key)).collect();
        GlobalService::merge(service, &records)
    }

    /// The exports of a global service, by `<namespace>/<name>`, merged; `None` where no cluster exports it. Unlike [`Self::global_service`] it
    /// decodes no endpoint slices.
    #[must_use]
    pub fn merged_exports(&self, service: &str) -> Option<MergedExports> {
        let exports = self.indices.services.shares_in(service).filter(|key| key.kind == Kind::ServiceExport);
        MergedExports::of(exports.filter_map(|key| self.record(key)).collect())
    }

    /// About how many bytes the endpoint slices of a global service take while it is merged, by cluster.
    #[must_use]
    pub fn decoded_bytes_of(&self, service: &str) -> BTreeMap<ClusterName, u64> {
        let slices = self.indices.services.shares_in(service).filter(|key| key.kind == Kind::EndpointSlice);
        let mut by_cluster = BTreeMap::new();
        for record in slices.filter_map(|key| self.record(key)) {
            let slice = record.object.as_deref().and_then(Object::as_endpoint_slice);
            *by_cluster.entry(record.key.cluster.clone()).or_default() += slice.map_or(0, PackedSlice::decoded_bytes);
        }
        by_cluster
    }

    /// The first endpoint slice that a cluster has of a global service.
    #[must_use]
    pub fn first_slice_of(&self, service: &str, cluster: &ClusterName) -> Option<&EntryKey> {
        let first = (SmolStr::from(service), EntryKey::new(Kind::EndpointSlice, cluster.clone(), ""));
        let (found, key) = self.indices.services.shares.range(first..).next()?;
        (found == service && key.kind == Kind::EndpointSlice && key.cluster == *cluster).then_some(key)
    }

    /// What one cluster has under a name, whether it shares it or not: what an agent of that cluster has as its local service. Without
    /// a service and without slices there is none.
    #[must_use]
    pub fn local_share(&self, cluster: &ClusterName, service: &str) -> Option<ServiceShare> {
        let own = self.record(&EntryKey::new(Kind::Service, cluster.clone(), service));
        let slices = self.indices.services.shares_in(service).filter(|key| key.kind == Kind::EndpointSlice && key.cluster == *cluster);
        ServiceShare::new(cluster.clone(), own, slices.filter_map(|key| self.record(key)).collect())
    }
}
