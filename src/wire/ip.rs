//! ipcache entries: `…/ip/v1/…/<address or prefix>`, from `IPIdentityPair` in Cilium's
//! `pkg/identity/identity.go` and the checks of `pkg/ipcache/kvstore.go`.

use std::fmt::{self, Write};
use std::net::IpAddr;

use ipnet::IpNet;

use super::address::{GoIp, GoIpMask, mask_text};
use super::go_json::{go_struct, parse};
use super::{Context, quoted};
use crate::model::{IDENTITY_REMOTE_NODE, IpEntry, NamedPort, ObjectPrefix};

/// Identity `host`. In a remote cluster's entries it means another machine
/// (`pkg/identity/numericidentity.go`).
const IDENTITY_HOST: u32 = 1;

go_struct! {
    /// An address and its identity. `Metadata` is not used, but must be a string.
    struct PairJson {
        ip: GoIp = "IP",
        mask: GoIpMask = "Mask",
        host_ip: GoIp = "HostIP",
        identity: u32 = "ID",
        encryption_key: u8 = "Key",
        metadata: String = "Metadata",
        namespace: String = "K8sNamespace",
        pod_name: String = "K8sPodName",
        pod_uid: String = "K8sPodUID",
        service_account: String = "K8sServiceAccount",
        named_ports: Vec<NamedPortJson> = "NamedPorts",
    }
    /// The host of a pair.
    struct HostJson {
        host_ip: GoIp = "HostIP",
    }
    /// A named port of the pod.
    struct NamedPortJson {
        name: String = "Name",
        port: u16 = "Port",
        protocol: String = "Protocol",
    }
}

/// Decodes and checks an entry. `name` is the last part of its key.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<IpEntry, String> {
    let json: PairJson = parse("an IP identity pair", value)?;
    let prefix = json.prefix(name)?;
    if let Some(range) = context.range_if_outside(json.identity) {
        let (first, last) = range.into_inner();
        return Err(format!("ID {} is neither reserved nor in {first} to {last} of cluster {}", json.identity, context.cluster));
    }
    Ok(json.into_entry(prefix))
}

/// Returns the identity in a value, if the JSON can be read at all.
pub(super) fn identity(value: &[u8]) -> Option<u32> {
    parse("an IP identity pair", value).ok().map(|json: PairJson| json.identity)
}

/// Returns the host in a value that was accepted.
pub(super) fn host_ip(value: &[u8]) -> Option<IpAddr> {
    parse("an IP identity pair", value).ok().and_then(|json: HostJson| json.host_ip.0)
}

/// Decodes an entry that is derived from a node. `name` is `<node>#<address or prefix>`.
pub(super) fn decode_derived(name: &str, value: &[u8], context: &Context<'_>) -> Result<IpEntry, String> {
    let address = name.rsplit_once('#').map(|(_, address)| address);
    decode(address.ok_or_else(|| format!("the key has {}, which is not the address of a node", quoted(name)))?, value, context)
}

/// Encodes a derived entry, which has no pod. The inverse of [`decode_derived`].
pub(super) fn write_derived(entry: &IpEntry) -> Vec<u8> {
    let host_ip = entry.host_ip.map(|ip| ip.to_string()).unwrap_or_default();
    let IpEntry { prefix: ObjectPrefix { net, host }, identity, encryption_key, .. } = entry;
    let mask = if *host { String::new() } else { format!(r#","Mask":"{}""#, mask_text(*net)) };
    format!(r#"{{"IP":"{}"{mask},"HostIP":"{host_ip}","ID":{identity},"Key":{encryption_key}}}"#, net.addr()).into_bytes()
}

/// Returns `true` if a name is exactly what Go prints for an address, or for a prefix if there is a
/// length.
fn is_canonical_name(name: &str, ip: IpAddr, length: Option<u8>) -> bool {
    if let (IpAddr::V4(ip), None) = (ip, length) {
        // the standard parser accepts only the canonical form of an IPv4 address
        return name.parse() == Ok(ip);
    }
    let mut rest = TextComparison(name);
    let written = match length {
        None => write!(rest, "{ip}"),
        Some(length) => write!(rest, "{ip}/{length}"),
    };
    written.is_ok() && rest.0.is_empty()
}

/// Writer that compares what is written with a text, so that the output need not be allocated.
/// Contains the rest of the text.
struct TextComparison<'a>(&'a str);

impl fmt::Write for TextComparison<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(text).ok_or(fmt::Error)?;
        Ok(())
    }
}

impl PairJson {
    /// Returns the prefix if the key is what Go's `PrefixString` prints for it. A host entry has no
    /// mask. Go prints a mask that is not canonical as length 0, so such an entry does not match
    /// its key. Bits after the mask are cleared, as in the ipcache.
    fn prefix(&self, name: &str) -> Result<ObjectPrefix, String> {
        let ip = self.ip.0.ok_or("IP is empty")?;
        let length = self.mask.0.map(|size| size.ones.unwrap_or(0));
        if !is_canonical_name(name, ip, length) {
            let text = length.map_or_else(|| ip.to_string(), |length| format!("{ip}/{length}"));
            return Err(format!("IP and Mask give {text:?}, but the key has {}", quoted(name)));
        }
        let host = length.is_none();
        let net = length.map_or_else(|| Ok(IpNet::from(ip)), |length| IpNet::new(ip, length));
        let net = net.map_err(|_| format!("Mask is too long for IP {ip}"))?.trunc();
        Ok(ObjectPrefix { net, host })
    }

    fn into_entry(self, prefix: ObjectPrefix) -> IpEntry {
        let ports = self.named_ports.into_iter().map(|json| NamedPort { name: json.name, port: json.port, protocol: json.protocol });
        IpEntry {
            prefix,
            identity: if self.identity == IDENTITY_HOST { IDENTITY_REMOTE_NODE } else { self.identity },
            host_ip: self.host_ip.0,
            encryption_key: self.encryption_key,
            namespace: self.namespace,
            pod_name: self.pod_name,
            pod_uid: self.pod_uid,
            service_account: self.service_account,
            // a boxed slice first: `collect` alone would keep the larger allocation of the JSON's
            // list
            named_ports: ports.collect::<Box<[NamedPort]>>().into_vec(),
        }
    }
}
