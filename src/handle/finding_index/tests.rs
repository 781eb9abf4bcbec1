//! An updated index has the same findings as a new one, and as a comparison of all objects.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::model::{
    Backend, Change, ClusterConfig, ClusterId, ClusterRecord, Command, Epoch, Identity, IdentityLabels, IpEntry, Kind, LabelSet, Node,
    NodeAddress, Object, ObjectPrefix, Scope, Service, ServiceExport, SourceStamp,
};
use crate::view::View;

const CLUSTERS: [&str; 3] = ["oslo", "paris", "tokyo"];

/// Partly nested CIDRs. There are enough of them that the two nodes of a cluster often do not
/// overlap.
const CIDRS: [&str; 9] =
    ["10.1.0.0/16", "10.1.2.0/24", "10.1.3.7/24", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16", "10.5.0.0/16", "10.6.0.0/16", "10.7.0.0/16"];

/// Value of a key, with its decoded object.
type EncodedObject = (Vec<u8>, Result<Arc<Object>, Arc<str>>);

struct TestMirror {
    published: MirrorSnapshot,
    count: u32,
}

impl TestMirror {
    fn new() -> Self {
        let (start, retention) = (Sequence(1), Retention { age_max: Duration::from_secs(60), count_max: 1_000 });
        let (mut view, feed) = (View::starting_at(start), Feed::starting_at(start, retention));
        for (id, name) in (1..).zip(CLUSTERS) {
            let config = ClusterConfig { id: ClusterId(id), max_connected_clusters: 255, ..ClusterConfig::default() };
            view.restore_cluster(
                ClusterName::parse(name).unwrap(),
                ClusterRecord { config: Some(config), last_contact: None, ..ClusterRecord::default() },
            );
        }
        Self { published: MirrorSnapshot { view, feed, epoch: Epoch(1), earlier_runs: Arc::default() }, count: 0 }
    }

    fn change(&mut self, cluster: &str, name: &str, kind: Kind, object: Option<Object>) {
        let put = object.map(|object| (self.count.to_be_bytes().to_vec(), Ok(Arc::new(object))));
        self.put(cluster, name, kind, put);
    }

    fn put_rejected(&mut self, cluster: &str, name: &str, value: String) {
        self.put(cluster, name, Kind::Ip, Some((value.into_bytes(), Err(Arc::from("unusable")))));
    }

    fn put(&mut self, cluster: &str, name: &str, kind: Kind, put: Option<EncodedObject>) {
        self.count += 1;
        let cluster = ClusterName::parse(cluster).unwrap();
        let key = EntryKey::new(kind, cluster.clone(), name);
        let change = match put {
            Some((value, decoded)) => Change::Put { key, value: value.into(), decoded, source: SourceStamp::default() },
            None => Change::Delete { key },
        };
        let command = Command::Apply { scope: Scope { cluster, kind }, changes: vec![change], cursor: None };
        for announcement in self.published.view.apply(command, SystemTime::UNIX_EPOCH).announcements {
            self.published.feed.announce(announcement, SystemTime::UNIX_EPOCH);
        }
    }

    fn reading(&self) -> Reading {
        Reading::new(Arc::new(self.published.clone()), super::super::ClusterStatuses::default())
    }

    fn build_index(&self) -> FindingIndex {
        finish(FindingIndexBuilder::new(self.reading()))
    }

    fn update_index(&self, index: FindingIndex) -> FindingIndex {
        finish(FindingIndexBuilder::update(index, self.reading()))
    }

    fn random_change(&mut self, random: &mut StdRng) {
        let cluster = CLUSTERS[random.random_range(0..CLUSTERS.len())];
        let is_delete = random.random_bool(0.3);
        match random.random_range(0..6) {
            0 => {
                let id = random.random_range(300..304);
                let object = Object::Identity(Identity { id, labels: IdentityLabels::default() });
                self.change(cluster, &id.to_string(), Kind::Identity, (!is_delete).then_some(object));
            }
            1 => {
                let name = ["10.0.0.1", "10.0.0.2", "10.0.0.2/32", "10.0.0.0/24"][random.random_range(0..4)];
                let object = Object::Ip(ip(name, random.random_range(300..304), random.random_range(1..4)));
                self.change(cluster, name, Kind::Ip, (!is_delete).then_some(object));
            }
            2 => {
                let name = ["a", "b"][random.random_range(0..2)];
                let mut cidr = || CIDRS[random.random_range(0..CIDRS.len())].parse().unwrap();
                let (first, second) = (cidr(), cidr());
                self.change(cluster, name, Kind::Node, (!is_delete).then(|| node(random.random_range(1..4), first, second)));
            }
            3 => {
                // of these clusters, only the first may have identities from 65,536 on
                let value = [r#"{"ID":300}"#, r#"{"ID":65536}"#, r#"{"ID":6}"#, "nonsense"][random.random_range(0..4)];
                self.put_rejected(cluster, "10.0.0.1", value.to_owned());
            }
            4 => {
                let service_type = ["ClusterSetIP", "Headless"][random.random_range(0..2)];
                let name = ["shop/cart", "shop/till"][random.random_range(0..2)];
                self.change(cluster, name, Kind::ServiceExport, (!is_delete).then(|| export(service_type)));
            }
            _ => {
                let backends = (1..4).filter(|_| random.random_bool(0.5)).map(host).map(backend).collect();
                let object = Object::Service(Service { backends, ..Service::default() });
                self.change(cluster, "shop/cart", Kind::Service, (!is_delete).then_some(object));
            }
        }
    }
}

fn host(number: u8) -> IpAddr {
    IpAddr::from([172, 18, 1, number])
}

fn backend(ip: IpAddr) -> Backend {
    Backend { ip, ports: [].into(), hostname: String::new(), zone: None }
}

fn prefix(name: &str) -> ObjectPrefix {
    match name.parse::<IpNet>() {
        Ok(net) => ObjectPrefix { net, host: false },
        Err(_) => ObjectPrefix { net: name.parse::<IpAddr>().unwrap().into(), host: true },
    }
}

fn ip(name: &str, identity: u32, host_number: u8) -> IpEntry {
    IpEntry { host_ip: Some(host(host_number)), ..IpEntry::new(prefix(name), identity) }
}

fn node(host_number: u8, cidr: IpNet, secondary: IpNet) -> Object {
    let addresses = vec![NodeAddress { address_type: "InternalIP".to_owned(), ip: host(host_number) }];
    Object::Node(Box::new(Node { addresses, ipv4_pod_cidr: Some(cidr), secondary_pod_cidrs: vec![secondary], ..Node::default() }))
}

fn export(service_type: &str) -> Object {
    Object::ServiceExport(Box::new(ServiceExport {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        created: SystemTime::UNIX_EPOCH,
        ports: Vec::new(),
        service_type: service_type.to_owned(),
        session_affinity: "None".to_owned(),
        session_affinity_timeout_seconds: None,
        ip_families: Vec::new(),
        internal_traffic_policy: String::new(),
        traffic_distribution: String::new(),
        labels: LabelSet::new(),
        annotations: LabelSet::new(),
    }))
}

fn finish(mut builder: FindingIndexBuilder) -> FindingIndex {
    loop {
        builder = match builder.advance() {
            ControlFlow::Break(index) => return index,
            ControlFlow::Continue(builder) => builder,
        }
    }
}

/// Returns the expected findings by comparing all objects.
fn expected_findings(view: &View) -> BTreeSet<Finding> {
    let records: Vec<_> = view.records_from(&EntryKey::lowest()).collect();
    let objects: Vec<(&ClusterName, &Object)> =
        records.iter().filter_map(|record| Some((&record.key.cluster, record.object.as_deref()?))).collect();
    let nodes = || objects.iter().filter_map(|(cluster, object)| Some((*cluster, object.as_node()?)));
    let ips = || objects.iter().filter_map(|(cluster, object)| Some((*cluster, object.as_ip()?)));
    let mut findings = BTreeSet::new();
    for record in records.iter().filter(|record| record.rejection.is_some()) {
        let is_oslo = record.key.cluster.as_str() == "oslo";
        if &*record.value == br#"{"ID":300}"# || (&*record.value == br#"{"ID":65536}"# && !is_oslo) {
            findings.insert(Finding::IdentityOutOfRange(record.key.clone()));
        }
    }
    for (cluster, entry) in ips() {
        let known = |(other, object): &(&ClusterName, &Object)| {
            *other == cluster && object.as_identity().is_some_and(|identity| identity.id == entry.identity)
        };
        if entry.identity >= 256 && !objects.iter().any(known) {
            findings.insert(Finding::DanglingIdentity(cluster.clone(), entry.identity));
        }
        let host_ip = entry.host_ip.unwrap();
        if !nodes().any(|(_, node)| node.addresses.iter().any(|address| address.ip == host_ip)) {
            findings.insert(Finding::DanglingHostIp(cluster.clone(), host_ip));
        }
        // identity 2 is `world`. Only pod CIDRs have it here, and their overlaps are separate
        // findings
        if entry.identity != 2 && ips().any(|(other, twin)| other != cluster && twin.prefix == entry.prefix) {
            findings.insert(Finding::DuplicateAddress(entry.prefix));
        }
    }
    let exports: Vec<(&str, &str)> = records
        .iter()
        .filter_map(|record| Some((record.key.name.as_str(), record.object.as_deref()?.as_service_export()?.service_type.as_str())))
        .collect();
    for (name, service_type) in &exports {
        if exports.iter().any(|(other, other_type)| other == name && other_type != service_type) {
            findings.insert(Finding::ExportConflict((*name).into()));
        }
    }
    for (cluster, node) in nodes() {
        let overlaps = |other: &Node| node.pod_cidrs().any(|net| other.pod_cidrs().any(|cidr| net.contains(&cidr) || cidr.contains(&net)));
        for (other, _) in nodes().filter(|(_, other)| !std::ptr::eq(*other, node) && overlaps(other)) {
            let is_same = other == cluster;
            let finding = if is_same { Finding::OverlappingNodePodCidr } else { Finding::OverlappingPodCidr };
            findings.insert(finding(cluster.clone()));
        }
    }
    findings
}

#[test]
fn an_updated_index_has_the_findings_of_a_full_search() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mirror = TestMirror::new();
        let mut index = mirror.build_index();
        for step in 0..80 {
            for _ in 0..random.random_range(1..4) {
                mirror.random_change(&mut random);
            }
            index = mirror.update_index(index);
            let findings: BTreeSet<Finding> = index.findings_from(None).cloned().collect();
            for (kind, count) in index.counts() {
                assert_eq!(findings.iter().filter(|finding| finding.kind() == kind).count() as u64, count, "{kind}");
            }
            assert_eq!(findings, expected_findings(&mirror.published.view), "seed {seed}, step {step}");
            seen.extend(findings.iter().map(Finding::kind));
        }
        let rebuilt = mirror.build_index();
        assert!(
            index.findings.keys().eq(rebuilt.findings.keys())
                && index.by_identity == rebuilt.by_identity
                && index.by_host == rebuilt.by_host
        );
        assert!(index.backends == rebuilt.backends, "seed {seed}");
        for name in CLUSTERS.map(|name| ClusterName::parse(name).unwrap()) {
            assert_eq!(index.overlaps(&name), rebuilt.overlaps(&name), "seed {seed}");
        }
    }
    assert_eq!(seen.len(), 7, "every kind of finding occurred");
}

