//! Access to the etcd API with certificates: a client with a certificate may read the keys that
//! Cilium's role `local` may read, and a client without one cannot connect.

use std::fs;

use etcd_client::{Certificate, Client, ConnectOptions, Error, GetOptions, Identity, TlsOptions, WatchOptions};

use super::watches::next_response;
use super::{FLAG, etcd_api_url};
use crate::harness::certificates::{Authority, Pair};
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster};
use crate::harness::meshkeep::{Home, http};
use crate::harness::scene::Remote;

async fn connect(url: &str, authority: &Authority, pair: Option<&Pair>) -> Result<Client, Error> {
    let read = |path: &std::path::Path| fs::read(path).unwrap();
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(authority.certificate())));
    if let Some(pair) = pair {
        tls = tls.identity(Identity::from_pem(read(&pair.certificate), read(&pair.key)));
    }
    Client::connect([url], Some(ConnectOptions::new().with_tls(tls))).await
}

/// A web page can reach a loopback address through a name of its own (DNS rebinding) and send any
/// HTTP/1.1 request to it.
#[tokio::test]
async fn a_web_page_cannot_read_the_etcd_api() {
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c01", "live").await;
    let (url, browser) = (etcd_api_url(&home), http());
    for path in ["version", "health", "metrics"] {
        let ask = |host: &str| browser.get(format!("{url}/{path}")).header("host", host).send();
        assert_eq!(ask("evil.example").await.unwrap().status(), 421, "{path}");
        assert_eq!(ask("localhost").await.unwrap().status(), 200, "{path}");
    }
    // a range of everything, framed as gRPC: the keys from `cilium/` to below `cilium0`
    let message = b"\x0a\x07cilium/\x12\x07cilium0";
    let body = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], message].concat();
    let request = browser.post(format!("{url}/etcdserverpb.KV/Range")).header("content-type", "application/grpc").body(body).send();
    let answer = request.await.unwrap();
    assert_eq!(answer.status(), 505);
    assert!(!String::from_utf8_lossy(&answer.bytes().await.unwrap()).contains("cilium/cache"));
}

#[tokio::test]
async fn a_client_certificate_grants_the_rights_of_the_role_local() {
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let (server, agent) = (authority.server("server", &["127.0.0.1", "localhost"]), authority.client("local-home"));
    let path = |path: &std::path::Path| path.display().to_string();
    let flags = [
        format!("--tls-cert={}", path(&server.certificate)),
        format!("--tls-key={}", path(&server.key)),
        format!("--client-ca={}", path(authority.certificate())),
    ];
    // HTTP over a unix socket, which needs no certificates
    let socket = format!("--listen=unix://{}", directory.path().join("http.sock").display());
    let mut home = Home::new().with_only_flags(&[&socket, FLAG]).with_flags(&flags.each_ref().map(String::as_str));
    home.write_cluster("c01", &remote.client_file());
    let _meshkeep = home.start().await;
    let url = etcd_api_url(&home);
    assert!(url.starts_with("https://"));
    let mut api = connect(&url, &authority, Some(&agent)).await.unwrap();
    eventually("the cluster config", || {
        let mut api = api.clone();
        async move { (!api.get("cilium/cluster-config/c01", None).await.unwrap().kvs().is_empty()).then_some(()) }
    })
    .await;
    let prefix = || Some(GetOptions::new().with_prefix());
    for readable in ["cilium/cache/", "cilium/synced/c01/", "cilium/cluster-config/", "cilium/.heartbeat"] {
        assert!(api.get(readable, prefix()).await.is_ok(), "{readable}");
    }
    let denied = |result: Result<etcd_client::GetResponse, Error>| match result.unwrap_err() {
        Error::GRpcStatus(status) => status.message() == "etcdserver: permission denied",
        _ => false,
    };
    for (key, options) in [
        ("cilium/", prefix()),
        ("cilium/state/", prefix()),
        ("cilium/cluster-config/c01", Some(GetOptions::new().with_from_key())),
        ("health", None),
    ] {
        assert!(denied(api.get(key, options).await), "{key}");
    }
    let mut watch = api.watch("cilium/cluster-config/c01", Some(WatchOptions::new().with_from_key())).await.unwrap();
    let refused = next_response(&mut watch).await;
    assert!(refused.created() && refused.canceled() && refused.watch_id() == -1);
    assert_eq!(refused.cancel_reason(), "rpc error: code = PermissionDenied desc = etcdserver: permission denied");
    watch.watch("cilium/cluster-config/c01", None).await.unwrap();
    assert!(!next_response(&mut watch).await.canceled());
    // a client without a certificate
    let anonymous = connect(&url, &authority, None).await;
    let result = match anonymous {
        Ok(mut anonymous) => anonymous.get("cilium/cluster-config/c01", None).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(result.is_err());
}
