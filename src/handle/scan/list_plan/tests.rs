//! A planned list finds the same keys as a scan of everything, and reads few rows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::handle::{ClusterStatuses, ScanEnd, SliceLimit, WorkSlice};
use crate::model::{
    Change, Command, Epoch, IpEntry, Node, NodeAddress, Object, ObjectPrefix, Record, Scope, Sequence, Service, SourceStamp,
};
use crate::view::View;

const CLUSTERS: [&str; 4] = ["eu", "eu-west", "paris", "tokyo"];

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

fn put(key: EntryKey, decoded: Result<Object, &str>) -> Change {
    let decoded = decoded.map(Arc::new).map_err(Into::into);
    Change::Put { value: key.to_string().as_bytes().into(), key, decoded, source: SourceStamp::default() }
}

fn pod(net: &str, host: &str, is_host: bool) -> Object {
    let prefix = ObjectPrefix { net: net.parse().unwrap(), host: is_host };
    Object::Ip(IpEntry { host_ip: host.parse().ok(), namespace: "shop".to_owned(), ..IpEntry::new(prefix, 70_000) })
}

/// Each cluster has 20 nodes with 10 pods each, an odd CIDR, 40 services in 4 namespaces, and a
/// rejected value.
fn reading() -> Reading {
    let mut view = View::starting_at(Sequence(0));
    for (number, name) in CLUSTERS.into_iter().enumerate() {
        let key = |kind, rest: String| EntryKey::new(kind, cluster(name), rest);
        let mut changes = Vec::new();
        for node in 0..20 {
            let ip = format!("172.18.{number}.{node}");
            let addresses = vec![NodeAddress { address_type: "InternalIP".to_owned(), ip: ip.parse().unwrap() }];
            let pod_range = format!("10.{number}.{node}.0/24").parse().ok();
            let object = Node { name: format!("n{node}"), addresses, ipv4_pod_cidr: pod_range, ..Node::default() };
            changes.push(put(key(Kind::Node, format!("n{node}")), Ok(Object::Node(Box::new(object)))));
            for pod_number in 0..10 {
                let pod_ip = format!("10.{number}.{node}.{pod_number}");
                changes.push(put(key(Kind::Ip, pod_ip.clone()), Ok(pod(&format!("{pod_ip}/32"), &ip, true))));
            }
        }
        changes.push(put(key(Kind::Ip, format!("10.{number}.3.9/30")), Ok(pod(&format!("10.{number}.3.8/30"), "", false))));
        changes.push(put(key(Kind::Ip, format!("10.{number}.0.0/16")), Ok(pod(&format!("10.{number}.0.0/16"), "", false))));
        changes.push(put(key(Kind::Ip, format!("fd00:{number}::1")), Ok(pod(&format!("fd00:{number}::1/128"), "", true))));
        changes.push(put(key(Kind::Service, "shop/broken".to_owned()), Err("not JSON")));
        for service in 0..40 {
            let (namespace, name) = (["bank", "shop", "shop2", "zoo"][service % 4].to_owned(), format!("s{service}"));
            let object = Service { namespace: namespace.clone(), name: name.clone(), ..Service::default() };
            changes.push(put(key(Kind::Service, format!("{namespace}/{name}")), Ok(Object::Service(object))));
        }
        for change in changes {
            let Change::Put { key, .. } = &change else { continue };
            let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
            view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
        }
    }
    let retention = Retention { age_max: Duration::from_secs(3600), count_max: 1000 };
    let feed = Feed::starting_at(view.sequence(), retention);
    Reading::new(Arc::new(MirrorSnapshot { view, feed, epoch: Epoch(1), earlier_runs: Arc::default() }), ClusterStatuses::default())
}

type ScanFn<'a> = dyn Fn(Option<&EntryKey>, &mut WorkSlice, &mut dyn FnMut(&Record) -> bool) -> ScanEnd + 'a;

/// Returns all keys of a scan in slices of three rows and pages of two items, with the number of
/// rows that it read.
fn collect_keys(scan: &ScanFn<'_>) -> (Vec<EntryKey>, u64) {
    let (mut keys, mut rows, mut start) = (Vec::new(), 0, None);
    loop {
        let (mut slice, mut remaining) = (WorkSlice::begin(SliceLimit::Rows(3)), 2);
        let end = scan(start.as_ref(), &mut slice, &mut |record| {
            let accepts = remaining > 0;
            if accepts {
                remaining -= 1;
                keys.push(record.key.clone());
            }
            accepts
        });
        rows += slice.usage().rows;
        match end {
            ScanEnd::Complete => return (keys, rows),
            ScanEnd::PageFull(key) | ScanEnd::Paused(key) | ScanEnd::OverBudget(key, _) => start = Some(key),
        }
    }
}

