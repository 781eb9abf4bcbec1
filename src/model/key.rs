//! Keys of mirrored entries, always in the form that a KVStoreMesh writes (`cilium/cache/…`), even
//! if the source uses another form.

use std::cmp::Ordering;
use std::fmt;

use smol_str::SmolStr;

use super::{ApiEnum, ClusterName, ObjectPrefix};

/// Prefix of cluster configs (`pkg/clustermesh/utils`), identical in a cluster's own etcd and in a
/// copy.
const CLUSTER_CONFIG_PREFIX: &str = "cilium/cluster-config/";

/// Prefix of the keys of findings.
const PROBLEM_PREFIX: &str = "problem/";

/// Prefix of the cache form of a notice, before the notice's key in etcd. It keeps the form
/// distinct from the keys of entries.
const NOTICE_PREFIX: &str = "notice/";

/// Separator in the key of a derived entry, between the node's name and its address or pod CIDR.
pub(crate) const NODE_IP_MARK: char = '#';

/// Kinds of keys, in the order of their cache prefixes, so that ordered maps iterate in key order.
/// Only [`Kind::NodeIp`] deviates: it follows [`Kind::Ip`], so that the ipcache is one range of
/// keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `endpointslices/v1`: a part of a service's endpoints that one cluster exports.
    EndpointSlice,
    /// `identities/v1`: a numeric identity and its labels.
    Identity,
    /// `ip/v1`: an address or prefix and its identity.
    Ip,
    /// Ipcache entry that meshkeep derives from a node's addresses and pod CIDRs. Its key is the
    /// node's key with `#` and the address or CIDR.
    NodeIp,
    /// `nodes/v1`: a node of a cluster.
    Node,
    /// `serviceexports/v1`: a service that one cluster exports to the cluster set (MCS).
    ServiceExport,
    /// `services/v1`: one cluster's part of a global service.
    Service,
    /// A cluster. meshkeep makes this key itself, to give changes of a cluster a sequence.
    Cluster,
    /// A finding. Made by meshkeep like [`Kind::Cluster`]; the change stream sends it only to
    /// clients that ask for it.
    Problem,
    /// Key that a KVStoreMesh would write in addition to the entries: a cluster config, a canary or
    /// its heartbeat. Made by meshkeep, and visible only to clients that read the mirror as an
    /// etcd.
    Notice,
}

/// Properties of a kind.
#[derive(Debug)]
struct KindProperties {
    kind: Kind,
    mirrored_index: usize,
    base: &'static str,
    api_name: &'static str,
    infix: &'static str,
    unscoped: Option<&'static str>,
    listed_as: Kind,
    is_mirrored: bool,
    is_namespaced: bool,
    is_revocable: bool,
}

impl KindProperties {
    /// Creates the row of a kind that meshkeep makes itself.
    const fn generated(kind: Kind, mirrored_index: usize, base: &'static str, api_name: &'static str) -> Self {
        let (infix, listed_as) = ("", kind);
        let (unscoped, is_mirrored, is_namespaced, is_revocable) = (None, false, false, false);
        Self { kind, mirrored_index, base, api_name, infix, unscoped, listed_as, is_mirrored, is_namespaced, is_revocable }
    }

    /// Creates the row of a mirrored kind.
    const fn mirrored(kind: Kind, mirrored_index: usize, base: &'static str, api_name: &'static str) -> Self {
        Self { is_mirrored: true, ..Self::generated(kind, mirrored_index, base, api_name) }
    }

    /// Creates the row of a mirrored kind by which agents send traffic: services and their parts,
    /// which have namespaces.
    const fn revocable(kind: Kind, mirrored_index: usize, base: &'static str, api_name: &'static str) -> Self {
        Self { is_namespaced: true, is_revocable: true, ..Self::mirrored(kind, mirrored_index, base, api_name) }
    }
}

