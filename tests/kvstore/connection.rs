//! Tests of connections: opening, TLS, authentication and single reads, and that a connection never
//! switches to another server process.

use std::time::{Duration, SystemTime};

use cilium_kvstore::{ClientOptions, Connection, Disposition, Endpoint, KeyValue};
use cilium_kvstore::{LeaseId, Revision};
use meshkeep::internals::client_file::ClientFile;

use super::{client_file, open, open_with, refusal};
use crate::harness::certificates::Authority;
use crate::harness::etcd::{Etcd, Tls, etcd_binaries};
use crate::harness::{PATIENCE, eventually};

fn key_value(key: &str, value: &str, revisions: [i64; 2], version: i64) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.as_bytes().into(),
        create_revision: Revision(revisions[0]),
        mod_revision: Revision(revisions[1]),
        version,
        lease: LeaseId(0),
    }
}

/// Names in `mesh.cilium.io` are not in DNS: the file has their addresses (`cilium-host-aliases`).
#[tokio::test]
async fn host_aliases_replace_dns() {
    let etcd = Etcd::start().await;
    etcd.put("cilium/a", "1").await;
    let endpoint = format!("http://paris.mesh.cilium.io:{}", etcd.port());
    // no server listens on the first of the two addresses
    let text = format!("endpoints: [{endpoint}]\ncilium-host-aliases:\n- hostname: paris.mesh.cilium.io\n  ips: ['::1', 127.0.0.1]\n");
    let file = ClientFile::parse(text.as_bytes()).unwrap().config;
    let connection = Connection::open(&file, &file.endpoints()[0], &ClientOptions::default()).await.unwrap();
    assert_eq!(connection.get(b"cilium/a", None).await.unwrap().0.unwrap().value.as_ref(), b"1");
}

#[tokio::test]
async fn keys_are_read_with_every_kind_of_tls_and_login() {
    for binary in etcd_binaries() {
        for tls in [Tls::None, Tls::Server, Tls::Mutual] {
            for user in [None, Some("meshkeep")] {
                let mut etcd = Etcd::builder().binary(&binary).tls(tls).start().await;
                if let Some(user) = user {
                    etcd.enable_auth(user, "secret").await;
                }
                etcd.put("cilium/a", "1").await;
                etcd.put("cilium/b", "2").await;
                etcd.put("cilium/a", "3").await;
                assert_reads(&open(&etcd).await).await;
            }
        }
    }
}

async fn assert_reads(connection: &Connection) {
    let (a_old, a) = (key_value("cilium/a", "1", [2, 2], 1), key_value("cilium/a", "3", [2, 4], 2));
    let b = key_value("cilium/b", "2", [3, 3], 1);
    assert_eq!(connection.get(b"cilium/a", None).await.unwrap(), (Some(a.clone()), Revision(4)));
    assert_eq!(connection.get(b"cilium/a", Some(Revision(3))).await.unwrap(), (Some(a_old), Revision(4)));
    assert_eq!(connection.get(b"cilium/c", None).await.unwrap(), (None, Revision(4)));
    let keys = ["cilium/b", "cilium/c", "cilium/a"].map(|key| key.as_bytes().to_vec());
    assert_eq!(connection.get_many(&keys).await.unwrap(), (vec![Some(b), None, Some(a)], Revision(4)));
    assert_eq!(connection.get_many(&[]).await.unwrap(), (vec![], Revision(4)));
    assert_eq!(connection.first_key(b"cilium/a\0", b"cilium0").await.unwrap(), Some(b"cilium/b".to_vec()));
    assert_eq!(connection.first_key(b"cilium/c", b"cilium0").await.unwrap(), None);
    let error = connection.get(b"cilium/a", Some(Revision(99))).await.unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.disposition()),
        ("reading \"cilium/a\": the revision is in the future", Disposition::Resync)
    );
}

#[tokio::test]
async fn servers_of_another_ca_are_refused_unless_verification_is_off() {
    let etcd = Etcd::builder().tls(Tls::Server).start().await;
    let other = Authority::new(&etcd.directory().join("other"), "other");
    let wrong = format!("endpoints: [{}]\ntrusted-ca-file: {}\n", etcd.url(), other.certificate().display());
    let error = refusal(&wrong, &etcd.url()).await;
    let authority = format!("127.0.0.1:{}", etcd.port());
    let text = error.to_string();
    let start = format!("TLS with {authority} failed: the server's certificate for localhost, 127.0.0.1 (serial ");
    let end = format!(
        ") is signed by CN=ca: {file} has no authority of this name, and the server does not send it as an intermediate certificate; add the certificate of \
         CN=ca to trusted-ca-file ({file}); or, if it is an intermediate authority, append its certificate to the file of etcd's --cert-file",
        file = other.certificate().display()
    );
    assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
    assert_eq!(error.disposition(), Disposition::Retry);

    let file = ClientFile::parse(format!("{wrong}insecure-skip-tls-verify: true").as_bytes()).unwrap().config;
    Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.unwrap();
    // by name and by address, and without a scheme
    for endpoint in [format!("https://localhost:{}", etcd.port()), format!("localhost:{}", etcd.port())] {
        Connection::open(&client_file(&etcd), &Endpoint::new(endpoint), &ClientOptions::default()).await.unwrap();
    }
}

