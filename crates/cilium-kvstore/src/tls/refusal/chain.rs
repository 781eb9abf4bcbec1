//! Diagnosis of a refused certificate, from its chain and the trusted certificates.

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::objects::{oid_registry, oid2sn};

use super::super::certificates::{issuer_key_id, key_id, names};
use super::super::trust::TrustedCertificates;
use super::{CertificateSide, NAMES_MAX, TlsRefusal, clip, code_to_words, describe, list, parsed, short_rsa_bits};

/// A certificate, the certificates that were sent with it, and the trusted ones.
pub(super) struct CertificateChain<'a> {
    owner: CertificateSide,
    end_entity: X509Certificate<'a>,
    intermediates: Vec<X509Certificate<'a>>,
    trusted: &'a TrustedCertificates,
}

impl<'a> CertificateChain<'a> {
    pub(super) fn read(
        owner: CertificateSide,
        end_entity: &'a CertificateDer<'_>,
        intermediates: &'a [CertificateDer<'_>],
        trusted: &'a TrustedCertificates,
    ) -> Option<Self> {
        Some(Self { owner, end_entity: parsed(end_entity)?, intermediates: intermediates.iter().filter_map(parsed).collect(), trusted })
    }

    pub(super) fn refusal(&self, name: Option<&ServerName<'_>>, error: &webpki::Error) -> TlsRefusal {
        let own_description = self.description(&self.end_entity);
        match error {
            webpki::Error::UnknownIssuer => self.unknown_issuer(),
            webpki::Error::CaUsedAsEndEntity if self.end_entity.subject() == self.end_entity.issuer() => self.unknown_issuer(),
            webpki::Error::InvalidSignatureForPublicKey => self.wrong_key(),
            webpki::Error::CertExpired { time, not_after } => self.expired(*time, *not_after),
            webpki::Error::CertNotValidYet { time, not_before } => self.not_valid_yet(*time, *not_before),
            webpki::Error::CertNotValidForName(_) => self.wrong_name(name),
            webpki::Error::CaUsedAsEndEntity => TlsRefusal::new(
                format!("{own_description} belongs to an authority (CA:TRUE), not to a {}", self.owner.noun()),
                format!("issue a new one without CA:TRUE, or add this certificate itself to {}", self.file()),
            ),
            webpki::Error::EndEntityUsedAsCa => {
                let signers =
                    self.intermediates.iter().cloned().chain(self.trusted().filter(|other| other.subject() == self.last().issuer()));
                let non_ca = signers.into_iter().find(|certificate| !certificate.is_ca());
                let description = non_ca.map_or_else(|| own_description.clone(), |certificate| self.description(&certificate));
                TlsRefusal::new(
                    format!("{description} signed another one, but must not: CA:TRUE is missing"),
                    "sign with the certificate of an authority",
                )
            }
            webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => self.wrong_purpose(),
            webpki::Error::NameConstraintViolation => TlsRefusal::new(
                format!(
                    "an authority above {own_description} may not sign for its names ({}): it has name constraints",
                    list(&names(&self.end_entity))
                ),
                "use an authority that may sign for them",
            ),
            webpki::Error::PathLenConstraintViolated => TlsRefusal::new(
                format!("the chain of {own_description} is longer than one of its authorities permits (pathLenConstraint)"),
                "sign with an authority that is closer to the root",
            ),
            webpki::Error::UnsupportedSignatureAlgorithmContext(_)
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)
            | webpki::Error::SignatureAlgorithmMismatch => self.unsupported_signature(),
            webpki::Error::UnsupportedCertVersion => TlsRefusal::new(
                format!("{own_description} is older than X.509 version 3 and therefore has no names"),
                "issue a new one with subject alternative names (openssl: -extfile or -addext)",
            ),
            webpki::Error::UnsupportedCriticalExtension => TlsRefusal::new(
                format!("{own_description} has a critical extension that meshkeep does not know"),
                "issue a new one without it",
            ),
            webpki::Error::InvalidCertValidity => {
                TlsRefusal::new(format!("{own_description} expires before it becomes valid"), "issue a new one")
            }
            webpki::Error::MaximumSignatureChecksExceeded => TlsRefusal::new(
                format!("too many certificates of one name could have signed {own_description}"),
                format!("keep only those in {} that are in use", self.file()),
            ),
            other => TlsRefusal::new(format!("{own_description} is not accepted ({})", code_to_words(other)), "issue a new one"),
        }
    }

    /// Describes a certificate: its owner, subject and serial number.
    fn description(&self, certificate: &X509Certificate<'_>) -> String {
        if certificate.tbs_certificate.as_ref() == self.end_entity.tbs_certificate.as_ref() {
            return format!("the {}'s certificate {}", self.owner.noun(), describe(certificate));
        }
        let is_sent = self.intermediates.iter().any(|other| other.tbs_certificate.as_ref() == certificate.tbs_certificate.as_ref());
        let source = if is_sent { format!("that the {} sends", self.owner.noun()) } else { format!("of {}", self.trusted.source()) };
        format!("the certificate {} {source}", describe(certificate))
    }

    /// Returns the name of the file to which an authority's certificate should be added.
    fn file(&self) -> String {
        format!("trusted-ca-file ({})", self.trusted.source())
    }

    fn trusted(&self) -> impl Iterator<Item = X509Certificate<'a>> {
        self.trusted.certificates().iter().filter_map(parsed)
    }

    /// Returns the last certificate of the chain: follows the issuer names from the end-entity
    /// certificate, which may be the server's or the client's.
    fn last(&self) -> &X509Certificate<'a> {
        let mut last = &self.end_entity;
        // at most one step per certificate, because two certificates may have signed each other
        for _ in &self.intermediates {
            let next = self.intermediates.iter().find(|other| other.subject() == last.issuer() && other.subject() != last.subject());
            last = next.unwrap_or(last);
        }
        last
    }

    fn unknown_issuer(&self) -> TlsRefusal {
        let last = self.last();
        let (description, issuer) = (self.description(last), clip(&last.issuer().to_string()));
        let trusted_source = self.trusted.source();
        if last.subject() == last.issuer() {
            let reason = format!("{description} is self-signed and is not in {trusted_source}");
            return TlsRefusal::new(reason, format!("add it to {} if you trust it", self.file()));
        }
        let (sends, append) = match self.owner {
            CertificateSide::Server => ("the server does not send it", "append its certificate to the file of etcd's --cert-file"),
            CertificateSide::Client => ("cert-file does not have it", "append its certificate to cert-file"),
        };
        let reason = format!(
            "{description} is signed by {issuer}: {trusted_source} has no authority of this name, and {sends} as an intermediate certificate"
        );
        TlsRefusal::new(
            reason,
            format!("add the certificate of {issuer} to {}; or, if it is an intermediate authority, {append}", self.file()),
        )
    }

    /// Describes an issuer whose name matches but whose key differs.
    fn wrong_key(&self) -> TlsRefusal {
        let trusted: Vec<X509Certificate<'_>> = self.trusted().collect();
        let chain = || std::iter::once(&self.end_entity).chain(&self.intermediates);
        let issuers = |certificate: &X509Certificate<'_>| {
            let is_issuer = |other: &&X509Certificate<'_>| {
                other.subject() == certificate.issuer() && other.tbs_certificate.as_ref() != certificate.tbs_certificate.as_ref()
            };
            trusted.iter().chain(&self.intermediates).filter(is_issuer).collect::<Vec<_>>()
        };
        if let Some((issuer, bits)) = chain().flat_map(issuers).find_map(|issuer| Some((issuer, short_rsa_bits(issuer)?))) {
            return TlsRefusal::short_key(&self.description(issuer), bits);
        }
        // true if there are issuers with the right name, but none of them has the key identifier
        // that the certificate names for its issuer (or it names none)
        let has_another_key = |certificate: &&X509Certificate<'a>| {
            let (signer, issuers) = (issuer_key_id(certificate), issuers(certificate));
            !issuers.is_empty() && !issuers.iter().any(|issuer| signer.is_some() && key_id(issuer) == signer)
        };
        // starts at the root: a replaced authority is the most likely cause
        let Some(certificate) = chain().rev().find(has_another_key) else {
            let reason = format!("the signature of {} or of one above it is damaged", self.description(&self.end_entity));
            return TlsRefusal::new(reason, "issue a new one");
        };
        self.same_name_other_key(certificate, &issuers(certificate))
    }

    fn same_name_other_key(&self, certificate: &X509Certificate<'_>, issuers: &[&X509Certificate<'_>]) -> TlsRefusal {
        let issuer = clip(&certificate.issuer().to_string());
        let issuer_key_ids: Vec<String> = issuers.iter().filter_map(|issuer| key_id(issuer)).take(NAMES_MAX).collect();
        let keys = match issuer_key_id(certificate) {
            Some(signer) if !issuer_key_ids.is_empty() => {
                format!(" (signed by key {}, known {})", clip(&signer), clip(&issuer_key_ids.join(" and ")))
            }
            _ => String::new(),
        };
        let is_trusted = self.trusted().any(|other| other.subject() == certificate.issuer());
        let expected_issuer = if is_trusted {
            format!("the one in {}", self.trusted.source())
        } else {
            format!("the one that the {} sends", self.owner.noun())
        };
        let reason = format!(
            "{} is signed by another {issuer} than {expected_issuer}: same name, different key{keys}",
            self.description(certificate)
        );
        TlsRefusal::new(reason, self.another_authority(&issuer))
    }

    fn another_authority(&self, issuer: &str) -> String {
        let file = self.file();
        format!(
            "add the certificate of the {issuer} that signed it to {file}; the authority was replaced, or two installations each have one of this name"
        )
    }

    /// Returns the certificates of the chain and the trusted ones.
    fn all(&self) -> impl Iterator<Item = X509Certificate<'a>> {
        std::iter::once(self.end_entity.clone()).chain(self.intermediates.clone()).chain(self.trusted())
    }

    fn expired(&self, now: UnixTime, not_after: UnixTime) -> TlsRefusal {
        let ended = self.all().find(|certificate| is_at(certificate.validity().not_after.timestamp(), not_after));
        let description = self.description(ended.as_ref().unwrap_or(&self.end_entity));
        let reason = format!("{description} expired {}", date(not_after));
        TlsRefusal::new(reason, format!("renew it, or correct this machine's clock, which shows {}", date(now)))
    }

    fn not_valid_yet(&self, now: UnixTime, not_before: UnixTime) -> TlsRefusal {
        let early = self.all().find(|certificate| is_at(certificate.validity().not_before.timestamp(), not_before));
        let description = self.description(early.as_ref().unwrap_or(&self.end_entity));
        let reason = format!("{description} is not valid before {}", date(not_before));
        TlsRefusal::new(
            reason,
            format!("correct this machine's clock, which shows {}, or the clock of the machine that issued the certificate", date(now)),
        )
    }

    fn wrong_name(&self, name: Option<&ServerName<'_>>) -> TlsRefusal {
        let wanted = name.map(|name| clip(&name.to_str())).unwrap_or_default();
        let (own_description, names) = (self.description(&self.end_entity), names(&self.end_entity));
        if names.is_empty() {
            return TlsRefusal::new(
                format!("{own_description} has no host name: it has no subject alternative name, and the common name is not used"),
                format!("issue a new one with {wanted} as a subject alternative name"),
            );
        }
        let reason = format!("{own_description} is not for {wanted}, but for {}", list(&names));
        TlsRefusal::new(reason, format!("use one of these names as the endpoint's host, or issue a new certificate for {wanted}"))
    }

    fn wrong_purpose(&self) -> TlsRefusal {
        let (purpose, wanted) = match self.owner {
            CertificateSide::Server => ("a server", "serverAuth"),
            CertificateSide::Client => ("a client", "clientAuth"),
        };
        let forbids = |certificate: &&X509Certificate<'_>| {
            let usage = certificate.extended_key_usage().ok().flatten().map(|extension| extension.value);
            usage.is_some_and(|usage| {
                !usage.any
                    && !match self.owner {
                        CertificateSide::Server => usage.server_auth,
                        CertificateSide::Client => usage.client_auth,
                    }
            })
        };
        let unfit = std::iter::once(&self.end_entity).chain(&self.intermediates).find(forbids).unwrap_or(&self.end_entity);
        let reason = format!("{} may not be used for {purpose}: its extended key usage lacks {wanted}", self.description(unfit));
        TlsRefusal::new(reason, format!("issue a new one with {wanted}"))
    }

    fn unsupported_signature(&self) -> TlsRefusal {
        let algorithm = |certificate: &X509Certificate<'_>| {
            let oid = &certificate.signature_algorithm.algorithm;
            oid2sn(oid, oid_registry()).map_or_else(|_| oid.to_id_string(), str::to_owned)
        };
        // the end-entity certificate is checked first
        let chain: Vec<String> = std::iter::once(&self.end_entity)
            .chain(&self.intermediates)
            .map(|certificate| format!("{} by {}", self.description(certificate), algorithm(certificate)))
            .collect();
        let reason = format!(
            "a signature algorithm is not accepted: {} is signed {}",
            self.description(&self.end_entity),
            algorithm(&self.end_entity)
        );
        let reason = if chain.len() > 1 { format!("a signature algorithm is not accepted: {}", chain.join(", ")) } else { reason };
        TlsRefusal::new(reason, "sign with SHA-256, SHA-384 or SHA-512, by RSA, RSA-PSS, ECDSA over P-256, P-384 or P-521, or Ed25519")
    }
}

fn is_at(seconds: i64, time: UnixTime) -> bool {
    u64::try_from(seconds).unwrap_or_default() == time.as_secs()
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}
