//! Validation of the files. Applies every rule that a reader of the cluster applies
//! (docs/develop/protocol.md §2 and §3.11) and resolves references between nodes, workloads and
//! services. The result is a [`ClusterPlan`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::addresses::{prefix_refusal_reason, refusal_reason};
use super::error::{ERRORS_MAX, FileError, ParsedFile};
use super::plan::{ClusterPlan, Workload};
use super::yaml::{BackendsYaml, ClusterYaml, LabelsYaml, NodeYaml, PortYaml, ServiceYaml, WholeNumber, WorkloadYaml};
use super::yaml_path::YamlPath;
use crate::model::{
    Backend, CLUSTER_LABEL, ClusterId, ClusterName, Frontend, LabelSet, MaxConnectedClusters, NAMESPACE_LABEL, Node, NodeAddress, Port,
    SERVICE_ACCOUNT_LABEL, Service,
};
use cilium_kvstore::allocator::AllocatorKey;

/// Source of labels without an explicit source.
const SOURCE_K8S: &str = "k8s";

/// Label sources that Cilium reserves for its own labels (`pkg/labels`). A machine must not use
/// them.
const SOURCES_RESERVED: [&str; 3] = ["reserved", "cidr", "fqdn"];

/// Cluster name that Cilium treats as unset (`pkg/defaults`, `ClusterName`).
const CLUSTER_NAME_DEFAULT: &str = "default";

/// Maximum length of a Kubernetes name (RFC 1123), in bytes.
const NAME_LENGTH_MAX: usize = 253;

/// Plan under construction, with everything that was validated so far.
struct PlanBuilder<'a> {
    errors: &'a mut Vec<FileError>,
    cluster: ClusterName,
    nodes: BTreeMap<String, Node>,
    workloads: Vec<Workload>,
    services: Vec<Service>,
    unique_names: BTreeSet<(&'static str, String)>,
    workloads_by_ip: BTreeMap<IpAddr, String>,
}

#[derive(Clone, Copy)]
struct YamlLocation<'a> {
    file: &'a ParsedFile,
    path: &'a YamlPath,
}

impl YamlLocation<'_> {
    /// Records an error. Does nothing once [`ERRORS_MAX`] errors are recorded, because finding the
    /// line of an error parses the whole file again.
    fn report(self, errors: &mut Vec<FileError>, reason: impl AsRef<str>) {
        if errors.len() < ERRORS_MAX {
            errors.push(self.file.error_at(self.path, reason.as_ref()));
        }
    }
}

/// Returns the plan of the files, or `None` if they name no valid cluster. Appends errors to
/// `errors`. If `errors` is not empty afterwards, the plan must not be used.
pub(super) fn check(files: &[Arc<ParsedFile>], errors: &mut Vec<FileError>) -> Option<ClusterPlan> {
    let (cluster, id, max_connected_clusters) = agreed_cluster(files, errors)?;
    let mut builder = PlanBuilder {
        errors,
        cluster,
        nodes: BTreeMap::new(),
        workloads: Vec::new(),
        services: Vec::new(),
        unique_names: BTreeSet::new(),
        workloads_by_ip: BTreeMap::new(),
    };
    let each_element = |list: &'static str, length: fn(&ParsedFile) -> usize| {
        files.iter().flat_map(move |file| (0..length(file)).map(move |index| (file, index, YamlPath::element(list, index))))
    };
    for (file, index, path) in each_element("nodes", |file| file.yaml.nodes.len()) {
        builder.add_node(&file.yaml.nodes[index], id, YamlLocation { file, path: &path });
    }
    for (file, index, path) in each_element("workloads", |file| file.yaml.workloads.len()) {
        builder.add_workload(&file.yaml.workloads[index], YamlLocation { file, path: &path });
    }
    for (file, index, path) in each_element("services", |file| file.yaml.services.len()) {
        builder.add_service(&file.yaml.services[index], id, YamlLocation { file, path: &path });
    }
    let PlanBuilder { cluster, nodes, workloads, services, .. } = builder;
    Some(ClusterPlan { cluster, id, max_connected_clusters, nodes: nodes.into_values().collect(), workloads, services })
}

