//! Readable errors of TLS with an etcd: which certificate is refused, why, and what to change. The
//! libraries' own errors are codes and lists of bytes.

mod chain;

use std::error::Error;
use std::fmt;
use std::io;

use rustls::AlertDescription;
use rustls::pki_types::{CertificateDer, ServerName};
use x509_parser::certificate::X509Certificate;

use super::certificates::names;
use super::trust::TrustedCertificates;
use chain::CertificateChain;

/// Maximum number of characters of a name in a message. Names in real certificates have some 60.
const NAME_CHARS_MAX: usize = 200;

/// Maximum number of host names in a message.
const NAMES_MAX: usize = 8;

/// Minimum length of an accepted RSA key, in bits (aws-lc's `RSA_PKCS1_2048_8192`).
const RSA_BITS_MIN: usize = 2048;

/// Reason why the client or the server refused a TLS connection, and advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsRefusal {
    /// Certificate or alert that is the reason, and what is wrong with it.
    pub reason: String,
    /// Change that would solve the problem.
    pub advice: String,
}

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.advice)
    }
}

/// Side that presented a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateSide {
    Server,
    Client,
}

impl TlsRefusal {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { reason: reason.into(), advice: advice.into() }
    }

    /// Describes a certificate that is not trusted, or not valid for this name.
    pub(super) fn from_certificate_error(
        owner: CertificateSide,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        trusted: &TrustedCertificates,
        name: Option<&ServerName<'_>>,
        error: &webpki::Error,
    ) -> Self {
        match CertificateChain::read(owner, end_entity, intermediates, trusted) {
            Some(chain) => chain.refusal(name, error),
            None => {
                let reason = format!("the {}'s certificate is damaged", owner.noun());
                Self::new(reason, "issue a new one")
            }
        }
    }

    /// Describes a server that cannot prove that it has the key of its certificate.
    pub(super) fn from_handshake_signature(certificate: &CertificateDer<'_>) -> Self {
        let description = format!("the server's certificate {}", describe_der(certificate));
        if let Some(bits) = parsed(certificate).as_ref().and_then(short_rsa_bits) {
            return Self::short_key(&description, bits);
        }
        Self::new(
            format!("the server does not have the key of {}", description.trim_start_matches("the server's ")),
            "etcd's --key-file must be the key of its --cert-file; if it is, another server answers at this address",
        )
    }

    fn short_key(description: &str, bits: usize) -> Self {
        let reason = format!("{description} has an RSA key of {bits} bits, and {RSA_BITS_MIN} is the minimum");
        Self::new(reason, "issue a new one with a longer RSA key or an ECDSA key")
    }

    /// Describes a handshake that failed, or an alert after it. `client` describes the client's
    /// certificate.
    pub(super) fn from_handshake_error(error: &io::Error, client: Option<&str>) -> Self {
        const NO_TLS_ADVICE: &str =
            "check that this is the port of an etcd with TLS; for one without TLS use http:// or insecure-transport: true";
        let Some(tls) = tls_error(error) else {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::new(
                    "the server closed the connection during the handshake",
                    format!("{NO_TLS_ADVICE}; a proxy or firewall in between may also do this"),
                ),
                _ => Self::new(error.to_string(), NO_TLS_ADVICE),
            };
        };
        match tls {
            rustls::Error::AlertReceived(alert) => Self::from_alert(*alert, client),
            rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } | rustls::Error::PeerSentOversizedRecord => {
                Self::new("the server does not use TLS", NO_TLS_ADVICE)
            }
            rustls::Error::PeerIncompatible(incompatibility) => Self::new(
                format!(
                    "the server and this client have no TLS version, cipher suite or curve in common ({})",
                    code_to_words(incompatibility)
                ),
                PROTOCOL_ADVICE,
            ),
            rustls::Error::NoCertificatesPresented => Self::new("the server sends no certificate", "give etcd --cert-file and --key-file"),
            other => Self::new(format!("the handshake failed: {other}"), NO_TLS_ADVICE),
        }
    }

    /// Describes the server's alert. For a client certificate etcd (Go's `crypto/tls`) sends `bad
    /// certificate`, `unknown certificate authority`, `expired certificate`, and in TLS 1.3
    /// `certificate required`, which is `bad certificate` in TLS 1.2.
    fn from_alert(alert: AlertDescription, client: Option<&str>) -> Self {
        const CLIENT_AUTHORITY_ADVICE: &str = "use one that an authority in etcd's --trusted-ca-file signed";
        let alert_name = code_to_words(alert);
        match (alert, client) {
            (AlertDescription::InternalError, _) => Self::new(
                "the server failed during the handshake (internal error)",
                "check its log: its --cert-file or --key-file may be unreadable, or not belong together",
            ),
            (AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity, _) => {
                Self::new(
                    format!("the server and this client have no TLS version, cipher suite or curve in common ({alert_name})"),
                    PROTOCOL_ADVICE,
                )
            }
            (AlertDescription::UnrecognisedName, _) => Self::new(
                "the server has no certificate for this host name",
                "use one of the names in its certificate as the endpoint's host",
            ),
            (AlertDescription::NoApplicationProtocol, _) => {
                Self::new("the server does not support HTTP/2", "check that this is the port of an etcd")
            }
            (AlertDescription::CertificateExpired, Some(client)) => Self::new(
                format!("the server considers the client's certificate {client} expired"),
                "renew it; if it has not expired, the server's clock is ahead",
            ),
            (AlertDescription::UnknownCA, Some(client)) => Self::new(
                format!("the server does not trust the authority that signed the client's certificate {client}"),
                CLIENT_AUTHORITY_ADVICE,
            ),
            (alert, Some(client)) if is_about_certificates(alert) => Self::new(
                format!("the server rejects the client's certificate {client} ({alert_name})"),
                format!("{CLIENT_AUTHORITY_ADVICE} for use by clients"),
            ),
            (alert, None) if is_about_certificates(alert) => Self::new(
                format!("the server requires a client certificate, and the client file has none ({alert_name})"),
                "set cert-file and key-file",
            ),
            _ => Self::new(format!("the server aborted the handshake ({alert_name})"), "check the server's log"),
        }
    }
}

