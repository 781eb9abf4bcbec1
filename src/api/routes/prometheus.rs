//! Route of Prometheus' HTTP service discovery: backends of a global service, or pods.
//!
//! Prometheus reads the whole list at once and keeps its targets if a request fails. An answer is
//! therefore complete or an error.

mod targets;

use std::ops::ControlFlow;

use axum::extract::State;
use axum::response::Response;

use self::targets::{PortFilter, TargetList, pod_targets, service_targets};
use crate::admission::Scanner;
use crate::api::dto::global_services::sources;
use crate::api::dto::meta::MetaOptions;
use crate::api::paging::pages::respond_with_slices;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{Parameters, PrometheusQuery, parse_clusters};
use crate::api::state::ApiState;
use crate::dto::objects::prometheus::TargetGroup;
use crate::dto::problem::ProblemDocument;
use crate::handle::{Filter, LabelSelector, Reading, ScanEnd, ScanUsage, SourceMeta, WorkSlice};
use crate::model::{ClusterName, EntryKey, Kind, check_exact_name};

/// Kinds that pods are found in.
const POD_KINDS: [Kind; 3] = [Kind::Ip, Kind::Identity, Kind::Node];

/// Maximum number of identities that a label selector may select: 10,000 names and numbers, some
/// 400 kB. Each is one list of addresses.
const IDENTITIES_MAX: usize = 10_000;

/// Targets for Prometheus' `http_sd_configs`.
///
/// With `service=`, the backends of a global service; with `namespace=` or `labelSelector=`, the
/// pods of all clusters. Every target has the labels `__meta_meshkeep_cluster`, `_namespace`,
/// `_pod`, `_node`, `_service`, `_port_name`, `_port_protocol`, `_ip_family`, `_identity`,
/// `_service_account`, `_state` and `_origin`, as far as they are known, and `_label_NAME` for each
/// Kubernetes label of a pod's identity. An answer has at most 10,000 targets and 4 MiB; a request
/// that selects more is refused, because Prometheus would drop the others.
#[utoipa::path(get, path = "/v1/prometheus/sd", operation_id = "listPrometheusTargets", tag = "services", params(PrometheusQuery),
    responses(
        (status = 200, description = "The targets, one in each group.", body = Vec<TargetGroup>),
        (status = 404, description = "There is no such object.", body = ProblemDocument)
    ))]
pub(crate) async fn list_prometheus_targets(
    State(state): State<ApiState>,
    query: Parameters<PrometheusQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let query = query.values;
    let meta_options = MetaOptions::parse(query.max_age, query.never_read.clone(), None)?;
    let (clusters, port) = (parse_clusters(&query.cluster)?, PortFilter::parse(query.port.as_deref())?);
    let reading = state.handle.reading().await?;
    match &query.service {
        Some(_) if query.namespace.is_some() || query.label_selector.is_some() => {
            Err(Problem::bad_parameter("service", "selects a service, and namespace and labelSelector select pods: give one of them"))
        }
        Some(service) => {
            let service = service.clone();
            respond_with_slices(&scanner, move |slice| {
                slice.count_row();
                ControlFlow::Break(targets_of_service(&reading, &service, &clusters, &port, meta_options))
            })
            .await
        }
        None => {
            let sources = sources_of_pods(&reading, &clusters);
            meta_options.check(&sources)?;
            let scan = PodScan::new(reading, &query, clusters, port)?;
            respond_with_scan(&scanner, scan).await
        }
    }
}

fn targets_of_service(
    reading: &Reading,
    service: &str,
    clusters: &[ClusterName],
    port: &PortFilter,
    meta_options: MetaOptions,
) -> Result<Vec<u8>, Problem> {
    let missing = || {
        let detail = format!("no cluster shares or exports a service {service}: /v1/global-services lists all global services");
        Problem::new(ProblemCode::NotFound, detail)
    };
    let found = reading.global_service(service).map_err(|none| Problem::no_memory(service, none))?.ok_or_else(missing)?;
    let mut sources = sources(reading, &found);
    sources.retain(|source| is_selected(clusters, &source.cluster));
    meta_options.check(&sources)?;
    let mut targets = TargetList::new("service");
    service_targets(reading, &found, clusters, port, &mut targets)?;
    Ok(targets.take_json())
}

/// Returns whether targets of a cluster are wanted: all, without clusters in the query.
fn is_selected(clusters: &[ClusterName], name: &ClusterName) -> bool {
    clusters.is_empty() || clusters.contains(name)
}

/// Returns the sources of the pods of these clusters, or of all clusters.
fn sources_of_pods(reading: &Reading, clusters: &[ClusterName]) -> Vec<SourceMeta> {
    let names = reading.cluster_names();
    let wanted = names.iter().filter(|name| is_selected(clusters, name));
    wanted.flat_map(|name| reading.sources(name, POD_KINDS)).collect()
}

/// Runs a scan until it is complete.
async fn respond_with_scan(scanner: &Scanner, mut scan: PodScan) -> Result<Response, Problem> {
    let page_limit = scanner.limits().page;
    let mut spent = ScanUsage::default();
    respond_with_slices(scanner, move |slice| {
        let outcome = scan.advance(slice);
        spent += slice.usage();
        match outcome {
            ControlFlow::Continue(()) if page_limit.is_reached(spent) => ControlFlow::Break(Err(Problem::bad_parameter(
                scan.parameter,
                "takes too long: select fewer pods with namespace, labelSelector or cluster",
            ))),
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(found) => ControlFlow::Break(found.map(|()| scan.targets.take_json())),
        }
    })
    .await
}

