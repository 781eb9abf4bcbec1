//! Addresses that the HTTP server listens on.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// Version of etcd whose API meshkeep serves. Clients check it to learn which calls they may use:
/// `RangeStream` is new in this version.
pub const ETCD_VERSION: &str = "3.7.0";

/// Address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP address. Port 0 selects any free port.
    Tcp(SocketAddr),
    /// Unix socket at this absolute path.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Parses `ADDRESS:PORT`, `:PORT` (all addresses), `localhost:PORT` or `unix:///path`.
    ///
    /// # Errors
    /// A message that lists the accepted forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refusal =
            || "must be ADDRESS:PORT, such as 127.0.0.1:9870, [::1]:9870 or :9870 for every address, or unix:///absolute/path".to_owned();
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(refusal()) };
        }
        if let Some(port) = text.strip_prefix(':') {
            let port = port.parse().map_err(|_| refusal())?;
            return Ok(Self::Tcp((Ipv6Addr::UNSPECIFIED, port).into()));
        }
        let numeric = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
        numeric.parse().map(Self::Tcp).map_err(|_| refusal())
    }

    /// Returns whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Returns whether the system would refuse to bind both addresses. An unspecified address
    /// covers all others, and `[::]` also those of IPv4.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                let (one_ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
                let covers = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
                let overlap = one_ip == other_ip || covers(one_ip, other_ip) || covers(other_ip, one_ip);
                one.port() == other.port() && one.port() != 0 && overlap
            }
            (Self::Unix(one), Self::Unix(other)) => one == other,
            (Self::Tcp(_), Self::Unix(_)) | (Self::Unix(_), Self::Tcp(_)) => false,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_parsed() {
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.parse().unwrap()));
        let cases = [
            ("127.0.0.1:9870", tcp("127.0.0.1:9870"), true),
            ("localhost:0", tcp("127.0.0.1:0"), true),
            ("[::1]:80", tcp("[::1]:80"), true),
            ("[::ffff:127.0.0.1]:80", tcp("[::ffff:127.0.0.1]:80"), true),
            (":9870", tcp("[::]:9870"), false),
            ("0.0.0.0:80", tcp("0.0.0.0:80"), false),
            ("unix:///run/a.sock", Ok(ListenAddress::Unix("/run/a.sock".into())), true),
        ];
        for (text, expected, local) in cases {
            let parsed = ListenAddress::parse(text);
            assert_eq!((parsed.as_ref().map(ListenAddress::is_local), &parsed), (Ok(local), &expected), "{text}");
        }
        for bad in ["", "9870", "http://127.0.0.1:1", "unix://run/a", "unix:", "example.org:80", ":x", "127.0.0.1:99999"] {
            assert!(ListenAddress::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_conflict_if_they_share_a_port_or_a_socket() {
        for (one, other, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            (":1", "127.0.0.1:1", true),
            ("0.0.0.0:1", "[::]:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
            ("unix:///a", "unix:///a", true),
            ("unix:///a", "unix:///b", false),
            ("unix:///a", "127.0.0.1:1", false),
        ] {
            let (first, second) = (ListenAddress::parse(one).unwrap(), ListenAddress::parse(other).unwrap());
            assert_eq!((first.conflicts_with(&second), second.conflicts_with(&first)), (expected, expected), "{one} {other}");
        }
    }
}
