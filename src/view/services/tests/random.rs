//! Compares the index with a model that scans all records after every event.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const CLUSTERS: [&str; 3] = ["paris", "tokyo", "oslo"];
const SERVICES: [&str; 4] = ["shop/cart", "shop/cart-db", "shop/basket", "till/cart"];

fn event(random: &mut StdRng) -> SourceEvent {
    let cluster = CLUSTERS[random.random_range(0..CLUSTERS.len())];
    let service = SERVICES[random.random_range(0..SERVICES.len())];
    let kind = [Kind::Service, Kind::EndpointSlice, Kind::ServiceExport][random.random_range(0..3)];
    match random.random_range(0..12) {
        0..=3 => Delete(kind, cluster, service),
        4 => Bad(kind, cluster, service),
        5 => RemoveCluster(cluster),
        _ => Put(kind, cluster, service, Arc::new(object(kind, service, random))),
    }
}

fn object(kind: Kind, service: &str, random: &mut StdRng) -> Object {
    let (namespace, name) = service.split_once('/').unwrap();
    let ip = format!("10.0.0.{} http=TCP/80", random.random_range(0..3));
    match kind {
        Kind::Service => Object::Service(Service { shared: random.random_bool(0.7), ..cart(&[&ip]) }),
        Kind::EndpointSlice => {
            let label = ["cart", "basket", ""][random.random_range(0..3)];
            let labels = LabelSet::from([(SERVICE_NAME_LABEL.to_owned(), label.to_owned())]);
            slice_object(&EndpointSlice { namespace: namespace.to_owned(), labels, ..slice(name, &["10.0.0.1"]) })
        }
        _ => Object::ServiceExport(Box::new(ServiceExport {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            created: SystemTime::UNIX_EPOCH,
            ports: Vec::new(),
            service_type: "ClusterSetIP".to_owned(),
            session_affinity: String::new(),
            session_affinity_timeout_seconds: None,
            ip_families: Vec::new(),
            internal_traffic_policy: String::new(),
            traffic_distribution: String::new(),
            labels: LabelSet::new(),
            annotations: LabelSet::new(),
        })),
    }
}

/// Returns the expected content of the index.
fn model(view: &View) -> BTreeMap<String, Vec<EntryKey>> {
    let mut services = BTreeMap::<String, Vec<EntryKey>>::new();
    for record in view.records_from(&EntryKey::lowest()) {
        let service = record.object.as_deref().and_then(|object| object.shared_service(&record.key));
        if let Some(service) = service {
            services.entry(service.to_string()).or_default().push(record.key.clone());
        }
    }
    services
}

#[test]
fn the_index_equals_the_model_after_every_event() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut view = View::default();
        for revision in 0..400 {
            let event = event(&mut random);
            view.apply(command(&event, revision), SystemTime::UNIX_EPOCH);
            let expected = model(&view);
            let found: BTreeMap<String, Vec<EntryKey>> = view
                .global_service_names("")
                .map(|service| (service.to_string(), view.indices.services.keys_of(service).cloned().collect()))
                .collect();
            assert_eq!(found, expected, "seed {seed}, after {event:?}");
            assert_eq!(view.global_service_count(), expected.len() as u64, "seed {seed}, after {event:?}");
            for service in SERVICES.map(smol_str::SmolStr::new) {
                let has = |wanted: &[ClusterName]| {
                    expected.get(&*service).is_some_and(|keys| keys.iter().any(|key| wanted.contains(&key.cluster)))
                };
                for wanted in
                    CLUSTERS.map(|one| CLUSTERS.iter().filter(|other| **other != one).map(|other| cluster(other)).collect::<Vec<_>>())
                {
                    let answers = [&wanted[..1], &wanted[..]].map(|wanted| (view.has_keys_of(&service, wanted), has(wanted)));
                    assert!(
                        answers.iter().all(|(found, expected)| found == expected),
                        "seed {seed}, {service} of {wanted:?} after {event:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn names_are_listed_from_any_start() {
    let put = |service: &'static str| Put(Kind::Service, "paris", service, Arc::new(Object::Service(cart(&[]))));
    let view = view_after(&[put("shop/cart"), put("shop/basket"), put("a/z"), put("shop-b/a")]);
    let from = |start: &str| view.global_service_names(start).map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(from(""), ["a/z", "shop-b/a", "shop/basket", "shop/cart"]);
    assert_eq!(from("shop/"), ["shop/basket", "shop/cart"]);
    assert_eq!(from("shop/cart"), ["shop/cart"]);
    assert_eq!(from("shop/cart "), [""; 0]);
}
