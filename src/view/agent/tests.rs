//! The rules of an agent's ipcache as a table of cases, and against a datapath that knows nothing but the notifications.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;

fn host(ip: &str) -> ObjectPrefix {
    ObjectPrefix { net: ip.parse::<IpAddr>().unwrap().into(), host: true }
}

fn cidr(net: &str) -> ObjectPrefix {
    ObjectPrefix { net: net.parse().unwrap(), host: false }
}

fn claim(identity: u32, host_ip: &str) -> Claim {
    let host_ip = (!host_ip.is_empty()).then(|| host_ip.parse().unwrap());
    Claim { source: Source::ClusterMesh, identity, host_ip, encryption_key: 0, metadata: None }
}

fn upserted(net: &str, old: Option<(u32, &str)>, new: Claim) -> Result<Notification, Silence> {
    let old = old.map(|(identity, host_ip)| (identity, (!host_ip.is_empty()).then(|| host_ip.parse().unwrap())));
    Ok(Notification::Upsert { net: net.parse().unwrap(), old, new })
}

fn deleted(net: &str, old: Claim) -> Result<Notification, Silence> {
    Ok(Notification::Delete { net: net.parse().unwrap(), old })
}

const NODE: &str = "172.18.1.1";
const OTHER: &str = "172.18.1.2";

/// What happens and what is told of it.
type Step = (Event, Result<Notification, Silence>);

enum Event {
    Upsert(ObjectPrefix, Claim),
    Delete(ObjectPrefix),
}
use Event::{Delete, Upsert};

/// Each row: what happens, and what the datapath is told of it (docs/protocol.md §4.4, §4.5).
#[test]
fn every_rule_of_upsert_and_delete_notifies_as_an_agent_does() {
    let full = || cidr("10.0.0.1/32");
    let pod = || host("10.0.0.1");
    let told = "10.0.0.1/32";
    let cases: Vec<(&str, Vec<Step>)> = vec![
        (
            "a change says what it was, a repetition nothing",
            vec![
                (Upsert(pod(), claim(7, NODE)), upserted(told, None, claim(7, NODE))),
                (Upsert(pod(), claim(7, NODE)), Err(Silence::Same)),
                (Upsert(pod(), claim(8, OTHER)), upserted(told, Some((7, NODE)), claim(8, OTHER))),
                (Delete(pod()), deleted(told, claim(8, OTHER))),
                (Delete(pod()), Err(Silence::Unknown)),
            ],
        ),
        (
            "a CIDR of full length behind a host is stored silently",
            vec![
                (Upsert(pod(), claim(7, NODE)), upserted(told, None, claim(7, NODE))),
                (Upsert(full(), claim(9, OTHER)), Err(Silence::Shadowed)),
                (Upsert(full(), claim(10, OTHER)), Err(Silence::Shadowed)),
                (Delete(pod()), upserted(told, Some((7, NODE)), claim(10, OTHER))),
                (Delete(full()), deleted(told, claim(10, OTHER))),
            ],
        ),
        (
            "a new host before a CIDR says what the CIDR was",
            vec![
                (Upsert(full(), claim(9, OTHER)), upserted(told, None, claim(9, OTHER))),
                (Upsert(pod(), claim(7, NODE)), upserted(told, Some((9, OTHER)), claim(7, NODE))),
                (Delete(full()), Err(Silence::Shadowed)),
                (Delete(pod()), deleted(told, claim(7, NODE))),
            ],
        ),
        (
            "twins that mean the same are told once",
            vec![
                (Upsert(full(), claim(7, NODE)), upserted(told, None, claim(7, NODE))),
                (Upsert(pod(), claim(7, NODE)), Err(Silence::TwinIsSame)),
                (Delete(pod()), Err(Silence::TwinIsSame)),
                (Delete(full()), deleted(told, claim(7, NODE))),
            ],
        ),
        (
            "twins with the same identity behind different nodes differ",
            vec![
                (Upsert(full(), claim(7, "")), upserted(told, None, claim(7, ""))),
                (Upsert(pod(), claim(7, NODE)), upserted(told, Some((7, "")), claim(7, NODE))),
                (Delete(pod()), upserted(told, Some((7, NODE)), claim(7, ""))),
            ],
        ),
        (
            "only a CIDR of full length is shadowed, whatever its base address",
            vec![
                (Upsert(host("10.0.0.0"), claim(7, NODE)), upserted("10.0.0.0/32", None, claim(7, NODE))),
                (Upsert(cidr("10.0.0.0/24"), claim(2, OTHER)), upserted("10.0.0.0/24", None, claim(2, OTHER))),
                (Delete(cidr("10.0.0.0/24")), deleted("10.0.0.0/24", claim(2, OTHER))),
            ],
        ),
        (
            "both families",
            vec![
                (Upsert(cidr("fd00::1/128"), claim(9, OTHER)), upserted("fd00::1/128", None, claim(9, OTHER))),
                (Upsert(host("fd00::1"), claim(7, NODE)), upserted("fd00::1/128", Some((9, OTHER)), claim(7, NODE))),
            ],
        ),
    ];
    for (name, events) in cases {
        let mut ipcache = AgentIpcache::default();
        for (number, (event, expected)) in events.into_iter().enumerate() {
            let found = match event {
                Upsert(prefix, claim) => ipcache.upsert(prefix, claim),
                Delete(prefix) => ipcache.delete(prefix, Source::ClusterMesh),
            };
            assert_eq!(found, expected, "{name}, event {number}");
        }
    }
}