#[tokio::test]
async fn errors_name_the_reason_why_a_connection_fails() {
    let mut etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    let (url, ca) = (etcd.url(), etcd.authority().certificate().display().to_string());
    let error = refusal(&format!("endpoints: [a]\ntrusted-ca-file: {ca}\n"), &url).await.to_string();
    let required = "failed: the server requires a client certificate, and the client file has none (";
    assert!(error.starts_with(&format!("TLS with 127.0.0.1:{} {required}", etcd.port())), "{error}");
    assert!(error.ends_with("; set cert-file and key-file"), "{error}");

    let missing = format!("endpoints: [a]\ntrusted-ca-file: {ca}\ncert-file: /nowhere.crt\nkey-file: /nowhere.key\n");
    assert_eq!(refusal(&missing, &url).await.to_string(), "/nowhere.crt cannot be used: No such file or directory (os error 2)");
    let (own_pair, stranger) = (etcd.client_pair().clone(), etcd.authority().client("stranger"));
    let mixed = format!(
        "endpoints: [a]\ntrusted-ca-file: {ca}\ncert-file: {}\nkey-file: {}\n",
        own_pair.certificate.display(),
        stranger.key.display()
    );
    let error = refusal(&mixed, &url).await.to_string();
    let start = format!("{} cannot be used: it is not the key of CN=meshkeep (serial ", stranger.key.display());
    assert!(error.starts_with(&start) && error.ends_with("; use a key and a certificate that belong together"), "{error}");
    let empty = etcd.directory().join("empty.crt");
    std::fs::write(&empty, "").unwrap();
    let error = refusal(&format!("endpoints: [a]\ntrusted-ca-file: {}\n", empty.display()), &url).await.to_string();
    assert_eq!(error, format!("{} cannot be used: no certificate in it", empty.display()));

    etcd.enable_auth("meshkeep", "secret").await;
    let wrong = etcd.client_file_yaml().replace("secret", "wr0ng-password");
    let error = refusal(&wrong, &url).await.to_string();
    assert!(error.starts_with("etcd rejects the username or password of the client file: "), "{error}");
    assert!(!error.contains("wr0ng"), "{error}");
    let error = open(&etcd).await.get(b"elsewhere", None).await.unwrap_err();
    assert_eq!(error.to_string(), "reading \"elsewhere\": permission denied by etcd");

    assert_eq!(refusal(&etcd.client_file_yaml(), "unix:///x").await.disposition(), Disposition::Fatal);
    etcd.stop().await;
    let error = refusal(&etcd.client_file_yaml(), &url).await.to_string();
    assert_eq!(error, format!("cannot connect to 127.0.0.1:{}: Connection refused (os error 111)", etcd.port()));
}

/// A client's key may have any type that Go supports.
#[tokio::test]
async fn p521_and_ed25519_keys_work_and_servers_without_tls_are_named() {
    let etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    for algorithm in [&rcgen::PKCS_ECDSA_P521_SHA512, &rcgen::PKCS_ED25519] {
        etcd.authority().client_with_key("meshkeep", &rcgen::KeyPair::generate_for(algorithm).unwrap());
        assert_eq!(open(&etcd).await.get(b"cilium/a", None).await.unwrap().0, None);
    }
    let plain = Etcd::start().await;
    let error = refusal("endpoints: [a]\ninsecure-skip-tls-verify: true\n", &plain.url().replace("http:", "https:")).await.to_string();
    assert!(error.contains("the server closed the connection during the handshake") || error.contains("does not use TLS"), "{error}");
    assert!(error.contains("use http:// or insecure-transport: true"), "{error}");
}

#[tokio::test]
async fn connecting_to_a_silent_server_ends_after_the_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = silent.local_addr().unwrap().to_string();
    let limit = Duration::from_millis(200);
    let options = ClientOptions { connect_timeout: limit, request_timeout: limit, ..ClientOptions::default() };
    for (scheme, what) in [("https", format!("connecting to {authority}")), ("http", "reading \"cilium/.heartbeat\"".into())] {
        let file = ClientFile::parse(b"endpoints: [a]\ninsecure-skip-tls-verify: true").unwrap().config;
        let error = Connection::open(&file, &Endpoint::new(format!("{scheme}://{authority}")), &options).await.err().unwrap();
        assert_eq!(error.to_string(), format!("{what} took longer than 200ms"));
    }
}

