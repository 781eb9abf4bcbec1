//! Configuration of an etcd client: the content of Cilium's etcd client file as plain values.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::files::read_bounded;
use crate::{Endpoint, TLS_FILE_BYTES_MAX};

/// The etcd that a client uses: its endpoints, certificates and user.
///
/// The fields are the keys of the etcd client file that Cilium writes (`etcd.config`, etcd's
/// `clientv3/yaml`). Each connection reads the certificates again, so rotated certificates are used
/// from the next connection on.
///
/// ```
/// use cilium_kvstore::{ClientCertificate, EtcdConfig};
///
/// let mut config = EtcdConfig::new("https://clustermesh-apiserver.kube-system.svc:2379");
/// config.trusted_ca_file = Some("/var/lib/etcd-secrets/ca.crt".into());
/// config.client_certificate = Some(ClientCertificate {
///     certificate_file: "/var/lib/etcd-secrets/tls.crt".into(),
///     key_file: "/var/lib/etcd-secrets/tls.key".into(),
/// });
/// assert_eq!(config.referenced_files().len(), 3);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Never empty.
    endpoints: Vec<Endpoint>,
    /// CA certificates that the server's certificate is verified against, in PEM form. `None` uses
    /// the system's CA certificates. (`trusted-ca-file`)
    pub trusted_ca_file: Option<PathBuf>,
    /// Certificate that the client presents, with its key. (`cert-file`, `key-file`)
    pub client_certificate: Option<ClientCertificate>,
    /// Whether to use no TLS, even with endpoints that begin with `https://`.
    /// (`insecure-transport`)
    pub insecure_transport: bool,
    /// Whether to accept any server certificate. (`insecure-skip-tls-verify`)
    pub insecure_skip_tls_verify: bool,
    /// User of etcd to log in as. (`username`, `password`)
    pub credentials: Option<Credentials>,
    /// Addresses that replace the DNS results of some host names. (`cilium-host-aliases`)
    pub host_aliases: HostAliases,
}

/// Files with the client's certificate and its private key, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Client certificate, followed by its intermediate certificates.
    pub certificate_file: PathBuf,
    /// Private key of the certificate.
    pub key_file: PathBuf,
}

/// A user of etcd with its password. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the user.
    pub username: String,
    /// Password of the user.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redacted")
    }
}

/// Host names and their addresses, in the order of the client file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostAliases(Vec<(String, Vec<IpAddr>)>);

impl HostAliases {
    /// Returns the names with their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[IpAddr])> {
        self.0.iter().map(|(name, ips)| (name.as_str(), ips.as_slice()))
    }

    /// Returns the addresses of a name. An entry with the same spelling has priority over an entry
    /// that differs only in case.
    #[must_use]
    pub fn addresses(&self, hostname: &str) -> Option<&[IpAddr]> {
        let exact_match = self.0.iter().find(|(name, _)| name == hostname);
        let entry = exact_match.or_else(|| self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(hostname)));
        entry.map(|(_, ips)| ips.as_slice())
    }
}

impl FromIterator<(String, Vec<IpAddr>)> for HostAliases {
    fn from_iter<I: IntoIterator<Item = (String, Vec<IpAddr>)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl EtcdConfig {
    /// Returns a configuration with one endpoint, such as `https://host:2379`, and neither
    /// certificates nor a user.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoints: vec![Endpoint::new(endpoint)],
            trusted_ca_file: None,
            client_certificate: None,
            insecure_transport: false,
            insecure_skip_tls_verify: false,
            credentials: None,
            host_aliases: HostAliases::default(),
        }
    }

    /// Adds an endpoint of the same etcd cluster. A session tries its endpoints in turn: after a
    /// lost connection or a failed attempt it tries the next one.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoints.push(Endpoint::new(endpoint));
        self
    }

    /// Returns the endpoints in their order. There is at least one.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Returns the files that a connection reads: the CA, certificate and key files that are set.
    /// Empty with `insecure_transport`.
    #[must_use]
    pub fn referenced_files(&self) -> Vec<PathBuf> {
        if self.insecure_transport {
            return Vec::new();
        }
        let pair = self.client_certificate.iter().flat_map(|pair| [&pair.certificate_file, &pair.key_file]);
        self.trusted_ca_file.iter().chain(pair).cloned().collect()
    }

    /// Returns the [`Self::referenced_files`] that do not exist. Checks the file system once per
    /// file.
    #[must_use]
    pub fn missing_files(&self) -> Vec<PathBuf> {
        self.referenced_files().into_iter().filter(|path| !path.exists()).collect()
    }

    /// Returns the earliest expiry of a certificate in the client's chain or the CA file; `None` if
    /// no certificate can be read. Blocks while it reads the files.
    #[must_use]
    pub fn certificate_expiry(&self) -> Option<SystemTime> {
        if self.insecure_transport {
            return None;
        }
        let chain = self.client_certificate.as_ref().map(|pair| &pair.certificate_file);
        self.trusted_ca_file.iter().chain(chain).filter_map(|path| earliest_expiry(path)).min()
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("trusted_ca_file", &self.trusted_ca_file)
            .field("client_certificate", &self.client_certificate)
            .field("insecure_transport", &self.insecure_transport)
            .field("insecure_skip_tls_verify", &self.insecure_skip_tls_verify)
            .field("credentials", &self.credentials)
            .field("host_aliases", &self.host_aliases)
            .finish()
    }
}

fn earliest_expiry(path: &Path) -> Option<SystemTime> {
    let pem = read_bounded(path, TLS_FILE_BYTES_MAX).ok()?;
    CertificateDer::pem_slice_iter(&pem).filter_map(|certificate| expiry(&certificate.ok()?)).min()
}

fn expiry(der: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_files() -> EtcdConfig {
        let client_certificate = ClientCertificate { certificate_file: "/c.crt".into(), key_file: "/c.key".into() };
        EtcdConfig {
            trusted_ca_file: Some("/ca.crt".into()),
            client_certificate: Some(client_certificate),
            ..EtcdConfig::new("https://a:2379").with_endpoint("b:2379")
        }
    }

    #[test]
    fn files_are_needed_only_with_tls() {
        let config = with_files();
        assert_eq!(config.endpoints(), ["https://a:2379", "b:2379"].map(Endpoint::new));
        assert_eq!(config.referenced_files(), ["/ca.crt", "/c.crt", "/c.key"].map(PathBuf::from));
        assert_eq!(config.missing_files(), config.referenced_files());
        assert_eq!(config.certificate_expiry(), None);
        let insecure = EtcdConfig { insecure_transport: true, ..config };
        assert_eq!(insecure.referenced_files(), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_password_is_not_in_the_debug_output() {
        let credentials = Credentials { username: "u".into(), password: "hunter2".into() };
        let shown = format!("{:?}", EtcdConfig { credentials: Some(credentials), ..with_files() });
        assert!(shown.contains("redacted") && !shown.contains("hunter2"), "{shown}");
    }
}