/// One row per kind, in the order of [`Kind`].
const KIND_PROPERTIES: [KindProperties; 10] = [
    KindProperties::revocable(Kind::EndpointSlice, 0, "endpointslices/v1", "endpointSlice"),
    KindProperties { infix: "id/", unscoped: Some("id/"), ..KindProperties::mirrored(Kind::Identity, 1, "identities/v1", "identity") },
    KindProperties { unscoped: Some("default/"), ..KindProperties::mirrored(Kind::Ip, 2, "ip/v1", "ipcache") },
    KindProperties { listed_as: Kind::Ip, ..KindProperties::generated(Kind::NodeIp, 3, "nodes/v1", "ipcache") },
    KindProperties::mirrored(Kind::Node, 3, "nodes/v1", "node"),
    KindProperties::revocable(Kind::ServiceExport, 4, "serviceexports/v1", "serviceExport"),
    KindProperties::revocable(Kind::Service, 5, "services/v1", "service"),
    KindProperties::generated(Kind::Cluster, 6, "cluster-config", "cluster"),
    KindProperties::generated(Kind::Problem, 7, "problem", "problem"),
    KindProperties::generated(Kind::Notice, 8, "notice", "notice"),
];

// each row is at the position of its enum value
const _: () = {
    let mut index = 0;
    while index < KIND_PROPERTIES.len() {
        assert!(KIND_PROPERTIES[index].kind as usize == index, "rows are in the order of their kinds");
        index += 1;
    }
};

impl Kind {
    /// All mirrored kinds, in key order.
    pub const ALL: [Self; 6] = [Self::EndpointSlice, Self::Identity, Self::Ip, Self::Node, Self::ServiceExport, Self::Service];

    /// All kinds of which records are stored, in key order: the mirrored kinds, and the kind that
    /// is derived from nodes.
    pub const STORED: [Self; 7] =
        [Self::EndpointSlice, Self::Identity, Self::Ip, Self::NodeIp, Self::Node, Self::ServiceExport, Self::Service];

    /// All kinds that the change stream names, in key order.
    pub const STREAMED: [Self; 8] =
        [Self::EndpointSlice, Self::Identity, Self::Ip, Self::Node, Self::ServiceExport, Self::Service, Self::Cluster, Self::Problem];

    const fn properties(self) -> &'static KindProperties {
        &KIND_PROPERTIES[self as usize]
    }

    /// Returns the prefix below `cilium/cache/` and `cilium/state/` (Cilium's
    /// `pkg/clustermesh/kvstoremesh/reflector`).
    #[must_use]
    pub const fn base(self) -> &'static str {
        self.properties().base
    }

    /// Returns the name in the API and its filters.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        self.properties().api_name
    }

    /// Returns whether its keys name objects as `<namespace>/<name>`.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        self.properties().is_namespaced
    }

    /// Returns whether its keys are one-to-one copies of the source's keys.
    #[must_use]
    pub const fn is_mirrored(self) -> bool {
        self.properties().is_mirrored
    }

    /// Returns the index in [`Kind::ALL`]. [`Kind::NodeIp`] has the index of nodes; kinds without
    /// records have an index beyond the end.
    #[must_use]
    pub const fn index(self) -> usize {
        self.properties().mirrored_index
    }

    /// Returns the kind that lists, filters and streams use: all ipcache entries have one kind,
    /// whether they are mirrored or derived.
    #[must_use]
    pub const fn listed_as(self) -> Self {
        self.properties().listed_as
    }

    /// Returns whether the entries are removed when their cluster is unreachable for longer than
    /// `--cache-ttl`. This applies to the kinds by which agents send traffic; nodes, identities and
    /// addresses stay (`RevokeCache` in `pkg/clustermesh/remote_cluster.go`).
    #[must_use]
    pub const fn is_revocable(self) -> bool {
        self.properties().is_revocable
    }

    /// Returns the part of a cache key between the cluster's name and the object's name. Only
    /// identities have one.
    pub(crate) const fn infix(self) -> &'static str {
        self.properties().infix
    }

    /// Returns the part between the base and the object's name in a cluster's own etcd; `None` if
    /// it is the cluster's name. ipcache entries have the name of their address space there, which
    /// is always `default` (`pkg/ipcache/kvstore.go`).
    pub(crate) const fn unscoped(self) -> Option<&'static str> {
        self.properties().unscoped
    }
}

impl ApiEnum for Kind {
    const SCHEMA: &'static str = "Kind";
    const DESCRIPTION: &'static str = "A kind of mirrored object.";

    fn values() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    fn api_name(self) -> &'static str {
        self.api_name()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.api_name())
    }
}

