//! A change reaches every filter that it matches.

use std::collections::HashSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::feed::Version;
use crate::handle::{IdentityScope, LabelSelector, SearchText, StreamEvent};
use crate::model::{
    ClusterPhase, EndpointSlice, Epoch, FindingKind, FindingObject, Identity, IpEntry, Node, NodeAddress, ObjectPrefix, Phase, Position,
    Sequence, Service,
};
use crate::wire::tests::slice_object;

fn one_of<T: Clone>(random: &mut StdRng, all: &[T]) -> T {
    all.choose(random).expect("must not be empty").clone()
}

fn maybe<T: Clone>(random: &mut StdRng, all: &[T]) -> Option<T> {
    random.random_bool(0.2).then(|| one_of(random, all))
}

fn cluster(random: &mut StdRng) -> ClusterName {
    ClusterName::parse(one_of(random, &["paris", "tokyo"])).unwrap()
}

fn address(random: &mut StdRng) -> IpAddr {
    one_of(random, &["10.0.0.1", "10.0.0.2", "2001:db8::1"]).parse().unwrap()
}

fn word(random: &mut StdRng) -> String {
    one_of(random, &["a", "b", ""]).to_owned()
}

fn filter(random: &mut StdRng) -> Filter {
    let words = ["a".to_owned(), "b".to_owned()];
    let nets: [IpNet; 3] = ["10.0.0.0/8", "10.0.0.1/32", "2001:db8::1/128"].map(|net| net.parse().unwrap());
    let (ip, host, cluster_name) = (address(random), address(random), cluster(random));
    Filter {
        kinds: maybe(random, &Kind::STREAMED).into_iter().collect(),
        clusters: maybe(random, &[cluster_name]).into_iter().collect(),
        namespace: maybe(random, &words),
        name: maybe(random, &words),
        labels: maybe(random, &[LabelSelector::parse("a=b").unwrap()]),
        shared: maybe(random, &[true, false]),
        ip: maybe(random, &[ip]),
        scope: maybe(random, &[IdentityScope::Global]),
        cidr: maybe(random, &nets),
        identity: maybe(random, &[1, 2]),
        hosts: maybe(random, &[vec![(None, host)]]),
        pod: maybe(random, &words),
        search: maybe(random, &[SearchText::new("a")]),
    }
}

fn object(random: &mut StdRng, kind: Kind) -> Object {
    let labels = [("a".to_owned(), word(random))].into();
    match kind {
        Kind::Node => {
            let addresses = vec![NodeAddress { address_type: "InternalIP".to_owned(), ip: address(random) }];
            Object::Node(Box::new(Node { addresses, labels, ..Node::default() }))
        }
        Kind::Service => Object::Service(Service { labels, shared: random.random(), ..Service::default() }),
        Kind::ServiceExport | Kind::EndpointSlice => {
            slice_object(&EndpointSlice { labels, address_type: "IPv4".to_owned(), ..EndpointSlice::default() })
        }
        Kind::Identity => Object::Identity(Identity { id: 1, labels: labels.into() }),
        Kind::Ip | Kind::NodeIp => Object::Ip(IpEntry {
            host_ip: random.random_bool(0.5).then(|| address(random)),
            namespace: word(random),
            pod_name: word(random),
            ..IpEntry::new(ObjectPrefix { net: address(random).into(), host: true }, random.random_range(1..3))
        }),
        Kind::Cluster => Object::Cluster(ClusterPhase { phase: Some(one_of(random, &Phase::ALL)), cause: 0 }),
        Kind::Problem => {
            let clusters = one_of(random, &[vec!["paris"], vec!["paris", "tokyo"], vec![]]);
            Object::Finding(Box::new(FindingObject::new(FindingKind::DuplicateAddress, "host/10.0.0.1", clusters, "")))
        }
        Kind::Notice => unreachable!("a notice has no object"),
    }
}

fn change(random: &mut StdRng) -> Announcement {
    let kind = one_of(random, &[&Kind::STORED[..], &[Kind::Cluster, Kind::Problem]].concat());
    let name = match kind {
        Kind::Service | Kind::ServiceExport | Kind::EndpointSlice => one_of(random, &["a/b", "b/a", "a/a", "a"]).to_owned(),
        Kind::Node | Kind::Identity | Kind::Ip => word(random),
        Kind::NodeIp => format!("a#{}", address(random)),
        Kind::Cluster | Kind::Problem | Kind::Notice => String::new(),
    };
    let mut version = || random.random_bool(0.7).then(|| Version::of_own_object(Arc::new(object(random, kind))));
    let (old, new) = (version(), version());
    let key = match kind {
        Kind::Problem => EntryKey::of_problem("duplicateAddress", None, "host/10.0.0.1"),
        _ => EntryKey::new(kind, cluster(random), name),
    };
    Announcement { sequence: Sequence(1), key, old, new, revision: None, replaces: None, deleted: None }
}

#[test]
fn a_change_has_a_term_of_every_filter_that_it_matches() {
    let mut random = StdRng::seed_from_u64(6);
    let mut matched = 0;
    let position = Position { epoch: Epoch(1), sequence: Sequence(1) };
    for _ in 0..60_000 {
        let (filter, change) = (filter(&mut random), change(&mut random));
        if StreamEvent::of_change(&filter, &change, position.into()).is_none() {
            continue;
        }
        matched += 1;
        let mut terms = HashSet::new();
        filter_terms_of(&change, |term| {
            terms.insert(term.clone());
        });
        let reached = may_match_any_filter(&change) || filter.terms().iter().any(|term| terms.contains(term));
        assert!(reached, "{filter:?}\n{change:?}");
    }
    assert!(matched > 2_000, "only {matched} changes matched");
}
