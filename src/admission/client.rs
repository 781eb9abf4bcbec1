//! Who asks, as far as places and turns are counted for each.

use std::net::{IpAddr, Ipv6Addr};

/// Who is counted as one client. There is one bearer token for all, so it tells nobody apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// An address; of IPv6 the /64, which is what one host is usually given.
    Address(IpAddr),
    /// Everybody behind a unix socket.
    Local,
}

impl Client {
    /// Who is behind an address.
    #[must_use]
    pub fn at(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) if !ip.is_loopback() => Self::Address(Ipv6Addr::from(u128::from(ip) >> 64 << 64).into()),
            ip => Self::Address(ip),
        }
    }
}