/// Returns the cluster that all files agree on.
fn agreed_cluster(files: &[Arc<ParsedFile>], errors: &mut Vec<FileError>) -> Option<(ClusterName, ClusterId, MaxConnectedClusters)> {
    let path = YamlPath::member("cluster");
    let mut named = files.iter().filter_map(|file| Some((file, file.yaml.cluster.as_ref()?)));
    let Some((file, yaml)) = named.next() else {
        errors.extend(files.first().map(|file| file.error_at(&path, "is missing: one file must have {name: …, id: …}")));
        return None;
    };
    for (other, _) in named.filter(|(_, other)| *other != yaml).take(ERRORS_MAX) {
        errors.push(
            other.error_at(&path, &format!("differs from the cluster in {}: all files must have the same cluster", file.path.display())),
        );
    }
    let ClusterYaml { name, id, max_connected_clusters } = yaml;
    let parsed = ClusterName::parse(name).map_err(|error| error.to_string());
    let parsed = parsed.and_then(|parsed| match parsed.as_str() {
        CLUSTER_NAME_DEFAULT => Err("Cilium treats the name \"default\" as no name".to_owned()),
        _ => Ok(parsed),
    });
    let WholeNumber(size) = max_connected_clusters.unwrap_or(WholeNumber(255));
    let max = u32::try_from(size).ok().and_then(MaxConnectedClusters::from_number);
    let max_error = format!("is {size}, expected 255 or 511");
    match (parsed, max) {
        (Ok(name), Some(max)) => match u32::try_from(id.0).ok().filter(|id| (1..=max.id_max()).contains(id)) {
            Some(id) => return Some((name, ClusterId(id), max)),
            None => {
                errors.push(file.error_at(&path.join("id"), &format!("is {}, expected 1 to {}, the size of the mesh", id.0, max.id_max())));
            }
        },
        (Err(reason), _) => errors.push(file.error_at(&path.join("name"), &reason)),
        (_, None) => errors.push(file.error_at(&path.join("maxConnectedClusters"), &max_error)),
    }
    None
}

