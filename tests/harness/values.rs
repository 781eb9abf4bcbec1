//! Values with the field order and the escapes of Go's `encoding/json` (docs/develop/protocol.md
//! §2), with examples of every form that occurs.

use std::fmt::Write;

use super::slices;

/// Generates the values that one cluster writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueGenerator<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) id: u32,
    /// Number of bits by which the cluster's id is shifted in identity numbers: 16, or 15 in a mesh
    /// of 511.
    pub(crate) identity_shift: u32,
    /// Number of nodes that the endpoints are spread over, at least 1.
    pub(crate) nodes: u32,
    /// Number of identities that the endpoints are spread over, at least 1.
    pub(crate) identities: u32,
}

impl ValueGenerator<'_> {
    /// Returns the octet that identifies the cluster in its addresses: its id modulo 150, so that
    /// 100 can be added.
    fn net(&self) -> u32 {
        self.id % 150
    }

    /// Returns the last part of the key, and the value, of a node.
    pub(crate) fn node(&self, index: u32, version: u32) -> (String, String) {
        let Self { cluster, id, .. } = self;
        let net = self.net();
        let name = format!("{cluster}-worker-{index}");
        // some nodes have the form that Cilium plans to write from 1.22 on
        let pod_cidr = if index % 5 == 4 {
            // with host bits, which must not be served
            format!(r#""10.{net}.{index}.9/24""#)
        } else {
            format!(r#"{{"IP":"10.{net}.{index}.0","Mask":"////AA=="}}"#)
        };
        let secondary = format!(r#"[{{"IP":"10.{net}.{}.0","Mask":"///wAA=="}}]"#, 192 + index % 4 * 16);
        let ipv6 = format!(r#"{{"IP":"fd00:10:{net:x}:{index:x}::","Mask":"//////////8AAAAAAAAAAA=="}}"#);
        let annotations = r#"{"example.com/note":"\u003ca \u0026 b\u003e","network.cilium.io/wg-pub-key":"abc="}"#;
        let value = fill(
            r#"{"Name":"$name","Cluster":"$cluster",
            "IPAddresses":[{"Type":"InternalIP","IP":"172.18.$net.$host"},{"Type":"InternalIP","IP":"fc00:c111:$hexid::$host"},
            {"Type":"CiliumInternalIP","IP":"10.$net.$index.10"}],
            "IPv4AllocCIDR":$podcidr,"IPv4SecondaryAllocCIDRs":$secondary,"IPv6AllocCIDR":$widecidr,"IPv6SecondaryAllocCIDRs":null,
            "IPv4HealthIP":"10.$net.$index.134","IPv6HealthIP":"$health","IPv4IngressIP":"$ingress","IPv6IngressIP":"","ClusterID":$id,
            "Source":"custom-resource","EncryptionKey":$key,
            "Labels":{"kubernetes.io/hostname":"$name","topology.kubernetes.io/zone":"zone-$zone"},"Annotations":$annotations,
            "WireguardPubKey":"","BootID":"570d3fd1-93db-4862-ba99-$boot"}"#,
            &[
                ("name", name.clone()),
                ("cluster", (*cluster).to_owned()),
                ("id", id.to_string()),
                ("net", net.to_string()),
                ("hexid", format!("{net:x}")),
                ("host", (index % 250 + 1).to_string()),
                ("index", index.to_string()),
                ("podcidr", pod_cidr),
                ("secondary", if index % 3 == 1 { secondary } else { "null".into() }),
                ("widecidr", if index % 3 == 2 { ipv6 } else { "null".into() }),
                ("ingress", if index.is_multiple_of(4) { format!("10.{net}.{index}.77") } else { String::new() }),
                // for some nodes a new version has another address
                ("health", if index % 4 == 3 { format!("fd00:10:{net:x}:{index:x}::{:x}", version % 3 + 1) } else { String::new() }),
                ("key", (index % 3).to_string()),
                ("zone", (index % 2).to_string()),
                ("annotations", if index.is_multiple_of(2) { "null".into() } else { annotations.to_owned() }),
                ("boot", format!("{version:012x}")),
            ],
        );
        (name, value)
    }

    fn identity_id(&self, index: u32) -> u32 {
        (self.id << self.identity_shift) | (256 + index)
    }

    /// Returns the last part of the key, and the value, of an identity.
    pub(crate) fn identity(&self, index: u32, version: u32) -> (String, String) {
        let mut labels = format!("k8s:app=app-{index};");
        if index.is_multiple_of(3) {
            labels += "k8s:example.com/empty=;k8s:example.com/equals=a=b:c;";
        }
        let _ = write!(labels, "k8s:io.cilium.k8s.policy.cluster={};k8s:io.kubernetes.pod.namespace=ns-{};", self.cluster, index % 7);
        let _ = write!(labels, "k8s:version=v{version};");
        (self.identity_id(index).to_string(), labels)
    }

    /// Returns the last part of the key, and the value, of an ipcache entry for an address or a
    /// CIDR.
    pub(crate) fn endpoint(&self, index: u32, version: u32) -> (String, String) {
        let host = format!(r#""HostIP":"172.18.{}.{}""#, self.net(), index % self.nodes % 250 + 1);
        let identity = match index % 10 {
            8 => 4,
            9 => 1,
            _ => self.identity_id(index % self.identities),
        };
        let (ip, mask, key_suffix) = self.address(index);
        let pod = match index % 4 {
            0 => String::new(),
            1 => r#","K8sNamespace":"ns-$namespace","K8sPodName":"pod-$index""#.to_owned(),
            _ => fill(
                r#","K8sNamespace":"ns-$namespace","K8sPodName":"pod-$index","K8sPodUID":"7f0c6a2e-3c3f-4f1e-9a6e-$uid",
                "K8sServiceAccount":"default","NamedPorts":[{"Name":"http","Port":8080,"Protocol":"TCP"},
                {"Name":"dns","Port":5353,"Protocol":"UDP"}]"#,
                &[("uid", format!("{index:012x}"))],
            ),
        };
        let pod = fill(&pod, &[("namespace", (index % 7).to_string()), ("index", index.to_string())]);
        // the encryption key, 1 to 15, varies with the version
        let key = version % 15 + 1;
        (key_suffix, format!(r#"{{"IP":"{ip}"{mask},{host},"ID":{identity},"Key":{key},"Metadata":""{pod}}}"#))
    }

    /// Returns an address, its mask, and its form in keys.
    fn address(&self, index: u32) -> (String, &'static str, String) {
        let id = self.net();
        let (third, fourth) = (index / 200 % 200, index % 200 + 30);
        let ipv4 = format!("10.{id}.{third}.{fourth}");
        match index % 12 {
            10 if index % 24 == 10 => {
                let ip = format!("10.{}.{}.0", 100 + id, index / 24 % 250);
                (ip.clone(), r#","Mask":"////AA==""#, format!("{ip}/24"))
            }
            // a CIDR of full length, which differs from the host entry of that address
            10 => {
                let ip = format!("10.{}.{}.{}", 100 + id, index / 240 % 250, index % 240 + 1);
                (ip.clone(), r#","Mask":"/////w==""#, format!("{ip}/32"))
            }
            11 => {
                // with zero groups, which RFC 5952 and Go abbreviate to `::`
                let ip = std::net::Ipv6Addr::from([0xfd00, 0x10, segment(id), segment(third), 0, 0, 0, segment(fourth)]).to_string();
                (ip.clone(), "", ip)
            }
            // older writers send `null`, newer ones omit the mask
            1 | 3 | 5 | 7 | 9 => (ipv4.clone(), r#","Mask":null"#, ipv4),
            _ => (ipv4.clone(), "", ipv4),
        }
    }

    /// Returns the last part of the key, and the value, of a service.
    pub(crate) fn service(&self, index: u32, version: u32) -> (String, String) {
        let Self { cluster, id, .. } = self;
        let net = self.net();
        let (namespace, name) = (format!("ns-{}", index % 7), format!("svc-{index}"));
        let headless = index % 5 == 4;
        let frontends = fill(
            r#""10.96.$net.$index":{"dns":{"Protocol":"UDP","Port":53},"http":{"Protocol":"TCP","Port":80}},
            "fd00:96::$hexid:$hexindex":{"http":{"Protocol":"TCP","Port":80}}"#,
            &[
                ("net", net.to_string()),
                ("index", index.to_string()),
                ("hexid", format!("{net:x}")),
                ("hexindex", format!("{:x}", index + 1)),
            ],
        );
        let port_name = if headless { "" } else { "http" };
        let last = index % 200 + 30;
        let backend = |third: u32| format!(r#""10.{net}.{third}.{last}":{{"{port_name}":{{"Protocol":"TCP","Port":8080}}}}"#);
        let backends: Vec<String> = (0..index % 4 + 1).map(backend).collect();
        let hostnames = format!(r#""hostnames":{{"10.{net}.0.{last}":"{name}-0"}},"#);
        let zones = format!(r#""zones":{{"10.{net}.0.{last}":{{"zone":"zone-a","forZones":[{{"name":"zone-a"}}]}}}},"#);
        let value = fill(
            r#"{"cluster":"$cluster","namespace":"$namespace","name":"$name","frontends":{$frontends},"backends":{$backends},
            $hostnames$zones"labels":{"app":"app-$index","version":"v$version"},"selector":{"app":"app-$index"},
            "includeExternal":true,"shared":$shared,"clusterID":$id}"#,
            &[
                ("cluster", (*cluster).to_owned()),
                ("namespace", namespace.clone()),
                ("name", name.clone()),
                ("frontends", if headless { String::new() } else { frontends }),
                ("backends", backends.join(",")),
                ("hostnames", if headless { hostnames } else { String::new() }),
                ("zones", if index % 3 == 1 { zones } else { String::new() }),
                ("index", index.to_string()),
                ("version", version.to_string()),
                ("shared", (index % 6 != 5).to_string()),
                ("id", id.to_string()),
            ],
        );
        (format!("{namespace}/{name}"), value)
    }

    /// Returns the last part of the key, and the value, of a service export.
    pub(crate) fn export(&self, index: u32, version: u32) -> (String, String) {
        let (namespace, name) = (format!("ns-{}", index % 7), format!("svc-{index}"));
        let value = fill(
            r#"{"cluster":"$cluster","name":"$name","namespace":"$namespace","labels":{"tier":"web"},
            "exportCreationTimestamp":"2026-01-01T00:00:00Z","ports":[{"name":"http","protocol":"TCP","port":$port}],
            "type":"ClusterSetIP","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":42}}}"#,
            &[
                ("cluster", self.cluster.to_owned()),
                ("name", name.clone()),
                ("namespace", namespace.clone()),
                ("port", (80 + version).to_string()),
            ],
        );
        (format!("{namespace}/{name}"), value)
    }

    /// Returns the last part of the key, and the value, of an endpoint slice.
    pub(crate) fn slice(&self, index: u32, version: u32) -> (String, Vec<u8>) {
        let (namespace, name) = (format!("ns-{}", index % 7), format!("svc-{index}-x2k4v"));
        let address = format!("10.{}.0.{}", self.net(), index % 200 + 30);
        let value = slices::encode_slice_of_one_endpoint(self.cluster, self.id, &namespace, &name, &address, version);
        (format!("{namespace}/{name}"), value)
    }
}

fn segment(number: u32) -> u16 {
    u16::try_from(number).expect("must fit into a group of an address")
}

/// Replaces each `$name` by its value and joins the lines.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let template: String = template.lines().map(str::trim_start).collect();
    let mut parts = template.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(part.len());
        match values.iter().find(|(name, _)| *name == &part[..end]) {
            Some((_, value)) => text += value,
            // kept as `$name`, because a later call replaces it
            None => text += &format!("${}", &part[..end]),
        }
        text += &part[end..];
    }
    text
}
