//! Requests and behaviour of each checker. The filters are implemented a second time here, for the
//! JSON that meshkeep serves.

use serde_json::Value;

use crate::harness::truth::reduce;

/// Encoding in which a checker reads the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Server-sent events.
    Sse,
    /// One JSON object per line.
    NdJson,
    /// Server-sent events with `patch=true`.
    Patch,
    /// Long poll of `/v1/changes`.
    Changes,
}

/// Behaviour of a checker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionPattern {
    /// Reads until the server ends the stream.
    Steady,
    /// Disconnects after a random number of bytes and returns at once.
    Restless,
    /// Disconnects and stays away for seconds.
    Sleeper,
    /// Keeps the connection and repeatedly reads nothing for seconds.
    Staller,
    /// Uses no snapshot: reads the lists while they change, and continues from their position.
    FromLists,
    /// Behaves like the browser's `EventSource`, which sends its last id even after a `reset`.
    Browser,
}

/// Description of one checker.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckerSpec {
    pub(super) name: &'static str,
    pub(super) form: Encoding,
    pub(super) pattern: ConnectionPattern,
    /// Query parameters other than the position's, each with a leading `&`.
    pub(super) filter: &'static str,
    /// Kinds that the filter can match.
    pub(super) kinds: &'static [Kind],
    /// Returns whether the filter matches an object of one of these kinds.
    pub(super) passes: fn(&Value) -> bool,
}

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Node,
    Service,
    Identity,
    Ipcache,
    Cluster,
}

use Kind::{Cluster, Identity, Ipcache, Node, Service};

pub(super) const KINDS: [Kind; 5] = [Node, Service, Identity, Ipcache, Cluster];

impl Kind {
    /// Returns the name of the kind in events.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Node => "node",
            Service => "service",
            Identity => "identity",
            Ipcache => "ipcache",
            Cluster => "cluster",
        }
    }

    /// Returns the path of the kind's list.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Node => "/v1/nodes",
            Service => "/v1/services",
            Identity => "/v1/identities",
            Ipcache => "/v1/ipcache",
            Cluster => "/v1/clusters",
        }
    }

    /// Returns the type of the event that has an object of the kind.
    pub(super) const fn event(self) -> &'static str {
        match self {
            Node | Service | Identity | Ipcache => "upsert",
            Cluster => "cluster",
        }
    }

    /// Returns the part that lists and the stream must agree on: the whole object, or name and
    /// phase of a cluster (docs/use/api/streams.md).
    pub(super) fn comparable_part(self, text: &str) -> Box<str> {
        if self != Cluster {
            return text.into();
        }
        let cluster: Value = serde_json::from_str(text).unwrap_or_default();
        serde_json::json!({ "name": cluster["name"], "phase": cluster["phase"] }).to_string().into()
    }

    /// Returns the key of an object in a list.
    pub(super) fn key(self, object: &Value) -> String {
        match self {
            Cluster => format!("cilium/cluster-config/{}", text(object, "name")),
            _ => reduce(self.name(), object).0,
        }
    }
}

impl CheckerSpec {
    /// Returns the filter without kinds, for lists, which have one kind each.
    pub(super) fn list_filter(&self) -> String {
        self.filter.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("kind=")).map(|pair| format!("&{pair}")).collect()
    }

    /// Returns whether the filter excludes any objects.
    pub(super) fn is_filtered(&self) -> bool {
        !self.list_filter().is_empty()
    }
}

const fn everything(name: &'static str, form: Encoding, pattern: ConnectionPattern) -> CheckerSpec {
    CheckerSpec { name, form, pattern, filter: "", kinds: &KINDS, passes: |_| true }
}

/// Returns the checkers. Half of them have filters, and every change makes objects start or stop
/// matching ([`super::churn`]).
pub(super) fn checkers() -> Vec<CheckerSpec> {
    let mut all = unfiltered();
    all.extend(filtered());
    all
}

