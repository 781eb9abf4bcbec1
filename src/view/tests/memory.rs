//! Memory use of large values: it depends on the bytes, not on the size of the decoded object.

use super::*;
use crate::model::{EndpointSlice, SliceEndpoint};
use crate::view::RecordReferences;
use crate::wire::tests::slice_value;

/// Number of empty endpoints, two bytes each in the message: a compressed value of twenty bytes
/// decodes to 10 MB.
const ENDPOINTS: usize = 50_000;

/// Applies `count` slices and keeps their change sets. Returns the memory that this uses, in bytes.
fn bytes_used(view: &mut View, change_sets: &mut Vec<ChangeSet>, count: usize, version: u32) -> i64 {
    let endpoints = vec![SliceEndpoint::default(); ENDPOINTS];
    let slice = EndpointSlice { address_type: "IPv4".into(), cluster_id: version, endpoints, ..EndpointSlice::default() };
    let value: Arc<[u8]> = slice_value(&slice).into();
    let paris = ClusterName::parse("paris").unwrap();
    let scope = Scope { cluster: paris.clone(), kind: Kind::EndpointSlice };
    let measured = allocation_counter::measure(|| {
        for number in 0..count {
            let key = EntryKey::new(Kind::EndpointSlice, paris.clone(), format!("shop/s{number}"));
            let source = SourceStamp { mod_revision: Revision(7), lease: LeaseId(0), held: false };
            let key_of_slice = key.clone();
            let change = Change::Put {
                key,
                value: Arc::clone(&value),
                decoded: Ok(Arc::new(wire::decode_accepted(&key_of_slice, &value).unwrap())),
                source,
            };
            change_sets
                .push(view.apply(Command::Apply { scope: scope.clone(), changes: vec![change], cursor: None }, SystemTime::UNIX_EPOCH));
        }
    });
    measured.bytes_current
}

/// Fails if a record or an announcement keeps the decoded slice: 10 slices would use 100 MB.
#[test]
fn a_slice_uses_memory_for_its_packed_bytes_only() {
    let (mut view, mut change_sets) = (View::default(), Vec::new());
    for version in 1..3 {
        let bytes = bytes_used(&mut view, &mut change_sets, 10, version);
        assert!(bytes < 200_000, "version {version}: {bytes} bytes for 10 slices");
    }
    let former = change_sets.last().and_then(|change_set| change_set.announcements[0].old_object()).unwrap();
    assert_eq!(former.as_endpoint_slice().unwrap().decoded().endpoints.len(), ENDPOINTS);
}

/// Returns a service with 18 bytes per backend in its value and 100 in its object.
fn large_service(name: &str, backends: usize) -> Vec<u8> {
    let backends: Vec<String> = (0..backends).map(|number| format!(r#""10.0.{}.{}":{{}}"#, number / 256, number % 256)).collect();
    format!(r#"{{"cluster":"paris","namespace":"shop","name":"{name}","backends":{{{}}}}}"#, backends.join(",")).into_bytes()
}

/// Fails if unpacked records keep large objects.
#[test]
fn a_large_value_uses_memory_for_its_bytes_only_and_is_served() {
    let paris = ClusterName::parse("paris").unwrap();
    let scope = Scope { cluster: paris.clone(), kind: Kind::Service };
    let source = SourceStamp { mod_revision: Revision(7), lease: LeaseId(0), held: false };
    let put = |number: usize| {
        let (key, value) =
            (EntryKey::new(Kind::Service, paris.clone(), format!("shop/s{number}")), large_service(&format!("s{number}"), 2_000));
        let decoded = decoded(&key, &value);
        Change::Put { key, value: value.into(), decoded, source }
    };
    let raw = i64::try_from(large_service("s0", 2_000).len() * 20).unwrap();
    let mut view = View::default();
    let measured = allocation_counter::measure(|| {
        for number in 0..20 {
            view.apply(Command::Apply { scope: scope.clone(), changes: vec![put(number)], cursor: None }, SystemTime::UNIX_EPOCH);
        }
    });
    assert!(measured.bytes_current < raw * 3 / 2, "{} bytes for {raw}", measured.bytes_current);
    let key = EntryKey::new(Kind::Service, paris.clone(), "shop/s7");
    let served = |view: &View| view.record(&key).unwrap().object.as_deref().unwrap().as_service().unwrap().backends.len();
    assert_eq!(served(&view), 2_000);
    assert!(matches!(view.references(&key), Some(RecordReferences::Backends(addresses)) if addresses.len() == 2_000));
    assert_eq!(view.records_from(&key).next().map(|record| record.object.is_some()), Some(true));
    // a bad value keeps the last good one, whose object is not in memory
    let bad = Change::Put { key: key.clone(), value: b"{"[..].into(), decoded: Err("bad".into()), source };
    view.apply(Command::Apply { scope: scope.clone(), changes: vec![bad], cursor: None }, SystemTime::UNIX_EPOCH);
    assert_eq!((served(&view), view.rejected_count()), (2_000, 1));
    for _ in 0..2 {
        let jobs = view.fold_jobs(1);
        for job in jobs {
            view.fold(job.run());
        }
        assert_eq!((served(&view), view.rejected_count()), (2_000, 1));
    }
}
