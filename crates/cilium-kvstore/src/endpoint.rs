//! Endpoints of an etcd client file, and their addresses.

use std::fmt;

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tonic::transport::Uri;

use crate::KvstoreError;

/// Port of an endpoint without a port (IANA, `etcd-client`).
const PORT_DEFAULT: u16 = 2379;

/// Endpoint as in the client file. `Display` and `Debug` replace user, password and query with `…`;
/// only `EndpointAddress::parse` reads the whole text.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// Wraps the text of an endpoint without checking it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Endpoint {
    /// Writes the scheme, host and port, and leaves out everything that could be a secret: a
    /// password may contain a `/` or `?`, a query an `@`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-._[]:%".contains(c));
        let (scheme, rest) = self.0.split_once("://").map_or(("", self.0.as_str()), |(scheme, rest)| (scheme, rest));
        let (authority, path_and_query) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("…@", host));
        // a non-numeric port may be a password, if the host is missing
        let (host, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') && !port.bytes().all(|byte| byte.is_ascii_digit()) => (name, ":…"),
            Some(_) | None => (host, ""),
        };
        match scheme {
            "" => {}
            scheme if plain(scheme) => write!(f, "{scheme}://")?,
            _ => f.write_str("…://")?,
        }
        if path_and_query.contains('@') || !plain(host) {
            return f.write_str("…");
        }
        write!(f, "{user}{host}{port}{}", if path_and_query.len() > 1 { "/…" } else { "" })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Host and port of an endpoint, and whether it uses TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointAddress {
    /// Name or address; IPv6 without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

impl EndpointAddress {
    /// Parses `https://host:port`, `http://host:port` or `host:port`. As in etcd's client, the last
    /// form uses TLS unless `insecure-transport` is set, which also turns `https://` into plain
    /// TCP.
    pub(crate) fn parse(endpoint: &Endpoint, insecure_transport: bool) -> Result<Self, KvstoreError> {
        let invalid = |reason| KvstoreError::InvalidEndpoint { endpoint: endpoint.clone(), reason };
        let (scheme, rest) = endpoint.0.split_once("://").unwrap_or(("https", &endpoint.0));
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => !insecure_transport,
            _ => return Err(invalid("only http:// and https:// are supported")),
        };
        if rest.contains('@') {
            return Err(invalid("put user and password into the keys username and password"));
        }
        // parsed as a full URI, because a bare authority would be parsed as a path
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| invalid("not of the form https://host:port"))?;
        let host = uri.host().unwrap_or_default();
        let path_is_empty = matches!(uri.path_and_query().map(|path| path.as_str()), None | Some("/" | ""));
        // the parser drops a port that is out of range
        let port_is_lost = uri.port_u16().is_none() && uri.authority().is_some_and(|authority| authority.as_str().len() > host.len());
        if host.is_empty() || !path_is_empty || port_is_lost {
            return Err(invalid("not of the form https://host:port"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(PORT_DEFAULT), secure })
    }

    /// Returns the name that the server's certificate must have: the host without the trailing dot
    /// of an absolute DNS name.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, InvalidDnsNameError> {
        ServerName::try_from(self.host.strip_suffix('.').unwrap_or(&self.host).to_owned())
    }

    /// Returns `host:port`, with brackets around an IPv6 address.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed() {
        let address = |host: &str, port, secure| EndpointAddress { host: host.into(), port, secure };
        for (text, insecure, expected) in [
            ("https://tokyo.mesh.cilium.io:2379", false, address("tokyo.mesh.cilium.io", 2379, true)),
            ("https://tokyo:2379/", true, address("tokyo", 2379, false)),
            ("http://10.0.0.1:4001", false, address("10.0.0.1", 4001, false)),
            ("tokyo:2379", false, address("tokyo", 2379, true)),
            ("tokyo", true, address("tokyo", 2379, false)),
            ("HTTP://tokyo:2379", false, address("tokyo", 2379, false)),
            ("Https://tokyo.mesh.:2379", false, address("tokyo.mesh.", 2379, true)),
            ("https://[fd00::1]:2379", false, address("fd00::1", 2379, true)),
        ] {
            assert_eq!(EndpointAddress::parse(&Endpoint::new(text), insecure).unwrap(), expected, "{text}");
        }
        assert_eq!(address("fd00::1", 1, true).authority(), "[fd00::1]:1");
        assert_eq!(address("tokyo.mesh.", 1, true).server_name().unwrap().to_str(), "tokyo.mesh");
    }

    #[test]
    fn errors_of_invalid_endpoints_hide_the_password() {
        for text in ["", "https://", "unix:///run/etcd", "https://a:b:c", "https://a:2379/x", "https://a:99999", "a b:1"] {
            assert!(EndpointAddress::parse(&Endpoint::new(text), false).is_err(), "{text}");
        }
        let message = EndpointAddress::parse(&Endpoint::new("https://u:hunter2@a:2379"), false).unwrap_err().to_string();
        assert_eq!(message, "endpoint \"https://…@a:2379\" cannot be used: put user and password into the keys username and password");
    }

    #[test]
    fn an_endpoint_hides_user_and_query() {
        for (text, shown) in [
            ("https://tokyo:2379", "https://tokyo:2379"),
            ("https://[fd00::1]:2379/", "https://[fd00::1]:2379"),
            ("https://[fd00::1]", "https://[fd00::1]"),
            ("tokyo", "tokyo"),
            ("http://bob:hunter2@tokyo:2379", "http://…@tokyo:2379"),
            ("bob:hunter2@tokyo", "…@tokyo"),
            ("http://bob:hunt@er2@tokyo:2379", "http://…@tokyo:2379"),
            ("http://bob:hunt/er2@tokyo:2379", "http://…"),
            ("http://bob:hunt?er2@tokyo:2379", "http://…"),
            ("http://tokyo:2379?token=hunter2", "http://tokyo:2379/…"),
            ("http://tokyo:2379/?token=hunter2", "http://tokyo:2379/…"),
            ("http://tokyo:2379/?token=hunt@er2", "http://…"),
            ("http://tokyo#hunter2", "http://tokyo/…"),
            ("http://bob:hunter2", "http://bob:…"),
            ("http://hunter 2", "http://…"),
            ("hunter 2://tokyo", "…://tokyo"),
        ] {
            let endpoint = Endpoint::new(text);
            assert_eq!(endpoint.to_string(), shown, "{text}");
            assert_eq!(format!("{endpoint:?}"), format!("\"{shown}\""));
        }
    }
}