#[test]
fn the_agents_of_the_seeds_tell_a_repetition_again() {
    let mut ipcache = AgentIpcache::new(Era::Seeds);
    let claim = Claim { source: Era::Seeds.remote(), ..claim(7, NODE) };
    assert_eq!(ipcache.upsert(host("10.0.0.1"), claim.clone()), upserted("10.0.0.1/32", None, claim.clone()));
    assert_eq!(ipcache.upsert(host("10.0.0.1"), claim.clone()), upserted("10.0.0.1/32", Some((7, NODE)), claim));
}

#[test]
fn a_weaker_source_changes_nothing_and_only_its_own_source_deletes() {
    let mut ipcache = AgentIpcache::default();
    let local = Claim { source: Source::Local, ..claim(1, "") };
    assert_eq!(ipcache.upsert(host("10.0.0.1"), claim(7, NODE)), upserted("10.0.0.1/32", None, claim(7, NODE)));
    assert_eq!(ipcache.upsert(host("10.0.0.1"), local.clone()), upserted("10.0.0.1/32", Some((7, NODE)), local.clone()));
    assert_eq!(ipcache.upsert(host("10.0.0.1"), claim(7, NODE)), Err(Silence::SourceRefused));
    assert_eq!(ipcache.delete(host("10.0.0.1"), Source::ClusterMesh), Err(Silence::SourceRefused));
    assert_eq!(ipcache.delete(host("10.0.0.1"), Source::Local), deleted("10.0.0.1/32", local));
}

/// The whole table of each era: for what is there (rows), which of the new ones may take its place.
#[test]
fn sources_have_an_order_and_the_seeds_had_rules() {
    use Source::{
        ClusterMesh, CustomResource, Directory, Generated, KubeApiServer, Kubernetes, Kvstore, Local, LocalApi, Restored, Unspecified,
    };
    let all =
        [KubeApiServer, Local, Kvstore, CustomResource, Kubernetes, ClusterMesh, Directory, LocalApi, Generated, Restored, Unspecified];
    for (there, existing) in all.into_iter().enumerate() {
        for (new, source) in all.into_iter().enumerate() {
            assert_eq!(Era::Current.may_overwrite(source, existing), new <= there, "{source:?} over {existing:?}");
        }
    }
    let six = [Unspecified, Generated, Kubernetes, CustomResource, Kvstore, Local];
    let expected: [(Source, &[Source]); 6] = [
        (Unspecified, &six),
        (Generated, &[Generated, Kubernetes, CustomResource, Kvstore, Local]),
        (Kubernetes, &[Kubernetes, CustomResource, Kvstore, Local]),
        (CustomResource, &[CustomResource, Kvstore, Local]),
        (Kvstore, &[Kvstore, Local]),
        (Local, &[Local]),
    ];
    for (existing, allowed) in expected {
        let found: Vec<Source> = six.into_iter().filter(|new| Era::Seeds.may_overwrite(*new, existing)).collect();
        assert_eq!(found, allowed, "{existing:?}");
    }
}

