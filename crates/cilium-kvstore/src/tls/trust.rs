//! Certificates that a client file trusts, and the verification of chains to them.
//!
//! The rules are those of Go's `crypto/x509`, which etcd's own client uses. They differ from
//! webpki's rules: the peer's own certificate may be a trusted certificate, a certificate that
//! signs others must belong to an authority and must not have expired, and `anyExtendedKeyUsage`
//! permits every use.

use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, KeyUsage, VerifiedPath};
use x509_parser::x509::X509Version;

use super::{read_certificates, unusable};
use crate::KvstoreError;

/// `anyExtendedKeyUsage` (RFC 5280, 4.2.1.12): 2.5.29.37.0.
const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];

/// `id-kp-serverAuth` (RFC 5280, 4.2.1.12): 1.3.6.1.5.5.7.3.1.
const SERVER_PURPOSE: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// `id-kp-clientAuth` (RFC 5280, 4.2.1.12): 1.3.6.1.5.5.7.3.2.
const CLIENT_PURPOSE: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];

/// Use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateUse {
    Server,
    Client,
}

impl ExtendedKeyUsageValidator for CertificateUse {
    fn validate(&self, ids: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let (wanted, usage) = match self {
            Self::Server => (SERVER_PURPOSE, KeyUsage::server_auth()),
            Self::Client => (CLIENT_PURPOSE, KeyUsage::client_auth()),
        };
        let mut present = Vec::new();
        for id in ids {
            let id = id?;
            if id == KeyPurposeId::new(wanted) || id == KeyPurposeId::new(ANY_PURPOSE) {
                return Ok(());
            }
            present.push(id.to_decoded_oid());
        }
        // a certificate without purposes is valid for all of them
        if present.is_empty() {
            return Ok(());
        }
        Err(webpki::Error::RequiredEkuNotFoundContext(webpki::RequiredEkuNotFoundContext { required: usage, present }))
    }
}

/// The certificates of `trusted-ca-file`, or of the system.
#[derive(Debug)]
pub(super) struct TrustedCertificates {
    file: Option<PathBuf>,
    certificates: Vec<CertificateDer<'static>>,
    /// Trust anchor of each certificate, in the same order.
    anchors: Vec<TrustAnchor<'static>>,
}

impl TrustedCertificates {
    /// Reads the file, or the system's certificates if there is none. Blocks on files.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, KvstoreError> {
        let Some(path) = file else { return Self::read_system() };
        let certificates = read_certificates(path)?;
        let mut anchors = Vec::with_capacity(certificates.len());
        for (index, certificate) in certificates.iter().enumerate() {
            // etcd's own client also refuses the whole file
            let anchor = anchor(certificate).ok_or_else(|| unusable(path, format!("certificate {} in it is damaged", index + 1)))?;
            anchors.push(anchor);
        }
        Ok(Self { file: Some(path.to_owned()), certificates, anchors })
    }

    fn read_system() -> Result<Self, KvstoreError> {
        let found = rustls_native_certs::load_native_certs();
        let usable = found.certs.into_iter().filter_map(|certificate| anchor(&certificate).map(|anchor| (certificate, anchor)));
        let (certificates, anchors): (Vec<_>, Vec<_>) = usable.unzip();
        if anchors.is_empty() {
            let reason = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
            return Err(KvstoreError::NoSystemRoots { reason });
        }
        Ok(Self { file: None, certificates, anchors })
    }

    /// Returns the origin of the certificates, for messages.
    pub(super) fn source(&self) -> String {
        self.file.as_ref().map_or_else(|| "this system's CA certificates".to_owned(), |file| file.display().to_string())
    }

    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Verifies that a certificate is a trusted certificate, or that a chain of signatures leads
    /// from it to a trusted certificate.
    pub(super) fn verify_chain(
        &self,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: CertificateUse,
    ) -> Result<(), webpki::Error> {
        let certificate = EndEntityCert::try_from(end_entity)?;
        if self.certificates.iter().any(|trusted| trusted.as_ref() == end_entity.as_ref()) {
            return verify_trusted_end_entity(end_entity, now, purpose);
        }
        let anchor_is_valid = |path: &VerifiedPath<'_>| self.verify_anchor(path.anchor(), now);
        certificate.verify_for_usage(algorithms, &self.anchors, intermediates, now, purpose, None, Some(&anchor_is_valid)).map(|_| ())
    }

    /// Makes the checks that webpki does not make: at least one trusted certificate with this name
    /// and key must belong to an authority and be within its validity. There are several if an
    /// authority was renewed with its old key.
    fn verify_anchor(&self, anchor: &TrustAnchor<'_>, now: UnixTime) -> Result<(), webpki::Error> {
        let candidates = self
            .anchors
            .iter()
            .zip(&self.certificates)
            .filter(|(other, _)| other.subject == anchor.subject && other.subject_public_key_info == anchor.subject_public_key_info);
        let mut result = Ok(());
        for (_, certificate) in candidates {
            result = verify_dates(certificate, now).and_then(|()| verify_authority(certificate));
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

fn anchor(certificate: &CertificateDer<'_>) -> Option<TrustAnchor<'static>> {
    webpki::anchor_from_trusted_cert(certificate).ok().map(|anchor| anchor.to_owned())
}

/// Verifies a certificate that is itself trusted. Go's `Certificate.Verify` first searches the
/// trusted certificates, and does not check whether the match belongs to an authority.
fn verify_trusted_end_entity(end_entity: &CertificateDer<'_>, now: UnixTime, purpose: CertificateUse) -> Result<(), webpki::Error> {
    verify_dates(end_entity, now)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(end_entity).map_err(|_| webpki::Error::BadDer)?;
    let usage = certificate.extended_key_usage().map_err(|_| webpki::Error::BadDer)?;
    let Some(usage) = usage.map(|extension| extension.value) else { return Ok(()) };
    let (is_permitted, required) = match purpose {
        CertificateUse::Server => (usage.server_auth, KeyUsage::server_auth()),
        CertificateUse::Client => (usage.client_auth, KeyUsage::client_auth()),
    };
    if usage.any || is_permitted {
        return Ok(());
    }
    Err(webpki::Error::RequiredEkuNotFoundContext(webpki::RequiredEkuNotFoundContext { required, present: Vec::new() }))
}

/// Checks that a certificate may sign others. A server certificate that is trusted itself may not.
/// Certificates of version 1 cannot state whether they may.
fn verify_authority(certificate: &CertificateDer<'_>) -> Result<(), webpki::Error> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).map_err(|_| webpki::Error::BadDer)?;
    if certificate.version() == X509Version::V3 && !certificate.is_ca() {
        return Err(webpki::Error::EndEntityUsedAsCa);
    }
    Ok(())
}

fn verify_dates(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), webpki::Error> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).map_err(|_| webpki::Error::BadDer)?;
    // dates before 1970 count as 1970
    let time = |seconds: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or_default()));
    let validity = certificate.validity();
    let (not_before, not_after) = (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()));
    if now < not_before {
        return Err(webpki::Error::CertNotValidYet { time: now, not_before });
    }
    if now > not_after {
        return Err(webpki::Error::CertExpired { time: now, not_after });
    }
    Ok(())
}
