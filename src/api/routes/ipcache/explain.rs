//! Route that explains an address or a CIDR: all entries that cover it, the one that wins and why,
//! its node and services, and the findings about it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use ipnet::IpNet;

use super::hints::{INSIDE_COUNTED_MAX, inside_hint, is_exactly, miss_hints, rejected_hint};
use crate::admission::Scanner;
use crate::api::dto::meta::MetaOptions;
use crate::api::paging::pages::respond_with_object;
use crate::api::problem::Problem;
use crate::api::query::{Parameters, PastItemQuery, parse_network};
use crate::api::routes::objects::past::RequestedTime;
use crate::api::routes::{bad_path, past_reading};
use crate::api::state::ApiState;
use crate::dto::findings::{BackedService, ExplainedEntry, Explanation, Hint};
use crate::dto::meta::ItemMeta;
use crate::dto::objects::{IpcacheEntry, Node};
use crate::dto::values::closed::{BackendSource, Verdict};
use crate::findings::{CurrentFindingIndex, describe_existing, namespace_and_name};
use crate::handle::{
    EntryRole, Finding, FindingIndex, LOOKUP_KINDS, LookupMatch, Origin, PastExplanation, PastReading, RankReason, Reading, UseReason,
};
use crate::model::{ClusterName, EntryKey, Kind, Record};

/// Kinds that an explanation reads.
const KINDS: [Kind; 5] = [Kind::Ip, Kind::Identity, Kind::Node, Kind::Service, Kind::EndpointSlice];

/// Maximum number of rejected values in an explanation. Several clusters may have one for the same
/// address.
const REJECTED_MAX: usize = 20;

/// Maximum number of entries, services and clusters that an explanation reads on the thread that
/// answers requests. Reading one takes up to 15 µs (an entry that is in no cache), so all of them
/// take at most about a millisecond.
const INLINE_ROWS_MAX: usize = 64;

/// Explanation of an address or a CIDR.
///
/// All entries of all clusters that cover the address, the entry that an agent would use and
/// the reason, the identity and its labels, the node, the services that have it as a backend,
/// and the findings about it. `hints` has possible reasons why the address has no entry of its
/// own, or an outdated one. For a CIDR, these are the entries that cover the whole CIDR, and
/// `hints` also reports the entries inside it.
///
/// With `at=`, the answer has the entries, labels and node of that time. It has no services,
/// findings and hints, which are about the newest data only.
#[utoipa::path(get, path = "/v1/explain/{*ip}", operation_id = "explainIp", tag = "ipcache",
    params(("ip" = String, Path, description = "The address or CIDR, IPv4 or IPv6. The slash of a CIDR may be percent-encoded."), PastItemQuery),
    responses((status = 200, description = "The explanation; `match` is null if no entry covers the address.", body = Explanation)))]
pub(crate) async fn explain_ip(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<PastItemQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let Path(text) = path.map_err(|rejection| bad_path(&rejection))?;
    let net = parse_network(&text).ok_or_else(|| Problem::bad_parameter("ip", format!("{text:?} is not an address or CIDR")))?;
    let meta_options = query.values.meta_options()?;
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        let past = past_reading(&state.handle).await?;
        return respond_with_object(&scanner, false, move || explain_at(&past, net, at)).await;
    }
    let reading = state.handle.reading().await?;
    let current = state.findings.index.wait_for_index(&reading).await;
    let covering = reading.covering(net);
    let is_short = row_count(&reading, &current, net, &covering) <= INLINE_ROWS_MAX;
    respond_with_object(&scanner, is_short, move || explain_network(&reading, &current, net, &covering, meta_options)).await
}

/// Returns the number of entries, services and clusters that an explanation reads. For a CIDR it is
/// not known, because the entries inside it count too.
fn row_count(reading: &Reading, current: &CurrentFindingIndex, net: IpNet, covering: &[EntryKey]) -> usize {
    if net.prefix_len() != net.max_prefix_len() {
        return usize::MAX;
    }
    let ip = net.addr();
    let services = current.index.iter().flat_map(|index| index.keys_with_backend(ip)).take(INLINE_ROWS_MAX).count();
    // without an entry for exactly the address, the hints are about all clusters
    let has_own_entry = covering.iter().any(|key| key.kind == Kind::Ip && key.name.parse() == Ok(ip));
    covering.len() + services + if has_own_entry { 0 } else { reading.configured_clusters().len() }
}

