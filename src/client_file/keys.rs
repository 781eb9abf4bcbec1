//! Keys of etcd's client file (`clientv3/yaml`), and suggestions for misspelt ones.
//!
//! etcd's client and meshkeep ignore unknown keys, so a certificate under a misspelt key is
//! silently ignored.

use crate::model::suggest_word;

/// All keys that etcd's client reads, including those without effect here, so that none of them
/// counts as misspelt (etcd 3.7, `client/v3/config.go` and `client/v3/yaml/config.go`). One is
/// Cilium's (`pkg/clustermesh/common/config.go`).
const KNOWN_KEYS: [&str; 23] = [
    "auto-sync-interval",
    "backoff-exponent",
    "backoff-jitter-fraction",
    "backoff-max-wait-between",
    "backoff-wait-between",
    "cert-file",
    "cilium-host-aliases",
    "dial-keep-alive-time",
    "dial-keep-alive-timeout",
    "dial-timeout",
    "endpoints",
    "insecure-skip-tls-verify",
    "insecure-transport",
    "key-file",
    "max-unary-retries",
    // two Go fields without a tag: their keys are the names of the fields
    "maxcallrecvmsgsize",
    "maxcallsendmsgsize",
    "password",
    "permit-without-stream",
    "reject-old-cluster",
    "token",
    "trusted-ca-file",
    "username",
];

/// Names of the same settings in etcd's flags and elsewhere. `ca-file` is a key that etcd's client
/// no longer reads.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("ca", "trusted-ca-file"),
    ("ca-cert", "trusted-ca-file"),
    ("ca-file", "trusted-ca-file"),
    ("cacert", "trusted-ca-file"),
    ("cert", "cert-file"),
    ("client-cert-file", "cert-file"),
    ("client-key-file", "key-file"),
    ("insecure-skip-verify", "insecure-skip-tls-verify"),
    ("key", "key-file"),
    ("user", "username"),
];

/// Maximum length of a key that can count as misspelt, in bytes: more than twice the longest known
/// key, and short enough to print.
const KEY_BYTES_MAX: usize = 64;

/// Returns the known key that a misspelt key probably stands for; `None` for known keys, and for
/// keys that resemble no known key.
#[must_use]
pub fn intended_key(key: &str) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    if key.len() > KEY_BYTES_MAX || KNOWN_KEYS.contains(&lower.as_str()) {
        return None;
    }
    let plain = lower.replace(['_', ' '], "-");
    let by_other_name = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, ours)| *ours);
    by_other_name.or_else(|| suggest_word(key, KNOWN_KEYS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_misspelt_keys_have_a_suggestion() {
        for (key, meant) in [
            ("trusted_ca_file", Some("trusted-ca-file")),
            ("trustedCAFile", Some("trusted-ca-file")),
            ("trusted-ca-flie", Some("trusted-ca-file")),
            ("ca-file", Some("trusted-ca-file")),
            ("ca_cert", Some("trusted-ca-file")),
            ("cert-fil", Some("cert-file")),
            ("certfile", Some("cert-file")),
            ("Cert_File", Some("cert-file")),
            ("keyfile", Some("key-file")),
            ("key-flie", Some("key-file")),
            ("endpoint", Some("endpoints")),
            ("endpoints ", Some("endpoints")),
            ("end-points", Some("endpoints")),
            ("endpionts", Some("endpoints")),
            ("insecure_transport", Some("insecure-transport")),
            ("insecure-skip-tls-verfy", Some("insecure-skip-tls-verify")),
            ("user_name", Some("username")),
            ("user", Some("username")),
            ("pasword", Some("password")),
            ("dial-timout", Some("dial-timeout")),
            // keys that etcd's client knows, ignoring the case
            ("TRUSTED-CA-FILE", None),
            ("Endpoints", None),
            ("MaxCallRecvMsgSize", None),
            ("token", None),
            ("dial-keep-alive-time", None),
            // keys that resemble no known key
            ("comment", None),
            ("cluster-name", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(intended_key(key), meant, "{key}");
        }
        assert_eq!(intended_key(&format!("endpoint{}", "-".repeat(KEY_BYTES_MAX))), None);
    }
}
