//! Ipcache entries by host: the scan skips chunks without any, and misses none.

use super::*;

const PODS_PER_HOST: u32 = 100;

fn pod(number: u32, host: u32) -> (EntryKey, Vec<u8>) {
    let ip = format!("10.{}.{}.{}", number / 10_000, number / 100 % 100, 100 + number % 100);
    let value = format!(r#"{{"IP":"{ip}","Mask":null,"HostIP":"{}","ID":70000,"Key":0,"Metadata":""}}"#, host_ip(host));
    (EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), ip), value.into_bytes())
}

/// Every third host has an IPv6 address.
fn host_ip(host: u32) -> IpAddr {
    let text = if host.is_multiple_of(3) { format!("fd00:{host:x}::9") } else { format!("172.18.0.{host}") };
    text.parse().unwrap()
}

fn record((key, value): (EntryKey, Vec<u8>), sequence: u64) -> Record {
    Record { key, value: value.into(), good_value: None, ..(*bare_record(0, sequence)).clone() }
}

/// Returns a view with 60 hosts with 100 pods each, packed.
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

/// Returns the keys of a host's entries, and the number of locations that were scanned.
fn entries_on(view: &View, host: u32) -> (Vec<EntryKey>, usize) {
    let lowest = EntryKey::lowest();
    let test = FieldTest { fields: vec![RowField::HostIp], test: TextTest::IsAddress(vec![host_ip(host)]) };
    let filter = RowFilter(vec![(Kind::Ip, vec![test])]);
    let locations: Vec<LiveKey> = view.live_keys_matching(&lowest, Some(&filter)).collect();
    let records = locations.iter().filter_map(|live| view.record_if(live, |_| true));
    let found = records.filter(|record| record.object.as_deref().is_some_and(|object| is_on(object, host)));
    (found.map(|record| record.key.clone()).collect(), locations.len())
}

fn is_on(object: &Object, host: u32) -> bool {
    object.as_ip().is_some_and(|entry| entry.host_ip == Some(host_ip(host)))
}

#[test]
fn a_scan_for_a_host_skips_other_chunks() {
    let mut view = packed();
    // one entry moved, one is new, and one was deleted
    put(&mut view, 4_500, 7);
    put(&mut view, 9_000, 7);
    let (deleted, _) = pod(750, 7);
    let scope = Scope { cluster: deleted.cluster.clone(), kind: deleted.kind };
    view.apply(Command::Apply { scope, changes: vec![Change::Delete { key: deleted }], cursor: None }, SystemTime::now());
    for host in [0, 7, 30, 45, 59, 99] {
        let lowest = EntryKey::lowest();
        let records = view.records_from(&lowest);
        let expected: Vec<EntryKey> = records
            .filter(|record| record.object.as_deref().is_some_and(|object| is_on(object, host)))
            .map(|record| record.key.clone())
            .collect();
        let (found, scanned) = entries_on(&view, host);
        assert_eq!(found, expected, "{host}");
        // besides the entries themselves, two changed rows, a new row and up to six skipped chunks
        assert!(scanned <= expected.len() + 9, "{scanned} locations for {} entries of host {host}", expected.len());
    }
    assert_eq!(entries_on(&view, 99), (Vec::new(), entries_on(&view, 99).1));
    assert!(entries_on(&view, 99).1 < 20, "{} locations for a host without entries", entries_on(&view, 99).1);
    // without a filter
    assert_eq!(view.live_keys_matching(&EntryKey::lowest(), None).count(), 6_000);
}
