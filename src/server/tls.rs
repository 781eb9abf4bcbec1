//! TLS of the listeners: the server certificate and the accepted client certificates.
//!
//! Open connections keep the configuration of their handshake. A session cannot be resumed after a
//! reload, because each configuration has its own session tickets. Clients with a certificate of a
//! removed client CA therefore cannot connect again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::reloadable_file::ReloadableFile;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// ALPN protocols in order of preference. HTTP/2 comes first: it carries many streams over one
/// connection.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Name of the certificate files in logs and metrics.
pub(crate) const TLS_CERTIFICATE: &str = "TLS certificate";

/// PEM files for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Server certificate and its chain.
    pub certificate: PathBuf,
    /// Private key of the server certificate.
    pub key: PathBuf,
    /// Certificate authorities of accepted client certificates; `None` requests no client
    /// certificate.
    pub client_ca: Option<PathBuf>,
}

/// TLS configuration in use.
#[derive(Debug)]
pub(crate) struct TlsConfig {
    pub(super) config: Arc<ServerConfig>,
    /// Earliest expiry of the certificates in the server's chain.
    pub(crate) expiry: Option<SystemTime>,
}

/// Error from loading the TLS files.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} for TLS: {reason}", path.display())]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

/// Loads the TLS files and reloads them when they change.
pub(crate) fn open_tls(files: &TlsFiles) -> Result<ReloadableFile<TlsConfig>, TlsError> {
    let paths = [&files.certificate, &files.key].into_iter().chain(&files.client_ca).cloned().collect();
    let files = files.clone();
    ReloadableFile::open(TLS_CERTIFICATE, paths, move || load_config(&files))
}

/// Returns the earliest expiry in a chain; `None` if no certificate can be parsed.
fn expiry(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let expiry_of = |der: &CertificateDer<'_>| {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    chain.iter().filter_map(expiry_of).min()
}

/// Builds the TLS configuration from the files. Refuses a key that does not match the certificate.
fn load_config(files: &TlsFiles) -> Result<TlsConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates(&files.certificate)?;
    let expiry = expiry(&chain);
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| pem_error(&files.key, &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&files.certificate, &error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| tls_error(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| tls_error(path, &error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| tls_error(&files.certificate, &error))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(TlsConfig { config: Arc::new(config), expiry })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|error| pem_error(path, &error))?;
    if parsed.is_empty() { Err(tls_error(path, &"it contains no certificate")) } else { Ok(parsed) }
}

/// Converts a PEM error. Only the text of I/O errors is passed on: the parser may quote a line,
/// which could be the private key.
fn pem_error(path: &Path, error: &pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => tls_error(path, error),
        pem::Error::NoItemsFound => tls_error(path, &"it contains no private key"),
        _ => tls_error(path, &"it is not in PEM form, or incomplete"),
    }
}

fn tls_error(path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError { path: path.to_owned(), reason: reason.to_string() }
}
