//! Route of the impact: what changes if a cluster or a namespace leaves the mesh.

use axum::extract::State;
use axum::response::Response;
use smol_str::SmolStr;

use crate::admission::Scanner;
use crate::api::paging::list_request::ListRequest;
use crate::api::paging::pages::{RowSource, SliceOutcome, into_outcome, respond_with_page};
use crate::api::problem::Problem;
use crate::api::query::{ImpactQuery, Parameters};
use crate::api::state::ApiState;
use crate::dto::ImpactList;
use crate::dto::objects::impact::{AffinityEffects, Impact};
use crate::dto::objects::labels::LabelsOfIdentity;
use crate::dto::text::format_net;
use crate::dto::values::closed::{ImpactEffect, ImpactKind};
use crate::handle::{Filter, LabelSelector, MissingPart, Reading, ServiceEntry, ServiceImpact};
use crate::model::{EntryKey, Kind, Record};

/// Parts of the list, in order. The first letter of a page's start names its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListPart {
    Services,
    Identities,
    Cidrs,
}

/// Impact of a cluster or a namespace that leaves the mesh.
///
/// First the global services, each with its effect on other clusters for every affinity, then the
/// identities and CIDRs that no other cluster announces. Exactly one of `cluster=` and
/// `namespace=` is required. With `namespace=`, every cluster keeps only its own backends of the
/// namespace's services; identities are those of the namespace's pods.
#[utoipa::path(get, path = "/v1/impact", operation_id = "listImpact", tag = "services", params(ImpactQuery),
    responses((status = 200, description = "A page of affected objects.", body = ImpactList)))]
pub(crate) async fn list_impact(
    State(state): State<ApiState>,
    query: Parameters<ImpactQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        let missing = missing_part(listing)?;
        Ok((listing.meta_where(&Kind::ALL, |_| true)?, impact_rows(listing, missing)?))
    })
    .await
}

/// Returns the part that is assumed to be missing.
fn missing_part(listing: &ListRequest) -> Result<MissingPart, Problem> {
    let filter = &listing.filter;
    match (filter.clusters.as_slice(), &filter.namespace) {
        ([cluster], None) if listing.reading.summary().cluster(cluster).is_some() => Ok(MissingPart::Cluster(cluster.clone())),
        ([cluster], None) => {
            Err(Problem::bad_parameter("cluster", format!("there is no cluster {cluster}: /v1/clusters lists all clusters")))
        }
        ([], Some(namespace)) => Ok(MissingPart::Namespace(namespace.clone())),
        _ => Err(Problem::bad_parameter("cluster", "give either cluster=, or namespace=")),
    }
}

fn impact_rows(listing: &ListRequest, missing: MissingPart) -> Result<RowSource, Problem> {
    let (reading, filter) = (listing.reading.clone(), listing.filter.clone());
    let identity_filter = match &missing {
        MissingPart::Cluster(_) => filter.clone(),
        MissingPart::Namespace(namespace) => Filter { labels: Some(LabelSelector::of_namespace(namespace)), ..Filter::default() },
    };
    let (identities, cidrs) = (reading.plan_list(Kind::Identity, &identity_filter), reading.plan_list(Kind::Ip, &filter));
    let (mut part, first) = ListPart::parse(listing.start_text().unwrap_or_default());
    let mut service_start = Some(first).filter(|first| part == ListPart::Services && !first.is_empty()).map(SmolStr::new);
    let mut key_start = EntryKey::from_cache_form(first).filter(|_| part != ListPart::Services);
    Ok(Box::new(move |page, slice| {
        loop {
            let outcome = match part {
                ListPart::Services => {
                    let take = |entry: &_| page.push(&service_impact(&reading, entry, &missing));
                    into_outcome(reading.scan_global_services(&filter, service_start.clone().as_deref(), slice, take), &mut service_start)
                }
                ListPart::Identities => {
                    let take = |record: &Record| identity_impact(&reading, record).is_none_or(|impact| page.push(&impact));
                    into_outcome(reading.scan(&identities, key_start.clone().as_ref(), slice, take), &mut key_start)
                }
                ListPart::Cidrs => {
                    let take = |record: &Record| cidr_impact(&reading, record).is_none_or(|impact| page.push(&impact));
                    into_outcome(reading.scan(&cidrs, key_start.clone().as_ref(), slice, take), &mut key_start)
                }
            };
            match (outcome, part.next()) {
                (SliceOutcome::Ended(None), Some(next)) if next != ListPart::Cidrs || matches!(missing, MissingPart::Cluster(_)) => {
                    (part, key_start) = (next, None);
                }
                (outcome, _) => return part.mark(outcome),
            }
        }
    }))
}

