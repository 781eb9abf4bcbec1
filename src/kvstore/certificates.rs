//! What certificates say, for people who look for a wrong one.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::extensions::GeneralName;

use super::ClientFile;
use super::client_file::ClientPair;
use super::tls::{certificates, roots};

/// What a certificate says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whom it is for.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// The host names and addresses that it is good for.
    pub names: Vec<String>,
    /// From when on it is good, in seconds since 1970.
    pub not_before: i64,
    /// Until when, likewise.
    pub not_after: i64,
}

impl CertificateFacts {
    /// Reads a certificate; `None` for what is none.
    pub(super) fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let names = certificate.subject_alternative_name().ok().flatten();
        Some(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            names: names.iter().flat_map(|extension| &extension.value.general_names).filter_map(shown).collect(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
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

impl ClientFile {
    /// The certificates that a connection uses: the authorities' and the client's. Blocks on files.
    #[must_use]
    pub fn certificate_files(&self) -> Vec<CertificateFile> {
        if self.insecure_transport {
            return Vec::new();
        }
        let own = self.client_pair.as_ref().map(|pair| &pair.certificate);
        let facts = |path: &PathBuf| {
            let found = certificates(path).map_err(|error| error.to_string());
            CertificateFile { path: path.clone(), certificates: found.map(|found| found.iter().filter_map(CertificateFacts::of).collect()) }
        };
        self.trusted_ca_file.iter().chain(own).map(facts).collect()
    }

    /// Whether the client's certificate is signed by the authorities that the client itself trusts, as it is wherever Cilium's Helm chart made
    /// both; `None` without either. A server may trust others. Blocks on files.
    #[must_use]
    pub fn client_certificate_is_trusted(&self) -> Option<Result<(), String>> {
        let (Some(authorities), Some(ClientPair { certificate, .. }), false) =
            (&self.trusted_ca_file, &self.client_pair, self.insecure_transport)
        else {
            return None;
        };
        let verify = || {
            let store: RootCertStore = roots(Some(authorities.as_path())).map_err(|error| error.to_string())?;
            let chain = certificates(certificate).map_err(|error| error.to_string())?;
            let (own, between) = chain.split_first().ok_or("no certificate in it")?;
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
            let verified = verifier.map_err(|error| error.to_string())?.verify_client_cert(own, between, UnixTime::now());
            verified.map(|_| ()).map_err(|error| error.to_string())
        };
        Some(verify())
    }

    /// Whom the client logs in as, where the file gives a name and a password.
    #[must_use]
    pub fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Whether any server certificate is accepted.
    #[must_use]
    pub fn skips_verification(&self) -> bool {
        self.insecure_skip_tls_verify
    }

    /// Whether the client has a certificate to show.
    #[must_use]
    pub fn has_client_certificate(&self) -> bool {
        self.client_pair.is_some() && !self.insecure_transport
    }
}
