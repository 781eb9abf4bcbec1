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
use crate::api::paging::pages::{respond_with_object, respond_with_slices};
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{Parameters, PrometheusQuery, parse_clusters};
use crate::api::state::ApiState;
use crate::dto::objects::prometheus::TargetGroup;
use crate::dto::problem::ProblemDocument;
use crate::handle::{Filter, LabelSelector, Reading, ScanEnd, ScanUsage, SourceMeta};
use crate::model::{ClusterName, EntryKey, Kind, check_exact_name};

/// Kinds that pods are found in.
const POD_KINDS: [Kind; 3] = [Kind::Ip, Kind::Identity, Kind::Node];

/// Maximum number of identities that a label selector may select. Each is one list of addresses.
const IDENTITIES_MAX: usize = 10_000;

/// Label of an identity with the namespace of its pods (`PodNamespaceLabel`, Cilium's
/// `pkg/k8s/apis/cilium.io`).
const NAMESPACE_LABEL: &str = "k8s:io.kubernetes.pod.namespace";

/// Targets for Prometheus' `http_sd_configs`.
///
/// With `service=`, the backends of a global service; with `namespace=` or `labelSelector=`, the
/// pods of all clusters. Every target has the labels `__meta_meshkeep_cluster`, `_namespace`,
/// `_pod`, `_node`, `_service`, `_port_name`, `_port_protocol`, `_ip_family`, `_identity`,
/// `_service_account`, `_state` and `_origin`, as far as they are known, and `_label_NAME` for each
/// Kubernetes label of a pod's identity. An answer has at most 10,000 targets; a request that
/// selects more is refused, because Prometheus would drop the others.
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
            respond_with_object(&scanner, false, move || targets_of_service(&reading, &service, &clusters, &port, meta_options)).await
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
) -> Result<Vec<TargetGroup>, Problem> {
    let missing = || {
        let detail = format!("no cluster shares or exports a service {service}: /v1/global-services lists all global services");
        Problem::new(ProblemCode::NotFound, detail)
    };
    let found = reading.global_service(service).map_err(|none| Problem::no_memory(service, none))?.ok_or_else(missing)?;
    meta_options.check(&sources(reading, &found))?;
    service_targets(reading, &found, clusters, port)
}

/// Returns the sources of the pods of these clusters, or of all clusters.
fn sources_of_pods(reading: &Reading, clusters: &[ClusterName]) -> Vec<SourceMeta> {
    let names = reading.cluster_names();
    let wanted = names.iter().filter(|name| clusters.is_empty() || clusters.contains(name));
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
                "labelSelector",
                "takes too long: select fewer pods with namespace, labelSelector or cluster",
            ))),
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(Err(problem)) => ControlFlow::Break(Err(problem)),
            ControlFlow::Break(Ok(())) => ControlFlow::Break(scan.targets.to_json()),
        }
    })
    .await
}

/// Search for pods: first for the identities with the labels, then for the addresses of each.
struct PodScan {
    reading: Reading,
    namespace: Option<String>,
    port: PortFilter,
    /// Filter of the identities that were not searched for yet.
    identities: Option<Filter>,
    /// Filters of the addresses that were not read yet: one for each identity, or one for all.
    remaining: Vec<Filter>,
    start: Option<EntryKey>,
    targets: TargetList,
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
        let of_namespace = namespace.iter().map(|namespace| format!("{NAMESPACE_LABEL}={namespace}"));
        let identities = label_selector.as_ref().map(|selector| {
            let selector = std::iter::once(selector.clone()).chain(of_namespace).collect::<Vec<_>>().join(",");
            let labels = LabelSelector::parse(&selector).map_err(|error| Problem::bad_parameter("labelSelector", error))?;
            Ok::<_, Problem>(Filter { labels: Some(labels), clusters: clusters.clone(), ..Filter::default() })
        });
        let identities = identities.transpose()?;
        let all = Filter { namespace: namespace.clone(), clusters, ..Filter::default() };
        let remaining = if identities.is_some() { Vec::new() } else { vec![all] };
        let namespace = namespace.clone();
        Ok(Self { reading, namespace, port, identities, remaining, start: None, targets: TargetList::default() })
    }

    /// Continues for one slice. Breaks when all pods were found.
    fn advance(&mut self, slice: &mut crate::handle::WorkSlice) -> ControlFlow<Result<(), Problem>> {
        if let Some(filter) = &self.identities {
            let (remaining, namespace) = (&mut self.remaining, &self.namespace);
            let plan = self.reading.plan_list(Kind::Identity, filter);
            let scanned = self.reading.scan(&plan, self.start.as_ref(), slice, |record| {
                let identity = record.object.as_deref().and_then(|object| object.as_identity());
                // another cluster may have the same number with other labels
                let clusters = vec![record.key.cluster.clone()];
                let of_identity = |id| Filter { identity: Some(id), namespace: namespace.clone(), clusters, ..Filter::default() };
                remaining.extend(identity.map(|identity| of_identity(identity.id)));
                remaining.len() <= IDENTITIES_MAX
            });
            match scanned {
                ScanEnd::Complete => (self.identities, self.start) = (None, None),
                ScanEnd::Paused(key) => {
                    self.start = Some(key);
                    return ControlFlow::Continue(());
                }
                ScanEnd::PageFull(_) => return ControlFlow::Break(Err(too_many("identities", IDENTITIES_MAX))),
                ScanEnd::OverBudget(key, error) => return ControlFlow::Break(Err(Problem::no_memory(&key.to_string(), error))),
            }
        }
        while let Some(filter) = self.remaining.last() {
            let plan = self.reading.plan_list(Kind::Ip, filter);
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
                }
            }
        }
        ControlFlow::Break(Ok(()))
    }
}

/// Returns the problem for a request that selects too much.
fn too_many(what: &str, count_max: usize) -> Problem {
    let detail = format!("selects more than {count_max} {what}: select fewer with namespace, labelSelector, cluster or port");
    Problem::bad_parameter("labelSelector", detail)
}
