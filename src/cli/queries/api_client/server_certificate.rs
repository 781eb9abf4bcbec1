//! Messages for a server certificate that a command does not accept, each with the reason and
//! advice.

use std::error::Error;
use std::io;

use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// Returns the reason why TLS refused a server's certificate, if that is why a request failed.
pub(super) fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    let mut cause = Some(error);
    while let Some(current) = cause {
        // an `io::Error` returns the source of the error that it wraps as its own source, so the
        // wrapped error itself would be skipped
        let wrapped = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
        if let Some(rustls::Error::InvalidCertificate(reason)) = wrapped.unwrap_or(current).downcast_ref() {
            return Some(reason);
        }
        cause = wrapped.or_else(|| current.source());
    }
    None
}

/// Returns the message for a refused certificate of `server`, whose address is in `option`.
pub(super) fn describe(server: &str, option: &str, reason: &CertificateError) -> String {
    use CertificateError as Reason;
    match reason {
        Reason::UnknownIssuer => format!(
            "the certificate of {server} is not trusted: no trusted authority signed it; give the certificate of its authority with --ca-file"
        ),
        Reason::BadSignature => format!(
            "the certificate of {server} is not trusted: the authority of that name in --ca-file has another key and did not sign it; give the certificate of the authority that did"
        ),
        Reason::NotValidForNameContext { expected, presented } => {
            let names = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            let expected = expected.to_str();
            format!(
                "the certificate of {server} is not for {expected} but for {names}: use one of these names in {option}, or issue a certificate for {expected}"
            )
        }
        Reason::ExpiredContext { not_after, .. } => {
            format!("the certificate of {server} expired at {}: renew it", time(*not_after))
        }
        Reason::NotValidYetContext { time: now, not_before } => {
            let (now, begin) = (time(*now), time(*not_before));
            format!("the certificate of {server} is not valid before {begin}, and it is {now} here: check both clocks")
        }
        Reason::InvalidPurposeContext { .. } | Reason::InvalidPurpose => {
            format!("the certificate of {server} is not for servers: issue one with the extended key usage serverAuth")
        }
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            format!("{server} uses the certificate of an authority (CA:TRUE) as its own: issue one that this authority signs")
        }
        other => format!("the certificate of {server} cannot be used: {other}; issue another one"),
    }
}

fn time(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s after 1970"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn each_certificate_message_has_advice() {
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        for (reason, expected) in [
            (CertificateError::UnknownIssuer, "--ca-file"),
            (CertificateError::BadSignature, "has another key"),
            (
                CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("a.test").unwrap(),
                    presented: vec!["b.test".into()],
                },
                "is not for a.test but for b.test",
            ),
            (CertificateError::ExpiredContext { time: at(2), not_after: at(1) }, "expired at 1970-01-01T00:00:01Z"),
            (CertificateError::NotValidYetContext { time: at(1), not_before: at(2) }, "not valid before 1970-01-01T00:00:02Z"),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (CertificateError::BadEncoding, "cannot be used"),
        ] {
            let wrapped = io::Error::other(io::Error::other(rustls::Error::InvalidCertificate(reason.clone())));
            let message = describe("https://a.test", "--server", refusal(&wrapped).expect("the reason is found"));
            assert!(message.contains(expected) && message.contains("https://a.test"), "{message}");
        }
        assert!(refusal(&io::Error::other("reset")).is_none());
    }
}
