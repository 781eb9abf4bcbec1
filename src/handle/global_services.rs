//! Global services as one snapshot has them, and which backends of them a cluster would use.

use smol_str::SmolStr;

use super::{Filter, Reading, Scanned, Slice};
use crate::commit::{DecodedRoom, NoDecodedRoom};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::view::{Affinity, GlobalService, LocalService, MergedExports, Selection, ServiceShare, select};

/// What one cluster's agents would use of a global service.
#[derive(Debug, Clone, PartialEq)]
pub struct Selected {
    /// Which sides are used, and why.
    pub selection: Selection,
    /// Whether the cluster's own services are known: that one is missing means nothing before.
    pub is_local_known: bool,
    /// The shares whose backends are used, the cluster's own included, in order of names. Backends without ports are left out.
    pub shares: Vec<ServiceShare>,
}

/// A global service as it can be answered.
#[derive(Debug)]
pub enum ServiceEntry {
    /// Merged over the clusters that share it, with the memory that it takes.
    Merged(GlobalService, #[allow(dead_code, reason = "held for its end")] DecodedRoom),
    /// Not merged.
    TooLarge(LargeService),
}

/// A global service whose endpoint slices would take more memory than all decoded values may. One cluster can make it so, and the other services are
/// answered all the same.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeService {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// The cluster whose slices take the most.
    pub cluster: ClusterName,
    /// The first of these slices.
    pub key: EntryKey,
    /// Decoded size of all its slices.
    pub bytes: u64,
    /// Upper bound on that (`--decoded-max-bytes`).
    pub bytes_max: u64,
    /// The clusters that have slices of it.
    pub clusters: Vec<ClusterName>,
    /// Its exports, which take little.
    pub exports: Option<MergedExports>,
}

impl ServiceEntry {
    /// The merged exports of the service.
    #[must_use]
    pub fn exports(&self) -> Option<&MergedExports> {
        match self {
            Self::Merged(service, _) => service.exports.as_ref(),
            Self::TooLarge(service) => service.exports.as_ref(),
        }
    }
}

impl Reading {
    /// Gives global services that pass a filter, from `<namespace>/<name>` on, to `take` until that refuses one. Clusters and labels are asked
    /// of what each cluster has of the service (its service, export or slices); what passes is merged over all clusters. The labels of a service that
    /// is too large are not read, so that it passes any filter for labels.
    pub fn scan_global_services(
        &self,
        filter: &Filter,
        start: Option<&str>,
        slice: &mut Slice,
        mut take: impl FnMut(&ServiceEntry) -> bool,
    ) -> Scanned<SmolStr> {
        let view = &self.published().view;
        // a namespace lies together
        let namespace = filter.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let name = filter.name.as_deref().filter(|_| !namespace.is_empty()).unwrap_or_default();
        let start = start.unwrap_or_default().max(&*format!("{namespace}{name}")).to_owned();
        for service in view.global_service_names(&start).take_while(|service| service.starts_with(&namespace)) {
            if !name.is_empty() && service[namespace.len()..] != *name {
                break;
            }
            if slice.is_over() {
                return Scanned::Paused(service.clone());
            }
            slice.look();
            let found = service.split_once('/').map_or("", |(_, name)| name);
            if filter.name.as_ref().is_some_and(|wanted| wanted != found) {
                continue;
            }
            // before it is merged, which takes as long as its slices are large, and room for them
            if !filter.clusters.is_empty() && !view.has_share_of(service, &filter.clusters) {
                continue;
            }
            match self.global_service(service) {
                Ok(Some(ServiceEntry::Merged(merged, _))) if !passes(filter, &merged) => {}
                Ok(Some(entry)) if !take(&entry) => return Scanned::Full(service.clone()),
                Ok(_) => {}
                Err(none) => return Scanned::NoRoom(service.clone(), none),
            }
        }
        Scanned::All
    }

    /// One global service, by `<namespace>/<name>`. Waits for the memory that its slices take; on a thread that may block.
    ///
    /// # Errors
    /// [`NoDecodedRoom`], if others have that memory for too long.
    pub fn global_service(&self, service: &str) -> Result<Option<ServiceEntry>, NoDecodedRoom> {
        let view = &self.published().view;
        let by_cluster = view.decoded_bytes_of(service);
        match self.decoded().hold_blocking(by_cluster.values().sum()) {
            Ok(room) => Ok(view.global_service(service).map(|merged| ServiceEntry::Merged(merged, room))),
            Err(NoDecodedRoom::TooLarge { bytes, bytes_max }) => {
                let largest = by_cluster.iter().max_by_key(|(_, bytes)| **bytes).map(|(cluster, _)| cluster.clone());
                let make = |cluster: ClusterName| {
                    let (namespace, name) = service.split_once('/')?;
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    let key = view.first_slice_of(service, &cluster)?.clone();
                    let (clusters, exports) = (by_cluster.into_keys().collect(), view.merged_exports(service));
                    Some(LargeService { namespace, name, cluster, key, bytes, bytes_max, clusters, exports })
                };
                Ok(largest.and_then(make).map(ServiceEntry::TooLarge))
            }
            Err(none @ NoDecodedRoom::Taken) => Err(none),
        }
    }

    /// Upper bound on the decoded endpoint slices of one global service, in bytes.
    #[must_use]
    pub fn service_bytes_max(&self) -> u64 {
        self.decoded().bytes_max()
    }

    /// The first endpoint slice that a cluster has of a global service.
    #[must_use]
    pub fn first_slice_of(&self, service: &str, cluster: &ClusterName) -> Option<&EntryKey> {
        self.published().view.first_slice_of(service, cluster)
    }

    /// The exports of a global service, by `<namespace>/<name>`, merged; `None` where no cluster exports it.
    #[must_use]
    pub fn merged_exports(&self, service: &str) -> Option<MergedExports> {
        self.published().view.merged_exports(service)
    }

    /// Which backends of a service the agents of a cluster would use.
    #[must_use]
    pub fn select_backends(&self, service: &GlobalService, from: &ClusterName, affinity: Affinity) -> Selected {
        let view = &self.published().view;
        let own = view.local_share(from, &format!("{}/{}", service.namespace, service.name));
        let is_local_known = self.is_complete(from, Kind::Service);
        let local = match &own {
            Some(share) => LocalService::Known(share),
            None if is_local_known => LocalService::Missing,
            None => LocalService::Unknown,
        };
        let others = || service.shares.iter().filter(|share| share.cluster != *from);
        let selection = select(affinity, local, others().flat_map(|share| &share.backends));
        let local = own.iter().filter(|_| selection.local).cloned();
        let remote = others().filter(|_| selection.remote).cloned();
        let mut shares: Vec<ServiceShare> = local.chain(remote).collect();
        shares.sort_by(|left, right| left.cluster.cmp(&right.cluster));
        for share in &mut shares {
            share.backends.retain(crate::view::GlobalBackend::is_usable);
        }
        Selected { selection, is_local_known, shares }
    }
}

/// Whether a service is what a filter asks for; its name was seen to before.
fn passes(filter: &Filter, service: &GlobalService) -> bool {
    let test = Filter { clusters: filter.clusters.clone(), labels: filter.labels.clone(), ..Filter::default() };
    let of_exports = service.exports.iter().flat_map(|exports| &exports.exports);
    let of_shares = service.shares.iter().flat_map(|share| share.service.iter().chain(&share.slices));
    let mut records = of_shares.chain(of_exports);
    records.any(|record| record.object.as_deref().is_some_and(|object| test.matches(&record.key, object)))
}