fn explain_network(
    reading: &Reading,
    current: &CurrentFindingIndex,
    net: IpNet,
    covering: &[EntryKey],
    meta_options: MetaOptions,
) -> Result<Explanation, Problem> {
    let index = current.index.as_ref();
    let found = reading.explain(covering);
    let winner = found.iter().find(|(_, verdict)| matches!(verdict, EntryRole::Used(_))).map(|(found, _)| found);
    let meta = match winner {
        Some(winner) => {
            let sources = sources(reading, &found);
            meta_options.check(&sources)?;
            ItemMeta::from_source(&reading.source_of(&winner.record), reading.position(), &sources, meta_options)
        }
        None => ItemMeta::of_all_clusters(reading, &[Kind::Ip], meta_options)?,
    };
    let node = winner.and_then(|winner| hosting_node(reading, winner));
    let mut findings = possible_findings(&found);
    findings.extend(index.zip(node.as_ref()).into_iter().flat_map(|(index, node)| pod_cidr_findings(index, node, net)));
    let findings: Vec<Finding> = findings.into_iter().collect();
    let rejected = reading.rejected_at(net);
    let is_rejected = rejected.iter().any(|record| is_exactly(net, record));
    let mut hints: Vec<Hint> = rejected.iter().filter_map(|record| rejected_hint(net, record)).take(REJECTED_MAX).collect();
    let host = (net.prefix_len() == net.max_prefix_len()).then(|| net.addr());
    if host.is_none() {
        hints.extend(inside_hint(net, &reading.entries_inside(net, INSIDE_COUNTED_MAX)));
    }
    let miss = reading.explain_miss(net, found.iter().map(|(found, _)| found));
    hints.extend(miss.iter().flat_map(|miss| miss_hints(miss, is_rejected)));
    Ok(Explanation {
        ip: text_of(net),
        found: winner.and_then(|winner| IpcacheEntry::from_match(winner, reading)),
        entries: found.iter().filter_map(|(found, verdict)| explain_entry(reading, found, verdict, origin_of(reading, found))).collect(),
        hints,
        node: node.as_deref().and_then(|node| Node::from_record(node, reading)),
        services: Some(index.zip(host).map(|(index, ip)| services_with_backend(index, ip)).unwrap_or_default()),
        problems: Some(
            index.map(|index| describe_existing(&findings, index, reading).into_iter().map(Into::into).collect()).unwrap_or_default(),
        ),
        complete: Some(current.is_complete && index.is_some_and(FindingIndex::has_all_backends)),
        meta,
    })
}

/// Explains an address or a CIDR at an earlier time.
fn explain_at(past: &PastReading, net: IpNet, at: RequestedTime) -> Result<Explanation, Problem> {
    let time = at.resolve(past, &LOOKUP_KINDS, &[])?;
    let PastExplanation { entries, node, covering } = past.explain_at(net, &time);
    let winner = entries.first().map(|(found, _)| found);
    Ok(Explanation {
        ip: text_of(net),
        found: winner.and_then(|winner| IpcacheEntry::from_match(winner, &past.reading)),
        entries: entries.iter().filter_map(|(found, verdict)| explain_entry(&past.reading, found, verdict, None)).collect(),
        hints: Vec::new(),
        node: node.as_deref().and_then(|node| Node::from_record(node, &past.reading)),
        services: None,
        problems: None,
        complete: None,
        meta: ItemMeta::at(past, &time, &covering, winner.map(|winner| &winner.record.key.cluster), at.meta_options),
    })
}

