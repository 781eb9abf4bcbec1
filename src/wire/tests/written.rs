//! Encoder of endpoint slices in the format of their writers, for tests that start from the object.

use crate::model::{EndpointSlice, LabelSet, Object, SliceEndpoint, SlicePort};

fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap());
}

fn integer(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    number(&mut out, value);
    out
}

fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    number(&mut out, content.len() as u64);
    out.extend_from_slice(content);
    out
}

fn text(field: u8, text: &str) -> Vec<u8> {
    if text.is_empty() { Vec::new() } else { bytes(field, text.as_bytes()) }
}

fn entries(field: u8, labels: &LabelSet) -> Vec<u8> {
    labels.iter().flat_map(|(key, value)| bytes(field, &[text(1, key), text(2, value)].concat())).collect()
}

fn endpoint(endpoint: &SliceEndpoint) -> Vec<u8> {
    let addresses = endpoint.addresses.iter().flat_map(|ip| text(1, &ip.to_string()));
    let conditions = [(1, endpoint.ready), (2, endpoint.serving), (3, endpoint.terminating)];
    let conditions: Vec<u8> =
        conditions.into_iter().filter_map(|(field, condition)| Some(integer(field, condition?.into()))).flatten().collect();
    let hints: Vec<u8> = endpoint.for_zones.iter().flat_map(|zone| bytes(1, &text(1, zone))).collect();
    // empty messages are left out, so that an empty endpoint uses one element of the budget
    let message = |field: u8, content: &[u8]| if content.is_empty() { Vec::new() } else { bytes(field, content) };
    let names = [text(6, &endpoint.node_name), text(7, &endpoint.zone)].concat();
    let rest = [message(2, &conditions), entries(5, &endpoint.topology), names, message(8, &hints)];
    addresses.chain(rest.concat()).collect()
}

fn port(port: &SlicePort) -> Vec<u8> {
    [text(1, &port.name), text(2, &port.protocol), port.port.map(|port| integer(3, i64::from(port).cast_unsigned())).unwrap_or_default()]
        .concat()
}

/// Returns the object of a slice in the mirror's form.
pub(crate) fn slice_object(slice: &EndpointSlice) -> Object {
    Object::EndpointSlice(super::super::packed_slice(slice_value(slice).into()))
}

/// Encodes a slice, without a cluster name.
pub(crate) fn slice_value(slice: &EndpointSlice) -> Vec<u8> {
    let endpoints: Vec<u8> = slice.endpoints.iter().flat_map(|one| bytes(8, &endpoint(one))).collect();
    let ports: Vec<u8> = slice.ports.iter().flat_map(|one| bytes(9, &port(one))).collect();
    let message = [
        integer(2, slice.cluster_id.into()),
        text(3, &slice.namespace),
        text(4, &slice.name),
        entries(5, &slice.labels),
        entries(6, &slice.annotations),
        text(7, &slice.address_type),
        endpoints,
        ports,
    ];
    zstd::encode_all(&*message.concat(), 1).unwrap()
}
