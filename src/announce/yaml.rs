//! The format of the input files, as serde types. Unknown members and duplicate keys are errors.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileYaml {
    pub(super) cluster: Option<ClusterYaml>,
    #[serde(default)]
    pub(super) nodes: Vec<NodeYaml>,
    #[serde(default)]
    pub(super) workloads: Vec<WorkloadYaml>,
    #[serde(default)]
    pub(super) services: Vec<ServiceYaml>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ClusterYaml {
    pub(super) name: String,
    pub(super) id: WholeNumber,
    pub(super) max_connected_clusters: Option<WholeNumber>,
}

/// A whole number. Its range is checked later, together with its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WholeNumber(pub(super) u64);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeNumberVisitor;

        impl Visitor<'_> for WholeNumberVisitor {
            type Value = WholeNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number above zero")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
                Ok(WholeNumber(number))
            }
        }

        deserializer.deserialize_u64(WholeNumberVisitor)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeYaml {
    pub(super) name: String,
    pub(super) addresses: Vec<AddressYaml>,
    #[serde(default, rename = "podCIDRs")]
    pub(super) pod_cidrs: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressYaml {
    #[serde(rename = "type")]
    pub(super) address_type: String,
    pub(super) ip: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WorkloadYaml {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) labels: LabelsYaml,
    #[serde(default)]
    pub(super) service_account: String,
    pub(super) ips: Vec<String>,
    pub(super) node: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ServiceYaml {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ports: Vec<PortYaml>,
    #[serde(default)]
    pub(super) frontends: Vec<String>,
    pub(super) backends: BackendsYaml,
    #[serde(default)]
    pub(super) labels: LabelsYaml,
    #[serde(default = "yes")]
    pub(super) shared: bool,
    #[serde(default = "yes")]
    pub(super) include_external: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortYaml {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default = "tcp")]
    pub(super) protocol: String,
    pub(super) port: WholeNumber,
}

fn tcp() -> String {
    "TCP".into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendsYaml {
    pub(super) labels: Option<LabelsYaml>,
    pub(super) ips: Option<Vec<String>>,
}

/// Labels by name. A label that occurs twice is an error.
#[derive(Debug, Default)]
pub(super) struct LabelsYaml(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for LabelsYaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsVisitor;

        impl<'de> Visitor<'de> for LabelsVisitor {
            type Value = LabelsYaml;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LabelsYaml, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if labels.contains_key(&name) {
                        return Err(A::Error::custom(format!("label {name:?} is repeated")));
                    }
                    labels.insert(name, value);
                }
                Ok(LabelsYaml(labels))
            }
        }

        deserializer.deserialize_map(LabelsVisitor)
    }
}
