//! Global services as one snapshot has them, and which backends of them a cluster would use.

use smol_str::SmolStr;

use super::{Filter, Reading, Scanned, Slice};
use crate::model::{ClusterName, Kind};
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

impl Reading {
    /// Gives global services that pass a filter, from `<namespace>/<name>` on, to `take` until that refuses one. Clusters and labels are asked
    /// of what each cluster has of the service (its service, export or slices); what passes is merged over all clusters.
    pub fn scan_global_services(
        &self,
        filter: &Filter,
        start: Option<&str>,
        slice: &mut Slice,
        mut take: impl FnMut(&GlobalService) -> bool,
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
            let _room = match self.room_for_service(service) {
                Ok(room) => room,
                Err(none) => return Scanned::NoRoom(service.clone(), none),
            };
            if let Some(found) = view.global_service(service).filter(|one| passes(filter, one))
                && !take(&found)
            {
                return Scanned::Full(service.clone());
            }
        }
        Scanned::All
    }

    /// One global service, by `<namespace>/<name>`.
    #[must_use]
    pub fn global_service(&self, service: &str) -> Option<GlobalService> {
        self.published().view.global_service(service)
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
