//! Host aliases of a client file (`cilium-host-aliases`). Cilium writes them for clusters whose
//! names are not in DNS, such as `paris.mesh.cilium.io` (`pkg/clustermesh/common/config.go`).
//! etcd's own client ignores the key.

use std::net::{IpAddr, Ipv6Addr};

use cilium_kvstore::HostAliases;
use serde_yaml_ng::Value;

use super::fields::scalar_text;

/// Key of the aliases in the client file.
pub(super) const KEY: &str = "cilium-host-aliases";

/// Reads the list `[{hostname, ips: […]}]`, or the map `{HOSTNAME: {ips: […]}}` that newer charts
/// of Cilium write. Like Cilium it refuses all aliases if one entry cannot be used: a name without
/// addresses would be looked up in DNS, and might resolve there.
pub(super) fn read_host_aliases(value: &Value) -> Result<HostAliases, String> {
    let wrong_shape =
        || "it must be a list of entries with a hostname and a list of ips, or a map of hostnames to entries with ips".to_owned();
    let mut aliases: Vec<(String, Vec<IpAddr>)> = Vec::new();
    match value {
        Value::Null => {}
        Value::Sequence(entries) => {
            for entry in entries {
                let hostname = field(entry, "hostname").map_err(|()| wrong_shape())?;
                let hostname = hostname.map_or(Some(String::new()), scalar_text).ok_or_else(wrong_shape)?;
                add_alias(&mut aliases, hostname, entry, &wrong_shape)?;
            }
        }
        Value::Mapping(entries) => {
            for (hostname, entry) in entries {
                add_alias(&mut aliases, scalar_text(hostname).ok_or_else(wrong_shape)?, entry, &wrong_shape)?;
            }
        }
        _ => return Err(wrong_shape()),
    }
    Ok(aliases.into_iter().collect())
}

fn add_alias(
    aliases: &mut Vec<(String, Vec<IpAddr>)>,
    hostname: String,
    entry: &Value,
    wrong_shape: &dyn Fn() -> String,
) -> Result<(), String> {
    let texts = field(entry, "ips").map_err(|()| wrong_shape())?;
    let texts = texts.map_or(Some(&[][..]), |ips| ips.as_sequence().map(Vec::as_slice)).ok_or_else(wrong_shape)?;
    let ips = texts.iter().map(address).collect::<Option<Vec<Option<IpAddr>>>>();
    let unusable = |reason: &str| Err(format!("the entry {hostname:?} {reason}"));
    match ips {
        _ if hostname.is_empty() => unusable("has no hostname"),
        None => unusable("has a value in ips that is not an IP address"),
        Some(ips) if ips.is_empty() => unusable("has no ips"),
        Some(_) if aliases.iter().any(|(name, _)| *name == hostname) => unusable("is repeated"),
        Some(ips) => {
            aliases.push((hostname, ips.into_iter().flatten().collect()));
            Ok(())
        }
    }
}

/// Returns the value of a field, ignoring the case of its name; an error if `entry` is not a
/// mapping.
fn field<'a>(entry: &'a Value, name: &str) -> Result<Option<&'a Value>, ()> {
    let fields = entry.as_mapping().ok_or(())?;
    let is_named = |key: &Value| key.as_str().is_some_and(|key| key.eq_ignore_ascii_case(name));
    let matching = fields.iter().filter(|(key, value)| is_named(key) && !value.is_null());
    Ok(matching.max_by_key(|(key, _)| key.as_str()).map(|(_, value)| value))
}

/// Parses an address as Go's `netip.Addr` does. The inner `None` is a value that agents accept but
/// cannot connect to: an empty address, or an address with a zone.
fn address(value: &Value) -> Option<Option<IpAddr>> {
    let text = if value.is_null() { "" } else { value.as_str()? };
    match text.split_once('%') {
        _ if text.is_empty() => Some(None),
        Some((address, zone)) => (!zone.is_empty() && address.parse::<Ipv6Addr>().is_ok()).then_some(None),
        None => text.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HostAliases, String> {
        read_host_aliases(&serde_yaml_ng::from_str(text).unwrap())
    }

    #[test]
    fn addresses_are_found_ignoring_the_case_of_the_name() {
        let text =
            "- hostname: paris.mesh.cilium.io\n  ips: [192.0.2.10, '2001:db8::1']\n- IPs: [192.0.2.11]\n  Hostname: Rome\n  port: 1\n";
        let aliases = read(text).unwrap();
        let expected: [IpAddr; 2] = ["192.0.2.10".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(aliases.addresses("PARIS.mesh.cilium.io"), Some(&expected[..]));
        assert_eq!(aliases.addresses("rome").map(<[IpAddr]>::len), Some(1));
        assert_eq!(aliases.addresses("tokyo"), None);
        let aliases =
            read("- {hostname: 12, ips: ['', ~, 'fe80::1%eth0', '::1']}\n- {hostname: a, ips: ['::2']}\n- {hostname: A, ips: ['::3']}")
                .unwrap();
        assert_eq!(["12", "a", "A"].map(|name| aliases.addresses(name).unwrap()[0].to_string()), ["::1", "::2", "::3"]);
        assert_eq!(read("null"), Ok(HostAliases::default()));
    }

    #[test]
    fn a_map_of_hostnames_equals_a_list() {
        let map = read("paris.mesh.cilium.io:\n  ips:\n  - 192.0.2.10\n  - 192.0.2.11\nrome: {IPs: ['::1']}").unwrap();
        let list = read("- {hostname: paris.mesh.cilium.io, ips: [192.0.2.10, 192.0.2.11]}\n- {hostname: rome, ips: ['::1']}");
        assert_eq!(Ok(map), list);
        assert_eq!(read("{}"), Ok(HostAliases::default()));
    }

    #[test]
    fn errors_name_the_unusable_entry() {
        const SHAPE: &str = "it must be a list of entries with a hostname and a list of ips, or a map of hostnames to entries with ips";
        for (text, expected) in [
            ("paris", SHAPE),
            ("{paris: [192.0.2.1]}", SHAPE),
            ("[paris]", SHAPE),
            ("[{hostname: a, ips: 192.0.2.1}]", SHAPE),
            ("{a: {ips: []}}", "the entry \"a\" has no ips"),
            ("{a: {ips: [b]}}", "the entry \"a\" has a value in ips that is not an IP address"),
            ("[{ips: [192.0.2.1]}]", "the entry \"\" has no hostname"),
            ("[{hostname: a}]", "the entry \"a\" has no ips"),
            ("[{hostname: a, ips: [b]}]", "the entry \"a\" has a value in ips that is not an IP address"),
            ("[{hostname: a, ips: [1]}]", "the entry \"a\" has a value in ips that is not an IP address"),
            ("[{hostname: a, ips: ['::1%']}]", "the entry \"a\" has a value in ips that is not an IP address"),
            ("[{hostname: a, ips: ['::1']}, {hostname: a, ips: ['::1']}]", "the entry \"a\" is repeated"),
        ] {
            assert_eq!(read(text), Err(expected.to_owned()), "{text}");
        }
    }
}
