//! The client that a request belongs to, for limits per client.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The unit that limits are counted for.
///
/// The bearer token does not identify a client, because all clients use the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// An IPv4 address, or the /64 of an IPv6 address, which is the network that one host usually
    /// gets.
    Address(IpAddr),
    /// All clients of a unix socket together.
    Local,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Local => f.write_str("unix socket"),
        }
    }
}

impl Client {
    /// Returns the client of a peer address. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) if !ip.is_loopback() => Self::Address(Ipv6Addr::from(u128::from(ip) >> 64 << 64).into()),
            ip => Self::Address(ip),
        }
    }
}