impl ListPart {
    const ALL: [(Self, char); 3] = [(Self::Services, 's'), (Self::Identities, 'i'), (Self::Cidrs, 'c')];

    /// Parses the start of a page: the part's letter, and the key within the part.
    fn parse(start: &str) -> (Self, &str) {
        let found = Self::ALL.into_iter().find_map(|(part, letter)| Some((part, start.strip_prefix(letter)?)));
        found.unwrap_or((Self::Services, ""))
    }

    fn next(self) -> Option<Self> {
        match self {
            Self::Services => Some(Self::Identities),
            Self::Identities => Some(Self::Cidrs),
            Self::Cidrs => None,
        }
    }

    /// Adds the part's letter to the start of the next page.
    fn mark(self, outcome: SliceOutcome) -> SliceOutcome {
        let letter = Self::ALL.into_iter().find_map(|(part, letter)| (part == self).then_some(letter)).unwrap_or_default();
        let marked = |start: String| format!("{letter}{start}");
        match outcome {
            SliceOutcome::Paused(start) => SliceOutcome::Paused(marked(start)),
            SliceOutcome::Ended(start) => SliceOutcome::Ended(start.map(marked)),
            SliceOutcome::NoMemory(start, error) => SliceOutcome::NoMemory(marked(start), error),
            SliceOutcome::ReadingHistory => SliceOutcome::ReadingHistory,
        }
    }
}

fn service_impact(reading: &Reading, entry: &ServiceEntry, missing: &MissingPart) -> Impact {
    match entry {
        ServiceEntry::Merged(service, _) => {
            let ServiceImpact { effect, by_affinity, lost_count, remaining_count, fallback_clusters } =
                reading.service_impact(service, missing);
            let [none, local, remote] = by_affinity.map(Into::into);
            Impact {
                namespace: Some(service.namespace.clone()),
                name: Some(service.name.clone()),
                affinities: Some(AffinityEffects { none, local, remote }),
                lost_backends: Some(lost_count),
                remaining_backends: Some(remaining_count),
                fallback_clusters: fallback_clusters.iter().map(ToString::to_string).collect(),
                ..Impact::new(ImpactKind::Service.into(), effect.into())
            }
        }
        ServiceEntry::TooLarge(service) => Impact {
            namespace: Some(service.namespace.clone()),
            name: Some(service.name.clone()),
            ..Impact::new(ImpactKind::Service.into(), ImpactEffect::Unknown.into())
        },
    }
}

/// Returns the impact on an identity that no other cluster announces.
fn identity_impact(reading: &Reading, record: &Record) -> Option<Impact> {
    let identity = record.object.as_deref()?.as_identity()?;
    let is_only = reading.identities(identity.id).all(|other| other.key.cluster == record.key.cluster);
    is_only.then(|| Impact {
        identity: Some(identity.id),
        labels: Some(LabelsOfIdentity(identity.labels.clone())),
        ..Impact::new(ImpactKind::Identity.into(), ImpactEffect::OnlyHere.into())
    })
}

/// Returns the impact on a CIDR that no other cluster announces. Addresses are not part of the
/// list: a cluster has one for each pod.
fn cidr_impact(reading: &Reading, record: &Record) -> Option<Impact> {
    let entry = record.object.as_deref()?.as_ip().filter(|entry| !entry.prefix.host)?;
    let is_only = reading.ips_at(entry.prefix.net).all(|other| other.key.cluster == record.key.cluster);
    is_only.then(|| Impact {
        prefix: Some(format_net(entry.prefix.net)),
        identity: Some(entry.identity),
        ..Impact::new(ImpactKind::Cidr.into(), ImpactEffect::OnlyHere.into())
    })
}