/// Key of one mirrored entry. [`fmt::Display`] writes the cache form, for instance
/// `cilium/cache/nodes/v1/paris/worker-1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Cluster that the entry belongs to.
    pub cluster: ClusterName,
    /// Rest of the key: a node name, `<namespace>/<name>`, a decimal identity, an address with or
    /// without a length, `<node>#<address or prefix>`, or a finding's type with `/` and its
    /// subject. For a notice it is the whole key.
    pub name: SmolStr,
}

impl EntryKey {
    /// Creates a key from its parts.
    pub fn new(kind: Kind, cluster: ClusterName, name: impl Into<SmolStr>) -> Self {
        Self { kind, cluster, name: name.into() }
    }

    /// Returns the key of a cluster itself, which is that of its cluster config.
    #[must_use]
    pub fn of_cluster(cluster: ClusterName) -> Self {
        Self::new(Kind::Cluster, cluster, "")
    }

    /// Returns the key of a finding of one cluster, or of several or none (`None`). The subject may
    /// be empty.
    #[must_use]
    pub fn of_problem(kind_name: &str, cluster: Option<ClusterName>, subject: &str) -> Self {
        let name = if subject.is_empty() { kind_name.into() } else { SmolStr::from(format!("{kind_name}/{subject}")) };
        Self { kind: Kind::Problem, cluster: cluster.unwrap_or_else(ClusterName::lowest), name }
    }

    /// Returns the key of a notice, whose name is the whole key in etcd.
    #[must_use]
    pub fn of_notice(etcd_key: impl Into<SmolStr>) -> Self {
        Self { kind: Kind::Notice, cluster: ClusterName::lowest(), name: etcd_key.into() }
    }

    /// Returns the key of the entry that is derived from an address or pod CIDR of a node.
    #[must_use]
    pub fn of_node_ip(node: &Self, prefix: ObjectPrefix) -> Self {
        Self::new(Kind::NodeIp, node.cluster.clone(), format!("{}{NODE_IP_MARK}{prefix}", node.name))
    }

    /// Returns the common prefix of the keys of all entries that are derived from a node.
    #[must_use]
    pub fn before_node_ips(node: &Self) -> Self {
        Self::new(Kind::NodeIp, node.cluster.clone(), format!("{}{NODE_IP_MARK}", node.name))
    }

    /// Splits the name of a derived entry's key into the node's name and its prefix. An address
    /// alone is a host; an address with a length is a pod CIDR.
    #[must_use]
    pub fn split_node_ip(name: &str) -> Option<(&str, ObjectPrefix)> {
        let (node, text) = name.rsplit_once(NODE_IP_MARK)?;
        let prefix = ObjectPrefix::parse(text)?;
        (!node.is_empty() && prefix.to_string() == text).then_some((node, prefix))
    }

