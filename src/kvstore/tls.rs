//! TLS towards an etcd: certificates are read anew for each connection, so that rotated ones count from the next one on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::client_file::ClientPair;
use super::{ClientFile, KvstoreError, TLS_FILE_BYTES_MAX};
use crate::files::read_bounded;

/// What is said of what cannot be read. The reader's own words may quote a line, and a key on one line is one (rustls-pki-types,
/// `pem::Error::IllegalSectionStart`).
const NOT_PEM: &str = "not in PEM form, or cut off";

/// The TLS side of a client file. Blocks on files.
pub(super) fn client_config(file: &ClientFile) -> Result<ClientConfig, KvstoreError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("must hold: aws-lc supports TLS 1.2 and 1.3");
    let builder = builder.dangerous().with_custom_certificate_verifier(server_verifier(file)?);
    let mut config = match &file.client_pair {
        None => builder.with_no_client_auth(),
        Some(ClientPair { certificate, key }) => {
            let chain = certificates(certificate)?;
            let private_key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| unusable(key, "no private key in PEM form in it"))?;
            builder.with_client_auth_cert(chain, private_key).map_err(|e| unusable(certificate, e))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Who decides whether a server's certificate is trusted. Blocks on files.
pub(super) fn server_verifier(file: &ClientFile) -> Result<Arc<dyn ServerCertVerifier>, KvstoreError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    if file.insecure_skip_tls_verify {
        return Ok(Arc::new(AcceptAnyServer { provider }));
    }
    let roots = Arc::new(roots(file.trusted_ca_file.as_deref())?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    Ok(verifier.map_err(|error| KvstoreError::NoSystemRoots { reason: error.to_string() })?)
}

pub(super) fn roots(trusted_ca_file: Option<&Path>) -> Result<RootCertStore, KvstoreError> {
    let mut store = RootCertStore::empty();
    if let Some(path) = trusted_ca_file {
        for certificate in certificates(path)? {
            store.add(certificate).map_err(|e| unusable(path, e))?;
        }
        return Ok(store);
    }
    let found = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let reason = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
        return Err(KvstoreError::NoSystemRoots { reason });
    }
    Ok(store)
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KvstoreError> {
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

/// `insecure-skip-tls-verify`: any certificate will do. Its holder must still prove that it has the key.
#[derive(Debug)]
struct AcceptAnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
