//! Global services of one snapshot, and the backends that a cluster's agents would use.

use smol_str::SmolStr;

use crate::commit::{DecodedBudgetError, DecodedPermit};
use crate::handle::{Filter, Reading, ScanEnd, WorkSlice};
use crate::model::{Affinity, ClusterName, EntryKey, Kind};
use crate::view::{GlobalService, LocalService, MergedExports, Selection, ServiceMember, select_backends};

/// Backends of a global service that the agents of one cluster would use.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedBackends {
    /// Choice between local and remote backends, and the rule that decided it.
    pub selection: Selection,
    /// True if the cluster's own services are known. Otherwise, meshkeep cannot know whether the
    /// cluster has a local service.
    pub is_local_known: bool,
    /// Members of the clusters whose backends are used, sorted by cluster name. They include the
    /// member of the agents' cluster, and leave out backends without ports.
    pub members: Vec<ServiceMember>,
}

/// A global service, either merged or, if it is too large, only described.
#[derive(Debug)]
pub enum ServiceEntry {
    /// Service merged over the clusters that share it, with the permit for its memory.
    Merged(GlobalService, #[allow(dead_code, reason = "releases the memory when it is dropped")] DecodedPermit),
    /// Service that is not merged because of its size.
    TooLarge(LargeService),
}

/// A global service whose endpoint slices would exceed the memory for decoded values. A single
/// cluster can cause this, and it must not affect other services.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeService {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// Cluster whose slices are the largest.
    pub cluster: ClusterName,
    /// First endpoint slice of the cluster whose slices are the largest.
    pub key: EntryKey,
    /// Decoded size of all slices of the service.
    pub bytes: u64,
    /// Maximum decoded size (`--decoded-max-bytes`).
    pub bytes_max: u64,
    /// Clusters that have slices of the service.
    pub clusters: Vec<ClusterName>,
    /// Merged exports of the service, which are small.
    pub exports: Option<MergedExports>,
}

impl ServiceEntry {
    /// Returns the merged exports of the service.
    #[must_use]
    pub fn exports(&self) -> Option<&MergedExports> {
        match self {
            Self::Merged(service, _) => service.exports.as_ref(),
            Self::TooLarge(service) => service.exports.as_ref(),
        }
    }
}

impl Reading {
    /// Passes the global services that match a filter to `accept`, from `<namespace>/<name>` on,
    /// until `accept` returns false.
    ///
    /// The tests for clusters and labels apply to the objects of each cluster: its service, export
    /// or slices. A match is then merged over all clusters. The labels of a service that is too
    /// large are not read, so it passes every test for labels.
    pub fn scan_global_services(
        &self,
        filter: &Filter,
        start: Option<&str>,
        slice: &mut WorkSlice,
        mut accept: impl FnMut(&ServiceEntry) -> bool,
    ) -> ScanEnd<SmolStr> {
        let view = &self.published.view;
        // the services of a namespace are neighbours
        let namespace = filter.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let name = filter.name.as_deref().filter(|_| !namespace.is_empty()).unwrap_or_default();
        let start = start.unwrap_or_default().max(&*format!("{namespace}{name}")).to_owned();
        for service in view.global_service_names(&start).take_while(|service| service.starts_with(&namespace)) {
            if !name.is_empty() && service[namespace.len()..] != *name {
                break;
            }
            if slice.is_over() {
                return ScanEnd::Paused(service.clone());
            }
            slice.count_row();
            let service_name = service.split_once('/').map_or("", |(_, name)| name);
            if filter.name.as_ref().is_some_and(|wanted| wanted != service_name) {
                continue;
            }
            if filter.search.as_ref().is_some_and(|search| !search.is_in(service)) {
                continue;
            }
            // tested before merging, which takes time and memory in proportion to the slices
            if !filter.clusters.is_empty() && !view.has_keys_of(service, &filter.clusters) {
                continue;
            }
            match self.global_service(service) {
                Ok(Some(ServiceEntry::Merged(merged, _))) if !passes(filter, &merged) => {}
                Ok(Some(entry)) if !accept(&entry) => return ScanEnd::PageFull(service.clone()),
                Ok(_) => {}
                Err(error) => return ScanEnd::OverBudget(service.clone(), error),
            }
        }
        ScanEnd::Complete
    }

