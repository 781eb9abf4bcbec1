//! TLS connections to an etcd. Each connection reads the certificates again, so rotated
//! certificates are used from the next connection on.

mod certificates;
mod refusal;
mod trust;
mod verifier;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::ClientCertificate;
use crate::files::read_bounded;
use crate::{EtcdConfig, KvstoreError, TLS_FILE_BYTES_MAX};
use refusal::CertificateSide;
use trust::{CertificateUse, TrustedCertificates};

pub use certificates::{CertificateFacts, CertificateFile};
pub use refusal::TlsRefusal;
pub(crate) use refusal::tls_error;
pub(crate) use verifier::ServerVerifier;

/// Message for a file that is not PEM. The parser's own message may quote a line, and a key may be
/// on one line (rustls-pki-types, `pem::Error::IllegalSectionStart`).
const NOT_PEM: &str = "not in PEM form, or incomplete";

/// TLS part of a client configuration: the configuration of one connection, and the state that
/// explains a failed handshake.
pub(crate) struct ClientTls {
    pub(crate) config: ClientConfig,
    pub(crate) verifier: Arc<ServerVerifier>,
    /// Description of the client's certificate for messages; `None` without one.
    client: Option<String>,
}

impl ClientTls {
    /// Reads the configured files. Blocks while it reads them.
    pub(crate) fn read(config: &EtcdConfig) -> Result<Self, KvstoreError> {
        let verifier = Arc::new(ServerVerifier::new(config)?);
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("must hold: aws-lc supports TLS 1.2 and 1.3");
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::<ServerVerifier>::clone(&verifier));
        let (mut tls_config, client) = match &config.client_certificate {
            None => (builder.with_no_client_auth(), None),
            Some(pair) => {
                let key = certified_key(pair)?;
                let client = format!("{} of {}", refusal::describe_der(&key.cert[0]), pair.certificate_file.display());
                (builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))), Some(client))
            }
        };
        tls_config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: tls_config, verifier, client })
    }

    /// Returns why a handshake failed, or why the server ended the connection after it.
    pub(crate) fn refusal(&self, error: &io::Error) -> TlsRefusal {
        let refused_by_verifier = matches!(refusal::tls_error(error), Some(rustls::Error::InvalidCertificate(_)));
        let refusal = if refused_by_verifier { self.verifier.refusal() } else { None };
        refusal.unwrap_or_else(|| TlsRefusal::from_handshake_error(error, self.client.as_deref()))
    }
}

impl EtcdConfig {
    /// Checks whether the client's certificate is signed by the authorities that the client itself
    /// trusts. This is the case if Cilium's Helm chart created both. Returns `None` if either is
    /// missing. A server may trust other authorities. Blocks while it reads the files.
    #[must_use]
    pub fn client_certificate_is_trusted(&self) -> Option<Result<(), TlsRefusal>> {
        let (Some(authorities), Some(ClientCertificate { certificate_file: certificate, .. }), false) =
            (&self.trusted_ca_file, &self.client_certificate, self.insecure_transport)
        else {
            return None;
        };
        // files that cannot be read are reported by `certificate_files`
        let trusted = TrustedCertificates::read(Some(authorities)).ok()?;
        let chain = read_certificates(certificate).ok()?;
        let (end_entity, intermediates) = chain.split_first()?;
        let algorithms = provider().signature_verification_algorithms;
        let verified = trusted.verify_chain(algorithms.all, end_entity, intermediates, UnixTime::now(), CertificateUse::Client);
        Some(verified.map_err(|error| {
            TlsRefusal::from_certificate_error(CertificateSide::Client, end_entity, intermediates, &trusted, None, &error)
        }))
    }
}

/// Returns the only crypto provider of the program. It supports the same curves and hashes as Go.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Returns the client's certificate chain with its key. Fails if they do not belong together.
fn certified_key(pair: &ClientCertificate) -> Result<CertifiedKey, KvstoreError> {
    let ClientCertificate { certificate_file: certificate, key_file: key } = pair;
    let chain = read_certificates(certificate)?;
    let pem = read(key)?;
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable(key, missing_key_reason(&pem)))?;
    let signing = provider().key_provider.load_private_key(der).map_err(|_| {
        unusable(key, "TLS cannot use this key: it must be RSA of at least 2048 bits, ECDSA over P-256, P-384 or P-521, or Ed25519")
    })?;
    let end_entity = &chain[0];
    let (_, parsed) =
        x509_parser::parse_x509_certificate(end_entity).map_err(|_| unusable(certificate, "the first certificate in it is damaged"))?;
    if signing.public_key().is_some_and(|public| public.as_ref() != parsed.public_key().raw) {
        let reason = format!(
            "it is not the key of {} of {}; use a key and a certificate that belong together",
            refusal::describe_der(end_entity),
            certificate.display()
        );
        return Err(unusable(key, reason));
    }
    Ok(CertifiedKey::new(chain, signing))
}

/// Returns why no private key was found.
fn missing_key_reason(pem: &[u8]) -> &'static str {
    let is_encrypted = |line: &[u8]| line.starts_with(b"-----BEGIN ENCRYPTED") || line.starts_with(b"Proc-Type: 4,ENCRYPTED");
    if pem.split(|byte| *byte == b'\n').any(is_encrypted) {
        return "the key in it is encrypted; decrypt it with openssl pkey (etcd's client does not support passphrases either)";
    }
    "no private key in PEM form in it"
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KvstoreError> {
    let pem = read(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|_| unusable(path, NOT_PEM))?;
    if certificates.is_empty() { Err(unusable(path, "no certificate in it")) } else { Ok(certificates) }
}

fn read(path: &Path) -> Result<Vec<u8>, KvstoreError> {
    read_bounded(path, TLS_FILE_BYTES_MAX).map_err(|e| unusable(path, e))
}

fn unusable(path: &Path, reason: impl ToString) -> KvstoreError {
    KvstoreError::UnusableFile { path: PathBuf::from(path), reason: reason.to_string() }
}
