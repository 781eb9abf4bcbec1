//! Reader of etcd client files: the YAML that Cilium writes for each remote cluster
//! (`pkg/kvstore/etcd.go`, etcd's `clientv3/yaml`), parsed into an [`EtcdConfig`].
//!
//! The parser accepts and refuses the same files as Cilium's agents;
//! `tests/clients/go-cilium/readers` compares the two. It does not check whether an endpoint can be
//! dialled. `Connection::open` does, so that one bad endpoint does not make the others unusable.

mod fields;
mod host_aliases;
mod keys;
#[cfg(test)]
mod table;

use std::path::PathBuf;

use cilium_kvstore::{ClientCertificate, Credentials, EtcdConfig, HostAliases};
use serde_yaml_ng::Value;

use self::fields::{check_ignored, set_flag, set_path, set_text, string_list};
use self::host_aliases::read_host_aliases;
use crate::yaml::{Limits, YamlError, go};

pub use self::keys::intended_key;

/// An etcd client file. Keys are case-insensitive and unknown keys are ignored, as in Go's decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFile {
    /// Configuration in the file.
    pub config: EtcdConfig,
    misspelt: Vec<MisspeltKey>,
    /// Message if a certificate or a key is given without the other.
    incomplete_certificate: Option<&'static str>,
}

/// A key that etcd's client ignores, and the key that it probably means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisspeltKey {
    /// Key as written in the file.
    pub key: String,
    /// Key that etcd's client knows.
    pub intended: &'static str,
}

/// Maximum number of misspelt keys that are reported per file: as many keys as a file needs.
const MISSPELT_COUNT_MAX: usize = 8;

/// Reason why a file is not an etcd client file. Never quotes a value: it could be the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientFileError {
    /// The file is not YAML.
    #[error("not YAML: {detail}")]
    NotYaml {
        /// Line and column, or the reason why agents refuse this YAML. The parser's own message may
        /// quote the file and is not used.
        detail: String,
    },
    /// The YAML expands to more than any client file needs, or is nested too deeply.
    #[error("{reason}")]
    LimitExceeded {
        /// Exceeded limit, and its location.
        reason: String,
    },
    /// The YAML is not a mapping of keys to values.
    #[error("not a mapping: expected keys such as \"endpoints:\" with values")]
    NotAMapping,
    /// A key has a value of another type.
    #[error("{key} must be {expected}")]
    WrongType {
        /// Name of the key, as meshkeep spells it.
        key: &'static str,
        /// Expected type.
        expected: &'static str,
    },
    /// The file has no endpoint.
    #[error("endpoints is missing or empty: give at least one, such as https://host:2379")]
    NoEndpoints,
    /// The value of `cilium-host-aliases` cannot be used.
    #[error("cilium-host-aliases: {reason}")]
    HostAliases {
        /// Reason why the aliases cannot be used.
        reason: String,
    },
    /// A setting is missing, and a misspelt key may be the reason.
    #[error("{error}; {}", describe_misspelt(keys))]
    Misspelt {
        /// Error without the suggestion.
        error: Box<Self>,
        /// Misspelt keys, which may be the reason.
        keys: Vec<MisspeltKey>,
    },
}

impl From<YamlError> for ClientFileError {
    fn from(error: YamlError) -> Self {
        match error {
            YamlError::Syntax { line, column, .. } => Self::NotYaml { detail: format!("check line {line}, column {column}") },
            YamlError::Limit { .. } => Self::LimitExceeded { reason: error.to_string() },
            YamlError::Refused { .. } => Self::NotYaml { detail: error.to_string() },
        }
    }
}

#[derive(Default)]
struct ParsedValues {
    endpoints: Vec<String>,
    trusted_ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_transport: bool,
    insecure_skip_tls_verify: bool,
    username: String,
    password: String,
    host_aliases: HostAliases,
    misspelt: Vec<MisspeltKey>,
}

impl ClientFile {
    /// Parses a client file. This takes a few milliseconds per 100 KB, so async code parses
    /// untrusted files on a blocking thread.
    ///
    /// # Errors
    /// [`ClientFileError`], which names the key.
    pub fn parse(bytes: &[u8]) -> Result<Self, ClientFileError> {
        let mut values = ParsedValues::default();
        match values.read(bytes).and_then(|()| values.config()) {
            Ok(config) => Ok(Self { config, incomplete_certificate: values.incomplete_certificate(), misspelt: values.misspelt }),
            Err(error) if values.misspelt.is_empty() => Err(error),
            Err(error) => Err(ClientFileError::Misspelt { error: Box::new(error), keys: values.misspelt }),
        }
    }

