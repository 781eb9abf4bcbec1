//! Endpoint slices: `…/endpointslices/v1/<cluster>/<namespace>/<slice>`, from `endpointslice.go`
//! and `internal/generated.proto` in Cilium's `pkg/clustermesh/types/endpointslice`.
//!
//! The value is a zstd frame of a protobuf message, the only binary format among Cilium's values.

use std::io::Read;
use std::net::IpAddr;

use zstd::zstd_safe;

use super::protobuf::{ElementBudget, FieldContent, read_message};
use super::{Context, quoted};
use crate::model::{EndpointSlice, SliceEndpoint, SlicePort};

/// Maximum size of an unpacked slice, in bytes. Same as the limit of Cilium's own decoder.
const UNPACKED_BYTES_MAX: u64 = 16 << 20;

/// Maximum window of a zstd frame, as a power of two: 16 MiB, the limit of an unpacked slice.
const WINDOW_LOG_MAX: u32 = 24;

/// Memory that a decoded slice needs for each byte of its message. It covers the message and the
/// endpoints together. An endpoint of Kubernetes has a node name, conditions and a zone, about 60
/// bytes. It becomes a `SliceEndpoint` of 200 bytes and the allocations of these names.
const DECODED_BYTES_FACTOR: u64 = 5;

#[derive(Default)]
struct SliceMessage {
    cluster: String,
    /// Endpoints with their addresses as text. Fields may come in any order, so the addresses are
    /// parsed once the slice's family is known.
    endpoints: Vec<(SliceEndpoint, Vec<String>)>,
    slice: EndpointSlice,
}

/// Decodes and checks an endpoint slice. `name` is the rest of its key, `<namespace>/<slice>`.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<EndpointSlice, String> {
    let (cluster, slice) = read(value)?;
    context.check_cluster("cluster", &cluster)?;
    Context::check_names(name, &slice.namespace, &slice.name)?;
    context.check_cluster_id("clusterID", slice.cluster_id)?;
    Ok(slice)
}

/// Decodes an endpoint slice and the name of the cluster in it.
pub(super) fn read(value: &[u8]) -> Result<(String, EndpointSlice), String> {
    let bytes = unpack(value)?;
    let mut message = SliceMessage::default();
    read_message(&bytes, &mut ElementBudget::new(), |number, field, budget| message.read(number, field, budget))?;
    let SliceMessage { cluster, endpoints, mut slice } = message;
    let is_of_family: fn(&IpAddr) -> bool = match slice.address_type.as_str() {
        "IPv4" => IpAddr::is_ipv4,
        "IPv6" => IpAddr::is_ipv6,
        other => return Err(format!("addressType is {}, expected IPv4 or IPv6", quoted(other))),
    };
    for (mut endpoint, addresses) in endpoints {
        for text in addresses {
            // an IPv4-mapped address belongs to IPv6, as in `netip.Addr`
            let address: IpAddr = text.parse().map_err(|_| format!("endpoints: {} is not an IP address", quoted(&text)))?;
            if !is_of_family(&address) {
                return Err(format!("endpoints: {address} is not an address of the slice's family, {}", slice.address_type));
            }
            endpoint.addresses.push(address);
        }
        slice.endpoints.push(endpoint);
    }
    Ok((cluster, slice))
}

/// Estimates the memory in bytes that decoding a slice needs: the unpacked message and the objects
/// that it becomes. Cilium's frames state their unpacked size. Other frames are unpacked into a
/// sink to count their bytes.
pub(super) fn decoded_bytes(value: &[u8]) -> u64 {
    let is_one_frame = zstd_safe::find_frame_compressed_size(value).is_ok_and(|length| length == value.len());
    let stated_size = zstd_safe::get_frame_content_size(value).ok().flatten().filter(|_| is_one_frame);
    let count_bytes = || unpacking(value).and_then(|mut unpacking| std::io::copy(&mut unpacking, &mut std::io::sink()));
    let unpacked = stated_size.map_or_else(count_bytes, Ok).unwrap_or(UNPACKED_BYTES_MAX);
    unpacked.min(UNPACKED_BYTES_MAX) * DECODED_BYTES_FACTOR
}

