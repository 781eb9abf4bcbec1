//! Functions that read files up to a maximum size, and the system's certificates.
//!
//! A running sidecar reads regular files only: a FIFO would block its reader for ever, and a device
//! such as `/dev/zero` never ends. A command reads any file that its user names, including a FIFO
//! of the shell.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

pub(crate) use cilium_kvstore::read_bounded;

/// Maximum size of a certificate, key, token or client file in bytes. Real ones have a few KiB.
pub(crate) const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads at most `max` bytes of a file that a command's user names. Blocks on a FIFO until its
/// writers have closed it.
///
/// # Errors
/// Returns the error of the file system or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_argument(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= max) {
        return Ok(bytes);
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")))
}

/// Returns the certificates of the system's store that a TLS client can use. With any other one, a
/// client could not be created at all. Blocks on files.
pub(crate) fn system_certificates() -> Vec<reqwest::Certificate> {
    let usable = usable_certificates(rustls_native_certs::load_native_certs().certs);
    usable.iter().filter_map(|certificate| reqwest::Certificate::from_der(certificate).ok()).collect()
}

fn usable_certificates(certificates: Vec<CertificateDer<'static>>) -> Vec<CertificateDer<'static>> {
    let is_usable = |certificate: &CertificateDer<'static>| RootCertStore::empty().add(certificate.clone()).is_ok();
    certificates.into_iter().filter(is_usable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_certificate_of_the_system_is_left_out() {
        let certificate = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap().cert.der().clone();
        let damaged = CertificateDer::from(certificate[..certificate.len() / 2].to_vec());
        let system = vec![damaged.clone(), certificate.clone(), CertificateDer::from(Vec::new())];
        assert_eq!(usable_certificates(system), [certificate]);
        // a client refuses all certificates because of this one
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let trusting = reqwest::Client::builder().add_root_certificate(reqwest::Certificate::from_der(&damaged).unwrap());
        assert!(trusting.build().is_err());
    }

    #[test]
    fn a_named_file_is_read_up_to_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("four");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_argument(&path, 4).unwrap(), b"four");
        assert_eq!(read_argument(&path, 3).unwrap_err().to_string(), "larger than 3 bytes");
        assert_eq!(read_argument(Path::new("/dev/zero"), 3).unwrap_err().to_string(), "larger than 3 bytes");
    }
}
