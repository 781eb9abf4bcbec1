//! The etcd client file: the YAML that Cilium writes per remote cluster (`pkg/kvstore/etcd.go`, etcd's `clientv3/yaml`). It is read as agents read it:
//! `tests/clients/go-cilium/readers` compares the two.
//!
//! Owns: its keys and their types. Deliberately lacks: a check that an endpoint can be dialled ([`super::Connection::open`]
//! does that: one bad endpoint must not cost the others).

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_yaml_ng::Value;

use super::client_fields::{check_other, set_flag, set_path, set_text, texts};
use super::client_keys::meant_by;
use super::host_aliases::{self, HostAliases};
use super::{Endpoint, TLS_FILE_BYTES_MAX};
use crate::files::read_bounded;
use crate::yaml::{Limits, YamlError, go};

/// What an etcd client file says. Keys are case-insensitive and unknown ones are ignored, as Go's decoder does.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ClientFile {
    endpoints: Vec<Endpoint>,
    pub(super) trusted_ca_file: Option<PathBuf>,
    pub(super) client_pair: Option<ClientPair>,
    pub(super) insecure_transport: bool,
    pub(super) insecure_skip_tls_verify: bool,
    pub(super) user: Option<User>,
    pub(super) host_aliases: HostAliases,
    slips: Vec<Slip>,
    /// That a certificate or a key is given without the other.
    half_pair: Option<&'static str>,
}

/// A key that nobody reads, and the one that was probably meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slip {
    /// As the file has it.
    pub key: String,
    /// As etcd's client knows it.
    pub meant: &'static str,
}

/// How many are told of a file: as many as it needs keys.
const SLIP_COUNT_MAX: usize = 8;

/// Where the client's certificate and key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientPair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// Whom to log in as. No `Debug`: the password must not reach a log.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

/// Why a file is not an etcd client file. Never quotes a value: it could be the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientFileError {
    /// Not YAML at all.
    #[error("not YAML: {place}")]
    NotYaml {
        /// Line and column. Not the parser's words, which may quote what is there.
        place: String,
    },
    /// It stands for more than any client file needs, or nests too deeply.
    #[error("{reason}")]
    TooMuch {
        /// Which limit, and where.
        reason: String,
    },
    /// YAML, but not a mapping of keys to values.
    #[error("not a mapping of keys such as endpoints to values")]
    NotAMapping,
    /// A key has a value of another type.
    #[error("{key} must be {expected}")]
    WrongType {
        /// The key, as this client spells it.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// No endpoint is given.
    #[error("endpoints is missing or empty: give at least one, such as https://host:2379")]
    NoEndpoints,
    /// What stands at `cilium-host-aliases` cannot be used.
    #[error("cilium-host-aliases: {reason}")]
    HostAliases {
        /// Why not.
        reason: String,
    },
    /// Something is missing, and a key that nobody reads may be why.
    #[error("{error}; {}", in_words(slips))]
    Misspelt {
        /// What is wrong.
        error: Box<Self>,
        /// What may be why.
        slips: Vec<Slip>,
    },
}

impl From<YamlError> for ClientFileError {
    fn from(error: YamlError) -> Self {
        match error {
            YamlError::Syntax { line, column, .. } => Self::NotYaml { place: format!("look at line {line}, column {column}") },
            YamlError::Limit { .. } => Self::TooMuch { reason: error.to_string() },
            YamlError::Refused { .. } => Self::NotYaml { place: error.to_string() },
        }
    }
}

impl ClientFile {
    /// Reads the text of a client file: a few milliseconds for each 100 KB of it, so that an async thread leaves a foreign one to a blocking thread.
    ///
    /// # Errors
    /// [`ClientFileError`], naming the key.
    pub fn parse(bytes: &[u8]) -> Result<Self, ClientFileError> {
        let mut slips = Vec::new();
        match Self::read(bytes, &mut slips) {
            Ok(file) => Ok(Self { slips, ..file }),
            Err(error) if slips.is_empty() => Err(error),
            Err(error) => Err(ClientFileError::Misspelt { error: Box::new(error), slips }),
        }
    }