/// Advice if the two sides have no protocol or cipher suite in common.
const PROTOCOL_ADVICE: &str = "the server must offer TLS 1.2 or 1.3, with AES-GCM or ChaCha20-Poly1305 over ECDHE \
                      (see etcd's --cipher-suites and --tls-min-version)";

fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::CertificateRequired
    )
}

impl CertificateSide {
    fn noun(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Returns the TLS error that an IO error wraps, if there is one.
pub(crate) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    let mut cause = error.get_ref()? as &(dyn Error + 'static);
    loop {
        if let Some(found) = cause.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        cause = match cause.downcast_ref::<io::Error>() {
            Some(wrapped) => wrapped.get_ref()? as &(dyn Error + 'static),
            None => cause.source()?,
        };
    }
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    x509_parser::parse_x509_certificate(certificate).ok().map(|(_, certificate)| certificate)
}

/// Describes a certificate in messages: its subject (or its names if it has none) and its serial
/// number.
pub(super) fn describe_der(certificate: &CertificateDer<'_>) -> String {
    parsed(certificate).map_or_else(|| "that is damaged".to_owned(), |certificate| describe(&certificate))
}

fn describe(certificate: &X509Certificate<'_>) -> String {
    let subject = clip(&certificate.subject().to_string());
    let names = names(certificate);
    let subject_or_names = match (subject.is_empty(), names.is_empty()) {
        (false, _) => subject,
        (true, false) => format!("for {}", list(&names)),
        (true, true) => "without a name".to_owned(),
    };
    format!("{subject_or_names} (serial {})", clip(&certificate.raw_serial_as_string()))
}

/// Joins names with commas. Lists only the first [`NAMES_MAX`] names and the number of the others.
fn list(names: &[String]) -> String {
    let mut listed: Vec<String> = names.iter().take(NAMES_MAX).map(|name| clip(name)).collect();
    if names.len() > NAMES_MAX {
        listed.push(format!("{} more", names.len() - NAMES_MAX));
    }
    listed.join(", ")
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the length of an RSA key that is too short to be accepted.
fn short_rsa_bits(certificate: &X509Certificate<'_>) -> Option<usize> {
    match certificate.public_key().parsed().ok()? {
        x509_parser::public_key::PublicKey::RSA(key) => Some(key.key_size()).filter(|bits| *bits < RSA_BITS_MIN),
        _ => None,
    }
}

/// Converts the name of an error code to words: `BadCertificate` to `bad certificate`.
fn code_to_words(code: impl fmt::Debug) -> String {
    let code = format!("{code:?}");
    let name = code.split([' ', '(', '{']).next().unwrap_or_default();
    let mut text = String::new();
    let mut before_was_lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && before_was_lower {
            text.push(' ');
        }
        before_was_lower = letter.is_lowercase() || letter.is_ascii_digit();
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: rustls::Error, client: Option<&str>) -> String {
        TlsRefusal::from_handshake_error(&io::Error::new(io::ErrorKind::InvalidData, error), client).to_string()
    }

    #[test]
    fn alerts_name_the_client_certificate_or_its_absence() {
        let alert = |alert, client| message(rustls::Error::AlertReceived(alert), client);
        let client = Some("CN=meshkeep (serial 0a) of /c.crt");
        for (description, client, expected) in [
            (
                AlertDescription::CertificateRequired,
                None,
                "the server requires a client certificate, and the client file has none (certificate required); set cert-file and key-file",
            ),
            (
                AlertDescription::BadCertificate,
                None,
                "the server requires a client certificate, and the client file has none (bad certificate); set cert-file and key-file",
            ),
            (
                AlertDescription::BadCertificate,
                client,
                "the server rejects the client's certificate CN=meshkeep (serial 0a) of /c.crt (bad certificate); \
                 use one that an authority in etcd's --trusted-ca-file signed for use by clients",
            ),
            (
                AlertDescription::UnknownCA,
                client,
                "the server does not trust the authority that signed the client's certificate CN=meshkeep (serial 0a) of /c.crt; \
                 use one that an authority in etcd's --trusted-ca-file signed",
            ),
            (
                AlertDescription::CertificateExpired,
                client,
                "the server considers the client's certificate CN=meshkeep (serial 0a) of /c.crt expired; \
                 renew it; if it has not expired, the server's clock is ahead",
            ),
            (AlertDescription::UserCanceled, client, "the server aborted the handshake (user canceled); check the server's log"),
        ] {
            assert_eq!(alert(description, client), expected);
        }
        assert!(alert(AlertDescription::InternalError, client).contains("check its log: its --cert-file"));
        assert!(alert(AlertDescription::HandshakeFailure, client).contains("(handshake failure); the server must offer TLS 1.2 or 1.3"));
    }

    #[test]
    fn servers_without_tls_and_closed_connections_are_recognized() {
        let text = message(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), None);
        assert!(text.starts_with("the server does not use TLS; check that this is the port"), "{text}");
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        let text = TlsRefusal::from_handshake_error(&closed, None).to_string();
        assert!(text.starts_with("the server closed the connection during the handshake; "), "{text}");
    }

    #[test]
    fn wrapped_tls_errors_are_found() {
        let alert = rustls::Error::AlertReceived(AlertDescription::BadCertificate);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, alert.clone()));
        assert_eq!(tls_error(&wrapped), Some(&alert));
        assert_eq!(tls_error(&io::Error::from_raw_os_error(111)), None);
    }

    #[test]
    fn long_names_are_shortened_and_codes_are_readable() {
        assert_eq!(clip(&"ä".repeat(NAME_CHARS_MAX + 1)), "ä".repeat(NAME_CHARS_MAX) + "…");
        let names: Vec<String> = (0..NAMES_MAX + 2).map(|number| number.to_string()).collect();
        assert_eq!(list(&names), "0, 1, 2, 3, 4, 5, 6, 7, 2 more");
        assert_eq!(code_to_words(AlertDescription::UnknownCA), "unknown ca");
        assert_eq!(code_to_words(rustls::PeerIncompatible::Tls12NotOffered), "tls12 not offered");
    }
}
