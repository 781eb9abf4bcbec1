//! Keys of etcd's client file (`clientv3/yaml`), and suggestions for misspelt ones.
//!
//! etcd's client and meshkeep ignore unknown keys: a certificate at a misspelt key is silently not
//! used.

use crate::model::suggest_word;

/// All keys that etcd's client reads, including those without effect here, so that none of them
/// counts as misspelt (etcd 3.7, `client/v3/config.go` and `client/v3/yaml/config.go`). One is
/// Cilium's (`pkg/clustermesh/common/config.go`).
const KNOWN: [&str; 23] = [
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
    // two fields without a tag, which files name as Go does
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

/// Returns the key that a misspelt key probably means; `None` for known keys, and for keys that
/// resemble none.
#[must_use]
pub fn meant_by(key: &str) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    if key.len() > KEY_BYTES_MAX || KNOWN.contains(&lower.as_str()) {
        return None;
    }
    let plain = lower.replace(['_', ' '], "-");
    let elsewhere = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, ours)| *ours);
    elsewhere.or_else(|| suggest_word(key, KNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_keys_differ_from_known_and_unrelated_ones() {
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
            // keys that resemble none
            ("comment", None),
            ("cluster-name", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(meant_by(key), meant, "{key}");
        }
        assert_eq!(meant_by(&format!("endpoint{}", "-".repeat(KEY_BYTES_MAX))), None);
    }
}