    /// Returns whether the entry is derived from a pod CIDR of a node: the fallback of agents for
    /// addresses without an announced entry.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.kind == Kind::NodeIp && self.name.rsplit_once(NODE_IP_MARK).is_some_and(|(_, text)| text.contains('/'))
    }

    /// Returns the name of the node that the entry is derived from; `None` for an entry that is not
    /// derived.
    #[must_use]
    pub fn derived_from(&self) -> Option<&str> {
        if self.kind == Kind::NodeIp { Self::split_node_ip(&self.name).map(|(node, _)| node) } else { None }
    }

    /// Returns the mirrored key that this entry comes from: the key itself, or the node's key for a
    /// derived entry.
    #[must_use]
    pub fn origin(&self) -> Self {
        match self.derived_from() {
            Some(node) => Self::new(Kind::Node, self.cluster.clone(), node),
            None => self.clone(),
        }
    }

    /// Returns the kind of the mirrored key that this entry comes from.
    #[must_use]
    pub fn origin_kind(&self) -> Kind {
        if self.kind == Kind::NodeIp { Kind::Node } else { self.kind }
    }

    /// Returns a key that sorts before every real key: the start of a full scan.
    #[must_use]
    pub fn lowest() -> Self {
        Self::lowest_of(Kind::ALL[0])
    }

    /// Returns a key that sorts before every real key of a kind.
    #[must_use]
    pub fn lowest_of(kind: Kind) -> Self {
        Self::new(kind, ClusterName::lowest(), "")
    }

    /// Returns the whole key as etcd has it, for mirrored kinds and notices. `None` for other
    /// kinds, which no etcd has.
    #[must_use]
    pub fn etcd_key(&self) -> Option<SmolStr> {
        match self.kind {
            Kind::Notice => Some(self.name.clone()),
            kind if kind.is_mirrored() => Some(smol_str::format_smolstr!("{self}")),
            _ => None,
        }
    }

    /// Parses the cache form. `None` if the text is not a key of a known kind.
    #[must_use]
    pub fn from_cache_form(text: &str) -> Option<Self> {
        if let Some(cluster) = text.strip_prefix(CLUSTER_CONFIG_PREFIX) {
            return Some(Self::of_cluster(ClusterName::parse(cluster).ok()?));
        }
        if let Some(problem) = text.strip_prefix(PROBLEM_PREFIX) {
            let (kind_name, rest) = problem.split_once('/')?;
            let (cluster, subject) = rest.split_once('/').unwrap_or((rest, ""));
            let cluster = if cluster == ClusterName::NONE { None } else { Some(ClusterName::parse(cluster).ok()?) };
            return Some(Self::of_problem(kind_name, cluster, subject)).filter(|key| key.to_string() == text);
        }
        if let Some(etcd_key) = text.strip_prefix(NOTICE_PREFIX) {
            return Some(Self::of_notice(etcd_key));
        }
        let below = text.strip_prefix("cilium/cache/")?;
        let kind = Kind::ALL.into_iter().find(|kind| below.strip_prefix(kind.base()).is_some_and(|rest| rest.starts_with('/')))?;
        let (cluster, rest) = below.get(kind.base().len() + 1..)?.split_once('/')?;
        let name = rest.strip_prefix(kind.infix())?;
        if name.is_empty() {
            return None;
        }
        // `wire` refuses nodes of a source with such a name
        let kind = if kind == Kind::Node && Self::split_node_ip(name).is_some() { Kind::NodeIp } else { kind };
        Some(Self::new(kind, ClusterName::parse(cluster).ok()?, name))
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self.kind {
            Kind::Cluster => [CLUSTER_CONFIG_PREFIX, "", "", self.cluster.as_str(), "", "", ""],
            Kind::Notice => [NOTICE_PREFIX, &self.name, "", "", "", "", ""],
            Kind::Problem => match self.name.split_once('/') {
                Some((kind_name, subject)) => [PROBLEM_PREFIX, kind_name, "/", self.cluster.as_str(), "/", subject, ""],
                None => [PROBLEM_PREFIX, &self.name, "/", self.cluster.as_str(), "", "", ""],
            },
            kind => ["cilium/cache/", kind.base(), "/", self.cluster.as_str(), "/", kind.infix(), &self.name],
        };
        parts.into_iter().try_for_each(|part| f.write_str(part))
    }
}