/// Search for pods: first for the identities with the labels, then for the addresses of each.
struct PodScan {
    reading: Reading,
    port: PortFilter,
    /// Filter of the pods, without their identity.
    pods: Filter,
    /// Filter of the identities, while they are searched for.
    identities: Option<Filter>,
    /// Lists of addresses that were not read yet.
    remaining: Vec<AddressList>,
    start: Option<EntryKey>,
    targets: TargetList,
    /// Parameter that selects the pods.
    parameter: &'static str,
}

/// A list of addresses that may belong to selected pods.
enum AddressList {
    All,
    /// Those of an identity. Another cluster may have the same number with other labels.
    OfIdentity(ClusterName, u32),
}

impl PodScan {
    fn new(reading: Reading, query: &PrometheusQuery, clusters: Vec<ClusterName>, port: PortFilter) -> Result<Self, Problem> {
        let PrometheusQuery { namespace, label_selector, .. } = query;
        if namespace.is_none() && label_selector.is_none() {
            return Err(Problem::bad_parameter(
                "service",
                "is missing: give service=NAMESPACE/NAME, or namespace= or labelSelector= for pods",
            ));
        }
        if let Some(namespace) = namespace {
            check_exact_name(namespace).map_err(|error| Problem::bad_parameter("namespace", error))?;
        }
        let identities = label_selector.as_ref().map(|selector| {
            let labels = LabelSelector::parse(selector).map_err(|error| Problem::bad_parameter("labelSelector", error))?;
            let labels = labels.and(namespace.as_deref().map(LabelSelector::of_namespace).unwrap_or_default());
            Ok::<_, Problem>(Filter { labels: Some(labels), clusters: clusters.clone(), ..Filter::default() })
        });
        let identities = identities.transpose()?;
        let remaining = if identities.is_some() { Vec::new() } else { vec![AddressList::All] };
        let parameter = if identities.is_some() { "labelSelector" } else { "namespace" };
        let pods = Filter { namespace: namespace.clone(), clusters, ..Filter::default() };
        Ok(Self { reading, port, pods, identities, remaining, start: None, targets: TargetList::new(parameter), parameter })
    }

    /// Continues for one slice. Breaks when all pods were found.
    fn advance(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<(), Problem>> {
        if let Some(filter) = &self.identities {
            let remaining = &mut self.remaining;
            let plan = self.reading.plan_list(Kind::Identity, filter);
            let scanned = self.reading.scan(&plan, self.start.as_ref(), slice, |record| {
                let identity = record.object.as_deref().and_then(|object| object.as_identity());
                remaining.extend(identity.map(|identity| AddressList::OfIdentity(record.key.cluster.clone(), identity.id)));
                remaining.len() <= IDENTITIES_MAX
            });
            match scanned {
                ScanEnd::Complete => (self.identities, self.start) = (None, None),
                ScanEnd::Paused(key) => {
                    self.start = Some(key);
                    return ControlFlow::Continue(());
                }
                ScanEnd::PageFull(_) => return ControlFlow::Break(Err(too_many(self.parameter, "identities", IDENTITIES_MAX))),
                ScanEnd::OverBudget(key, error) => return ControlFlow::Break(Err(Problem::no_memory(&key.to_string(), error))),
            }
        }
        while let Some(list) = self.remaining.last() {
            if slice.is_over() {
                return ControlFlow::Continue(());
            }
            let plan = self.reading.plan_list(Kind::Ip, &list.filter(&self.pods));
            let (reading, port, targets, mut failed) = (&self.reading, &self.port, &mut self.targets, None);
            let scanned = reading.scan(&plan, self.start.as_ref(), slice, |record| {
                failed = pod_targets(reading, record, port, targets).err();
                failed.is_none()
            });
            match (failed, scanned) {
                (Some(problem), _) => return ControlFlow::Break(Err(problem)),
                (None, ScanEnd::Paused(key)) => {
                    self.start = Some(key);
                    return ControlFlow::Continue(());
                }
                (None, ScanEnd::OverBudget(key, error)) => return ControlFlow::Break(Err(Problem::no_memory(&key.to_string(), error))),
                (None, ScanEnd::Complete | ScanEnd::PageFull(_)) => {
                    self.start = None;
                    self.remaining.pop();
                    // an identity without addresses has no row
                    slice.count_row();
                }
            }
        }
        ControlFlow::Break(Ok(()))
    }
}

impl AddressList {
    /// Returns the filter of the addresses of `pods` in this list.
    fn filter(&self, pods: &Filter) -> Filter {
        match self {
            Self::All => pods.clone(),
            Self::OfIdentity(cluster, id) => Filter { identity: Some(*id), clusters: vec![cluster.clone()], ..pods.clone() },
        }
    }
}

/// Returns the problem for a request that selects too much with this parameter.
fn too_many(parameter: &'static str, what: &str, count_max: usize) -> Problem {
    let fewer = if parameter == "service" { "cluster or port" } else { "namespace, labelSelector, cluster or port" };
    Problem::bad_parameter(parameter, format!("selects more than {count_max} {what}: select fewer with {fewer}"))
}