    /// Returns one global service by `<namespace>/<name>`. Waits for the memory of its slices, so
    /// it must be called on a thread that may block.
    ///
    /// # Errors
    /// [`DecodedBudgetError`] if others use that memory for too long.
    pub fn global_service(&self, service: &str) -> Result<Option<ServiceEntry>, DecodedBudgetError> {
        let view = &self.published.view;
        let by_cluster = view.decoded_bytes_of(service);
        match self.decoded.reserve_blocking(by_cluster.values().sum()) {
            Ok(permit) => Ok(view.global_service(service).map(|merged| ServiceEntry::Merged(merged, permit))),
            Err(DecodedBudgetError::TooLarge { bytes, bytes_max }) => {
                let largest = by_cluster.iter().max_by_key(|(_, bytes)| **bytes).map(|(cluster, _)| cluster.clone());
                let describe = |cluster: ClusterName| {
                    let (namespace, name) = service.split_once('/')?;
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    let key = view.first_slice_of(service, &cluster)?.clone();
                    let (clusters, exports) = (by_cluster.into_keys().collect(), view.merged_exports(service));
                    Some(LargeService { namespace, name, cluster, key, bytes, bytes_max, clusters, exports })
                };
                Ok(largest.and_then(describe).map(ServiceEntry::TooLarge))
            }
            Err(error @ DecodedBudgetError::Exhausted) => Err(error),
        }
    }

    /// Returns the maximum decoded size of the endpoint slices of a global service, in bytes.
    #[must_use]
    pub fn service_bytes_max(&self) -> u64 {
        self.decoded.bytes_max()
    }

    /// Returns the first endpoint slice that a cluster has of a global service.
    #[must_use]
    pub fn first_slice_of(&self, service: &str, cluster: &ClusterName) -> Option<&EntryKey> {
        self.published.view.first_slice_of(service, cluster)
    }

    /// Returns the merged exports of a global service by `<namespace>/<name>`. `None` if no cluster
    /// exports it.
    #[must_use]
    pub fn merged_exports(&self, service: &str) -> Option<MergedExports> {
        self.published.view.merged_exports(service)
    }

    /// Returns the backends of a service that the agents of a cluster would use.
    #[must_use]
    pub fn select_backends(&self, service: &GlobalService, from: &ClusterName, affinity: Affinity) -> SelectedBackends {
        let view = &self.published.view;
        let own = view.local_member(from, &format!("{}/{}", service.namespace, service.name));
        let is_local_known = self.is_complete(from, Kind::Service);
        let local = match &own {
            Some(member) => LocalService::Known(member),
            None if is_local_known => LocalService::Missing,
            None => LocalService::Unknown,
        };
        let others = || service.members.iter().filter(|member| member.cluster != *from);
        let selection = select_backends(affinity, local, others().flat_map(|member| &member.backends));
        let local = own.iter().filter(|_| selection.local).cloned();
        let remote = others().filter(|_| selection.remote).cloned();
        let mut members: Vec<ServiceMember> = local.chain(remote).collect();
        members.sort_by(|left, right| left.cluster.cmp(&right.cluster));
        for member in &mut members {
            member.backends.retain(crate::view::GlobalBackend::is_usable);
        }
        SelectedBackends { selection, is_local_known, members }
    }
}

/// Returns whether a service passes the tests for clusters and labels.
fn passes(filter: &Filter, service: &GlobalService) -> bool {
    let test = Filter { clusters: filter.clusters.clone(), labels: filter.labels.clone(), ..Filter::default() };
    let export_records = service.exports.iter().flat_map(|exports| &exports.exports);
    let member_records = service.members.iter().flat_map(|member| member.service.iter().chain(&member.slices));
    let mut records = member_records.chain(export_records);
    records.any(|record| record.object.as_deref().is_some_and(|object| test.matches(&record.key, object)))
}