    fn read(bytes: &[u8], slips: &mut Vec<Slip>) -> Result<Self, ClientFileError> {
        let Value::Mapping(mapping) = go::read(bytes, &Limits::CONFIGURATION)? else {
            return Err(ClientFileError::NotAMapping);
        };
        let mut pairs: Vec<(&str, &Value)> = mapping.iter().filter_map(|(key, value)| Some((key.as_str()?, value))).collect();
        // Go's JSON has them in this order: of keys that differ in their case alone, the last counts
        pairs.sort_by_key(|(key, _)| *key);
        let mut file = Self::default();
        let (mut certificate, mut key_path) = (None, None);
        let (mut name, mut password) = (String::new(), String::new());
        for (key, value) in pairs {
            match key.to_ascii_lowercase().as_str() {
                "endpoints" => file.endpoints = texts("endpoints", value)?.into_iter().map(Endpoint::new).collect(),
                "trusted-ca-file" => set_path(&mut file.trusted_ca_file, "trusted-ca-file", value)?,
                "cert-file" => set_path(&mut certificate, "cert-file", value)?,
                "key-file" => set_path(&mut key_path, "key-file", value)?,
                "insecure-transport" => set_flag(&mut file.insecure_transport, "insecure-transport", value)?,
                "insecure-skip-tls-verify" => set_flag(&mut file.insecure_skip_tls_verify, "insecure-skip-tls-verify", value)?,
                "username" => set_text(&mut name, "username", value)?,
                "password" => set_text(&mut password, "password", value)?,
                host_aliases::KEY => {
                    file.host_aliases = HostAliases::read(value).map_err(|reason| ClientFileError::HostAliases { reason })?;
                }
                lower => {
                    check_other(lower, value)?;
                    slips.extend(meant_by(key).filter(|_| slips.len() < SLIP_COUNT_MAX).map(|meant| Slip { key: key.to_owned(), meant }));
                }
            }
        }
        if file.endpoints.is_empty() {
            return Err(ClientFileError::NoEndpoints);
        }
        // etcd's own client uses both or none
        (file.client_pair, file.half_pair) = match (certificate, key_path) {
            (Some(certificate), Some(key)) => (Some(ClientPair { certificate, key }), None),
            (None, None) => (None, None),
            (Some(_), None) => (None, Some("cert-file is set without key-file")),
            (None, Some(_)) => (None, Some("key-file is set without cert-file")),
        };
        // and logs in only where both are given
        file.user = (!name.is_empty() && !password.is_empty()).then_some(User { name, password });
        Ok(file)
    }

    /// The endpoints, in the order of the file. Never empty.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What of the file is ignored and was probably meant otherwise, in words.
    #[must_use]
    pub fn slips(&self) -> Option<String> {
        let half_pair = self.half_pair.map(|told| format!("{told}, so that no client certificate is shown"));
        let slips = (!self.slips.is_empty()).then(|| in_words(&self.slips));
        slips.into_iter().chain(half_pair).reduce(|told, more| format!("{told}; {more}"))
    }

    /// The files that a connection needs: CA, certificate and key, where set. None with `insecure-transport`.
    #[must_use]
    pub fn referenced_files(&self) -> Vec<PathBuf> {
        if self.insecure_transport {
            return Vec::new();
        }
        let pair = self.client_pair.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        self.trusted_ca_file.iter().chain(pair).cloned().collect()
    }

    /// Those of [`Self::referenced_files`] that do not exist. Asks the file system, once per file.
    #[must_use]
    pub fn missing_files(&self) -> Vec<PathBuf> {
        self.referenced_files().into_iter().filter(|path| !path.exists()).collect()
    }

