//! Certificates for the tests' servers and clients, made anew for each test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// The year at whose beginning every certificate of the harness runs out, unless a test chooses another.
pub(crate) const EXPIRY_YEAR: i32 = 2100;

/// A certificate and its key on disk.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate authority that writes what it signs into one directory.
pub(crate) struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
}

impl Authority {
    /// A new authority; its certificate is `<name>.crt` in the directory.
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        Self::write(directory, name, CertifiedIssuer::self_signed(Self::parameters(name), KeyPair::generate().unwrap()).unwrap())
    }

    /// An intermediate authority, signed by this one.
    pub(crate) fn below(&self, name: &str) -> Self {
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

    /// Its own certificate.
    pub(crate) fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// A server's pair for these names and addresses. It has no common name and may be used by clients too: etcd's own
    /// gateway dials etcd with it, and a common name would make a user of it.
    pub(crate) fn server(&self, file_name: &str, names: &[&str]) -> Pair {
        let mut parameters = parameters(names, None, EXPIRY_YEAR);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file_name, &parameters, &KeyPair::generate().unwrap())
    }

    /// A client's pair with this common name, which etcd takes for the user where authentication is on.
    pub(crate) fn client(&self, common_name: &str) -> Pair {
        self.client_until(common_name, EXPIRY_YEAR)
    }

    /// A client's pair that runs out at the beginning of a year.
    pub(crate) fn client_until(&self, common_name: &str, expiry_year: i32) -> Pair {
        self.sign_client(common_name, expiry_year, &KeyPair::generate().unwrap())
    }

    /// A client's pair with this key.
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
