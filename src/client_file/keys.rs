//! The keys that etcd's client knows in its file (`clientv3/yaml`), and which of them was meant by one that it does not know.
//!
//! Such a key is ignored there and here: a certificate that a file seems to name is then not used, and nothing says so.

use crate::model::nearest;

/// Every key that etcd's client reads, those that mean nothing here as well: none of these is a slip (etcd 3.7, `client/v3/config.go` and
/// `client/v3/yaml/config.go`). One is Cilium's (`pkg/clustermesh/common/config.go`).
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
    // two that have no name for files but their Go name
    "maxcallrecvmsgsize",
    "maxcallsendmsgsize",
    "password",
    "permit-without-stream",
    "reject-old-cluster",
    "token",
    "trusted-ca-file",
    "username",
];

/// What the same things are called in etcd's flags and elsewhere. `ca-file` is a key of the client's file that it does not read any more.
const ELSEWHERE: [(&str, &str); 10] = [
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

/// How long a key may be that is taken for a slip: more than twice the longest that is known, and short enough to be told.
const KEY_BYTES_MAX: usize = 64;

/// The key that was probably meant by one that etcd's client ignores; `None` for those that it knows, and for what is nothing like them.
#[must_use]
pub fn meant_by(key: &str) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    if key.len() > KEY_BYTES_MAX || KNOWN.contains(&lower.as_str()) {
        return None;
    }
    let plain = lower.replace(['_', ' '], "-");
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == plain).map(|(_, ours)| *ours);
    elsewhere.or_else(|| nearest(key, KNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_nearly_one_is_told_from_one_that_is_known_and_one_that_is_something_else() {
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
            // what etcd's client knows, in whatever case
            ("TRUSTED-CA-FILE", None),
            ("Endpoints", None),
            ("MaxCallRecvMsgSize", None),
            ("token", None),
            ("dial-keep-alive-time", None),
            // and what is nothing like it
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
