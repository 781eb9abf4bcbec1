//! Go's `net.IP`, `net.IPMask` and `net.IPNet` in JSON, and the prefixes of Cilium's nodes.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::go_json::{GoDestination, GoValue, go_struct, read_text};
use super::quoted;

/// Length of an IPv6 mask (16 bytes, the longest mask) in base64.
const MASK_TEXT_LENGTH_MAX: usize = 24;

/// Number of bits of an IPv4-mapped IPv6 address before the IPv4 address (RFC 4291 §2.5.5.2).
const MAPPED_BITS: u8 = 96;

/// A `net.IP`: a string, empty if unset. IPv4-mapped addresses become IPv4, as `net.IP` prints
/// them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GoIp(pub(super) Option<IpAddr>);

/// A `net.IPMask`: base64, or `null`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GoIpMask(pub(super) Option<MaskSize>);

/// Result of Go's `IPMask.Size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaskSize {
    /// Number of leading ones, or `None` if a one follows a zero.
    pub(super) ones: Option<u8>,
    /// Length of the mask in bits.
    pub(super) bits: u8,
}

/// A node's `Prefix`: an object with `IP` and `Mask`, or a string from Cilium 1.22 on
/// (`pkg/node/types/prefix.go`), or `null` if unset. Bits after the mask are cleared.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GoPrefix(pub(super) Option<IpNet>);

go_struct! {
    /// A prefix in its object form.
    struct IpNetJson {
        ip: GoIp = "IP",
        mask: GoIpMask = "Mask",
    }
}

/// Parses an address as `net.ParseIP` does. IPv4-mapped addresses become IPv4.
pub(super) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("{} is not an IP address", quoted(text)))
}

fn parse_mask(text: &str) -> Result<MaskSize, String> {
    let mut buffer = [0; MASK_TEXT_LENGTH_MAX];
    let length = match text.len() {
        0..=MASK_TEXT_LENGTH_MAX => STANDARD.decode_slice(text, &mut buffer).ok(),
        _ => None,
    };
    let size = length.and_then(|length| mask_size(buffer.get(..length)?));
    size.ok_or_else(|| format!("{} is not the base64 of a mask", quoted(text)))
}

/// Encodes the mask of a network as Go does.
pub(super) fn mask_text(net: IpNet) -> String {
    match net.netmask() {
        IpAddr::V4(mask) => STANDARD.encode(mask.octets()),
        IpAddr::V6(mask) => STANDARD.encode(mask.octets()),
    }
}

/// Measures a mask of 0, 4 or 16 bytes.
fn mask_size(mask: &[u8]) -> Option<MaskSize> {
    let bits = match mask.len() {
        0 => 0,
        4 => 32,
        16 => 128,
        _ => return None,
    };
    let number = mask.iter().fold(0, |number: u128, byte| number << 8 | u128::from(*byte));
    let ones = number.checked_shl(128 - u32::from(bits)).unwrap_or(0).leading_ones();
    let canonical = ones == number.count_ones();
    Some(MaskSize { ones: u8::try_from(ones).ok().filter(|_| canonical), bits })
}

/// Parses a prefix as `netip.ParsePrefix` does: without a zone, and without leading zeros in the
/// length. IPv4-mapped prefixes become IPv4.
fn parse_prefix(text: &str) -> Result<IpNet, String> {
    let parsed = || {
        let (ip, length) = text.rsplit_once('/')?;
        let ones: u8 = length.parse().ok()?;
        let net = IpNet::new(ip.parse().ok()?, ones).ok()?.trunc();
        let ipv4 = ones.checked_sub(MAPPED_BITS).filter(|_| net.addr().is_ipv6() && net.addr().to_canonical().is_ipv4());
        let unmapped = ipv4.map_or(Some(net), |ones| IpNet::new(net.addr().to_canonical(), ones).ok());
        unmapped.filter(|_| ones.to_string() == length)
    };
    parsed().ok_or_else(|| format!("{} is not a prefix", quoted(text)))
}

impl IpNetJson {
    /// Converts to a prefix. The ones of the mask apply to the IPv4 address even if the JSON has an
    /// IPv4-mapped IPv6 address, as in Cilium.
    fn net(&self) -> Result<IpNet, String> {
        let ip = self.ip.0.ok_or("IP is empty")?;
        let size = self.mask.0.filter(|size| size.bits > 0).ok_or("Mask is missing")?;
        let ones = size.ones.ok_or("Mask is not canonical: a one follows a zero")?;
        let net = IpNet::new(ip, ones).map_err(|_| format!("Mask of {ones} ones does not fit IP {ip}"))?;
        Ok(net.trunc())
    }
}

impl GoValue for GoIp {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        let parse = |text: &str| if text.is_empty() { Ok(None) } else { parse_ip(text).map(Some) };
        self.0 = read_text(input, "an IP address", parse)?.flatten();
        Ok(())
    }
}

impl GoValue for GoIpMask {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        self.0 = read_text(input, "a mask in base64", parse_mask)?;
        Ok(())
    }
}

