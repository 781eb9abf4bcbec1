//! Entries by the host that they are on: chunks without any are passed over, and nothing is missed.

use super::*;

const PODS_PER_HOST: u32 = 100;

fn pod(number: u32, host: u32) -> (EntryKey, Vec<u8>) {
    let ip = format!("10.{}.{}.{}", number / 10_000, number / 100 % 100, 100 + number % 100);
    let value = format!(r#"{{"IP":"{ip}","Mask":null,"HostIP":"{}","ID":70000,"Key":0,"Metadata":""}}"#, host_ip(host));
    (EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), ip), value.into_bytes())
}

/// Every third has an address of IPv6.
fn host_ip(host: u32) -> IpAddr {
    let text = if host.is_multiple_of(3) { format!("fd00:{host:x}::9") } else { format!("172.18.0.{host}") };
    text.parse().unwrap()
}

fn record((key, value): (EntryKey, Vec<u8>), sequence: u64) -> Record {
    Record { key, value: value.into(), good_value: None, ..(*bare_record(0, sequence)).clone() }
}

/// 60 hosts with 100 pods each, packed.
fn packed() -> View {
    let mut records: Vec<Record> = (0..6_000).map(|number| record(pod(number, number / PODS_PER_HOST), u64::from(number) + 1)).collect();
    records.sort_by(|left, right| left.key.cmp(&right.key));
    let mut view = View::starting_at(Sequence(10_000));
    view.restore_chunks(crate::pack::build(&records));
    view
}

fn put(view: &mut View, number: u32, host: u32) {
    let (key, value) = pod(number, host);
    let context =
        wire::Context { cluster: &key.cluster, cluster_id: ClusterId(1), max_connected_clusters: MaxConnectedClusters::default() };
    let decoded = wire::decode(&key, &value, &context).map(Arc::new).map_err(|error| error.to_string().into());
    let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
    let change = Change::Put { key, value: value.into(), decoded, source: SourceStamp::default() };
    view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
}

/// The keys of a host's entries, and how many places were looked at.
fn on(view: &View, host: u32) -> (Vec<EntryKey>, usize) {
    let lowest = EntryKey::lowest();
    let places: Vec<Live> = view.live_on(&lowest, &[host_ip(host)]).collect();
    let records = places.iter().filter_map(|live| view.record_passing(live, |_| true));
    let found = records.filter(|record| record.object.as_deref().is_some_and(|object| is_on(object, host)));
    (found.map(|record| record.key.clone()).collect(), places.len())
}

fn is_on(object: &Object, host: u32) -> bool {
    object.as_ip().is_some_and(|entry| entry.host_ip == Some(host_ip(host)))
}

#[test]
fn entries_of_a_host_are_found_without_a_look_at_all_chunks() {
    let mut view = packed();
    // one that moved, one that is new, and one that went
    put(&mut view, 4_500, 7);
    put(&mut view, 9_000, 7);
    let (gone, _) = pod(750, 7);
    let scope = Scope { cluster: gone.cluster.clone(), kind: gone.kind };
    view.apply(Command::Apply { scope, changes: vec![Change::Delete { key: gone }], cursor: None }, SystemTime::now());
    for host in [0, 7, 30, 45, 59, 99] {
        let lowest = EntryKey::lowest();
        let every = view.records_from(&lowest);
        let expected: Vec<EntryKey> = every
            .filter(|record| record.object.as_deref().is_some_and(|object| is_on(object, host)))
            .map(|record| record.key.clone())
            .collect();
        let (found, looked_at) = on(&view, host);
        assert_eq!(found, expected, "{host}");
        // a hundred pods lie in two chunks at most
        assert!(looked_at < 2 * 1_100 + 20, "{looked_at} places for host {host}");
    }
    assert_eq!(on(&view, 99), (Vec::new(), on(&view, 99).1));
    assert!(on(&view, 99).1 < 20, "{} places for a host that nothing is on", on(&view, 99).1);
    // no host is no test
    assert_eq!(view.live_on(&EntryKey::lowest(), &[]).count(), 6_000);
}