/// Opens a reader that unpacks every frame, up to one byte more than the limit.
fn unpacking(value: &[u8]) -> std::io::Result<impl Read> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(value)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(decoder.take(UNPACKED_BYTES_MAX + 1))
}

fn unpack(value: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = unpacking(value).and_then(|mut unpacking| unpacking.read_to_end(&mut bytes));
    read.map_err(|error| format!("value is not zstd: {error}"))?;
    if bytes.len() as u64 > UNPACKED_BYTES_MAX {
        return Err(format!("value has more than {UNPACKED_BYTES_MAX} bytes when decompressed"));
    }
    if bytes.is_empty() {
        return Err("value is empty".into());
    }
    Ok(bytes)
}

impl SliceMessage {
    fn read(&mut self, number: u64, field: FieldContent<'_>, budget: &mut ElementBudget) -> Result<(), String> {
        let slice = &mut self.slice;
        match number {
            1 => self.cluster = field.text("cluster")?,
            2 => slice.cluster_id = field.integer("clusterID")?,
            3 => slice.namespace = field.text("namespace")?,
            4 => slice.name = field.text("name")?,
            5 => slice.labels.extend([field.entry("labels", budget)?]),
            6 => slice.annotations.extend([field.entry("annotations", budget)?]),
            7 => slice.address_type = field.text("addressType")?,
            8 => self.endpoints.push(decode_endpoint(field.bytes("endpoints")?, budget)?),
            9 => slice.ports.push(decode_port(field.bytes("ports")?, budget)?),
            _ => {}
        }
        Ok(())
    }
}

fn decode_endpoint(bytes: &[u8], budget: &mut ElementBudget) -> Result<(SliceEndpoint, Vec<String>), String> {
    let (mut endpoint, mut addresses) = (SliceEndpoint::default(), Vec::new());
    read_message(bytes, budget, |number, field, budget| {
        match number {
            1 => addresses.push(field.text("endpoints.addresses")?),
            2 => decode_conditions(&mut endpoint, field.bytes("endpoints.conditions")?, budget)?,
            5 => endpoint.topology.extend([field.entry("endpoints.deprecatedTopology", budget)?]),
            6 => endpoint.node_name = field.text("endpoints.nodeName")?,
            7 => endpoint.zone = field.text("endpoints.zone")?,
            8 => decode_hints(&mut endpoint, field.bytes("endpoints.hints")?, budget)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((endpoint, addresses))
}

fn decode_conditions(endpoint: &mut SliceEndpoint, bytes: &[u8], budget: &mut ElementBudget) -> Result<(), String> {
    read_message(bytes, budget, |number, field, _| {
        match number {
            1 => endpoint.ready = Some(field.boolean("endpoints.conditions.ready")?),
            2 => endpoint.serving = Some(field.boolean("endpoints.conditions.serving")?),
            3 => endpoint.terminating = Some(field.boolean("endpoints.conditions.terminating")?),
            _ => {}
        }
        Ok(())
    })
}

fn decode_hints(endpoint: &mut SliceEndpoint, bytes: &[u8], budget: &mut ElementBudget) -> Result<(), String> {
    read_message(bytes, budget, |number, field, budget| {
        if number == 1 {
            let mut zone = String::new();
            read_message(field.bytes("endpoints.hints.forZones")?, budget, |number, field, _| {
                if number == 1 {
                    zone = field.text("endpoints.hints.forZones.name")?;
                }
                Ok(())
            })?;
            endpoint.for_zones.push(zone);
        }
        Ok(())
    })
}

fn decode_port(bytes: &[u8], budget: &mut ElementBudget) -> Result<SlicePort, String> {
    let mut port = SlicePort::default();
    read_message(bytes, budget, |number, field, _| {
        match number {
            1 => port.name = field.text("ports.name")?,
            2 => port.protocol = field.text("ports.protocol")?,
            3 => {
                port.port = Some(field.integer("ports.port")?.cast_signed());
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(port)
}
