//! Entries derived from nodes: their announcements after each event of a node, and their use in
//! lookups.

use super::*;

/// A view to which events of nodes are applied.
struct NodeScenario {
    view: View,
    revision: i64,
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn node_key(name: &str) -> EntryKey {
    EntryKey::new(Kind::Node, cluster(0), name)
}

fn node_scope() -> Scope {
    Scope { cluster: cluster(0), kind: Kind::Node }
}

/// Returns a node's value. `rest` are further fields.
fn node(name: &str, addresses: &[(&str, &str)], rest: &str) -> Vec<u8> {
    let addresses: Vec<String> = addresses.iter().map(|(of_type, ip)| format!(r#"{{"Type":"{of_type}","IP":"{ip}"}}"#)).collect();
    format!(r#"{{"Name":"{name}","Cluster":"paris","IPAddresses":[{}]{rest}}}"#, addresses.join(",")).into_bytes()
}

fn short(key: &EntryKey) -> String {
    let kind = if key.kind == Kind::NodeIp { "ip" } else { key.kind.api_name() };
    format!("{kind} {}", key.name)
}

impl NodeScenario {
    fn new() -> Self {
        Self { view: View::starting_at(Sequence(100)), revision: 0 }
    }

    fn apply(&mut self, command: Command) -> Vec<String> {
        let change_set = self.view.apply(command, NOW);
        announced(&change_set)
    }

    fn put(&mut self, key: &EntryKey, value: &[u8]) -> Vec<String> {
        self.revision += 1;
        let source = SourceStamp { mod_revision: Revision(self.revision), lease: LeaseId(9), held: false };
        self.change(Change::Put { key: key.clone(), value: value.into(), decoded: decoded(key, value), source })
    }

    fn change(&mut self, change: Change) -> Vec<String> {
        let scope = scope_of(key_of(&change));
        self.apply(Command::Apply { scope, changes: vec![change], cursor: None })
    }

    /// Returns `name#address identity@host key revision` of each derived entry.
    fn entries(&self) -> Vec<String> {
        let lowest = EntryKey::lowest_of(Kind::NodeIp);
        let records = self.view.records_from(&lowest).filter(|record| record.key.kind.listed_as() == Kind::Ip);
        let line = |record: Arc<Record>| match record.object.as_deref() {
            Some(Object::Ip(IpEntry { prefix, identity, host_ip, encryption_key, .. })) => {
                assert_eq!(record.key.name.rsplit('#').next(), Some(&*prefix.to_string()));
                assert_eq!(self.view.source_stamp_of(&record).held, self.view.record(&record.key.origin()).unwrap().source.held);
                let host_ip = host_ip.map(|ip| ip.to_string()).unwrap_or_default();
                format!("{} {identity}@{host_ip} {encryption_key} r{}", record.key.name, record.source.mod_revision.0)
            }
            other => panic!("{other:?}"),
        };
        records.map(line).collect()
    }

    fn lookup(&self, ip: &str) -> Vec<String> {
        self.view.lookup(ip.parse().unwrap(), None).iter().map(|found| short(&found.record.key)).collect()
    }
}

/// Returns the announcements, in order. Checks that each change is also stored in the same change
/// set.
fn announced(change_set: &ChangeSet) -> Vec<String> {
    let mut keys: Vec<EntryKey> = change_set.announcements.iter().map(|announcement| announcement.key.clone()).collect();
    let sequences: Vec<u64> = change_set.announcements.iter().map(|announcement| announcement.sequence.0).collect();
    assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    for announcement in &change_set.announcements {
        let stored = change_set
            .records
            .iter()
            .rev()
            .find_map(|(key, stored)| (*key == announcement.key).then_some(stored))
            .expect("an announced change must be stored");
        let expected = announcement.deleted.is_none().then_some(announcement.sequence);
        assert_eq!(stored.as_ref().map(|record| record.last_sequence), expected);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), change_set.announcements.len());
    let line = |announcement: &Announcement| match (announcement.deleted, announcement.old_object()) {
        (Some(reason), _) => format!("- {} ({reason:?})", short(&announcement.key)),
        (None, Some(_)) => format!("~ {}", short(&announcement.key)),
        (None, None) => format!("+ {}", short(&announcement.key)),
    };
    change_set.announcements.iter().map(line).collect()
}

/// Name of the case, the node's addresses, its other fields, and the expected entries.
type DerivationCase<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

#[test]
fn a_node_has_the_derived_entries_that_an_agent_adds() {
    let usual: &[(&str, &str)] = &[("InternalIP", "172.18.0.2"), ("InternalIP", "fc00::2"), ("CiliumInternalIP", "10.1.2.10")];
    let services = r#","IPv4HealthIP":"10.1.2.134","IPv6HealthIP":"fd00::86","IPv4IngressIP":"10.1.2.7","IPv6IngressIP":"""#;
    let encrypted = format!(r#"{services},"EncryptionKey":7"#);
    let cases: &[DerivationCase<'_>] = &[
        (
            "all fields, with the encryption key where agents use it",
            usual,
            &encrypted,
            &[
                "a#10.1.2.10 6@172.18.0.2 0 r1",
                "a#10.1.2.134 4@172.18.0.2 7 r1",
                "a#10.1.2.7 8@172.18.0.2 7 r1",
                "a#172.18.0.2 6@172.18.0.2 0 r1",
                "a#fc00::2 6@172.18.0.2 0 r1",
                "a#fd00::86 4@172.18.0.2 7 r1",
            ],
        ),
        (
            "the first use of an address counts",
            &[("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.0.0.1")],
            r#","IPv4HealthIP":"10.0.0.1","EncryptionKey":3"#,
            &["a#10.0.0.1 6@10.0.0.1 0 r1"],
        ),
        ("health before ingress", &[], r#","IPv4HealthIP":"10.0.0.9","IPv4IngressIP":"10.0.0.9""#, &["a#10.0.0.9 4@ 0 r1"]),
        (
            "IPv4-mapped addresses are IPv4",
            &[("InternalIP", "::ffff:10.0.0.1"), ("InternalIP", "10.0.0.1")],
            "",
            &["a#10.0.0.1 6@10.0.0.1 0 r1"],
        ),
        (
            "a node with only IPv6",
            &[("CiliumInternalIP", "fd00::1"), ("InternalIP", "fc00::2")],
            "",
            &["a#fc00::2 6@fc00::2 0 r1", "a#fd00::1 6@fc00::2 0 r1"],
        ),
        (
            "internal before external before others",
            &[("Hostname", "10.0.0.4"), ("ExternalIP", "10.0.0.5"), ("InternalIP", "10.0.0.6")],
            "",
            &["a#10.0.0.4 6@10.0.0.6 0 r1", "a#10.0.0.5 6@10.0.0.6 0 r1", "a#10.0.0.6 6@10.0.0.6 0 r1"],
        ),
        (
            "external before others",
            &[("Hostname", "10.0.0.4"), ("ExternalIP", "10.0.0.5")],
            "",
            &["a#10.0.0.4 6@10.0.0.5 0 r1", "a#10.0.0.5 6@10.0.0.5 0 r1"],
        ),
        ("the address of a router is not the IP of the node", &[("CiliumInternalIP", "10.0.0.4")], "", &["a#10.0.0.4 6@ 0 r1"]),
        (
            "pod CIDRs of one family have the identity world and the key of the node",
            &[("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.1.0.1")],
            r#","IPv4AllocCIDR":"10.1.0.0/24","IPv4SecondaryAllocCIDRs":[{"IP":"10.2.0.0","Mask":"//8AAA=="},null],"EncryptionKey":7"#,
            &["a#10.0.0.1 6@10.0.0.1 0 r1", "a#10.1.0.0/24 2@10.0.0.1 7 r1", "a#10.1.0.1 6@10.0.0.1 0 r1", "a#10.2.0.0/16 2@10.0.0.1 7 r1"],
        ),
        (
            "pod CIDRs of both families have the world of their family, even if one has only secondary CIDRs",
            &[],
            r#","IPv4AllocCIDR":"10.1.0.0/24","IPv6SecondaryAllocCIDRs":["fd00:1::/64","fd00:2::/64"]"#,
            &["a#10.1.0.0/24 9@ 0 r1", "a#fd00:1::/64 10@ 0 r1", "a#fd00:2::/64 10@ 0 r1"],
        ),
        (
            "host bits are ignored, and duplicates count once",
            &[],
            r#","IPv4AllocCIDR":"10.1.0.9/24","IPv4SecondaryAllocCIDRs":["10.1.0.0/24","10.1.0.7/32"],"IPv4HealthIP":"10.1.0.7""#,
            &["a#10.1.0.0/24 2@ 0 r1", "a#10.1.0.7 4@ 0 r1", "a#10.1.0.7/32 2@ 0 r1"],
        ),
        ("only IPv6", &[], r#","IPv6AllocCIDR":"fd00:1::/64""#, &["a#fd00:1::/64 2@ 0 r1"]),
        ("nothing", &[], "", &[]),
    ];
    for (name, addresses, rest, expected) in cases {
        let mut scenario = NodeScenario::new();
        let announced = scenario.put(&node_key("a"), &node("a", addresses, rest));
        assert_eq!((announced.len(), &announced[0]), (expected.len() + 1, &"+ node a".to_owned()), "{name}");
        assert_eq!(scenario.entries(), *expected, "{name}");
    }
}

#[test]
fn each_event_of_a_node_is_announced_with_its_derived_entries() {
    let mut scenario = NodeScenario::new();
    let (a, b) = (node_key("a"), node_key("a#b"));
    let none: [&str; 0] = [];
    let one = [("InternalIP", "10.0.0.1")];
    let two = [("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.0.1.1")];
    // in the order of the source, after the node
    assert_eq!(scenario.put(&a, &node("a", &two, "")), ["+ node a", "+ ip a#10.0.0.1", "+ ip a#10.0.1.1"]);
    // a name that continues with the separator belongs to another node
    assert_eq!(scenario.put(&b, &node("a#b", &one, "")), ["+ node a#b", "+ ip a#b#10.0.0.1"]);
    assert_eq!(scenario.put(&a, &node("a", &two, "")), none, "equal bytes");
    assert_eq!(scenario.put(&a, &node("a", &two, r#","BootID":"1""#)), ["~ node a"], "a field that the entries do not contain");
    let key = r#","EncryptionKey":5,"IPv4HealthIP":"10.0.1.9","IPv4AllocCIDR":"10.0.1.0/24""#;
    assert_eq!(scenario.put(&a, &node("a", &two, key)), ["~ node a", "+ ip a#10.0.1.0/24", "+ ip a#10.0.1.9"]);
    let of_a = ["a#10.0.0.1 6@10.0.0.1 0 r1", "a#10.0.1.0/24 2@10.0.0.1 5 r5", "a#10.0.1.1 6@10.0.0.1 0 r1", "a#10.0.1.9 4@10.0.0.1 5 r5"];
    let of_b = "a#b#10.0.0.1 6@10.0.0.1 0 r2";
    assert_eq!(scenario.entries(), [&of_a[..], &[of_b]].concat());
    // an unusable value keeps the last usable node and its entries; the usable value again changes
    // nothing
    assert_eq!(scenario.put(&a, b"{"), ["~ node a"]);
    assert_eq!(scenario.put(&a, &node("a", &two, key)), ["~ node a"]);
    assert_eq!(scenario.change(Change::Hold { key: a.clone() }), none);
    assert_eq!(scenario.entries().len(), 5);
    // an invalid or empty pod CIDR makes the node unusable
    for cidr in [r#""""#, r#""10.0.1.0""#, "{}", r#"{"IP":"10.0.1.0","Mask":"/wD/AA=="}"#] {
        assert_eq!(scenario.put(&a, &node("a", &two, &format!(r#","IPv4AllocCIDR":{cidr}"#))), ["~ node a"], "{cidr}");
        assert_eq!(scenario.entries().len(), 5, "{cidr}");
    }
    // new entries first, so that the node always has an address
    let moved = [("InternalIP", "10.0.0.9"), ("CiliumInternalIP", "10.0.1.1")];
    let key = r#","EncryptionKey":5,"IPv4HealthIP":"10.0.1.9","IPv4AllocCIDR":"10.0.2.0/24""#;
    let expected = [
        "~ node a",
        "+ ip a#10.0.0.9",
        "~ ip a#10.0.1.1",
        "+ ip a#10.0.2.0/24",
        "~ ip a#10.0.1.9",
        "- ip a#10.0.0.1 (Deleted)",
        "- ip a#10.0.1.0/24 (Deleted)",
    ];
    assert_eq!(scenario.put(&a, &node("a", &moved, key)), expected);
    let of_a =
        ["a#10.0.0.9 6@10.0.0.9 0 r12", "a#10.0.1.1 6@10.0.0.9 0 r12", "a#10.0.1.9 4@10.0.0.9 5 r12", "a#10.0.2.0/24 2@10.0.0.9 5 r12"];
    assert_eq!(scenario.entries(), [&of_a[..], &[of_b]].concat());
    assert_eq!(scenario.change(Change::Delete { key: b.clone() }), ["- node a#b (Deleted)", "- ip a#b#10.0.0.1 (Deleted)"]);
    assert_eq!(scenario.change(Change::Delete { key: b }), none);
    // a list without the node
    scenario.apply(Command::BeginList(node_scope()));
    let pruned = scenario.apply(Command::Prune(node_scope()));
    let derived = ["10.0.0.9", "10.0.1.1", "10.0.1.9", "10.0.2.0/24"].map(|ip| format!("- ip a#{ip} (Deleted)"));
    assert_eq!(pruned, [&["- node a (Deleted)".to_owned()][..], &derived].concat());
    assert_eq!((scenario.entries().len(), scenario.view.entry_count()), (0, 0));
    // a key that never had a usable value
    assert_eq!(scenario.put(&a, b"{"), ["+ node a"]);
    assert_eq!(scenario.put(&a, &node("a", &one, "")), ["+ node a", "+ ip a#10.0.0.1"]);
    let removed = scenario.apply(Command::Remove { cluster: cluster(0), reason: DeleteReason::ClusterRemoved });
    assert_eq!(removed, ["- node a (ClusterRemoved)", "- ip a#10.0.0.1 (ClusterRemoved)"]);
    assert_eq!(scenario.view.object_count(Kind::Ip), 0);
    assert_eq!(scenario.view.records_from(&EntryKey::lowest()).count(), 0);
}

/// The nodes of a list are packed together with their derived entries, unless such entries exist.
#[test]
fn nodes_of_a_list_have_the_same_derived_entries_as_single_nodes() {
    let values = ["a", "a-2", "b"].map(|name| {
        let pod_cidr = r#","IPv4AllocCIDR":{"IP":"10.1.2.0","Mask":"////AA=="}"#;
        (node_key(name), node(name, &[("InternalIP", "172.18.0.2"), ("CiliumInternalIP", "10.1.2.10")], pod_cidr))
    });
    for outdated in [None, Some((1, "172.18.0.1")), Some((2, "172.18.0.9"))] {
        let (mut single, mut listed) = (NodeScenario::new(), NodeScenario::new());
        listed.view = listed.view.with_packed_puts_min(3);
        let outdated_key = outdated
            .map(|(index, ip): (usize, &str)| EntryKey::of_node_ip(&values[index].0, ObjectPrefix::of_host(ip.parse::<IpAddr>().unwrap())));
        for scenario in [&mut single, &mut listed] {
            outdated_key.iter().for_each(|key| drop(scenario.put(key, b"{}")));
        }
        let announced_singly: Vec<String> = values.iter().flat_map(|(key, value)| single.put(key, value)).collect();
        let put = |(key, value): &(EntryKey, Vec<u8>)| {
            listed.revision += 1;
            let source = SourceStamp { mod_revision: Revision(listed.revision), lease: LeaseId(9), held: false };
            Change::Put { key: key.clone(), value: value.as_slice().into(), decoded: decoded(key, value), source }
        };
        let changes = values.iter().map(put).collect();
        let announced_together = listed.apply(Command::Apply { scope: node_scope(), changes, cursor: None });
        assert_eq!(announced_together, announced_singly, "{outdated:?}");
        assert_eq!((listed.entries(), listed.entries().len()), (single.entries(), 9), "{outdated:?}");
        assert_eq!(listed.view.unpacked_count() == 0, outdated.is_none(), "{outdated:?}");
    }
}

#[test]
fn a_lookup_lists_announced_entries_first_and_newer_ones_before_older() {
    let mut scenario = NodeScenario::new();
    let key_in = |number: u32, kind: Kind, name: &str| EntryKey::new(kind, cluster(number), name);
    let ip_value = |ip: &str, mask: &str| format!(r#"{{"IP":"{ip}","Mask":{mask},"HostIP":"","ID":300}}"#).into_bytes();
    let tokyo = |addresses: &[(&str, &str)]| String::from_utf8(node("b", addresses, "")).unwrap().replace("paris", "tokyo").into_bytes();
    scenario.put(&key_in(0, Kind::Ip, "10.0.0.0/24"), &ip_value("10.0.0.0", r#""////AA==""#));
    assert_eq!(scenario.lookup("10.0.0.1"), ["ipcache 10.0.0.0/24"]);
    // a host precedes CIDRs that cover it, even one of full length
    scenario.put(&key_in(0, Kind::Ip, "10.0.0.1/32"), &ip_value("10.0.0.1", r#""/////w==""#));
    scenario.put(&key_in(0, Kind::Node, "a"), &node("a", &[("InternalIP", "10.0.0.1")], ""));
    assert_eq!(scenario.lookup("10.0.0.1"), ["ip a#10.0.0.1"]);
    assert_eq!(scenario.lookup("10.0.0.2"), ["ipcache 10.0.0.0/24"]);
    scenario.put(&key_in(1, Kind::Node, "b"), &tokyo(&[("InternalIP", "10.0.0.1")]));
    assert_eq!(scenario.lookup("10.0.0.1"), ["ip b#10.0.0.1", "ip a#10.0.0.1"], "the newest first");
    scenario.put(&key_in(0, Kind::Ip, "10.0.0.1"), &ip_value("10.0.0.1", "null"));
    scenario.put(&key_in(0, Kind::Node, "a"), &node("a", &[("CiliumInternalIP", "10.0.0.1")], ""));
    assert_eq!(
        scenario.lookup("10.0.0.1"),
        ["ipcache 10.0.0.1", "ip a#10.0.0.1", "ip b#10.0.0.1"],
        "an announced entry first, however old"
    );
    let names: Vec<_> = scenario.view.lookup("10.0.0.1".parse().unwrap(), None).into_iter().map(|found| found.node_name).collect();
    assert_eq!(names, [None, Some("a".to_owned()), Some("b".to_owned())]);
    scenario.change(Change::Delete { key: key_in(0, Kind::Ip, "10.0.0.1") });
    scenario.change(Change::Delete { key: key_in(0, Kind::Node, "a") });
    assert_eq!(scenario.lookup("10.0.0.1"), ["ip b#10.0.0.1"]);
    scenario.put(&key_in(1, Kind::Node, "b"), &tokyo(&[]));
    assert_eq!(scenario.lookup("10.0.0.1"), ["ipcache 10.0.0.1/32"]);
}

/// The CIDR of a node answers for pods without an entry. It ranks last, even in the own cluster.
#[test]
fn a_pod_cidr_answers_for_pods_without_an_entry() {
    let mut scenario = NodeScenario::new();
    let key_in = |number: u32, kind: Kind, name: &str| EntryKey::new(kind, cluster(number), name);
    let ip_value = |ip: &str, mask: &str| format!(r#"{{"IP":"{ip}","Mask":{mask},"HostIP":"","ID":300}}"#).into_bytes();
    let pods = |net: &str| node("a", &[("InternalIP", "172.18.0.2")], &format!(r#","IPv4AllocCIDR":"{net}""#));
    scenario.put(&key_in(1, Kind::Ip, "10.0.0.0/8"), &ip_value("10.0.0.0", r#""/wAAAA==""#));
    scenario.put(&key_in(0, Kind::Node, "a"), &pods("10.0.0.0/24"));
    assert_eq!(scenario.lookup("10.0.0.1"), ["ip a#10.0.0.0/24"], "the longer prefix");
    assert_eq!(scenario.view.lookup("10.0.0.1".parse().unwrap(), None)[0].node_name.as_deref(), Some("a"));
    assert_eq!(scenario.lookup("10.0.1.1"), ["ipcache 10.0.0.0/8"]);
    scenario.put(&key_in(0, Kind::Ip, "10.0.0.0/28"), &ip_value("10.0.0.0", r#""////8A==""#));
    scenario.put(&key_in(1, Kind::Ip, "10.0.0.1"), &ip_value("10.0.0.1", "null"));
    assert_eq!(
        (scenario.lookup("10.0.0.1"), scenario.lookup("10.0.0.2")),
        (vec!["ipcache 10.0.0.1".into()], vec!["ipcache 10.0.0.0/28".into()])
    );
    assert_eq!(scenario.lookup("10.0.0.17"), ["ip a#10.0.0.0/24"]);
    let keys: Vec<String> = scenario.view.covering("10.0.0.1/32".parse().unwrap()).iter().map(short).collect();
    assert_eq!(keys, ["ipcache 10.0.0.1", "ipcache 10.0.0.0/28", "ip a#10.0.0.0/24", "ipcache 10.0.0.0/8"]);
    // an announced entry of any cluster and age precedes it
    scenario.put(&key_in(1, Kind::Ip, "10.0.0.0/24"), &ip_value("10.0.0.0", r#""////AA==""#));
    scenario.put(&key_in(0, Kind::Node, "a"), &pods("10.0.0.7/24"));
    for own in [None, Some(cluster(0)), Some(cluster(1))] {
        let found = scenario.view.lookup("10.0.0.17".parse().unwrap(), own.as_ref());
        let found: Vec<String> = found.iter().map(|found| short(&found.record.key)).collect();
        assert_eq!(found, ["ipcache 10.0.0.0/24", "ip a#10.0.0.0/24"], "{own:?}");
    }
    assert_eq!(scenario.view.clusters_at(ObjectPrefix::parse("10.0.0.0/24").unwrap()), [cluster(1)].into());
    scenario.change(Change::Delete { key: key_in(0, Kind::Node, "a") });
    scenario.change(Change::Delete { key: key_in(1, Kind::Ip, "10.0.0.0/24") });
    assert_eq!(scenario.lookup("10.0.0.17"), ["ipcache 10.0.0.0/8"]);
}

#[test]
fn a_derived_entry_is_confirmed_and_held_with_its_node() {
    let mut scenario = NodeScenario::new();
    let a = node_key("a");
    scenario.put(&a, &node("a", &[("InternalIP", "10.0.0.1")], ""));
    let restored = |record: Arc<Record>| Record { generation: 0, ..(*record).clone() };
    let records: Vec<Record> = scenario.view.records_from(&EntryKey::lowest()).map(restored).collect();
    let mut scenario = NodeScenario { view: View::starting_at(Sequence(200)), revision: 50 };
    records.into_iter().for_each(|record| scenario.view.restore(record));
    let state = |scenario: &NodeScenario| {
        let entry = scenario.view.record(&EntryKey::of_node_ip(&a, ObjectPrefix::parse("10.0.0.1").unwrap())).unwrap();
        let origin = scenario.view.source_stamp_of(&entry);
        (scenario.view.is_confirmed(&entry), origin.held, origin.mod_revision.0)
    };
    assert_eq!(state(&scenario), (false, false, 1));
    assert_eq!((scenario.view.entry_count(), scenario.view.scope(&node_scope()).unwrap().restored_count), (1, 1));
    scenario.put(&a, &node("a", &[("InternalIP", "10.0.0.1")], ""));
    assert_eq!(state(&scenario), (true, false, 51));
    scenario.change(Change::Hold { key: a.clone() });
    assert_eq!(state(&scenario), (true, true, 51));
    assert!(scenario.view.scope(&Scope { cluster: cluster(0), kind: Kind::NodeIp }).is_none());
}

/// The store of an older version, or a damaged one, can have nodes without entries, entries without
/// nodes, and entries of other rules.
#[test]
fn missing_or_outdated_derived_entries_are_rederived() {
    let mut whole = NodeScenario::new();
    for name in ["a", "b", "c"] {
        whole.put(&node_key(name), &node(name, &[("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")], ""));
    }
    let mut scenario = NodeScenario { view: View::starting_at(Sequence(200)), revision: 50 };
    for record in whole.view.records_from(&EntryKey::lowest()) {
        let record = Record { generation: 0, ..(*record).clone() };
        match &*record.key.name {
            "b" | "c#10.0.0.1" => {}
            "c#10.0.0.2" => {
                let value = String::from_utf8(record.value.to_vec()).unwrap().replace(r#""ID":6"#, r#""ID":4"#).into_bytes();
                scenario.view.restore(Record { object: decoded(&record.key, &value).ok(), value: value.into(), ..record });
            }
            _ => scenario.view.restore(record),
        }
    }
    let keys = scenario.view.keys_to_rederive();
    let change_set = scenario.view.rederive(&keys, NOW);
    assert_eq!(announced(&change_set), ["- ip b#10.0.0.1 (Deleted)", "- ip b#10.0.0.2 (Deleted)", "+ ip c#10.0.0.1", "~ ip c#10.0.0.2"]);
    assert_eq!(scenario.view.rederive(&scenario.view.keys_to_rederive(), NOW), ChangeSet::default());
    let expected = whole.entries();
    assert_eq!(scenario.entries(), expected.into_iter().filter(|line| !line.starts_with('b')).collect::<Vec<_>>());
}
