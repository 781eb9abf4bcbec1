//! Endpoint slices as Cilium writes them: a zstd frame of a protobuf message
//! (docs/develop/protocol.md §2.8). The decoder is independent of meshkeep's own.

use serde_json::{Map, Value, json};

/// Content of a protobuf field.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Encodes a slice with one endpoint. The port depends on the version.
pub(super) fn encode_slice_of_one_endpoint(cluster: &str, id: u32, namespace: &str, name: &str, address: &str, version: u32) -> Vec<u8> {
    let label = [bytes(1, b"kubernetes.io/service-name"), bytes(2, name.as_bytes())].concat();
    let endpoint = [bytes(1, address.as_bytes()), bytes(2, &[number(1, 1), number(2, 1), number(3, 0)].concat())].concat();
    let port = [bytes(1, b"http"), bytes(2, b"TCP"), number(3, u64::from(8_080 + version))].concat();
    let message = [
        bytes(1, cluster.as_bytes()),
        number(2, u64::from(id)),
        bytes(3, namespace.as_bytes()),
        bytes(4, name.as_bytes()),
        bytes(5, &label),
        bytes(7, b"IPv4"),
        bytes(8, &endpoint),
        bytes(9, &port),
    ];
    zstd::encode_all(message.concat().as_slice(), 3).unwrap()
}

/// Encodes endpoints that have only the `ready` condition. An empty address is left out.
pub(super) fn endpoints(addresses: impl IntoIterator<Item = String>) -> Vec<u8> {
    let endpoint = |address: String| if address.is_empty() { Vec::new() } else { bytes(1, address.as_bytes()) };
    addresses.into_iter().flat_map(|address| bytes(8, &endpoint(address))).collect()
}

/// Encodes a slice with these endpoints, of a service with the slice's name.
pub(super) fn encode_slice(cluster: &str, id: u32, namespace: &str, name: &str, endpoints: &[u8]) -> Vec<u8> {
    encode_for_service(name, cluster, id, namespace, name, endpoints)
}

/// Encodes a slice that decompresses to about `unpacked` bytes: its only endpoint has a long node
/// name.
pub(crate) fn encode_large_slice(service: &str, cluster: &str, id: u32, namespace: &str, name: &str, unpacked: usize) -> Vec<u8> {
    encode_for_service(service, cluster, id, namespace, name, &bytes(8, &bytes(6, "x".repeat(unpacked).as_bytes())))
}

fn encode_for_service(service: &str, cluster: &str, id: u32, namespace: &str, name: &str, endpoints: &[u8]) -> Vec<u8> {
    let label = [bytes(1, b"kubernetes.io/service-name"), bytes(2, service.as_bytes())].concat();
    let names = [bytes(1, cluster.as_bytes()), number(2, u64::from(id)), bytes(3, namespace.as_bytes()), bytes(4, name.as_bytes())];
    let message = [names.concat(), bytes(5, &label), bytes(7, b"IPv4"), endpoints.to_vec()].concat();
    zstd::encode_all(message.as_slice(), 3).unwrap()
}

/// Decodes a slice into the object that should be served.
pub(super) fn decode_slice(value: &[u8]) -> Value {
    let message = zstd::decode_all(value).unwrap();
    let mut slice = Map::new();
    let names = [(1, "cluster"), (3, "namespace"), (4, "name"), (7, "addressType")];
    let (mut labels, mut annotations, mut endpoints, mut ports) = (Map::new(), Map::new(), Vec::new(), Vec::new());
    for (tag, field) in fields(&message) {
        match (tag, field) {
            (2, Field::Number(id)) => drop(slice.insert("clusterID".into(), id.into())),
            (5, Field::Bytes(entry)) => labels.extend(pair(entry)),
            (6, Field::Bytes(entry)) => annotations.extend(pair(entry)),
            (8, Field::Bytes(inner)) => endpoints.push(endpoint(inner)),
            (9, Field::Bytes(inner)) => ports.push(port(inner)),
            (tag, Field::Bytes(content)) => {
                let (_, name) = names.iter().find(|(known, _)| *known == tag).unwrap();
                slice.insert((*name).into(), text(content));
            }
            (tag, Field::Number(_)) => panic!("no number {tag} in a slice"),
        }
    }
    slice.extend([("labels".into(), labels.into()), ("annotations".into(), annotations.into())]);
    slice.extend([("endpoints".into(), endpoints.into()), ("ports".into(), ports.into())]);
    slice.into()
}

fn endpoint(message: &[u8]) -> Value {
    let (mut addresses, mut zones) = (Vec::new(), Vec::new());
    let mut endpoint = json!({});
    for (tag, field) in fields(message) {
        match (tag, field) {
            (1, Field::Bytes(address)) => addresses.push(text(address)),
            (2, Field::Bytes(conditions)) => {
                for (tag, field) in fields(conditions) {
                    let Field::Number(value) = field else { panic!("a condition is a number") };
                    endpoint[["", "ready", "serving", "terminating"][usize::try_from(tag).unwrap()]] = (value != 0).into();
                }
            }
            (5, _) => {}
            (6, Field::Bytes(node)) => endpoint["nodeName"] = text(node),
            (7, Field::Bytes(zone)) => endpoint["zone"] = text(zone),
            (8, Field::Bytes(hints)) => zones.extend(fields(hints).into_iter().map(|(_, zone)| name_of(&zone))),
            (tag, _) => panic!("no field {tag} in an endpoint"),
        }
    }
    (endpoint["addresses"], endpoint["forZones"]) = (addresses.into(), zones.into());
    endpoint
}

fn name_of(zone: &Field) -> Value {
    let Field::Bytes(zone) = zone else { panic!("a zone is a message") };
    match fields(zone).first() {
        Some((1, Field::Bytes(name))) => text(name),
        _ => panic!("a zone has a name"),
    }
}

fn port(message: &[u8]) -> Value {
    let mut port = json!({});
    for (tag, field) in fields(message) {
        match (tag, field) {
            (1, Field::Bytes(name)) => port["name"] = text(name),
            (2, Field::Bytes(protocol)) => port["protocol"] = text(protocol),
            (3, Field::Number(number)) => port["port"] = number.into(),
            (tag, _) => panic!("no field {tag} in a port"),
        }
    }
    port
}

fn pair(entry: &[u8]) -> Option<(String, Value)> {
    let fields = fields(entry);
    let [(1, Field::Bytes(key)), (2, Field::Bytes(value))] = fields.as_slice() else { panic!("an entry is a key and a value") };
    Some((String::from_utf8(key.to_vec()).unwrap(), text(value)))
}

fn text(bytes: &[u8]) -> Value {
    String::from_utf8(bytes.to_vec()).unwrap().into()
}

/// Returns the fields of a message in order.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut decoded = Vec::new();
    while !message.is_empty() {
        let head = take_varint(&mut message);
        let field = match head & 7 {
            0 => Field::Number(take_varint(&mut message)),
            2 => {
                let length = usize::try_from(take_varint(&mut message)).unwrap();
                let (content, rest) = message.split_at(length);
                message = rest;
                Field::Bytes(content)
            }
            other => panic!("no wire type {other} in any test"),
        };
        decoded.push((head >> 3, field));
    }
    decoded
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

fn number(tag: u64, value: u64) -> Vec<u8> {
    [varint(tag << 3), varint(value)].concat()
}

fn bytes(tag: u64, content: &[u8]) -> Vec<u8> {
    [varint(tag << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}
