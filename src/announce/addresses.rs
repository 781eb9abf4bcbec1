//! Addresses that a cluster must not publish because they mean something else to each reader, such
//! as loopback or link-local addresses. Pure functions, used by `check`.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// Metadata services of clouds at unique local addresses. Those at link-local addresses
/// (169.254.169.254) are refused as link-local.
const METADATA_SERVICES: [Ipv6Addr; 2] = [
    // Amazon EC2
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    // Google Compute Engine
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Returns the reason why `ip` cannot be published, or `None` if it can. An IPv4-mapped IPv6
/// address is checked as the IPv4 address.
pub(super) fn refusal_reason(ip: IpAddr) -> Option<&'static str> {
    match ip.to_canonical() {
        ip if ip.is_multicast() => Some("is a multicast address, which does not belong to one machine"),
        ip if ip.is_loopback() => Some("is a loopback address: each client would connect to itself"),
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some("is in 0.0.0.0/8 (\"this network\"), where no machine can be reached"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("is the broadcast address, which does not belong to one machine"),
        IpAddr::V4(ip) if ip.is_link_local() => {
            Some("is link-local: for each client it is another machine, or the cloud's metadata service (169.254.169.254)")
        }
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("is link-local: for each client it is another machine"),
        IpAddr::V6(ip) if ip.segments()[..6] == [0; 6] => Some("is in ::/96, where no machine can be reached"),
        IpAddr::V6(ip) if METADATA_SERVICES.contains(&ip) => Some("is the address of a cloud's metadata service"),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// Returns the reason why `net` cannot be published, or `None` if it can. Checks the first and the
/// last address of the prefix only.
pub(super) fn prefix_refusal_reason(net: IpNet) -> Option<String> {
    let both = [net.network(), net.broadcast()];
    both.into_iter().find_map(|ip| refusal_reason(ip).map(|reason| format!("{net} cannot be a pod CIDR: {ip} {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_special_meaning_are_refused() {
        for (text, expected) in [
            ("127.0.0.1", Some("is a loopback address")),
            ("127.255.0.9", Some("is a loopback address")),
            ("::1", Some("is a loopback address")),
            ("::ffff:127.0.0.1", Some("is a loopback address")),
            ("224.0.0.1", Some("is a multicast address")),
            ("239.255.255.250", Some("is a multicast address")),
            ("ff02::1", Some("is a multicast address")),
            ("::ffff:224.0.0.1", Some("is a multicast address")),
            ("0.0.0.0", Some("is in 0.0.0.0/8")),
            ("0.1.2.3", Some("is in 0.0.0.0/8")),
            ("::ffff:0.0.0.0", Some("is in 0.0.0.0/8")),
            ("::", Some("is in ::/96")),
            ("::127.0.0.1", Some("is in ::/96")),
            ("::169.254.169.254", Some("is in ::/96")),
            ("255.255.255.255", Some("is the broadcast address")),
            ("::ffff:255.255.255.255", Some("is the broadcast address")),
            ("169.254.169.254", Some("is link-local")),
            ("169.254.1.1", Some("is link-local")),
            ("::ffff:169.254.169.254", Some("is link-local")),
            ("fe80::1", Some("is link-local")),
            ("fd00:ec2::254", Some("is the address of a cloud's metadata service")),
            ("fd20:ce::254", Some("is the address of a cloud's metadata service")),
            ("10.0.0.1", None),
            ("100.64.0.1", None),
            ("198.18.0.1", None),
            ("240.0.0.1", None),
            ("fd00:ec2::253", None),
            ("2001:db8::1", None),
            ("::ffff:10.0.0.1", None),
        ] {
            let reason = refusal_reason(text.parse().unwrap());
            assert!(
                reason.map_or(expected.is_none(), |reason| expected.is_some_and(|start| reason.starts_with(start))),
                "{text}: {reason:?}"
            );
        }
    }

    #[test]
    fn prefixes_are_refused_by_their_first_and_last_address() {
        for (text, expected) in [
            ("0.0.0.0/0", Some("0.0.0.0/0 cannot be a pod CIDR: 0.0.0.0 is in 0.0.0.0/8")),
            ("::/0", Some("::/0 cannot be a pod CIDR: :: is in ::/96")),
            ("126.0.0.0/7", Some("126.0.0.0/7 cannot be a pod CIDR: 127.255.255.255 is a loopback address")),
            ("224.0.0.0/4", Some("224.0.0.0/4 cannot be a pod CIDR: 224.0.0.0 is a multicast address")),
            ("169.254.0.0/16", Some("169.254.0.0/16 cannot be a pod CIDR: 169.254.0.0 is link-local")),
            ("10.0.0.0/8", None),
            ("fd00:7::/64", None),
        ] {
            let reason = prefix_refusal_reason(text.parse().unwrap());
            assert!(
                reason.as_deref().map_or(expected.is_none(), |reason| expected.is_some_and(|start| reason.starts_with(start))),
                "{reason:?}"
            );
        }
    }
}