impl PartialOrd for EntryKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryKey {
    /// Compares the cache forms as bytes, which is etcd's order: the `/` after a cluster's name
    /// counts, so `eu-west/` sorts before `eu/`. Entries derived from nodes sort after the other
    /// ipcache entries, and findings sort by their cluster.
    fn cmp(&self, other: &Self) -> Ordering {
        self.kind.cmp(&other.kind).then_with(|| self.cluster.cmp_in_keys(&other.cluster)).then_with(|| self.name.cmp(&other.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_kinds_agree_with_the_properties() {
        let kinds_where =
            |test: fn(&KindProperties) -> bool| KIND_PROPERTIES.iter().filter(|row| test(row)).map(|row| row.kind).collect::<Vec<_>>();
        assert_eq!(kinds_where(|row| row.is_mirrored), Kind::ALL);
        assert_eq!(kinds_where(|row| row.is_mirrored || row.listed_as != row.kind), Kind::STORED);
        assert_eq!(kinds_where(|row| row.listed_as == row.kind && row.kind != Kind::Notice), Kind::STREAMED);
        assert!(Kind::ALL.into_iter().enumerate().all(|(index, kind)| kind.index() == index));
    }

    #[test]
    fn cache_forms_are_parsed_as_they_were_written() {
        for text in [
            "cilium/cache/nodes/v1/paris/worker-1",
            "cilium/cache/services/v1/paris/shop/cart",
            "cilium/cache/identities/v1/paris/id/68352",
            "cilium/cache/ip/v1/paris/10.1.200.0/24",
            "cilium/cluster-config/paris",
            "problem/clusterUnreachable/paris",
            "problem/danglingIdentity/paris/68352",
            "problem/duplicateAddress/-/cidr/10.1.0.0/16",
            "problem/logGap/-",
            "notice/cilium/cluster-config/paris",
            "cilium/cache/nodes/v1/paris/worker-1#10.0.0.1",
            "cilium/cache/nodes/v1/paris/a#b#fd00::1",
            "cilium/cache/nodes/v1/paris/a#10.0.0.0/24",
        ] {
            assert_eq!(EntryKey::from_cache_form(text).map(|key| key.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_kind_has_its_index_in_the_list_of_all_kinds() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((kind.index(), kind.is_mirrored(), kind.listed_as()), (index, true, kind));
        }
        assert!(Kind::STORED.is_sorted() && Kind::STREAMED.is_sorted() && Kind::ALL.is_sorted());
    }

    #[test]
    fn the_key_of_a_derived_entry_names_node_and_prefix() {
        let node = EntryKey::from_cache_form("cilium/cache/nodes/v1/paris/a#b").unwrap();
        assert_eq!(node.kind, Kind::Node);
        let entry = EntryKey::of_node_ip(&node, ObjectPrefix::parse("fd00::1").unwrap());
        assert_eq!(entry.to_string(), "cilium/cache/nodes/v1/paris/a#b#fd00::1");
        assert_eq!(EntryKey::from_cache_form(&entry.to_string()), Some(entry.clone()));
        assert_eq!((entry.kind.listed_as(), entry.origin(), node.origin()), (Kind::Ip, node.clone(), node.clone()));
        assert!(EntryKey::before_node_ips(&node) < entry && entry < EntryKey::lowest_of(Kind::Node));
        assert!(EntryKey::new(Kind::Ip, node.cluster.clone(), "fd00::ffff") < entry);
        for (text, is_fallback) in [("10.0.0.0/24", true), ("fd00::1/128", true), ("10.0.0.1", false)] {
            let prefix = ObjectPrefix::parse(text).unwrap();
            let entry = EntryKey::of_node_ip(&node, prefix);
            assert_eq!((&*entry.name, EntryKey::split_node_ip(&entry.name)), (&*format!("a#b#{text}"), Some(("a#b", prefix))));
            assert_eq!((entry.is_fallback(), entry.origin()), (is_fallback, node.clone()));
            assert_eq!(EntryKey::from_cache_form(&entry.to_string()), Some(entry));
        }
        assert!(!EntryKey::new(Kind::Ip, node.cluster.clone(), "10.0.0.0/24").is_fallback());
        for name in [
            "a",
            "a#",
            "#10.0.0.1",
            "a#010.0.0.1",
            "a#FD00::1",
            "10.0.0.1",
            "a#10.0.0.1/24",
            "a#10.0.0.0/024",
            "a#10.0.0.0/33",
            "#10.0.0.0/8",
        ] {
            assert_eq!(EntryKey::split_node_ip(name), None, "{name}");
        }
    }

    #[test]
    fn other_keys_are_not_entries() {
        for text in [
            "cilium/state/nodes/v1/paris/worker-1",
            "cilium/cache/nodes/v1/paris/",
            "cilium/cache/nodes/v1/paris",
            "cilium/cache/nodes/v12/paris/a",
            "cilium/cache/identities/v1/paris/value/k8s:app=a;/10.0.0.1",
            "cilium/cache/nodes/v1/Paris/a",
            "cilium/cache/cluster-config/paris/a",
            "cilium/cluster-config/",
            "cilium/cluster-config/paris/a",
            "problem/logGap",
            "problem/logGap/Paris",
            "problem/logGap/-/",
        ] {
            assert_eq!(EntryKey::from_cache_form(text), None, "{text}");
        }
    }

    #[test]
    fn keys_sort_as_their_cache_forms_do() {
        let mut keys: Vec<EntryKey> =
            ["nodes/v1/eu/z", "nodes/v1/eu-west/a", "ip/v1/eu/10.0.0.1", "identities/v1/eu/id/7", "services/v1/eu/a/b", "nodes/v1/eu/a"]
                .iter()
                .filter_map(|rest| EntryKey::from_cache_form(&format!("cilium/cache/{rest}")))
                .collect();
        assert_eq!(keys.len(), 6);
        keys.sort();
        let sorted: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let mut expected = sorted.clone();
        expected.sort();
        assert_eq!(sorted, expected);
    }
}
