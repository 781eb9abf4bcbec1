//! What certificates say, for people who look for a wrong one.

use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::read_certificates;
use crate::EtcdConfig;

/// The fields of a certificate that people compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whom it is for.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// Its number, in hexadecimal digits, as `openssl x509 -serial` has it.
    pub serial: String,
    /// The host names and addresses that it is good for.
    pub names: Vec<String>,
    /// From when on it is good, in seconds since 1970.
    pub not_before: i64,
    /// Until when, likewise.
    pub not_after: i64,
    /// The identifier of its key (`subjectKeyIdentifier`), in hexadecimal digits.
    pub key_id: Option<String>,
    /// The identifier of the key that signed it (`authorityKeyIdentifier`), in hexadecimal digits.
    pub issuer_key_id: Option<String>,
}

impl CertificateFacts {
    /// Reads a certificate; `None` for what is none.
    pub(crate) fn of(der: &CertificateDer<'_>) -> Option<Self> {
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

/// The host names and addresses of a certificate.
pub(super) fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.iter().flat_map(|extension| &extension.value.general_names).filter_map(shown).collect()
}

/// The identifier of a certificate's key.
pub(super) fn key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(hexadecimal(id.0)),
        _ => None,
    })
}

/// The identifier of the key that signed a certificate.
pub(super) fn issuer_key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| hexadecimal(id.0)),
        _ => None,
    })
}

/// Bytes as `0a:1b`.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// A name of a certificate that a connection can be checked against.
fn shown(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
            ref bytes => <[u8; 16]>::try_from(bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// The certificates of one file that a client file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    /// The file.
    pub path: PathBuf,
    /// What is in it, or why it cannot be used.
    pub certificates: Result<Vec<CertificateFacts>, String>,
}

impl EtcdConfig {
    /// The certificates that a connection uses: the authorities' and the client's. Blocks on files.
    #[must_use]
    pub fn certificate_files(&self) -> Vec<CertificateFile> {
        if self.insecure_transport {
            return Vec::new();
        }
        let own = self.client_certificate.as_ref().map(|pair| &pair.certificate_file);
        let facts = |path: &PathBuf| {
            let found = read_certificates(path).map_err(|error| error.to_string());
            CertificateFile { path: path.clone(), certificates: found.map(|found| found.iter().filter_map(CertificateFacts::of).collect()) }
        };
        self.trusted_ca_file.iter().chain(own).map(facts).collect()
    }
}