impl PlanBuilder<'_> {
    fn add_node(&mut self, yaml: &NodeYaml, id: ClusterId, location: YamlLocation<'_>) {
        let YamlLocation { file, path } = location;
        self.check_name(&yaml.name, YamlLocation { file, path: &path.join("name") });
        if yaml.addresses.is_empty() {
            YamlLocation { file, path: &path.join("addresses") }.report(self.errors, "is empty: a node needs at least one address");
        }
        let mut addresses = Vec::new();
        for (index, address) in yaml.addresses.iter().enumerate() {
            let path = path.join("addresses").index(index);
            if address.address_type.is_empty() {
                YamlLocation { file, path: &path.join("type") }.report(self.errors, "is empty: expected a type such as InternalIP");
            }
            let ip = self.parse_ip(&address.ip, YamlLocation { file, path: &path.join("ip") });
            addresses.extend(ip.map(|ip| NodeAddress { address_type: address.address_type.clone(), ip }));
        }
        let mut node = Node { name: yaml.name.clone(), cluster_id: id.0, addresses, ..Node::default() };
        for (index, text) in yaml.pod_cidrs.iter().enumerate() {
            let parsed = text.parse::<IpNet>();
            if let Some(reason) = parsed.as_ref().ok().and_then(|net| prefix_refusal_reason(*net)) {
                YamlLocation { file, path: &path.join("podCIDRs").index(index) }.report(self.errors, reason);
                continue;
            }
            match parsed {
                Ok(net) if net == net.trunc() => match (net, node.ipv4_pod_cidr, node.ipv6_pod_cidr) {
                    (IpNet::V4(_), None, _) => node.ipv4_pod_cidr = Some(net),
                    (IpNet::V6(_), _, None) => node.ipv6_pod_cidr = Some(net),
                    _ => node.secondary_pod_cidrs.push(net),
                },
                Ok(net) => {
                    let reason = format!("{text} has bits set after its prefix length, expected {}", net.trunc());
                    YamlLocation { file, path: &path.join("podCIDRs").index(index) }.report(self.errors, reason);
                }
                Err(_) => {
                    let reason = format!("{text:?} is not a prefix such as 192.168.7.16/28");
                    YamlLocation { file, path: &path.join("podCIDRs").index(index) }.report(self.errors, reason);
                }
            }
        }
        if self.nodes.insert(yaml.name.clone(), node).is_some() {
            YamlLocation { file, path: &path.join("name") }.report(self.errors, format!("another node has the name {:?} too", yaml.name));
        }
    }

    fn add_workload(&mut self, yaml: &WorkloadYaml, location: YamlLocation<'_>) {
        let YamlLocation { file, path } = location;
        self.check_unique_name("workload", &yaml.namespace, &yaml.name, location);
        let mut labels = self.parse_labels(&yaml.labels, YamlLocation { file, path: &path.join("labels") });
        labels.insert(CLUSTER_LABEL.into(), self.cluster.as_str().into());
        labels.insert(NAMESPACE_LABEL.into(), yaml.namespace.clone());
        if !yaml.service_account.is_empty() {
            self.check_name(&yaml.service_account, YamlLocation { file, path: &path.join("serviceAccount") });
            labels.insert(SERVICE_ACCOUNT_LABEL.into(), yaml.service_account.clone());
        }
        if yaml.ips.is_empty() {
            YamlLocation { file, path: &path.join("ips") }.report(self.errors, "is empty: a workload needs at least one address");
        }
        let mut ips = Vec::new();
        for (index, text) in yaml.ips.iter().enumerate() {
            let path = path.join("ips").index(index);
            let Some(ip) = self.parse_ip(text, YamlLocation { file, path: &path }) else { continue };
            let workload = format!("{}/{}", yaml.namespace, yaml.name);
            match self.workloads_by_ip.insert(ip, workload) {
                Some(other) => YamlLocation { file, path: &path }.report(self.errors, format!("{other} has the address {ip} too")),
                None => ips.push(ip),
            }
        }
        let host_ip = match yaml.node.as_ref().map(|name| (name, self.nodes.get(name))) {
            Some((name, None)) => {
                YamlLocation { file, path: &path.join("node") }.report(self.errors, format!("no node has the name {name:?}"));
                None
            }
            Some((_, Some(node))) => node.addresses.first().map(|address| address.ip),
            None => None,
        };
        let key = AllocatorKey::from_labels(labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.workloads.push(Workload {
            namespace: yaml.namespace.clone(),
            name: yaml.name.clone(),
            service_account: yaml.service_account.clone(),
            key,
            ips,
            host_ip,
        });
    }

    fn add_service(&mut self, yaml: &ServiceYaml, id: ClusterId, location: YamlLocation<'_>) {
        let YamlLocation { file, path } = location;
        self.check_unique_name("service", &yaml.namespace, &yaml.name, location);
        let ports = self.parse_ports(&yaml.ports, YamlLocation { file, path: &path.join("ports") });
        let to_set = |ips: Vec<IpAddr>| ips.into_iter().collect::<BTreeSet<_>>();
        let frontends = to_set(self.parse_ips(&yaml.frontends, YamlLocation { file, path: &path.join("frontends") }));
        let (backends, selector) = self.resolve_backends(&yaml.backends, YamlLocation { file, path: &path.join("backends") });
        let labels = self.parse_labels(&yaml.labels, YamlLocation { file, path: &path.join("labels") });
        let ports: Arc<[Port]> = ports.into();
        let (namespace, name) = (yaml.namespace.clone(), yaml.name.clone());
        let backend = |ip| Backend { ip, ports: ports.clone(), hostname: String::new(), zone: None };
        self.services.push(Service {
            namespace,
            name,
            cluster_id: id.0,
            frontends: frontends.into_iter().map(|ip| Frontend { ip, ports: ports.clone() }).collect(),
            backends: backends.into_iter().map(backend).collect(),
            labels: labels.into_iter().map(|(name, value)| (without_source(&name).to_owned(), value)).collect(),
            selector,
            shared: yaml.shared,
            include_external: yaml.include_external,
        });
    }

    /// Returns the addresses behind a service, and its label selector if it has one. A selector
    /// matches workloads of any namespace, because a machine belongs to none.
    fn resolve_backends(&mut self, yaml: &BackendsYaml, location: YamlLocation<'_>) -> (BTreeSet<IpAddr>, LabelSet) {
        let YamlLocation { file, path } = location;
        match (&yaml.labels, &yaml.ips) {
            (Some(labels), None) => {
                let wanted = self.parse_labels(labels, YamlLocation { file, path: &path.join("labels") });
                if wanted.is_empty() {
                    YamlLocation { file, path: &path.join("labels") }.report(self.errors, "is empty: it would select every workload");
                }
                let selected = |workload: &&Workload| wanted.iter().all(|(name, value)| workload.key.label(name) == Some(value.as_str()));
                let ips = self.workloads.iter().filter(selected).flat_map(|workload| workload.ips.iter().copied()).collect();
                (ips, wanted.into_iter().map(|(name, value)| (without_source(&name).to_owned(), value)).collect())
            }
            (None, Some(ips)) => {
                (self.parse_ips(ips, YamlLocation { file, path: &path.join("ips") }).into_iter().collect(), LabelSet::new())
            }
            (Some(_), Some(_)) | (None, None) => {
                location.report(self.errors, "must have either labels or ips");
                (BTreeSet::new(), LabelSet::new())
            }
        }
    }

    /// Returns the ports of a service, sorted by name.
    fn parse_ports(&mut self, yaml: &[PortYaml], location: YamlLocation<'_>) -> Vec<Port> {
        let YamlLocation { file, path } = location;
        if yaml.is_empty() {
            location.report(self.errors, "is empty: a service needs at least one port");
        }
        let mut ports = BTreeMap::new();
        for (index, port) in yaml.iter().enumerate() {
            let path = path.index(index);
            if !["TCP", "UDP", "SCTP"].contains(&port.protocol.as_str()) {
                let reason = format!("is {:?}, expected TCP, UDP or SCTP", port.protocol);
                YamlLocation { file, path: &path.join("protocol") }.report(self.errors, reason);
            }
            let number = u16::try_from(port.port.0).ok().filter(|number| *number > 0).unwrap_or_else(|| {
                YamlLocation { file, path: &path.join("port") }.report(self.errors, format!("is {}, expected 1 to 65535", port.port.0));
                0
            });
            let parsed_port = Port { name: port.name.clone(), protocol: port.protocol.clone(), port: number };
            if ports.insert(port.name.clone(), parsed_port).is_some() {
                YamlLocation { file, path: &path }.report(self.errors, format!("another port has the name {:?} too", port.name));
            }
        }
        ports.into_values().collect()
    }

    fn check_unique_name(&mut self, kind: &'static str, namespace: &str, name: &str, location: YamlLocation<'_>) {
        let YamlLocation { file, path } = location;
        self.check_name(namespace, YamlLocation { file, path: &path.join("namespace") });
        self.check_name(name, YamlLocation { file, path: &path.join("name") });
        let full_name = format!("{namespace}/{name}");
        if !self.unique_names.insert((kind, full_name.clone())) {
            YamlLocation { file, path: &path.join("name") }.report(self.errors, format!("another {kind} has the name {full_name} too"));
        }
    }

    /// Checks a name that becomes a part of a key.
    fn check_name(&mut self, name: &str, location: YamlLocation<'_>) {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        let is_alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = name.as_bytes();
        if !(bytes.len() <= NAME_LENGTH_MAX
            && bytes.iter().all(|byte| is_allowed(*byte))
            && is_alphanumeric(bytes.first())
            && is_alphanumeric(bytes.last()))
        {
            location.report(self.errors, format!("{name:?} is not a valid Kubernetes name: use a-z, 0-9, '-' and '.'"));
        }
    }

    fn parse_ip(&mut self, text: &str, location: YamlLocation<'_>) -> Option<IpAddr> {
        match text.parse::<IpAddr>() {
            Ok(ip) => match refusal_reason(ip) {
                // Cilium writes this form, in keys too
                None => Some(ip.to_canonical()),
                Some(reason) => {
                    location.report(self.errors, format!("{ip} {reason}"));
                    None
                }
            },
            Err(_) => {
                location.report(self.errors, format!("{text:?} is not an address"));
                None
            }
        }
    }

    fn parse_ips(&mut self, texts: &[String], location: YamlLocation<'_>) -> Vec<IpAddr> {
        let YamlLocation { file, path } = location;
        let indexed_texts = texts.iter().enumerate();
        indexed_texts.filter_map(|(index, text)| self.parse_ip(text, YamlLocation { file, path: &path.index(index) })).collect()
    }

    /// Returns the labels by `source:key`. Identities are stored without escaping, so labels with
    /// separators are refused.
    fn parse_labels(&mut self, yaml: &LabelsYaml, location: YamlLocation<'_>) -> BTreeMap<String, String> {
        let (mut labels, mut keys) = (BTreeMap::new(), BTreeSet::new());
        for (name, value) in &yaml.0 {
            let (source, key) = name.split_once(':').unwrap_or((SOURCE_K8S, name));
            let full_name = format!("{source}:{key}");
            let has_separators = |text: &str| text.contains([';', '\n']) || text.contains(char::is_control);
            let is_set_by_announce =
                [CLUSTER_LABEL, NAMESPACE_LABEL, SERVICE_ACCOUNT_LABEL].iter().any(|label| without_source(label) == key);
            let error = match () {
                () if key.is_empty() || source.is_empty() => "a label needs a name".to_owned(),
                () if has_separators(name) || key.contains('=') || key.contains("//") => format!("{name:?} is not a valid label name"),
                () if has_separators(value) => format!("the value of {name:?} must not have a ';' or a line break"),
                () if SOURCES_RESERVED.contains(&source) || source.starts_with('$') => {
                    format!("the label source {source:?} is not allowed for machines")
                }
                () if is_set_by_announce => format!("{name:?} is set from the cluster, the namespace and the service account: remove it"),
                () if !keys.insert(key) => format!("{key:?} has two sources: Cilium keeps only one label per name"),
                () => {
                    labels.insert(full_name, value.clone());
                    continue;
                }
            };
            location.report(self.errors, error);
        }
        labels
    }
}

/// Returns the key of a label without its source.
fn without_source(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, key)| key)
}
