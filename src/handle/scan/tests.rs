//! Filtered scans of random mirrors, with folds in between, find what a test of every object finds.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::handle::{BatchLimits, ClusterStatuses, Filter, LabelSelector, SearchText, SliceLimit, StreamEvent, StreamStart, Subscription};
use crate::model::{Change, ClusterId, ClusterName, Command, Epoch, Kind, MaxConnectedClusters, Scope, Sequence, SourceStamp};
use crate::pack::build_with_fields;
use crate::wire;

const KINDS: [Kind; 5] = [Kind::Ip, Kind::Node, Kind::Identity, Kind::Service, Kind::ServiceExport];

fn cluster(number: u32) -> ClusterName {
    ClusterName::parse(["paris", "tokyo", "eu"][number as usize % 3]).unwrap()
}

fn one_of<'a>(random: &mut StdRng, texts: &[&'a str]) -> &'a str {
    texts.choose(random).copied().unwrap()
}

thread_local! {
    /// Number of the odd form in which [`member`] writes some members. Only one at a time, so that
    /// enough values have it for a template.
    static ODD_FORM: Cell<u64> = const { Cell::new(0) };
}

/// Returns a JSON member as agents write it or, sometimes, in a form that hides it from a plain
/// search but not from Go.
fn member(random: &mut StdRng, name: &str, text: &str) -> String {
    if random.random_ratio(3, 4) {
        return format!(r#""{name}":"{text}""#);
    }
    let escape = |text: &str| text.chars().next().map_or_else(String::new, |first| format!("\\u{:04x}{}", u32::from(first), &text[1..]));
    match ODD_FORM.get() % 8 {
        0 => format!(r#""{}":"{text}""#, name.to_lowercase()),
        1 => format!(r#""{}":"{text}""#, name.replacen('K', "\u{212a}", 1).replacen('s', "\u{17f}", 1)),
        2 => format!(r#""{}":"{text}""#, escape(name)),
        3 => format!(r#""{name}":"{}""#, escape(text)),
        4 => format!(r#""{name}" : "{text}""#),
        5 => format!(r#""{name}":"other","{name}":"{text}""#),
        6 => format!(r#""{name}":"{text}","{name}":null"#),
        _ => format!(r#""NamedPorts":[{{"{name}":"{text}","Name":"x","Protocol":"TCP"}}]"#),
    }
}

fn labels(random: &mut StdRng) -> String {
    let keys = ["app", "tier", "example.com/app", "3scale", "a::b"];
    let labels: Vec<String> = keys
        .into_iter()
        .filter_map(|key| {
            let value = one_of(random, &["cart", "db", "12", ""]);
            random.random_ratio(2, 3).then(|| member(random, key, value))
        })
        .collect();
    format!("{{{}}}", labels.join(","))
}

fn identity_labels(random: &mut StdRng, cluster: &ClusterName) -> String {
    let (app, tier) = (one_of(random, &["cart", "db", "12"]), one_of(random, &["web", "cart"]));
    let odd = match random.random_range(0..20) {
        0 => "app=cart;",
        1 => "$app=cart;",
        2 => "reserved:=app;",
        3 => "reserved.app=cart;",
        4 => "x=y:app=cart;",
        5 => "x:app;",
        6 => "x:app=a=b;",
        7 => "x:=cart;",
        8 => ";;",
        9 => "app;",
        _ => "",
    };
    let app = if random.random() { format!("k8s:app={app};") } else { String::new() };
    format!("{app}{odd}k8s:io.cilium.k8s.policy.cluster={cluster};k8s:tier={tier};")
}

fn ip_value(random: &mut StdRng, ip: &str) -> String {
    let host = one_of(random, &["172.18.0.1", "172.18.0.2", "172.18.0.3", "::ffff:172.18.0.1", "fd00::1", "FD00:0::1", ""]);
    let (id, host) = (random.random_range(300..305), member(random, "HostIP", host));
    let pod = if random.random_ratio(1, 5) {
        String::new()
    } else {
        let (app, tail) = (one_of(random, &["cart", "web-7d4b", "db", "solo"]), one_of(random, &["x2k4", "0", "1", "b"]));
        let name = if app == "solo" { "solo".to_owned() } else { format!("{app}-{tail}") };
        let namespace = one_of(random, &["shop", "bank", "shop2", "Zoo"]);
        format!(",{},{}", member(random, "K8sNamespace", namespace), member(random, "K8sPodName", &name))
    };
    let space = if random.random_ratio(1, 30) { " " } else { "" };
    format!(r#"{space}{{"IP":"{ip}","Mask":null,{host},"ID":{id},"Key":0{pod}}}"#)
}

fn entry(random: &mut StdRng) -> (EntryKey, String) {
    let (kind, cluster, number) = (*KINDS.choose(random).unwrap(), cluster(random.random()), random.random_range(0..60));
    let namespace = one_of(random, &["shop", "bank"]);
    let (name, value) = match kind {
        Kind::Ip => {
            let ip = format!("10.1.{}.{}", number % 3, number);
            let value = ip_value(random, &ip);
            (ip, value)
        }
        Kind::Node => {
            let value = format!(
                r#"{{"Name":"n{number}","Cluster":"{cluster}","IPAddresses":[{{"Type":"InternalIP","IP":"172.18.0.{number}"}}],"Labels":{},"ClusterID":0}}"#,
                labels(random)
            );
            (format!("n{number}"), value)
        }
        Kind::Identity => ((300 + number).to_string(), identity_labels(random, &cluster)),
        Kind::Service => {
            let (labels, selector) = (labels(random), labels(random));
            let value = format!(
                r#"{{"cluster":"{cluster}","namespace":"{namespace}","name":"s{number}","frontends":{{"10.9.0.{number}":{{}}}},"labels":{labels},"selector":{selector},"shared":true}}"#
            );
            (format!("{namespace}/s{number}"), value)
        }
        _ => {
            let value = format!(
                r#"{{"cluster":"{cluster}","namespace":"{namespace}","name":"s{number}","exportCreationTimestamp":"2024-05-01T10:00:00Z","type":"Headless","sessionAffinity":"None","labels":{}}}"#,
                labels(random)
            );
            (format!("{namespace}/s{number}"), value)
        }
    };
    (EntryKey::new(kind, cluster, name), value)
}

fn change(view: &mut View, random: &mut StdRng) {
    let (key, value) = entry(random);
    let value = if random.random_ratio(1, 30) { "{".to_owned() } else { value };
    let context =
        wire::Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
    let decoded = wire::decode(&key, value.as_bytes(), &context).map(Arc::new).map_err(Into::into);
    let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
    let change = if random.random_ratio(1, 6) {
        Change::Delete { key }
    } else {
        Change::Put { key, value: value.into_bytes().into(), decoded, source: SourceStamp::default() }
    };
    view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::UNIX_EPOCH);
}

/// Folds a part of the changes into chunks with few rows, so that some chunks have no match.
fn fold(view: &mut View, random: &mut StdRng) {
    for job in view.fold_jobs(random.random_range(1..20)) {
        let mut folded = job.run();
        let rows = folded.chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| (chunk.record(row), chunk.indexed_fields(row))));
        let (rows, length): (Vec<_>, usize) = (rows.collect(), random.random_range(1..60));
        let pieces = rows.chunks(length);
        folded.chunks = pieces.flat_map(|rows| build_with_fields(rows.iter().map(|(record, fields)| (record, fields.clone())))).collect();
        view.fold(folded);
    }
}

fn filters() -> Vec<Filter> {
    let text = |text: &str| Some(text.to_owned());
    let mut filters = vec![
        Filter::default(),
        Filter { kinds: vec![Kind::Node], ..Filter::default() },
        Filter { clusters: vec![cluster(0)], namespace: text("shop"), ..Filter::default() },
        Filter { identity: Some(301), ..Filter::default() },
    ];
    for namespace in ["shop", "bank", "zoo", "Zoo", "nowhere", "", "other", "\u{fffd}"] {
        filters.push(Filter { namespace: text(namespace), ..Filter::default() });
        filters.push(Filter { namespace: text(namespace), pod: text("cart-0"), ..Filter::default() });
    }
    for pod in ["cart-x2k4", "web-7d4b-b", "solo", "cart-", "-0", "0", "", "web-7d4b"] {
        filters.push(Filter { pod: text(pod), ..Filter::default() });
    }
    for host in ["172.18.0.1", "172.18.0.9", "fd00::1", "fd00::2"] {
        filters.push(Filter { hosts: Some(vec![(None, host.parse().unwrap())]), ..Filter::default() });
    }
    for selector in [
        "app=cart",
        "app",
        "!app",
        "app!=cart",
        "app in (db,cart),tier=web",
        "app=",
        "k8s:app=cart",
        "reserved:app",
        "any:app=cart",
        "app>11",
        "example.com/app=db",
        "3scale=db",
        "nowhere",
        "app=nobody",
        "tier notin (web)",
        "app=cart,!tier",
    ] {
        filters.push(Filter { labels: LabelSelector::parse(selector).ok(), ..Filter::default() });
    }
    for search in [
        "cart",
        "CART",
        "shop/cart",
        "t-x",
        "zoo",
        "10.1.",
        "10.1.2",
        "172.18.0.1",
        "fd",
        "shop/s1",
        "30",
        "app=c",
        "p/w",
        "nobody",
        "solo",
        "/",
        "-",
        "d4b-",
    ] {
        filters.push(Filter { search: Some(SearchText::new(search)), ..Filter::default() });
    }
    filters
}

fn reading(view: &View) -> Reading {
    let feed = Feed::starting_at(view.sequence(), Retention { age_max: Duration::from_secs(3600), count_max: 1_000 });
    let snapshot = MirrorSnapshot { view: view.clone(), feed, epoch: Epoch(1), earlier_runs: Arc::default() };
    Reading::new(Arc::new(snapshot), ClusterStatuses::default())
}

/// Returns the keys of a list, in slices of a few rows.
fn listed(reading: &Reading, kind: Kind, filter: &Filter) -> Vec<EntryKey> {
    let (plan, mut keys, mut start) = (reading.plan_list(kind, filter), Vec::new(), None);
    loop {
        let mut slice = WorkSlice::begin(SliceLimit::Rows(3));
        let end = reading.scan(&plan, start.as_ref(), &mut slice, |record| {
            keys.push(record.key.clone());
            true
        });
        match end {
            ScanEnd::Complete => return keys,
            ScanEnd::PageFull(key) | ScanEnd::Paused(key) | ScanEnd::OverBudget(key, _) => start = Some(key),
        }
    }
}

/// Returns the keys of a stream's snapshot, in key order.
fn streamed(reading: &Reading, filter: &Filter) -> Vec<EntryKey> {
    let mut subscription = Subscription::new(filter.clone(), &StreamStart::Snapshot, reading);
    let mut keys = Vec::new();
    loop {
        let limits = BatchLimits { changes: 7, bytes: usize::MAX };
        let events = subscription.encode_next(reading, limits, |items, _| items.collect::<Vec<StreamEvent>>());
        for event in events.into_iter().flatten() {
            match event {
                StreamEvent::Upsert { key, .. } => keys.push(key),
                StreamEvent::Synced { .. } => return keys,
                _ => {}
            }
        }
    }
}

#[test]
fn filtered_scans_find_every_match() {
    let mut found = BTreeSet::new();
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        ODD_FORM.set(seed);
        let mut view = View::starting_at(Sequence(1));
        for step in 0..600 {
            change(&mut view, &mut random);
            if random.random_ratio(1, 60) {
                fold(&mut view, &mut random);
            }
            if step % 300 != 299 {
                continue;
            }
            let (reading, lowest) = (reading(&view), EntryKey::lowest());
            for (number, filter) in filters().iter().enumerate() {
                let records = view.records_from(&lowest);
                let matching = records.filter(|record| record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object)));
                let expected: Vec<EntryKey> = matching.map(|record| record.key.clone()).collect();
                let lists = KINDS.into_iter().flat_map(|kind| listed(&reading, kind, filter));
                let lists: BTreeSet<EntryKey> = lists.collect();
                assert_eq!(lists.into_iter().collect::<Vec<_>>(), expected, "seed {seed}, step {step}: {filter:?}");
                assert_eq!(streamed(&reading, filter), expected, "seed {seed}, step {step}: stream of {filter:?}");
                if !expected.is_empty() {
                    found.insert(number);
                }
            }
        }
    }
    let filters = filters();
    let without: Vec<&Filter> = (0..filters.len()).filter(|number| !found.contains(number)).map(|number| &filters[number]).collect();
    assert!(without.len() <= 18, "most filters have matches, but not these: {without:?}");
}
