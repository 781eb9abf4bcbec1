//! Entries derived from nodes: what becomes of each event of a node, told in order, and which entry answers a lookup.

use super::*;

/// A life of nodes, with what is held and what was told after each step.
struct Life {
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

/// A node's value; `rest` are further fields.
fn node(name: &str, addresses: &[(&str, &str)], rest: &str) -> Vec<u8> {
    let addresses: Vec<String> = addresses.iter().map(|(of_type, ip)| format!(r#"{{"Type":"{of_type}","IP":"{ip}"}}"#)).collect();
    format!(r#"{{"Name":"{name}","Cluster":"paris","IPAddresses":[{}]{rest}}}"#, addresses.join(",")).into_bytes()
}

fn short(key: &EntryKey) -> String {
    let kind = if key.kind == Kind::NodeIp { "ip" } else { key.kind.api_name() };
    format!("{kind} {}", key.name)
}

impl Life {
    fn new() -> Self {
        Self { view: View::starting_at(Sequence(100)), revision: 0 }
    }

    fn apply(&mut self, command: Command) -> Vec<String> {
        let effects = self.view.apply(command, NOW);
        told(&effects)
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

    /// `name#address identity@host key revision` of each derived entry.
    fn held(&self) -> Vec<String> {
        let lowest = EntryKey::lowest_of(Kind::NodeIp);
        let records = self.view.records_from(&lowest).filter(|record| record.key.kind.listed_as() == Kind::Ip);
        let line = |record: Arc<Record>| match record.object.as_deref() {
            Some(Object::Ip(IpEntry { prefix, identity, host_ip, encryption_key, .. })) => {
                assert_eq!(record.key.name.rsplit('#').next(), Some(&*prefix.to_string()));
                assert_eq!(self.view.origin_of(&record).held, self.view.record(&record.key.origin()).unwrap().source.held);
                let host_ip = host_ip.map(|ip| ip.to_string()).unwrap_or_default();
                format!("{} {identity}@{host_ip} {encryption_key} r{}", record.key.name, record.source.mod_revision.0)
            }
            other => panic!("{other:?}"),
        };
        records.map(line).collect()
    }

    fn found(&self, ip: &str) -> Vec<String> {
        self.view.lookup(ip.parse().unwrap(), None).iter().map(|found| short(&found.record.key)).collect()
    }
}

/// What was announced, in order; everything announced must be stored in the same effects.
fn told(effects: &Effects) -> Vec<String> {
    let mut keys: Vec<EntryKey> = effects.announcements.iter().map(|announcement| announcement.key.clone()).collect();
    let sequences: Vec<u64> = effects.announcements.iter().map(|announcement| announcement.sequence.0).collect();
    assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    for announcement in &effects.announcements {
        let stored = effects
            .records
            .iter()
            .rev()
            .find_map(|(key, stored)| (*key == announcement.key).then_some(stored))
            .expect("must be stored with what it follows");
        let held = announcement.deleted.is_none().then_some(announcement.sequence);
        assert_eq!(stored.as_ref().map(|record| record.last_sequence), held);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), effects.announcements.len());
    let line = |announcement: &Announcement| match (announcement.deleted, announcement.old_object()) {
        (Some(reason), _) => format!("- {} ({reason:?})", short(&announcement.key)),
        (None, Some(_)) => format!("~ {}", short(&announcement.key)),
        (None, None) => format!("+ {}", short(&announcement.key)),
    };
    effects.announcements.iter().map(line).collect()
}

/// What is shown, the node's addresses, its other fields, and the entries.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

#[test]
fn a_node_s_addresses_pod_cidrs_health_and_ingress_are_entries_as_an_agent_makes_them() {
    let usual: &[(&str, &str)] = &[("InternalIP", "172.18.0.2"), ("InternalIP", "fc00::2"), ("CiliumInternalIP", "10.1.2.10")];
    let services = r#","IPv4HealthIP":"10.1.2.134","IPv6HealthIP":"fd00::86","IPv4IngressIP":"10.1.2.7","IPv6IngressIP":"""#;
    let encrypted = format!(r#"{services},"EncryptionKey":7"#);
    let cases: &[Case<'_>] = &[
        (
            "all there is, the key where agents use it",
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
            "an address listed twice is what it is first",
            &[("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.0.0.1")],
            r#","IPv4HealthIP":"10.0.0.1","EncryptionKey":3"#,
            &["a#10.0.0.1 6@10.0.0.1 0 r1"],
        ),
        ("health before ingress", &[], r#","IPv4HealthIP":"10.0.0.9","IPv4IngressIP":"10.0.0.9""#, &["a#10.0.0.9 4@ 0 r1"]),
        (
            "IPv4-mapped ones are IPv4",
            &[("InternalIP", "::ffff:10.0.0.1"), ("InternalIP", "10.0.0.1")],
            "",
            &["a#10.0.0.1 6@10.0.0.1 0 r1"],
        ),
        (
            "a node of IPv6 alone",
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
        ("a router's address is no node's IP", &[("CiliumInternalIP", "10.0.0.4")], "", &["a#10.0.0.4 6@ 0 r1"]),
        (
            "pod CIDRs of one family are the world, with the node's key",
            &[("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.1.0.1")],
            r#","IPv4AllocCIDR":"10.1.0.0/24","IPv4SecondaryAllocCIDRs":[{"IP":"10.2.0.0","Mask":"//8AAA=="},null],"EncryptionKey":7"#,
            &["a#10.0.0.1 6@10.0.0.1 0 r1", "a#10.1.0.0/24 2@10.0.0.1 7 r1", "a#10.1.0.1 6@10.0.0.1 0 r1", "a#10.2.0.0/16 2@10.0.0.1 7 r1"],
        ),
        (
            "those of both are the world of each, also where one has secondary ones alone",
            &[],
            r#","IPv4AllocCIDR":"10.1.0.0/24","IPv6SecondaryAllocCIDRs":["fd00:1::/64","fd00:2::/64"]"#,
            &["a#10.1.0.0/24 9@ 0 r1", "a#fd00:1::/64 10@ 0 r1", "a#fd00:2::/64 10@ 0 r1"],
        ),
        (
            "the bits of hosts say nothing, and one that is listed twice is one",
            &[],
            r#","IPv4AllocCIDR":"10.1.0.9/24","IPv4SecondaryAllocCIDRs":["10.1.0.0/24","10.1.0.7/32"],"IPv4HealthIP":"10.1.0.7""#,
            &["a#10.1.0.0/24 2@ 0 r1", "a#10.1.0.7 4@ 0 r1", "a#10.1.0.7/32 2@ 0 r1"],
        ),
        ("IPv6 alone", &[], r#","IPv6AllocCIDR":"fd00:1::/64""#, &["a#fd00:1::/64 2@ 0 r1"]),
        ("nothing", &[], "", &[]),
    ];
    for (what, addresses, rest, expected) in cases {
        let mut life = Life::new();
        let told = life.put(&node_key("a"), &node("a", addresses, rest));
        assert_eq!((told.len(), &told[0]), (expected.len() + 1, &"+ node a".to_owned()), "{what}");
        assert_eq!(life.held(), *expected, "{what}");
    }
}

#[test]
fn each_event_of_a_node_is_told_with_what_follows_from_it() {
    let mut life = Life::new();
    let (a, b) = (node_key("a"), node_key("a#b"));
    let none: [&str; 0] = [];
    let one = [("InternalIP", "10.0.0.1")];
    let two = [("InternalIP", "10.0.0.1"), ("CiliumInternalIP", "10.0.1.1")];
    // in the order of the source, behind the node
    assert_eq!(life.put(&a, &node("a", &two, "")), ["+ node a", "+ ip a#10.0.0.1", "+ ip a#10.0.1.1"]);
    // a name that goes on with the mark is another node's
    assert_eq!(life.put(&b, &node("a#b", &one, "")), ["+ node a#b", "+ ip a#b#10.0.0.1"]);
    assert_eq!(life.put(&a, &node("a", &two, "")), none, "equal bytes");
    assert_eq!(life.put(&a, &node("a", &two, r#","BootID":"1""#)), ["~ node a"], "nothing that the entries have");
    let key = r#","EncryptionKey":5,"IPv4HealthIP":"10.0.1.9","IPv4AllocCIDR":"10.0.1.0/24""#;
    assert_eq!(life.put(&a, &node("a", &two, key)), ["~ node a", "+ ip a#10.0.1.0/24", "+ ip a#10.0.1.9"]);
    let of_a = ["a#10.0.0.1 6@10.0.0.1 0 r1", "a#10.0.1.0/24 2@10.0.0.1 5 r5", "a#10.0.1.1 6@10.0.0.1 0 r1", "a#10.0.1.9 4@10.0.0.1 5 r5"];
    let of_b = "a#b#10.0.0.1 6@10.0.0.1 0 r2";
    assert_eq!(life.held(), [&of_a[..], &[of_b]].concat());
    // an unusable value keeps the last usable node, and so what follows from it; the usable one again is no change of that
    assert_eq!(life.put(&a, b"{"), ["~ node a"]);
    assert_eq!(life.put(&a, &node("a", &two, key)), ["~ node a"]);
    assert_eq!(life.change(Change::Hold { key: a.clone() }), none);
    assert_eq!(life.held().len(), 5);
    // an invalid or empty pod CIDR refuses the node
    for cidr in [r#""""#, r#""10.0.1.0""#, "{}", r#"{"IP":"10.0.1.0","Mask":"/wD/AA=="}"#] {
        assert_eq!(life.put(&a, &node("a", &two, &format!(r#","IPv4AllocCIDR":{cidr}"#))), ["~ node a"], "{cidr}");
        assert_eq!(life.held().len(), 5, "{cidr}");
    }
    // new ones first, so that the node is never without an address
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
    assert_eq!(life.put(&a, &node("a", &moved, key)), expected);
    let of_a =
        ["a#10.0.0.9 6@10.0.0.9 0 r12", "a#10.0.1.1 6@10.0.0.9 0 r12", "a#10.0.1.9 4@10.0.0.9 5 r12", "a#10.0.2.0/24 2@10.0.0.9 5 r12"];
    assert_eq!(life.held(), [&of_a[..], &[of_b]].concat());
    assert_eq!(life.change(Change::Delete { key: b.clone() }), ["- node a#b (Deleted)", "- ip a#b#10.0.0.1 (Deleted)"]);
    assert_eq!(life.change(Change::Delete { key: b }), none);
    // a list that does not confirm the node
    life.apply(Command::BeginList(node_scope()));
    let pruned = life.apply(Command::Prune(node_scope()));
    let derived = ["10.0.0.9", "10.0.1.1", "10.0.1.9", "10.0.2.0/24"].map(|of| format!("- ip a#{of} (Deleted)"));
    assert_eq!(pruned, [&["- node a (Deleted)".to_owned()][..], &derived].concat());
    assert_eq!((life.held().len(), life.view.entry_count()), (0, 0));
    // a key that never had a usable value
    assert_eq!(life.put(&a, b"{"), ["+ node a"]);
    assert_eq!(life.put(&a, &node("a", &one, "")), ["+ node a", "+ ip a#10.0.0.1"]);
    let gone = life.apply(Command::Remove { cluster: cluster(0), reason: DeleteReason::ClusterRemoved });
    assert_eq!(gone, ["- node a (ClusterRemoved)", "- ip a#10.0.0.1 (ClusterRemoved)"]);
    assert_eq!(life.view.object_count(Kind::Ip), 0);
    assert_eq!(life.view.records_from(&EntryKey::lowest()).count(), 0);
}

#[test]
fn of_one_prefix_an_announced_entry_beats_a_derived_one_then_the_newest_sequence() {
    let mut life = Life::new();
    let at = |number: u32, kind: Kind, name: &str| EntryKey::new(kind, cluster(number), name);
    let pair = |ip: &str, mask: &str| format!(r#"{{"IP":"{ip}","Mask":{mask},"HostIP":"","ID":300}}"#).into_bytes();
    let tokyo = |addresses: &[(&str, &str)]| String::from_utf8(node("b", addresses, "")).unwrap().replace("paris", "tokyo").into_bytes();
    life.put(&at(0, Kind::Ip, "10.0.0.0/24"), &pair("10.0.0.0", r#""////AA==""#));
    assert_eq!(life.found("10.0.0.1"), ["ipcache 10.0.0.0/24"]);
    // a host beats the ranges that it lies in, one of its length too
    life.put(&at(0, Kind::Ip, "10.0.0.1/32"), &pair("10.0.0.1", r#""/////w==""#));
    life.put(&at(0, Kind::Node, "a"), &node("a", &[("InternalIP", "10.0.0.1")], ""));
    assert_eq!(life.found("10.0.0.1"), ["ip a#10.0.0.1"]);
    assert_eq!(life.found("10.0.0.2"), ["ipcache 10.0.0.0/24"]);
    life.put(&at(1, Kind::Node, "b"), &tokyo(&[("InternalIP", "10.0.0.1")]));
    assert_eq!(life.found("10.0.0.1"), ["ip b#10.0.0.1", "ip a#10.0.0.1"], "the newest first");
    life.put(&at(0, Kind::Ip, "10.0.0.1"), &pair("10.0.0.1", "null"));
    life.put(&at(0, Kind::Node, "a"), &node("a", &[("CiliumInternalIP", "10.0.0.1")], ""));
    assert_eq!(life.found("10.0.0.1"), ["ipcache 10.0.0.1", "ip a#10.0.0.1", "ip b#10.0.0.1"], "an announced one, however old");
    let names: Vec<_> = life.view.lookup("10.0.0.1".parse().unwrap(), None).into_iter().map(|found| found.node_name).collect();
    assert_eq!(names, [None, Some("a".to_owned()), Some("b".to_owned())]);
    life.change(Change::Delete { key: at(0, Kind::Ip, "10.0.0.1") });
    life.change(Change::Delete { key: at(0, Kind::Node, "a") });
    assert_eq!(life.found("10.0.0.1"), ["ip b#10.0.0.1"]);
    life.put(&at(1, Kind::Node, "b"), &tokyo(&[]));
    assert_eq!(life.found("10.0.0.1"), ["ipcache 10.0.0.1/32"]);
}

/// What pods have no entry for, their node's range answers: the weakest of a prefix, also where it is of the own cluster.
#[test]
fn a_pod_cidr_answers_for_what_is_not_announced() {
    let mut life = Life::new();
    let at = |number: u32, kind: Kind, name: &str| EntryKey::new(kind, cluster(number), name);
    let pair = |ip: &str, mask: &str| format!(r#"{{"IP":"{ip}","Mask":{mask},"HostIP":"","ID":300}}"#).into_bytes();
    let pods = |net: &str| node("a", &[("InternalIP", "172.18.0.2")], &format!(r#","IPv4AllocCIDR":"{net}""#));
    life.put(&at(1, Kind::Ip, "10.0.0.0/8"), &pair("10.0.0.0", r#""/wAAAA==""#));
    life.put(&at(0, Kind::Node, "a"), &pods("10.0.0.0/24"));
    assert_eq!(life.found("10.0.0.1"), ["ip a#10.0.0.0/24"], "the longer prefix");
    assert_eq!(life.view.lookup("10.0.0.1".parse().unwrap(), None)[0].node_name.as_deref(), Some("a"));
    assert_eq!(life.found("10.0.1.1"), ["ipcache 10.0.0.0/8"]);
    life.put(&at(0, Kind::Ip, "10.0.0.0/28"), &pair("10.0.0.0", r#""////8A==""#));
    life.put(&at(1, Kind::Ip, "10.0.0.1"), &pair("10.0.0.1", "null"));
    assert_eq!((life.found("10.0.0.1"), life.found("10.0.0.2")), (vec!["ipcache 10.0.0.1".into()], vec!["ipcache 10.0.0.0/28".into()]));
    assert_eq!(life.found("10.0.0.17"), ["ip a#10.0.0.0/24"]);
    let keys: Vec<String> = life.view.covering("10.0.0.1".parse().unwrap()).map(|key| short(&key)).collect();
    assert_eq!(keys, ["ipcache 10.0.0.1", "ipcache 10.0.0.0/28", "ip a#10.0.0.0/24", "ipcache 10.0.0.0/8"]);
    // an announced one of that prefix, of whomever and however old
    life.put(&at(1, Kind::Ip, "10.0.0.0/24"), &pair("10.0.0.0", r#""////AA==""#));
    life.put(&at(0, Kind::Node, "a"), &pods("10.0.0.7/24"));
    for own in [None, Some(cluster(0)), Some(cluster(1))] {
        let found = life.view.lookup("10.0.0.17".parse().unwrap(), own.as_ref());
        let found: Vec<String> = found.iter().map(|found| short(&found.record.key)).collect();
        assert_eq!(found, ["ipcache 10.0.0.0/24", "ip a#10.0.0.0/24"], "{own:?}");
    }
    assert_eq!(life.view.clusters_at(ObjectPrefix::parse("10.0.0.0/24").unwrap()), [cluster(1)].into());
    life.change(Change::Delete { key: at(0, Kind::Node, "a") });
    life.change(Change::Delete { key: at(1, Kind::Ip, "10.0.0.0/24") });
    assert_eq!(life.found("10.0.0.17"), ["ipcache 10.0.0.0/8"]);
}

/// What is derived is as its node is: confirmed with it, held with it.
#[test]
fn an_entry_is_as_confirmed_and_as_held_as_its_node() {
    let mut life = Life::new();
    let a = node_key("a");
    life.put(&a, &node("a", &[("InternalIP", "10.0.0.1")], ""));
    let restored = |record: Arc<Record>| Record { generation: 0, ..(*record).clone() };
    let records: Vec<Record> = life.view.records_from(&EntryKey::lowest()).map(restored).collect();
    let mut life = Life { view: View::starting_at(Sequence(200)), revision: 50 };
    records.into_iter().for_each(|record| life.view.restore(record));
    let state = |life: &Life| {
        let entry = life.view.record(&EntryKey::of_node_ip(&a, ObjectPrefix::parse("10.0.0.1").unwrap())).unwrap();
        let origin = life.view.origin_of(&entry);
        (life.view.is_confirmed(&entry), origin.held, origin.mod_revision.0)
    };
    assert_eq!(state(&life), (false, false, 1));
    assert_eq!((life.view.entry_count(), life.view.scope(&node_scope()).unwrap().restored_count), (1, 1));
    life.put(&a, &node("a", &[("InternalIP", "10.0.0.1")], ""));
    assert_eq!(state(&life), (true, false, 51));
    life.change(Change::Hold { key: a.clone() });
    assert_eq!(state(&life), (true, true, 51));
    assert!(life.view.scope(&Scope { cluster: cluster(0), kind: Kind::NodeIp }).is_none());
}

/// Of an earlier version, or after damage: nodes without entries, entries without their node, and entries by other rules.
#[test]
fn what_was_restored_is_derived_again_where_it_lacks_something() {
    let mut whole = Life::new();
    for name in ["a", "b", "c"] {
        whole.put(&node_key(name), &node(name, &[("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")], ""));
    }
    let mut life = Life { view: View::starting_at(Sequence(200)), revision: 50 };
    for record in whole.view.records_from(&EntryKey::lowest()) {
        let record = Record { generation: 0, ..(*record).clone() };
        match &*record.key.name {
            "b" | "c#10.0.0.1" => {}
            "c#10.0.0.2" => {
                let value = String::from_utf8(record.value.to_vec()).unwrap().replace(r#""ID":6"#, r#""ID":4"#).into_bytes();
                life.view.restore(Record { object: decoded(&record.key, &value).ok(), value: value.into(), ..record });
            }
            _ => life.view.restore(record),
        }
    }
    let keys = life.view.nodes_to_derive();
    let effects = life.view.derive_again(&keys, NOW);
    assert_eq!(told(&effects), ["- ip b#10.0.0.1 (Deleted)", "- ip b#10.0.0.2 (Deleted)", "+ ip c#10.0.0.1", "~ ip c#10.0.0.2"]);
    assert_eq!(life.view.derive_again(&life.view.nodes_to_derive(), NOW), Effects::default());
    let of_all = whole.held();
    assert_eq!(life.held(), of_all.into_iter().filter(|line| !line.starts_with('b')).collect::<Vec<_>>());
}
