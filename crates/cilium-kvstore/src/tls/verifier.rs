//! Verifier of server certificates that records the reason of a refusal, because rustls returns
//! only a short code.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};

use super::provider;
use super::refusal::{CertificateSide, TlsRefusal};
use super::trust::{CertificateUse, TrustedCertificates};
use crate::{EtcdConfig, KvstoreError};

/// Verifier for one connection.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    /// `None` accepts any certificate (`insecure-skip-tls-verify`). The server must still prove
    /// that it has the key.
    trusted: Option<TrustedCertificates>,
    algorithms: WebPkiSupportedAlgorithms,
    refusal: Mutex<Option<TlsRefusal>>,
}

impl ServerVerifier {
    /// Creates the verifier for a configuration. Blocks while it reads files.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, KvstoreError> {
        let trusted =
            if config.insecure_skip_tls_verify { None } else { Some(TrustedCertificates::read(config.trusted_ca_file.as_deref())?) };
        Ok(Self { trusted, algorithms: provider().signature_verification_algorithms, refusal: Mutex::default() })
    }

    /// Returns why the server was refused, if it was.
    pub(crate) fn refusal(&self) -> Option<TlsRefusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, refusal: TlsRefusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Records a refusal if the signature was not made with the certificate's key.
    fn check_signature<T>(&self, certificate: &CertificateDer<'_>, result: Result<T, rustls::Error>) -> Result<T, rustls::Error> {
        if matches!(result, Err(rustls::Error::InvalidCertificate(_))) {
            self.refuse(TlsRefusal::from_handshake_signature(certificate));
        }
        result
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let verify_name = || webpki::EndEntityCert::try_from(end_entity)?.verify_is_valid_for_subject_name(name);
        let chain = trusted.verify_chain(self.algorithms.all, end_entity, intermediates, now, CertificateUse::Server);
        chain.and_then(|()| verify_name()).map(|()| ServerCertVerified::assertion()).map_err(|error| {
            self.refuse(TlsRefusal::from_certificate_error(
                CertificateSide::Server,
                end_entity,
                intermediates,
                trusted,
                Some(name),
                &error,
            ));
            as_rustls_error(error)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(certificate, verify_tls12_signature(message, certificate, signature, &self.algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verified = match (&self.trusted, x509_parser::parse_x509_certificate(certificate)) {
            // webpki parses only certificates of version 3; Go accepts any if verification is
            // skipped
            (None, Ok((_, parsed))) => {
                let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
                verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
            }
            _ => verify_tls13_signature(message, certificate, signature, &self.algorithms),
        };
        self.check_signature(certificate, verified)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Converts an error to the rustls error that selects the alert for the server.
fn as_rustls_error(error: webpki::Error) -> rustls::Error {
    let error = match error {
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::CertNotValidForName(_) => CertificateError::NotValidForName,
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    error.into()
}
