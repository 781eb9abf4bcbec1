//! Service exports: `…/serviceexports/v1/<cluster>/<namespace>/<name>`, from `MCSAPIServiceSpec` in
//! Cilium's `pkg/clustermesh/mcsapi/types/mcsapiservicespec.go`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Deserializer;

use super::go_json::{GoValue, go_struct, parse, read_text};
use super::time::{parse_time, zero_time};
use super::{Context, quoted};
use crate::model::{ExportPort, ServiceExport};

/// Values of `type` that `validateServiceType` accepts.
const SERVICE_TYPES: [&str; 2] = ["ClusterSetIP", "Headless"];
/// Values of `sessionAffinity`. It is empty for headless services of newer releases.
const SESSION_AFFINITIES: [&str; 3] = ["ClientIP", "None", ""];

/// Values of `internalTrafficPolicy`, if there is one.
const TRAFFIC_POLICIES: [&str; 2] = ["Cluster", "Local"];
/// Values of `trafficDistribution`, if there is one.
const TRAFFIC_DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];

go_struct! {
    /// A service export. Case is ignored, so `Labels` and `Annotations` of older releases match.
    struct ExportJson {
        cluster: String = "cluster",
        name: String = "name",
        namespace: String = "namespace",
        annotations: BTreeMap<String, String> = "annotations",
        labels: BTreeMap<String, String> = "labels",
        created: Timestamp = "exportCreationTimestamp",
        ports: Vec<PortJson> = "ports",
        service_type: String = "type",
        session_affinity: String = "sessionAffinity",
        session_affinity_config: Option<AffinityJson> = "sessionAffinityConfig",
        ip_families: Vec<String> = "ipFamilies",
        internal_traffic_policy: Option<String> = "internalTrafficPolicy",
        traffic_distribution: Option<String> = "trafficDistribution",
    }
    /// A port (`ServicePort` of the MCS API).
    struct PortJson {
        name: String = "name",
        protocol: String = "protocol",
        app_protocol: Option<String> = "appProtocol",
        port: u16 = "port",
    }
    /// `SessionAffinityConfig` of Kubernetes.
    struct AffinityJson {
        client_ip: Option<ClientIpJson> = "clientIP",
    }
    /// `ClientIPConfig` of Kubernetes.
    struct ClientIpJson {
        timeout_seconds: Option<u32> = "timeoutSeconds",
    }
}

/// A `metav1.Time`: RFC 3339, `null` or absent if it is zero.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Timestamp(Option<SystemTime>);

impl GoValue for Timestamp {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        let parse = |text: &str| parse_time(text).ok_or_else(|| format!("{} is not a time in the format of RFC 3339", quoted(text)));
        self.0 = read_text(input, "a time", parse)?;
        Ok(())
    }
}

/// Decodes and checks a service export. `name` is the rest of its key, `<namespace>/<name>`. The
/// value has no cluster id.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<ServiceExport, String> {
    let json: ExportJson = parse("a service export", value)?;
    context.check_cluster("cluster", &json.cluster)?;
    Context::check_names(name, &json.namespace, &json.name)?;
    let created = json.created.0.filter(|time| *time != zero_time()).ok_or("exportCreationTimestamp is missing")?;
    for (field, text, known) in
        [("type", &json.service_type, &SERVICE_TYPES[..]), ("sessionAffinity", &json.session_affinity, &SESSION_AFFINITIES)]
    {
        if !known.contains(&text.as_str()) {
            return Err(format!("{field} is {}, expected one of {known:?}", quoted(text)));
        }
    }
    for (field, given, known) in [
        ("internalTrafficPolicy", &json.internal_traffic_policy, &TRAFFIC_POLICIES[..]),
        ("trafficDistribution", &json.traffic_distribution, &TRAFFIC_DISTRIBUTIONS),
    ] {
        if let Some(text) = given.as_ref().filter(|text| !known.contains(&text.as_str())) {
            return Err(format!("{field} is {}, expected one of {known:?}", quoted(text)));
        }
    }
    let timeout = json.session_affinity_config.and_then(|config| config.client_ip).and_then(|client_ip| client_ip.timeout_seconds);
    Ok(ServiceExport {
        namespace: json.namespace,
        name: json.name,
        created,
        ports: json.ports.into_iter().map(PortJson::into_port).collect(),
        service_type: json.service_type,
        session_affinity: json.session_affinity,
        session_affinity_timeout_seconds: timeout,
        ip_families: json.ip_families,
        internal_traffic_policy: json.internal_traffic_policy.unwrap_or_default(),
        traffic_distribution: json.traffic_distribution.unwrap_or_default(),
        labels: json.labels,
        annotations: json.annotations,
    })
}

impl PortJson {
    fn into_port(self) -> ExportPort {
        let app_protocol = self.app_protocol.unwrap_or_default();
        ExportPort { name: self.name, protocol: self.protocol, app_protocol, port: self.port }
    }
}
