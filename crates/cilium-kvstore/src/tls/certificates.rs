//! Human-readable facts about certificates, for people who search for a wrong certificate.

use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::read_certificates;
use crate::EtcdConfig;

/// Fields of a certificate that help to identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Subject of the certificate.
    pub subject: String,
    /// Issuer of the certificate.
    pub issuer: String,
    /// Serial number in hexadecimal digits, as `openssl x509 -serial` prints it.
    pub serial: String,
    /// Host names and addresses that the certificate is valid for.
    pub names: Vec<String>,
    /// Start of its validity, in seconds since 1970.
    pub not_before: i64,
    /// End of its validity, in seconds since 1970.
    pub not_after: i64,
    /// Identifier of its key (`subjectKeyIdentifier`), in hexadecimal digits.
    pub key_id: Option<String>,
    /// Identifier of the issuer's key (`authorityKeyIdentifier`), in hexadecimal digits.
    pub issuer_key_id: Option<String>,
}

impl CertificateFacts {
    /// Parses a certificate; `None` if the bytes are not a certificate.
    pub(crate) fn from_der(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        Some(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            serial: certificate.raw_serial_as_string(),
            names: names(&certificate),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            key_id: key_id(&certificate),
            issuer_key_id: issuer_key_id(&certificate),
        })
    }
}

/// Returns the host names and addresses of a certificate.
pub(super) fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.iter().flat_map(|extension| &extension.value.general_names).filter_map(comparable_name).collect()
}

/// Returns the identifier of a certificate's key.
pub(super) fn key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(hexadecimal(id.0)),
        _ => None,
    })
}

/// Returns the identifier of the key that signed a certificate.
pub(super) fn issuer_key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| hexadecimal(id.0)),
        _ => None,
    })
}

/// Formats bytes as `0a:1b`.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// Returns a name of a certificate that can be compared with a server's name or address.
fn comparable_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
            ref bytes => <[u8; 16]>::try_from(bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// Certificates of one file to which the client file refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Certificates in the file, or why it cannot be used.
    pub certificates: Result<Vec<CertificateFacts>, String>,
}

impl EtcdConfig {
    /// Returns the certificates that a connection uses: the trusted CA certificates and the
    /// client's. Blocks while it reads the files.
    #[must_use]
    pub fn certificate_files(&self) -> Vec<CertificateFile> {
        if self.insecure_transport {
            return Vec::new();
        }
        let client_file = self.client_certificate.as_ref().map(|pair| &pair.certificate_file);
        let facts = |path: &PathBuf| {
            let certificates = read_certificates(path).map_err(|error| error.to_string());
            CertificateFile {
                path: path.clone(),
                certificates: certificates.map(|ders| ders.iter().filter_map(CertificateFacts::from_der).collect()),
            }
        };
        self.trusted_ca_file.iter().chain(client_file).map(facts).collect()
    }
}