#[test]
fn metadata_is_there_if_one_of_its_parts_is() {
    let entry = |namespace: &str, pod: &str, ports: &[u16]| IpEntry {
        prefix: host("10.0.0.1"),
        identity: 7,
        host_ip: None,
        encryption_key: 3,
        namespace: namespace.to_owned(),
        pod_name: pod.to_owned(),
        pod_uid: "u".to_owned(),
        service_account: "s".to_owned(),
        named_ports: ports.iter().map(|port| NamedPort { name: "p".to_owned(), port: *port, protocol: "TCP".to_owned() }).collect(),
    };
    let has = |entry: IpEntry| Claim::of(&entry, Source::ClusterMesh).metadata.is_some();
    assert_eq!(
        [has(entry("", "", &[])), has(entry("a", "", &[])), has(entry("", "b", &[])), has(entry("", "", &[1]))],
        [false, true, true, true]
    );
}

/// Listeners that hear the notifications hold what a new listener is dumped, at every moment; lookups and the reverse indices agree with
/// a plain search; and the order of changes to different prefixes does not matter.
#[test]
fn notifications_replayed_give_the_dump_and_order_gives_nothing_else() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let prefixes = [
            host("10.0.0.1"),
            cidr("10.0.0.1/32"),
            host("10.0.0.0"),
            cidr("10.0.0.0/24"),
            cidr("0.0.0.0/0"),
            host("fd00::1"),
            cidr("fd00::1/128"),
            cidr("fd00::/64"),
        ];
        let sources = [Source::Kvstore, Source::ClusterMesh, Source::Generated];
        let (mut ipcache, mut datapath) = (AgentIpcache::default(), HashMap::new());
        for step in 0..120 {
            let prefix = prefixes[random.random_range(0..prefixes.len())];
            let source = sources[random.random_range(0..sources.len())];
            let new = Claim { source, ..claim(random.random_range(1..4), [NODE, OTHER, ""][random.random_range(0..3)]) };
            let told = if random.random_bool(0.6) { ipcache.upsert(prefix, new) } else { ipcache.delete(prefix, source) };
            match told {
                Ok(Notification::Upsert { net, old, new }) => {
                    assert_eq!(datapath.insert(net, new.meaning()), old, "seed {seed}, step {step}: the old meaning is what was told");
                }
                Ok(Notification::Delete { net, old }) => assert_eq!(datapath.remove(&net), Some(old.meaning()), "seed {seed}, step {step}"),
                Err(_) => {}
            }
            let dump: HashMap<IpNet, _> = ipcache.dump().map(|(net, claim)| (net, claim.meaning())).collect();
            assert_eq!(datapath, dump, "seed {seed}, step {step}");
            assert_indices_agree(&ipcache);
        }
        let mut claims: Vec<(ObjectPrefix, Claim)> = ipcache.claims.clone().into_iter().collect();
        claims.shuffle(&mut random);
        let mut again = AgentIpcache::default();
        for (prefix, claim) in claims {
            drop(again.upsert(prefix, claim));
        }
        assert_eq!((&again.claims, &again.by_identity, &again.by_host), (&ipcache.claims, &ipcache.by_identity, &ipcache.by_host));
    }
}

fn assert_indices_agree(ipcache: &AgentIpcache) {
    for identity in 1..4 {
        let plain: Vec<_> = ipcache.claims.iter().filter(|(_, claim)| claim.identity == identity).map(|(prefix, _)| *prefix).collect();
        assert_eq!(ipcache.by_identity(identity).collect::<Vec<_>>(), plain);
    }
    for node in [NODE, OTHER] {
        let node: IpAddr = node.parse().unwrap();
        let plain: Vec<_> = ipcache.claims.iter().filter(|(_, claim)| claim.host_ip == Some(node)).map(|(prefix, _)| *prefix).collect();
        assert_eq!(ipcache.by_host(node).collect::<Vec<_>>(), plain);
    }
    for ip in ["10.0.0.1", "10.0.0.0", "10.0.0.9", "192.0.2.1", "fd00::1", "fd00::2", "2001:db8::1"] {
        let ip: IpAddr = ip.parse().unwrap();
        let covering = ipcache.claims.iter().filter(|(prefix, _)| prefix.net.contains(&ip));
        let best = covering.max_by_key(|(prefix, _)| (prefix.net.prefix_len(), prefix.host)).map(|(prefix, claim)| (*prefix, claim));
        assert_eq!(ipcache.lookup(ip), best);
    }
}