impl GoValue for GoPrefix {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        self.0 = input.deserialize_any(PrefixVisitor)?;
        Ok(())
    }
}

/// Accepts every form of a prefix: object, string and `null`.
struct PrefixVisitor;

impl<'de> Visitor<'de> for PrefixVisitor {
    type Value = Option<IpNet>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prefix")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        parse_prefix(text).map(Some).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut object = IpNetJson::default();
        Visitor::visit_map(GoDestination(&mut object), map)?;
        object.net().map(Some).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::go_json::parse;

    fn prefix(json: &str) -> String {
        match parse::<GoPrefix>("p", json.as_bytes()) {
            Ok(GoPrefix(Some(net))) => net.to_string(),
            Ok(GoPrefix(None)) => "unset".into(),
            Err(reason) => reason.trim_start_matches("value is not the JSON of p: ").to_owned(),
        }
    }

    #[test]
    fn a_prefix_has_two_forms() {
        for (json, expected) in [
            ("null", "unset"),
            (r#"{"IP":"10.244.1.0","Mask":"////AA=="}"#, "10.244.1.0/24"),
            (r#"{"ip":"10.244.1.9","mask":"////AA=="}"#, "10.244.1.0/24"),
            (r#"{"IP":"fd00::","Mask":"//////////8AAAAAAAAAAA=="}"#, "fd00::/64"),
            (r#"{"IP":"0.0.0.0","Mask":"AAAAAA=="}"#, "0.0.0.0/0"),
            (r#"{"IP":"10.0.0.1","Mask":"/////w=="}"#, "10.0.0.1/32"),
            (r#"{"IP":"::ffff:10.0.0.7","Mask":"////AA=="}"#, "10.0.0.0/24"),
            (r#"{"IP":"10.0.0.7","Mask":"////AAAAAAAAAAAAAAAAAA=="}"#, "10.0.0.0/24"),
            (r#"{"IP":"fd00:1234::","Mask":"////AA=="}"#, "fd00:1200::/24"),
            (r#""10.244.1.0/24""#, "10.244.1.0/24"),
            (r#""::ffff:10.0.0.0/104""#, "10.0.0.0/8"),
            (r#""::ffff:10.0.0.0/24""#, "::/24"),
            (r#""fd00::1/64""#, "fd00::/64"),
            (r#""10.0.0.1/0""#, "0.0.0.0/0"),
        ] {
            assert_eq!(prefix(json), expected, "{json}");
        }
    }

    #[test]
    fn invalid_prefixes_are_refused() {
        for (json, reason) in [
            (r#"{"IP":"","Mask":"////AA=="}"#, "IP is empty"),
            (r#"{"IP":"10.0.0.0"}"#, "Mask is missing"),
            (r#"{"IP":"10.0.0.0","Mask":null}"#, "Mask is missing"),
            (r#"{"IP":"10.0.0.0","Mask":""}"#, "Mask is missing"),
            ("{}", "IP is empty"),
            (r#""""#, r#""" is not a prefix"#),
            (r#"{"IP":"10.0.0.0","Mask":"//8A/w=="}"#, "Mask is not canonical"),
            (r#"{"IP":"10.0.0.0","Mask":"//9/AA=="}"#, "Mask is not canonical"),
            (r#"{"IP":"10.0.0.0","Mask":"//////////8AAAAAAAAAAA=="}"#, "Mask of 64 ones does not fit IP 10.0.0.0"),
            (r#"{"IP":"::ffff:10.0.0.0","Mask":"////////////////////AA=="}"#, "Mask of 120 ones does not fit IP 10.0.0.0"),
            (r#"{"IP":"fd00::","Mask":"////"}"#, r#"Mask: "////" is not the base64 of a mask"#),
            (r#"{"IP":"fd00::","Mask":"?"}"#, r#"Mask: "?" is not the base64 of a mask"#),
            (r#"{"IP":"10.0.0","Mask":"////AA=="}"#, r#"IP: "10.0.0" is not an IP address"#),
            (r#"{"IP":10,"Mask":"////AA=="}"#, "IP: invalid type: integer `10`, expected an IP address"),
            (r#""10.0.0.0""#, r#""10.0.0.0" is not a prefix"#),
            (r#""10.0.0.0/33""#, r#""10.0.0.0/33" is not a prefix"#),
            (r#""10.0.0.0/024""#, r#""10.0.0.0/024" is not a prefix"#),
            (r#""10.0.0.0/+24""#, r#""10.0.0.0/+24" is not a prefix"#),
            (r#""10.0.0.0/24/24""#, r#""10.0.0.0/24/24" is not a prefix"#),
            (r#""fe80::1%eth0/64""#, r#""fe80::1%eth0/64" is not a prefix"#),
            (r#""fd00::/129""#, r#""fd00::/129" is not a prefix"#),
            ("7", "invalid type: integer `7`, expected a prefix"),
        ] {
            assert!(prefix(json).starts_with(reason), "{json}: {}", prefix(json));
        }
    }
}