    /// When the first certificate of the client's chain and the CA file runs out; `None` if there is none that can be
    /// read. Reads the files.
    #[must_use]
    pub fn certificate_expiry(&self) -> Option<SystemTime> {
        if self.insecure_transport {
            return None;
        }
        let chain = self.client_pair.as_ref().map(|pair| &pair.certificate);
        self.trusted_ca_file.iter().chain(chain).filter_map(|path| earliest_expiry(path)).min()
    }
}

impl fmt::Debug for ClientFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFile")
            .field("endpoints", &self.endpoints)
            .field("trusted_ca_file", &self.trusted_ca_file)
            .field("client_pair", &self.client_pair)
            .field("insecure_transport", &self.insecure_transport)
            .field("insecure_skip_tls_verify", &self.insecure_skip_tls_verify)
            .field("user", &self.user.as_ref().map(|_| "redacted"))
            .field("host_aliases", &self.host_aliases)
            .field("slips", &self.slips)
            .field("half_pair", &self.half_pair)
            .finish()
    }
}

fn in_words(slips: &[Slip]) -> String {
    let texts: Vec<String> = slips.iter().map(|Slip { key, meant }| format!("{key:?} where \"{meant}\" is meant")).collect();
    format!("it says {}, which etcd's client ignores", texts.join(", and "))
}

fn earliest_expiry(path: &Path) -> Option<SystemTime> {
    let pem = read_bounded(path, TLS_FILE_BYTES_MAX).ok()?;
    CertificateDer::pem_slice_iter(&pem).filter_map(|certificate| expiry(&certificate.ok()?)).min()
}

