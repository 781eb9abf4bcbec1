//! What endpoint slices take at rest, whatever they unpack to.

use super::*;
use crate::model::{EndpointSlice, SliceEndpoint};
use crate::wire::tests::slice_object;

/// Endpoints of nothing, two bytes each in the message: a value of some twenty bytes makes 10 MB of them.
const ENDPOINTS: usize = 50_000;

/// Keeps `count` such slices, with what is told of them, and says how many bytes that takes.
fn taken(view: &mut View, told: &mut Vec<Effects>, count: usize, version: u32) -> i64 {
    let endpoints = vec![SliceEndpoint::default(); ENDPOINTS];
    let slice = EndpointSlice { address_type: "IPv4".into(), cluster_id: version, endpoints, ..EndpointSlice::default() };
    let object = slice_object(&slice);
    let paris = ClusterName::parse("paris").unwrap();
    let scope = Scope { cluster: paris.clone(), kind: Kind::EndpointSlice };
    let value: Arc<[u8]> = format!("version {version}").into_bytes().into();
    let measured = allocation_counter::measure(|| {
        for number in 0..count {
            let key = EntryKey::new(Kind::EndpointSlice, paris.clone(), format!("shop/s{number}"));
            let source = SourceStamp { mod_revision: Revision(7), lease: LeaseId(0), held: false };
            let change = Change::Put { key, value: Arc::clone(&value), decoded: Ok(Arc::new(object.clone())), source };
            told.push(view.apply(Command::Apply { scope: scope.clone(), changes: vec![change], cursor: None }, SystemTime::UNIX_EPOCH));
        }
    });
    measured.bytes_current
}

/// Fails where a record, or an announcement of one, keeps the decoded slice: 10 slices of 20 B would take 100 MB.
#[test]
fn a_slice_takes_at_rest_what_came_and_not_what_it_unpacks_to() {
    let (mut view, mut told) = (View::default(), Vec::new());
    for version in 1..3 {
        let bytes = taken(&mut view, &mut told, 10, version);
        assert!(bytes < 200_000, "version {version}: {bytes} bytes for 10 slices");
    }
    let former = told.last().and_then(|effects| effects.announcements[0].old_object()).unwrap();
    assert_eq!(former.as_endpoint_slice().unwrap().decoded().endpoints.len(), ENDPOINTS);
}