fn filters() -> Vec<(Kind, Filter, u64)> {
    let clusters = |names: &[&str]| names.iter().map(|name| cluster(name)).collect::<Vec<_>>();
    let in_clusters = |cluster: &[&str]| Filter { clusters: clusters(cluster), ..Filter::default() };
    let text = |text: &str| Some(text.to_owned());
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let cidr = |text: &str| Filter { cidr: text.parse().ok(), ..Filter::default() };
    let named =
        |namespace: &str, name: Option<&str>| Filter { namespace: text(namespace), name: name.map(str::to_owned), ..Filter::default() };
    let on = |hosts: Vec<(Option<ClusterName>, IpAddr)>| Filter { hosts: Some(hosts), ..Filter::default() };
    vec![
        (Kind::Ip, in_clusters(&[]), 1_500),
        (Kind::Ip, in_clusters(&["tokyo", "eu", "eu"]), 800),
        (Kind::Node, in_clusters(&["paris"]), 40),
        (Kind::Node, Filter { name: text("n7"), ..in_clusters(&[]) }, 8),
        (Kind::Node, Filter { ip: Some(ip("172.18.2.5")), ..in_clusters(&[]) }, 2),
        (Kind::Node, Filter { ip: Some(ip("172.18.2.5")), ..in_clusters(&["eu"]) }, 2),
        (Kind::Service, named("shop", None), 100),
        (Kind::Service, Filter { clusters: clusters(&["eu-west"]), ..named("shop", None) }, 30),
        (Kind::Service, named("shop", Some("s5")), 8),
        (Kind::Service, named("shop", Some("s4")), 8),
        (Kind::Ip, cidr("10.2.3.0/24"), 20),
        (Kind::Ip, cidr("10.2.3.8/30"), 10),
        (Kind::Ip, cidr("172.18.1.0/24"), 40),
        (Kind::Ip, Filter { clusters: clusters(&["eu"]), ..cidr("172.18.1.0/24") }, 40),
        (Kind::Ip, cidr("fd00::/8"), 8),
        (Kind::Ip, cidr("0.0.0.0/0"), 1_500),
        (Kind::Ip, on(vec![(Some(cluster("paris")), ip("172.18.2.5"))]), 330),
        (Kind::Ip, on(vec![]), 0),
        (Kind::Ip, on(vec![(None, ip("172.18.2.5"))]), 1_500),
    ]
}

#[test]
fn a_planned_list_reads_few_rows_and_misses_no_match() {
    let reading = reading();
    for (kind, filter, rows_max) in filters() {
        let plan = reading.plan_list(kind, &filter);
        let everything = ListPlan { keys: reading.plan_runs(kind, &[], ""), filter: filter.clone() };
        let (expected, _) = collect_keys(&|start, slice, take| reading.scan(&everything, start, slice, take));
        let (found, rows) = collect_keys(&|start, slice, take| reading.scan(&plan, start, slice, take));
        assert_eq!(found, expected, "{filter:?}");
        // the first row of each page is read twice
        assert!(rows <= rows_max + found.len() as u64, "{rows} rows for {} of {filter:?}", found.len());
    }
}

#[test]
fn a_large_network_is_scanned_in_its_clusters_only() {
    let reading = reading();
    let view = &reading.published.view;
    let within = |net: &str, count_max| view.ips_within(net.parse().unwrap(), count_max);
    let NetworkEntries::Clusters(clusters) = within("10.2.0.0/16", 50) else { unreachable!("the network has more than 50 entries") };
    assert!(clusters.iter().all(|name| *name == cluster("paris")) && !clusters.is_empty());
    assert_eq!(within("10.2.0.0/16", 3), NetworkEntries::Unknown);
    assert!(matches!(within("10.2.0.0/16", 300), NetworkEntries::Keys(keys) if keys.len() == 222));
}

#[test]
fn a_plan_finds_all_raw_keys_with_a_prefix() {
    let reading = reading();
    let every = |prefix: &str, clusters: &[ClusterName]| {
        let mut keys: Vec<EntryKey> = reading.published.view.records_from(&EntryKey::lowest()).map(|record| record.key.clone()).collect();
        keys.retain(|key| {
            key.kind.is_mirrored() && key.to_string().starts_with(prefix) && (clusters.is_empty() || clusters.contains(&key.cluster))
        });
        keys
    };
    for (prefix, clusters, rows_max) in [
        ("", &[][..], 2_000),
        ("", &["eu"], 500),
        ("cilium/cache/", &["eu"], 500),
        ("cilium/cache/ip/v1/eu", &[], 500),
        ("cilium/cache/ip/v1/eu/", &[], 250),
        ("cilium/cache/ip/v1/paris/10.2.7.", &[], 20),
        ("cilium/cache/ip/v1/paris/10.2.7.", &["eu"], 0),
        ("cilium/cache/services/v1/tokyo/shop/s", &[], 20),
        ("cilium/cache/nodes", &[], 120),
        ("cilium/state", &[], 0),
        ("cilium/cache/ip/v1/nowhere/", &[], 0),
    ] {
        let clusters: Vec<ClusterName> = clusters.iter().map(|name| cluster(name)).collect();
        let plan = reading.plan_entry_list(prefix, &clusters);
        let (found, rows) = collect_keys(&|start, slice, take| reading.scan_entries(&plan, start, slice, take));
        assert_eq!(found, every(prefix, &clusters), "{prefix}");
        assert!(rows <= rows_max + found.len() as u64, "{rows} rows for {} of {prefix}", found.len());
        let (rejected, _) = collect_keys(&|start, slice, take| reading.scan_rejected(&plan, start, slice, take));
        let expected: Vec<EntryKey> = every(prefix, &clusters).into_iter().filter(|key| *key.name == *"shop/broken").collect();
        assert_eq!(rejected, expected, "{prefix}");
    }
}