#[test]
fn services_are_found_by_their_backend_addresses() {
    let mut mirror = TestMirror::new();
    let service = |numbers: &[u8]| {
        Object::Service(Service { backends: numbers.iter().map(|number| backend(host(*number))).collect(), ..Service::default() })
    };
    mirror.change("paris", "shop/cart", Kind::Service, Some(service(&[1, 2])));
    mirror.change("tokyo", "shop/cart", Kind::Service, Some(service(&[2])));
    let mut index = mirror.build_index();
    let backed =
        |index: &FindingIndex, number| index.keys_with_backend(host(number)).map(|key| key.cluster.to_string()).collect::<Vec<_>>();
    assert_eq!([backed(&index, 1), backed(&index, 2)], [vec!["paris".to_owned()], vec!["paris".to_owned(), "tokyo".to_owned()]]);
    mirror.change("paris", "shop/cart", Kind::Service, Some(service(&[1])));
    index = mirror.update_index(index);
    assert_eq!(backed(&index, 2), ["tokyo"]);
}

fn findings(index: &FindingIndex) -> BTreeSet<Finding> {
    index.findings_from(None).cloned().collect()
}

/// Adds twice as many addresses as a piece reads, in two clusters and all behind one host.
fn add_many_addresses(mirror: &mut TestMirror) {
    for number in 0..2 * 4_096_u32 {
        let name = format!("10.9.{}.{}", number / 250, number % 250 + 1);
        mirror.change(CLUSTERS[usize::from(number > 4_096)], &name, Kind::Ip, Some(Object::Ip(ip(&name, 300 + number % 7, 200))));
    }
}

