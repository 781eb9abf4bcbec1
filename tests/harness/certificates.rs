//! Certificates for the tests' servers and clients, created for each test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// The harness's certificates expire on 1 January of this year, unless a test chooses another.
pub(crate) const EXPIRY_YEAR: i32 = 2100;

/// Paths of a certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate authority that writes the certificates that it signs into one directory.
pub(crate) struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
}

impl Authority {
    /// Creates an authority. Its certificate is `<name>.crt` in the directory.
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        Self::write(directory, name, CertifiedIssuer::self_signed(Self::parameters(name), KeyPair::generate().unwrap()).unwrap())
    }

    /// Creates an intermediate authority, signed by this one.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let issuer = CertifiedIssuer::signed_by(Self::parameters(name), KeyPair::generate().unwrap(), &self.issuer).unwrap();
        Self::write(&self.directory, name, issuer)
    }

    fn parameters(name: &str) -> CertificateParams {
        let mut parameters = parameters(&[], Some(name), EXPIRY_YEAR);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        parameters
    }

    fn write(directory: &Path, name: &str, issuer: CertifiedIssuer<'static, KeyPair>) -> Self {
        fs::create_dir_all(directory).unwrap();
        let certificate = directory.join(format!("{name}.crt"));
        fs::write(&certificate, issuer.pem()).unwrap();
        Self { directory: directory.into(), issuer, certificate }
    }

    /// Returns the path of the authority's own certificate.
    pub(crate) fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Creates a server certificate for these names and addresses. It has no common name and is
    /// also valid for clients: etcd's gateway connects to etcd with it, and a common name would
    /// make it an etcd user.
    pub(crate) fn server(&self, file_name: &str, names: &[&str]) -> Pair {
        let mut parameters = parameters(names, None, EXPIRY_YEAR);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file_name, &parameters, &KeyPair::generate().unwrap())
    }

    /// Creates a client certificate with this common name, which is the user name if the etcd has
    /// authentication enabled.
    pub(crate) fn client(&self, common_name: &str) -> Pair {
        self.client_until(common_name, EXPIRY_YEAR)
    }

    /// Creates a client certificate that expires at the beginning of a year.
    pub(crate) fn client_until(&self, common_name: &str, expiry_year: i32) -> Pair {
        self.sign_client(common_name, expiry_year, &KeyPair::generate().unwrap())
    }

    /// Creates a client certificate with this key.
    pub(crate) fn client_with_key(&self, common_name: &str, key: &KeyPair) -> Pair {
        self.sign_client(common_name, EXPIRY_YEAR, key)
    }

    fn sign_client(&self, common_name: &str, expiry_year: i32, key: &KeyPair) -> Pair {
        let mut parameters = parameters(&[], Some(common_name), expiry_year);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&format!("client-{common_name}"), &parameters, key)
    }

    fn sign(&self, file_name: &str, parameters: &CertificateParams, key: &KeyPair) -> Pair {
        let signed = parameters.signed_by(key, &self.issuer).unwrap();
        let pair =
            Pair { certificate: self.directory.join(format!("{file_name}.crt")), key: self.directory.join(format!("{file_name}.key")) };
        fs::write(&pair.certificate, signed.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }
}

fn parameters(names: &[&str], common_name: Option<&str>, expiry_year: i32) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names).unwrap();
    parameters.use_authority_key_identifier_extension = true;
    parameters.not_after = rcgen::date_time_ymd(expiry_year, 1, 1);
    parameters.distinguished_name = DistinguishedName::new();
    if let Some(common_name) = common_name {
        parameters.distinguished_name.push(DnType::CommonName, common_name);
    }
    parameters
}
