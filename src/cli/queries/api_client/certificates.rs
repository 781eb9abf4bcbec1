//! Certificates of a command: the authorities that it trusts, and the client certificate that it
//! presents.

use std::fmt::Display;
use std::path::Path;

use reqwest::{Certificate, Identity};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::cli::failure::Failure;
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument, system_certificates};

const CERTIFICATE_FLAG: &str = "--client-cert";
const KEY_FLAG: &str = "--client-key";

/// Returns the certificates to trust: the system's, and those of `--ca-file`.
pub(super) fn authorities(ca_file: Option<&Path>) -> Result<Vec<Certificate>, Failure> {
    let mut trusted = system_certificates();
    if let Some(path) = ca_file {
        let bytes = read("--ca-file", path)?;
        let from_file = Certificate::from_pem_bundle(&bytes).map_err(|error| unusable("--ca-file", path, &error))?;
        if from_file.is_empty() {
            return Err(unusable("--ca-file", path, &"contains no certificate"));
        }
        trusted.extend(from_file);
    }
    Ok(trusted)
}

/// Returns the client certificate with its key, if the options name one. Checks that they belong
/// together, if the process has a TLS provider.
pub(super) fn identity(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Identity>, Failure> {
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => return Err(Failure::usage(format!("{CERTIFICATE_FLAG} needs {KEY_FLAG}, the file with the private key"))),
        (None, Some(_)) => return Err(Failure::usage(format!("{KEY_FLAG} needs {CERTIFICATE_FLAG}, the file with the certificate"))),
    };
    let (mut pem, key_pem) = (read(CERTIFICATE_FLAG, certificate)?, read(KEY_FLAG, key)?);
    // the parser's messages are not shown, because they may quote a line, and a key without line
    // breaks is one line
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|_| unusable(CERTIFICATE_FLAG, certificate, &"is not in PEM form, or incomplete"))?;
    if chain.is_empty() {
        return Err(unusable(CERTIFICATE_FLAG, certificate, &"contains no certificate in PEM form"));
    }
    let private_key = PrivateKeyDer::from_pem_slice(&key_pem)
        .map_err(|_| unusable(KEY_FLAG, key, &"contains no private key in PEM form; decrypt a key that has a passphrase first"))?;
    if let Some(provider) = CryptoProvider::get_default() {
        CertifiedKey::from_der(chain, private_key, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                unusable(KEY_FLAG, key, &format!("is not the key of the certificate in {}", certificate.display()))
            }
            rustls::Error::InvalidCertificate(_) => unusable(CERTIFICATE_FLAG, certificate, &"contains no valid certificate"),
            error => unusable(KEY_FLAG, key, &error),
        })?;
    }
    pem.push(b'\n');
    pem.extend(key_pem);
    Identity::from_pem(&pem).map(Some).map_err(|_| unusable(CERTIFICATE_FLAG, certificate, &"contains something that is not a certificate"))
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    read_argument(path, SMALL_FILE_BYTES_MAX).map_err(|error| unusable(flag, path, &error))
}

fn unusable(flag: &str, path: &Path, reason: &dyn Display) -> Failure {
    Failure::usage(format!("{flag} {}: {reason}", path.display()))
}
