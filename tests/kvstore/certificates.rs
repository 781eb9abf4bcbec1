//! Servers with many types of certificates. `cilium-kvstore` accepts and refuses the same ones as
//! etcd's own client, except that it alone refuses the cases `RefusedHere`. Its error message gives
//! the reason.

use std::fs;
use std::path::Path;
use std::process::Command;

use cilium_kvstore::{ClientOptions, Connection};
use meshkeep::internals::client_file::ClientFile;
use tempfile::TempDir;

use crate::harness::certificates::Pair;
use crate::harness::etcd::{Etcd, Tls};
use crate::stream_clients::client::etcd_clients;

/// Expected results of etcd's client and of this client.
enum Verdict {
    Accepted,
    /// Both clients refuse. Our message contains each of these texts.
    Refused(&'static [&'static str]),
    /// Only this client refuses. Our message contains each of these texts.
    RefusedHere(&'static [&'static str]),
}

use Verdict::{Accepted, Refused, RefusedHere};

/// The cases of tests/clients/go-etcd/tls.go.
const CASES: [(&str, Verdict); 44] = [
    ("p256", Accepted),
    ("p256-sha384", Accepted),
    ("p256-sha512", Accepted),
    ("p384", Accepted),
    ("p384-sha256", Accepted),
    ("p384-sha512", Accepted),
    ("p521", Accepted),
    ("p521-sha256", Accepted),
    ("p521-sha384", Accepted),
    ("p521-under-rsa", Accepted),
    ("rsa", Accepted),
    ("rsa-3072", Accepted),
    ("rsa-pss", Accepted),
    ("ed25519", Accepted),
    ("same-name-right-first", Accepted),
    ("same-name-right-last", Accepted),
    ("itself-as-authority", Accepted),
    ("itself-without-authority", Accepted),
    ("itself-without-its-issuer", Accepted),
    ("intermediate", Accepted),
    ("intermediate-trusted", Accepted),
    ("authority-renewed", Accepted),
    ("for-anything", Accepted),
    ("version-1-skipped", Accepted),
    (
        "rsa-1024",
        RefusedHere(&[
            "the server's certificate CN=server (serial ",
            " has an RSA key of 1024 bits, and 2048 is the minimum; issue a new one",
        ]),
    ),
    ("rsa-1024-issuer", RefusedHere(&["the certificate CN=root (serial ", "/ca.crt has an RSA key of 1024 bits, and 2048 is the minimum"])),
    (
        "authority-as-server",
        RefusedHere(&["CN=server (serial ", " belongs to an authority (CA:TRUE), not to a server; issue a new one without CA:TRUE"]),
    ),
    ("signed-with-sha1", Refused(&["CN=server (serial ", " is signed sha1WithRSAEncryption; sign with SHA-256"])),
    (
        "same-name-wrong",
        Refused(&["is signed by another CN=root than the one in ", "/ca.crt: same name, different key (signed by key ", ", known "]),
    ),
    (
        "other-name",
        Refused(&[
            " is signed by CN=root: ",
            "/ca.crt has no authority of this name, and the server does not send it",
            "; add the certificate of CN=root",
        ]),
    ),
    (
        "itself-wrong-name",
        Refused(&["CN=server (serial ", " is not for 127.0.0.1, but for paris.example.org, 192.0.2.1; use one of these names"]),
    ),
    (
        "itself-expired",
        Refused(&["the server's certificate CN=server (serial ", " expired ", "; renew it, or correct this machine's clock"]),
    ),
    ("itself-for-clients", Refused(&["may not be used for a server: its extended key usage lacks serverAuth; issue a new one"])),
    ("itself-untrusted", Refused(&["CN=server (serial ", " is self-signed and is not in ", "; add it to trusted-ca-file ("])),
    ("signed-by-server", Refused(&["the certificate CN=server (serial ", "/ca.crt signed another one, but must not: CA:TRUE is missing"])),
    (
        "intermediate-missing",
        Refused(&[
            " is signed by CN=middle: ",
            "the server does not send it as an intermediate certificate",
            "append its certificate to the file of etcd's --cert-file",
        ]),
    ),
    ("intermediate-is-server", Refused(&["CN=server (serial ", " that the server sends signed another one, but must not"])),
    ("name-constraints", Refused(&["may not sign for its names (localhost, 127.0.0.1): it has name constraints"])),
    ("expired", Refused(&["the server's certificate CN=server (serial ", " expired ", "; renew it"])),
    ("not-yet-valid", Refused(&["the server's certificate CN=server (serial ", " is not valid before ", "; correct this machine's clock"])),
    ("authority-expired", Refused(&["the certificate CN=root (serial ", "/ca.crt expired ", "; renew it"])),
    ("wrong-name", Refused(&[" is not for 127.0.0.1, but for paris.example.org, 192.0.2.1; use one of these names"])),
    (
        "common-name-alone",
        Refused(&[
            " has no host name: it has no subject alternative name",
            "; issue a new one with 127.0.0.1 as a subject alternative name",
        ]),
    ),
    ("for-clients", Refused(&["may not be used for a server: its extended key usage lacks serverAuth; issue a new one with serverAuth"])),
];

#[tokio::test]
async fn certificates_are_judged_as_by_etcds_own_client() {
    let go_client = etcd_clients().join("go-etcd");
    let directory = TempDir::new().unwrap();
    assert!(Command::new(&go_client).arg("tls-certificates").arg(directory.path()).status().unwrap().success());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), CASES.len());
    // etcd reads its certificate again for each connection
    let etcd = Etcd::builder().tls(Tls::Server).start().await;
    let mut wrong = Vec::new();
    for (name, expected) in CASES {
        let case = directory.path().join(name);
        install(&case, etcd.server_pair());
        let extra_settings = fs::read_to_string(case.join("more.yaml")).unwrap();
        let text = format!("endpoints: ['{}']\ntrusted-ca-file: {}\n{extra_settings}", etcd.url(), case.join("ca.crt").display());
        fs::write(case.join("client.yaml"), &text).unwrap();
        let go_verdict = Command::new(&go_client).arg("tls-verdict").arg(case.join("client.yaml")).output().unwrap();
        let go_verdict = String::from_utf8(go_verdict.stdout).unwrap();
        let file = ClientFile::parse(text.as_bytes()).unwrap().config;
        let error = Connection::open(&file, &file.endpoints()[0], &ClientOptions::default()).await.err().map(|error| error.to_string());
        let is_as_expected = match expected {
            Accepted => go_verdict == "accepted\n" && error.is_none(),
            Refused(parts) => go_verdict != "accepted\n" && error.as_ref().is_some_and(|text| parts.iter().all(|part| text.contains(part))),
            RefusedHere(parts) => {
                go_verdict == "accepted\n" && error.as_ref().is_some_and(|text| parts.iter().all(|part| text.contains(part)))
            }
        };
        if !is_as_expected {
            wrong.push(format!("{name}: etcd's client: {go_verdict}; this client: {}", error.as_deref().unwrap_or("accepted")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Copies certificate and key of a case to the paths that etcd reads.
fn install(case: &Path, pair: &Pair) {
    fs::copy(case.join("server.crt"), &pair.certificate).unwrap();
    fs::copy(case.join("server.key"), &pair.key).unwrap();
}