#[test]
fn changes_during_the_first_build_are_applied_by_the_next_update() {
    let mut random = StdRng::seed_from_u64(1);
    let mut mirror = TestMirror::new();
    add_many_addresses(&mut mirror);
    let mut builder = FindingIndexBuilder::new(mirror.reading());
    let mut pieces = 0;
    let first = loop {
        for _ in 0..5 {
            mirror.random_change(&mut random);
        }
        mirror.change("oslo", &format!("10.9.0.{}", pieces + 1), Kind::Ip, None);
        builder = match builder.advance() {
            ControlFlow::Break(index) => break index,
            ControlFlow::Continue(builder) => builder,
        };
        pieces += 1;
    };
    assert!(pieces > 2 && first.position() < mirror.reading().position().sequence);
    assert_eq!(findings(&mirror.update_index(first)), expected_findings(&mirror.published.view));
}

#[test]
fn an_index_older_than_the_ring_or_the_tombstones_is_rebuilt() {
    let mut random = StdRng::seed_from_u64(2);
    let mut mirror = TestMirror::new();
    let mut index = mirror.build_index();
    add_many_addresses(&mut mirror);
    for number in 0..9_000_u32 {
        mirror.change("tokyo", "10.9.0.1", Kind::Ip, Some(Object::Ip(ip("10.9.0.1", 300 + number % 2, 1))));
        if number % 100 == 0 {
            mirror.random_change(&mut random);
        }
    }
    assert!(mirror.published.feed.ring_after(index.position()).is_none() && mirror.published.feed.floor() <= index.position());
    index = mirror.update_index(index);
    assert_eq!(findings(&index), expected_findings(&mirror.published.view));
    // more deletes than there can be tombstones
    for number in 0..1_200_u32 {
        mirror.change("oslo", &format!("10.9.{}.{}", number / 250, number % 250 + 1), Kind::Ip, None);
    }
    assert!(mirror.published.feed.floor() > index.position());
    index = mirror.update_index(index);
    assert_eq!((findings(&index), index.by_identity), (expected_findings(&mirror.published.view), mirror.build_index().by_identity));
}