/// Returns a network as text, or an address without its prefix length.
fn text_of(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

fn origin_of(reading: &Reading, found: &LookupMatch) -> Option<Origin> {
    Some(reading.source_of(&found.record).origin)
}

fn explain_entry(reading: &Reading, found: &LookupMatch, verdict: &EntryRole, origin: Option<Origin>) -> Option<ExplainedEntry> {
    let entry = IpcacheEntry::from_match(found, reading)?;
    let (verdict, reason) = match verdict {
        EntryRole::Used(merit) => (Verdict::Wins, describe_use_reason(merit)),
        EntryRole::Shadowed => (Verdict::Shadowed, "a host entry for the address takes precedence over a CIDR of full length".to_owned()),
        EntryRole::LessSpecific(winner) => (Verdict::LessSpecific, format!("{winner} is more specific")),
        EntryRole::Outranked(cluster, weakness) => (Verdict::Outranked, describe_rank_reason(cluster, *weakness)),
    };
    Some(ExplainedEntry { entry, verdict: verdict.into(), reason, origin: origin.map(Into::into) })
}

/// Returns the reason why an agent uses an entry.
fn describe_use_reason(merit: &UseReason) -> String {
    match merit {
        UseReason::Only => "the only entry that covers the address".to_owned(),
        UseReason::MostSpecific => "the most specific entry that covers the address".to_owned(),
        UseReason::Host => "a host entry takes precedence over a CIDR of full length".to_owned(),
        UseReason::Stronger(cluster, weakness) => match weakness {
            RankReason::Remote => {
                format!("it belongs to the own cluster: agents keep their own cluster's entries, and {cluster} does not overwrite them")
            }
            RankReason::Derived => format!("its cluster announces it, and the entry of {cluster} is derived from a node"),
            RankReason::Rejected => format!("{cluster} has the same prefix, but its newest value was rejected: see /v1/rejected"),
            RankReason::Older => format!("the newest entry for its prefix: {cluster} wrote its entry earlier"),
        },
    }
}

/// Returns the reason why the entry of a cluster takes precedence over another entry with the same
/// prefix.
fn describe_rank_reason(cluster: &ClusterName, weakness: RankReason) -> String {
    match weakness {
        RankReason::Remote => {
            format!("{cluster} is the own cluster: agents keep their own cluster's entries, and no other cluster overwrites them")
        }
        RankReason::Derived => "an entry that a cluster announces takes precedence over one that is derived from a node".to_owned(),
        RankReason::Rejected => format!("its newest value was rejected, and {cluster} has the same prefix: see /v1/rejected"),
        RankReason::Older => format!("{cluster} wrote the same prefix later"),
    }
}

/// Returns the sources of an answer with entries.
fn sources(reading: &Reading, found: &[(LookupMatch, EntryRole)]) -> Vec<crate::handle::SourceMeta> {
    let clusters: BTreeSet<&ClusterName> = found.iter().map(|(found, _)| &found.record.key.cluster).collect();
    clusters.into_iter().flat_map(|cluster| reading.sources(cluster, KINDS)).collect()
}

/// Returns the node with the entry's host address, preferably one of the entry's cluster.
fn hosting_node(reading: &Reading, found: &LookupMatch) -> Option<Arc<Record>> {
    let host_ip = found.record.object.as_deref()?.as_ip()?.host_ip?;
    let nodes: Vec<Arc<Record>> = reading.nodes_at(host_ip).collect();
    nodes.iter().find(|node| node.key.cluster == found.record.key.cluster).or(nodes.first()).cloned()
}

/// Returns the findings that may exist about the entries that cover an address.
fn possible_findings(found: &[(LookupMatch, EntryRole)]) -> BTreeSet<Finding> {
    let mut findings = BTreeSet::new();
    for (found, _) in found {
        let Some(entry) = found.record.object.as_deref().and_then(|object| object.as_ip()) else { continue };
        let cluster = &found.record.key.cluster;
        findings.insert(Finding::DuplicateAddress(entry.prefix));
        findings.insert(Finding::DanglingIdentity(cluster.clone(), entry.identity));
        findings.extend(entry.host_ip.map(|host_ip| Finding::DanglingHostIp(cluster.clone(), host_ip)));
    }
    findings
}

/// Returns the findings about the pod CIDRs of a node that contain a network.
fn pod_cidr_findings(index: &FindingIndex, node: &Record, net: IpNet) -> Vec<Finding> {
    let cidrs = node.object.as_deref().and_then(|object| object.as_node()).into_iter().flat_map(|node| node.pod_cidrs());
    cidrs.filter(|cidr| cidr.contains(&net)).flat_map(|cidr| index.findings_about_pod_cidr(cidr, &node.key.cluster)).collect()
}

fn services_with_backend(index: &FindingIndex, ip: IpAddr) -> Vec<BackedService> {
    let service = |key: &crate::model::EntryKey| {
        let (namespace, name) = namespace_and_name(key)?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let kind = if key.kind == Kind::Service { BackendSource::Service } else { BackendSource::EndpointSlice };
        Some(BackedService { kind: kind.into(), cluster: key.cluster.to_string(), namespace, name })
    };
    index.keys_with_backend(ip).filter_map(service).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::fixture::ApiFixture;

    /// Two clusters announce 10.1.2.40, and a node of each has a pod CIDR around it. One cluster
    /// has a client file.
    #[tokio::test]
    async fn an_explanation_of_few_rows_needs_no_blocking_thread() {
        let fixture = ApiFixture::new();
        let reading = fixture.handle.try_reading().unwrap();
        let index = CurrentFindingIndex { index: None, is_complete: false };
        let count = |text: &str| {
            let net = parse_network(text).unwrap();
            row_count(&reading, &index, net, &reading.covering(net))
        };
        assert_eq!(["10.1.2.40", "192.0.2.1", "10.1.2.0/24"].map(count), [4, 1, usize::MAX]);
    }
}
