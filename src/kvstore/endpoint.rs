//! One endpoint of an etcd client file, taken apart.

use tonic::transport::Uri;

use super::KvstoreError;

/// The port of etcd clients where an endpoint names none (IANA, `etcd-client`).
const PORT_DEFAULT: u16 = 2379;

/// Where to connect and whether by TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// A name or an address; IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) secure: bool,
}

impl Address {
    /// Reads `https://host:port`, `http://host:port` or `host:port`. As in etcd's client, the last is TLS unless
    /// `insecure-transport` is set, which in turn also makes plain TCP of `https://`.
    pub(super) fn parse(endpoint: &str, insecure_transport: bool) -> Result<Self, KvstoreError> {
        let invalid = |reason| KvstoreError::InvalidEndpoint { endpoint: without_credentials(endpoint), reason };
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
        let secure = match scheme {
            "http" => false,
            "https" => !insecure_transport,
            _ => return Err(invalid("only http:// and https:// are supported")),
        };
        if rest.contains('@') {
            return Err(invalid("user and password belong to the keys username and password"));
        }
        // through a full URI, because a bare authority would be taken for a path
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| invalid("not of the form https://host:port"))?;
        let host = uri.host().unwrap_or_default();
        let path_is_empty = matches!(uri.path_and_query().map(|path| path.as_str()), None | Some("/" | ""));
        // a port out of range reads as none
        let port_is_lost = uri.port_u16().is_none() && uri.authority().is_some_and(|authority| authority.as_str().len() > host.len());
        if host.is_empty() || !path_is_empty || port_is_lost {
            return Err(invalid("not of the form https://host:port"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(PORT_DEFAULT), secure })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

fn without_credentials(endpoint: &str) -> String {
    match endpoint.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_taken_apart() {
        let address = |host: &str, port, secure| Address { host: host.into(), port, secure };
        for (text, insecure, expected) in [
            ("https://tokyo.mesh.cilium.io:2379", false, address("tokyo.mesh.cilium.io", 2379, true)),
            ("https://tokyo:2379/", true, address("tokyo", 2379, false)),
            ("http://10.0.0.1:4001", false, address("10.0.0.1", 4001, false)),
            ("tokyo:2379", false, address("tokyo", 2379, true)),
            ("tokyo", true, address("tokyo", 2379, false)),
            ("https://[fd00::1]:2379", false, address("fd00::1", 2379, true)),
        ] {
            assert_eq!(Address::parse(text, insecure).unwrap(), expected, "{text}");
        }
        assert_eq!(address("fd00::1", 1, true).authority(), "[fd00::1]:1");
    }

    #[test]
    fn others_are_refused_without_showing_a_password() {
        for text in ["", "https://", "unix:///run/etcd", "https://a:b:c", "https://a:2379/x", "https://a:99999", "a b:1"] {
            assert!(Address::parse(text, false).is_err(), "{text}");
        }
        let message = Address::parse("https://u:hunter2@a:2379", false).unwrap_err().to_string();
        assert_eq!(message, "endpoint \"…@a:2379\" cannot be used: user and password belong to the keys username and password");
    }
}