    /// Returns human-readable warnings about settings that are ignored, probably against the
    /// author's intention.
    #[must_use]
    pub fn warnings(&self) -> Option<String> {
        let incomplete_certificate = self.incomplete_certificate.map(|warning| format!("{warning}, so no client certificate is used"));
        let misspelt = (!self.misspelt.is_empty()).then(|| describe_misspelt(&self.misspelt));
        misspelt.into_iter().chain(incomplete_certificate).reduce(|warning, more| format!("{warning}; {more}"))
    }
}

impl ParsedValues {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ClientFileError> {
        let Value::Mapping(mapping) = go::read(bytes, &Limits::CONFIGURATION)? else {
            return Err(ClientFileError::NotAMapping);
        };
        let mut pairs: Vec<(&str, &Value)> = mapping.iter().filter_map(|(key, value)| Some((key.as_str()?, value))).collect();
        // Go's JSON decoder gets the keys in this order: if keys differ only in case, the last of
        // them wins
        pairs.sort_by_key(|(key, _)| *key);
        pairs.into_iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), ClientFileError> {
        match key.to_ascii_lowercase().as_str() {
            "endpoints" => self.endpoints = string_list("endpoints", value)?,
            "trusted-ca-file" => set_path(&mut self.trusted_ca_file, "trusted-ca-file", value)?,
            "cert-file" => set_path(&mut self.certificate_file, "cert-file", value)?,
            "key-file" => set_path(&mut self.key_file, "key-file", value)?,
            "insecure-transport" => set_flag(&mut self.insecure_transport, "insecure-transport", value)?,
            "insecure-skip-tls-verify" => set_flag(&mut self.insecure_skip_tls_verify, "insecure-skip-tls-verify", value)?,
            "username" => set_text(&mut self.username, "username", value)?,
            "password" => set_text(&mut self.password, "password", value)?,
            host_aliases::KEY => {
                self.host_aliases = read_host_aliases(value).map_err(|reason| ClientFileError::HostAliases { reason })?;
            }
            lower => {
                check_ignored(lower, value)?;
                let misspelt = intended_key(key).filter(|_| self.misspelt.len() < MISSPELT_COUNT_MAX);
                self.misspelt.extend(misspelt.map(|intended| MisspeltKey { key: key.to_owned(), intended }));
            }
        }
        Ok(())
    }

    fn config(&self) -> Result<EtcdConfig, ClientFileError> {
        let (first, others) = self.endpoints.split_first().ok_or(ClientFileError::NoEndpoints)?;
        let mut config = others.iter().fold(EtcdConfig::new(first), EtcdConfig::with_endpoint);
        config.trusted_ca_file.clone_from(&self.trusted_ca_file);
        // etcd's own client uses a certificate only if both files are given
        if let (Some(certificate_file), Some(key_file)) = (self.certificate_file.clone(), self.key_file.clone()) {
            config.client_certificate = Some(ClientCertificate { certificate_file, key_file });
        }
        config.insecure_transport = self.insecure_transport;
        config.insecure_skip_tls_verify = self.insecure_skip_tls_verify;
        // etcd's client logs in only if both are given
        if !self.username.is_empty() && !self.password.is_empty() {
            config.credentials = Some(Credentials { username: self.username.clone(), password: self.password.clone() });
        }
        config.host_aliases = self.host_aliases.clone();
        Ok(config)
    }

    fn incomplete_certificate(&self) -> Option<&'static str> {
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => Some("cert-file is set without key-file"),
            (None, Some(_)) => Some("key-file is set without cert-file"),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }
}