/// A connection does not survive a restart of its server. A wiped etcd has the same cluster id, so
/// that an automatic reconnect would go unnoticed.
#[tokio::test]
async fn a_connection_stays_broken_after_a_restart_of_its_server() {
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).start().await;
        let connection = open(&etcd).await;
        let cluster_id = connection.etcd_cluster_id();
        let mut watch = connection.watch(b"cilium/a", None, Revision(1)).await.unwrap();
        watch.next().await.unwrap();
        etcd.wipe();
        etcd.restart().await;
        assert_eq!(open(&etcd).await.etcd_cluster_id(), cluster_id, "the cluster id must be the same, otherwise the test proves nothing");
        for _ in 0..20 {
            for error in [
                connection.get(b"cilium/a", None).await.err().unwrap(),
                connection.list(b"cilium/").next_page().await.err().unwrap(),
                connection.watch(b"cilium/a", None, Revision(1)).await.err().unwrap(),
            ] {
                assert_eq!(error.disposition(), Disposition::Retry, "{error}");
            }
        }
        assert_eq!(watch.next().await.unwrap_err().disposition(), Disposition::Retry);
        let error = connection.get(b"cilium/a", None).await.unwrap_err().to_string();
        assert!(error.contains("the connection is broken"), "{error}");
    }
}

#[tokio::test]
async fn another_cluster_token_changes_the_cluster_id() {
    let mut etcd = Etcd::start().await;
    let before = open(&etcd).await;
    etcd.wipe();
    etcd.set_cluster_token("another");
    etcd.restart().await;
    assert_ne!(open(&etcd).await.etcd_cluster_id(), before.etcd_cluster_id());
    assert!(before.get(b"cilium/a", None).await.is_err());
}

/// etcd disconnects clients that ping without an open call. A client that has an open watch detects
/// by pings that its server no longer answers.
#[tokio::test]
async fn pings_detect_a_frozen_server_and_spare_idle_connections() {
    let etcd = Etcd::builder().flag("--grpc-keepalive-min-time=10ms").start().await;
    let options = ClientOptions {
        keepalive_heartbeat: Duration::from_millis(50),
        keepalive_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    let connection = open_with(&etcd, &options).await;
    // idle for the time of 20 pings; etcd would close the connection after three pings
    tokio::time::sleep(Duration::from_secs(1)).await;
    connection.get(b"cilium/a", None).await.unwrap();
    let mut watch = connection.watch(b"cilium/a", None, Revision(1)).await.unwrap();
    watch.next().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), watch.next()).await.is_err(), "pings are answered");
    etcd.pause();
    let error = tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch must fail in time").unwrap_err();
    assert_eq!(error.disposition(), Disposition::Retry, "{error}");
    etcd.resume();
    assert!(connection.get(b"cilium/a", None).await.is_err());
}

#[tokio::test]
async fn the_earliest_certificate_expiry_is_reported() {
    let etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    let file = client_file(&etcd);
    assert_eq!(file.missing_files(), Vec::<std::path::PathBuf>::new());
    let year = |text: &str| SystemTime::from(text.parse::<jiff::Timestamp>().unwrap());
    assert_eq!(file.certificate_expiry(), Some(year("2100-01-01T00:00:00Z")));
    let short_lived = etcd.authority().client_until("short", 2050);
    let yaml = etcd.client_file_yaml().replace("client-meshkeep", "client-short");
    assert_eq!(ClientFile::parse(yaml.as_bytes()).unwrap().config.certificate_expiry(), Some(year("2050-01-01T00:00:00Z")));
    std::fs::remove_file(&short_lived.key).unwrap();
    assert_eq!(ClientFile::parse(yaml.as_bytes()).unwrap().config.missing_files(), [short_lived.key]);
}

/// Rotated files are used from the next connection on, without a new client file.
#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    let file = client_file(&etcd);
    let stranger_authority = Authority::new(&etcd.directory().join("stranger"), "ca");
    let stranger = stranger_authority.client("meshkeep");
    std::fs::copy(&stranger.certificate, &etcd.client_pair().certificate).unwrap();
    std::fs::copy(&stranger.key, &etcd.client_pair().key).unwrap();
    let error = Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.err().unwrap().to_string();
    assert!(error.contains("the client's certificate CN=meshkeep (serial ") && error.contains("etcd's --trusted-ca-file"), "{error}");
    etcd.authority().client("meshkeep");
    let opened = eventually("a connection with the right certificate", || async {
        Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.ok()
    });
    opened.await;
    let ca = std::fs::read(etcd.authority().certificate()).unwrap();
    std::fs::copy(stranger_authority.certificate(), etcd.authority().certificate()).unwrap();
    let error = Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.err().unwrap().to_string();
    assert!(error.contains(" is signed by another CN=ca than the one in ") && error.contains("same name, different key"), "{error}");
    std::fs::write(etcd.authority().certificate(), ca).unwrap();
    Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.unwrap();
}