fn expiry(der: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helm_file_is_read_whatever_the_case_of_its_keys() {
        let text = "Endpoints:\n- https://tokyo.mesh.cilium.io:2379\n- other:2379\nTRUSTED-CA-FILE: /ca.crt\nkey-file: /c.key\n\
                    cert-file: /c.crt\ndial-timeout: 0\nusername: u\npassword: p\nunknown: {a: [1]}\ninsecure-skip-tls-verify: true\n";
        let file = ClientFile::parse(text.as_bytes()).unwrap();
        let expected = ClientFile {
            endpoints: vec![Endpoint::new("https://tokyo.mesh.cilium.io:2379"), Endpoint::new("other:2379")],
            trusted_ca_file: Some("/ca.crt".into()),
            client_pair: Some(ClientPair { certificate: "/c.crt".into(), key: "/c.key".into() }),
            insecure_transport: false,
            insecure_skip_tls_verify: true,
            user: Some(User { name: "u".into(), password: "p".into() }),
            host_aliases: HostAliases::default(),
            slips: Vec::new(),
            half_pair: None,
        };
        assert_eq!(file, expected);
        assert_eq!(file.referenced_files(), ["/ca.crt", "/c.crt", "/c.key"].map(PathBuf::from));
        assert_eq!(file.missing_files(), file.referenced_files());
        assert_eq!(file.certificate_expiry(), None);
    }

    #[test]
    fn without_tls_no_file_is_needed() {
        let text = "endpoints: ['http://a:2379']\ninsecure-transport: true\ntrusted-ca-file: /ca.crt\n";
        assert_eq!(ClientFile::parse(text.as_bytes()).unwrap().referenced_files(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text: &str| ClientFile::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(message("just text"), "not a mapping of keys such as endpoints to values");
        assert_eq!(message(""), "not a mapping of keys such as endpoints to values");
        assert_eq!(message("endpoints: []"), "endpoints is missing or empty: give at least one, such as https://host:2379");
        assert_eq!(message("endpoints: https://a:2379"), "endpoints must be a list of texts");
        assert_eq!(message("endpoints: [1]"), "endpoints must be a list of texts");
        assert_eq!(message("insecure-transport: 1"), "insecure-transport must be true or false");
        assert_eq!(message("password: 1234"), "password must be a text (quote it if it looks like a number or a boolean)");
        assert_eq!(message("username: yes"), "username must be a text (quote it if it looks like a number or a boolean)");
        assert_eq!(message("endpoints: [a]\ndial-timeout: 5s"), "dial-timeout must be a whole number, in nanoseconds where it is a time");
        assert_eq!(message("endpoints: [a]\n~: x"), "not YAML: a key must be a text (line 2)");
        assert_eq!(message("endpoints: ["), "not YAML: look at line 2, column 1");
        assert_eq!(message(&format!("endpoints: {}", "[".repeat(900_000))), "lists and mappings nested deeper than 32 (line 1)");
        assert_eq!(message("cilium-host-aliases: [{hostname: a}]"), "cilium-host-aliases: the entry \"a\" has no ips");
    }

    #[test]
    fn what_agents_accept_is_read_as_they_read_it() {
        let read = |text: &str| ClientFile::parse(text.as_bytes()).unwrap();
        let plain = read("endpoints: [https://a:2379]");
        for text in [
            "\u{feff}endpoints: [https://a:2379]",
            "endpoints: [https://a:2379]\n---\n",
            "endpoints: [https://a:2379]\n---\nendpoints: [b]\n",
            "endpoints: [b]\nendpoints: [https://a:2379]",
            "endpoints:\t[https://a:2379]\t\n",
            "Endpoints: [b]\nendpoints: [https://a:2379]",
            "x: &x [https://a:2379]\nendpoints: *x",
            "<<: {endpoints: [https://a:2379]}\ndial-timeout: 5e9",
        ] {
            assert_eq!(read(text), plain, "{text:?}");
        }
        assert!(read("endpoints: [a]\ninsecure-transport: yes").insecure_transport);
        assert_eq!(read("endpoints: [a]\ntrusted-ca-file: 12").trusted_ca_file, Some("12".into()));
    }

    #[test]
    fn a_misspelt_key_is_told_also_where_something_is_missing_for_it() {
        let file = ClientFile::parse(b"endpoints: [a]\ntrusted_ca_file: /ca.crt\nusernam: u\npassword: hunter2\nnote: x").unwrap();
        let told = r#"it says "trusted_ca_file" where "trusted-ca-file" is meant, and "usernam" where "username" is meant, which etcd's client ignores"#;
        assert_eq!(file.slips().as_deref(), Some(told));
        assert_eq!(ClientFile::parse(b"endpoints: [a]\nnote: x").unwrap().slips(), None);
        let half = ClientFile::parse(b"endpoints: [a]\ncert-fil: /c.crt\nkey-file: /c.key").unwrap();
        let told = r#"it says "cert-fil" where "cert-file" is meant, which etcd's client ignores; key-file is set without cert-file, so that no client certificate is shown"#;
        assert_eq!(half.slips().as_deref(), Some(told));
        assert_eq!(half.client_pair, None);
        let error = ClientFile::parse(b"endpoint: [a]\n").unwrap_err().to_string();
        let told = r#"endpoints is missing or empty: give at least one, such as https://host:2379; it says "endpoint" where "endpoints" is meant, which etcd's client ignores"#;
        assert_eq!(error, told);
        let many: String = (0..SLIP_COUNT_MAX + 3).map(|spaces| format!("'endpoint{}': x\n", " ".repeat(spaces))).collect();
        let file = ClientFile::parse(format!("endpoints: [a]\n{many}").as_bytes()).unwrap();
        assert_eq!(file.slips.len(), SLIP_COUNT_MAX);
    }

    #[test]
    fn the_password_is_not_in_the_debug_output() {
        let file = ClientFile::parse(b"endpoints: [a]\nusername: u\npassword: hunter2").unwrap();
        let shown = format!("{file:?}");
        assert!(shown.contains("redacted") && !shown.contains("hunter2"), "{shown}");
    }
}