fn unfiltered() -> Vec<CheckerSpec> {
    vec![
        everything("steady", Encoding::Sse, ConnectionPattern::Steady),
        everything("steady-ndjson", Encoding::NdJson, ConnectionPattern::Steady),
        everything("steady-patch", Encoding::Patch, ConnectionPattern::Steady),
        everything("changes", Encoding::Changes, ConnectionPattern::Restless),
        everything("restless-1", Encoding::Sse, ConnectionPattern::Restless),
        everything("restless-2", Encoding::Sse, ConnectionPattern::Restless),
        everything("restless-ndjson", Encoding::NdJson, ConnectionPattern::Restless),
        everything("restless-patch", Encoding::Patch, ConnectionPattern::Restless),
        everything("sleeper", Encoding::Sse, ConnectionPattern::Sleeper),
        everything("staller", Encoding::Sse, ConnectionPattern::Staller),
        everything("from-lists", Encoding::Sse, ConnectionPattern::FromLists),
        everything("browser", Encoding::Sse, ConnectionPattern::Browser),
        CheckerSpec {
            filter: "&kind=service&kind=node",
            kinds: &[Node, Service],
            ..everything("kinds", Encoding::Sse, ConnectionPattern::Restless)
        },
    ]
}

fn filtered() -> Vec<CheckerSpec> {
    let spec = |name, filter, kinds, passes| CheckerSpec {
        name,
        form: Encoding::Sse,
        pattern: ConnectionPattern::Restless,
        filter,
        kinds,
        passes,
    };
    vec![
        spec("labels-services", "&kind=service&labelSelector=flavour%3Df1", &[Service], |o| flavour(o) == Some("f1")),
        CheckerSpec {
            pattern: ConnectionPattern::Steady,
            ..spec("labels", "&labelSelector=flavour%20in%20(f1,f2)", &[Node, Service, Identity], |o| {
                matches!(flavour(o), Some("f1" | "f2"))
            })
        },
        CheckerSpec {
            form: Encoding::NdJson,
            ..spec("labels-identities", "&kind=identity&labelSelector=flavour%21%3Df0", &[Identity], |o| flavour(o) != Some("f0"))
        },
        CheckerSpec {
            pattern: ConnectionPattern::Browser,
            ..spec("label", "&kind=identity&label=k8s:flavour%3Df3", &[Identity], |o| flavour(o) == Some("f3"))
        },
        CheckerSpec { form: Encoding::Patch, ..spec("shared", "&kind=service&shared=true", &[Service], |o| o["shared"] == true) },
        spec("not-shared", "&shared=false", &[Service], |o| o["shared"] != true),
        CheckerSpec { pattern: ConnectionPattern::Steady, ..spec("identity", "&identity=65793", &[Ipcache], |o| o["identity"] == 65793) },
        CheckerSpec {
            pattern: ConnectionPattern::Sleeper,
            ..spec("identity-2", "&kind=ipcache&identity=131330", &[Ipcache], |o| o["identity"] == 131_330)
        },
        CheckerSpec {
            pattern: ConnectionPattern::FromLists,
            ..spec("cidr", "&kind=ipcache&cidr=10.1.0.64/26", &[Ipcache], |o| in_range(text(o, "prefix"), [10, 1, 0], 64..128))
        },
        CheckerSpec {
            pattern: ConnectionPattern::Staller,
            ..spec("namespace", "&namespace=ns-1", &[Service, Ipcache], |o| text(o, "namespace") == "ns-1")
        },
        CheckerSpec {
            form: Encoding::Changes,
            ..spec("changes-namespace", "&namespace=ns-2", &[Service, Ipcache], |o| text(o, "namespace") == "ns-2")
        },
        spec("pod", "&pod=pod-2", &[Ipcache], |o| text(o, "podName") == "pod-2"),
        spec("clusters", "&kind=cluster&cluster=c02&cluster=c01", &[Cluster], |o| matches!(text(o, "name"), "c01" | "c02")),
        spec("name", "&kind=service&name=svc-1", &[Service], |o| text(o, "name") == "svc-1"),
        spec("cluster", "&cluster=c02&cluster=c03&labelSelector=flavour%20notin%20(f0,f1)", &[Node, Service, Identity], |o| {
            matches!(text(o, "cluster"), "c02" | "c03") && !matches!(flavour(o), Some("f0" | "f1"))
        }),
    ]
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_default()
}

/// Returns the label that the churn changes. In identities its key includes the source.
fn flavour(object: &Value) -> Option<&str> {
    let labels = object["labels"].as_object()?;
    labels.get("flavour").or_else(|| labels.get("k8s:flavour"))?.as_str()
}

fn in_range(prefix: &str, start: [u8; 3], last_octet: std::ops::Range<u8>) -> bool {
    let address = prefix.split('/').next().unwrap_or_default();
    address.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.octets()[..3] == start && last_octet.contains(&address.octets()[3]))
}