fn describe_misspelt(keys: &[MisspeltKey]) -> String {
    let texts: Vec<String> = keys.iter().map(|MisspeltKey { key, intended }| format!("{key:?} where \"{intended}\" is meant")).collect();
    format!("it contains {}, which etcd's client ignores", texts.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_helm_file_are_case_insensitive() {
        let text = "Endpoints:\n- https://tokyo.mesh.cilium.io:2379\n- other:2379\nTRUSTED-CA-FILE: /ca.crt\nkey-file: /c.key\n\
                    cert-file: /c.crt\ndial-timeout: 0\nusername: u\npassword: p\nunknown: {a: [1]}\ninsecure-skip-tls-verify: true\n";
        let mut expected = EtcdConfig::new("https://tokyo.mesh.cilium.io:2379").with_endpoint("other:2379");
        expected.trusted_ca_file = Some("/ca.crt".into());
        expected.client_certificate = Some(ClientCertificate { certificate_file: "/c.crt".into(), key_file: "/c.key".into() });
        expected.insecure_skip_tls_verify = true;
        expected.credentials = Some(Credentials { username: "u".into(), password: "p".into() });
        let expected = ClientFile { config: expected, misspelt: Vec::new(), incomplete_certificate: None };
        assert_eq!(ClientFile::parse(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn errors_name_the_key_and_the_reason() {
        let message = |text: &str| ClientFile::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(message("just text"), "not a mapping: expected keys such as \"endpoints:\" with values");
        assert_eq!(message(""), "not a mapping: expected keys such as \"endpoints:\" with values");
        assert_eq!(message("endpoints: []"), "endpoints is missing or empty: give at least one, such as https://host:2379");
        assert_eq!(message("endpoints: https://a:2379"), "endpoints must be a list of strings");
        assert_eq!(message("endpoints: [1]"), "endpoints must be a list of strings");
        assert_eq!(message("insecure-transport: 1"), "insecure-transport must be true or false");
        assert_eq!(message("password: 1234"), "password must be a string (quote it if it looks like a number or a boolean)");
        assert_eq!(message("username: yes"), "username must be a string (quote it if it looks like a number or a boolean)");
        assert_eq!(message("endpoints: [a]\ndial-timeout: 5s"), "dial-timeout must be a whole number, in nanoseconds if it is a time");
        assert_eq!(message("endpoints: [a]\n~: x"), "not YAML: a key must be a string (line 2)");
        assert_eq!(message("endpoints: ["), "not YAML: check line 2, column 1");
        assert_eq!(message(&format!("endpoints: {}", "[".repeat(900_000))), "lists and mappings nested deeper than 32 (line 1)");
        assert_eq!(message("cilium-host-aliases: [{hostname: a}]"), "cilium-host-aliases: the entry \"a\" has no ips");
    }

    #[test]
    fn files_are_read_as_agents_read_them() {
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
        assert!(read("endpoints: [a]\ninsecure-transport: yes").config.insecure_transport);
        assert_eq!(read("endpoints: [a]\ntrusted-ca-file: 12").config.trusted_ca_file, Some("12".into()));
    }

    #[test]
    fn misspelt_keys_are_reported_with_and_without_an_error() {
        let file = ClientFile::parse(b"endpoints: [a]\ntrusted_ca_file: /ca.crt\nusernam: u\npassword: hunter2\nnote: x").unwrap();
        let expected = r#"it contains "trusted_ca_file" where "trusted-ca-file" is meant, and "usernam" where "username" is meant, which etcd's client ignores"#;
        assert_eq!(file.warnings().as_deref(), Some(expected));
        assert_eq!(ClientFile::parse(b"endpoints: [a]\nnote: x").unwrap().warnings(), None);
        let half = ClientFile::parse(b"endpoints: [a]\ncert-fil: /c.crt\nkey-file: /c.key").unwrap();
        let expected = r#"it contains "cert-fil" where "cert-file" is meant, which etcd's client ignores; key-file is set without cert-file, so no client certificate is used"#;
        assert_eq!(half.warnings().as_deref(), Some(expected));
        assert_eq!(half.config.client_certificate, None);
        let error = ClientFile::parse(b"endpoint: [a]\n").unwrap_err().to_string();
        let expected = r#"endpoints is missing or empty: give at least one, such as https://host:2379; it contains "endpoint" where "endpoints" is meant, which etcd's client ignores"#;
        assert_eq!(error, expected);
        let many: String = (0..MISSPELT_COUNT_MAX + 3).map(|spaces| format!("'endpoint{}': x\n", " ".repeat(spaces))).collect();
        let file = ClientFile::parse(format!("endpoints: [a]\n{many}").as_bytes()).unwrap();
        assert_eq!(file.misspelt.len(), MISSPELT_COUNT_MAX);
    }

    #[test]
    fn the_password_is_not_in_the_debug_output() {
        let file = ClientFile::parse(b"endpoints: [a]\nusername: u\npassword: hunter2").unwrap();
        let shown = format!("{file:?}");
        assert!(shown.contains("redacted") && !shown.contains("hunter2"), "{shown}");
    }
}
