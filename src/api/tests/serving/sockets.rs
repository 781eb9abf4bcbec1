//! Real sockets: TCP, unix and TLS, access, and a shutdown with open streams.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::tests::fixture::{ApiFixture, identity, key, put};
use crate::api::{ApiOptions, BoundApi};
use crate::model::{Kind, ListenAddress};
use crate::server::TlsFiles;

/// An API that serves until it is stopped.
pub(in crate::api::tests) struct RunningServer {
    pub(in crate::api::tests) addresses: Vec<String>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    pub(in crate::api::tests) fixture: ApiFixture,
}

impl RunningServer {
    pub(in crate::api::tests) async fn start(listen: &[ListenAddress], options: &ApiOptions) -> Self {
        Self::of(ApiFixture::new(), listen, options).await
    }

    pub(in crate::api::tests) async fn of(fixture: ApiFixture, listen: &[ListenAddress], options: &ApiOptions) -> Self {
        let bound = BoundApi::bind(listen, options).await.unwrap();
        let (addresses, stop) = (bound.addresses(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(bound.serve(fixture.handle.clone(), stop.clone(), Duration::from_secs(30)));
        Self { addresses, stop, tasks, fixture }
    }

    /// Stops the API. This must take much less than the grace period.
    pub(in crate::api::tests) async fn stopped(mut self) {
        self.stop.cancel();
        ended(&mut self.tasks).await;
    }
}

/// Sets the crypto provider that reqwest needs. Another test may have set the same one already.
pub(in crate::api::tests) fn set_provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

pub(in crate::api::tests) async fn get(url: String) -> reqwest::Result<reqwest::Response> {
    set_provider();
    reqwest::get(url).await
}

pub(in crate::api::tests) fn local() -> ListenAddress {
    ListenAddress::parse("127.0.0.1:0").unwrap()
}

/// Waits for the API to end. This must take much less than the grace period of 30 s.
async fn ended(tasks: &mut JoinSet<()>) {
    let ended = tokio::time::timeout(Duration::from_secs(5), tasks.join_next()).await.expect("must end in time");
    ended.unwrap().unwrap();
}

/// Reads a stream until it contains a text.
async fn read_until(response: &mut reqwest::Response, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        let chunk = response.chunk().await.unwrap().unwrap_or_else(|| panic!("ended before {wanted:?}: {text}"));
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    text
}

#[tokio::test]
async fn a_shutdown_ends_open_streams_with_a_bookmark() {
    let running = RunningServer::start(&[local()], &ApiOptions::default()).await;
    let url = running.addresses[0].clone();
    let mut stream = get(format!("{url}/v1/events?snapshot=true")).await.unwrap();
    read_until(&mut stream, "event: synced").await;
    let idle = get(format!("{url}/readyz")).await.unwrap();
    assert_eq!(idle.status().as_u16(), 200);
    running.stopped().await;
    let mut rest = String::new();
    while let Some(chunk) = stream.chunk().await.unwrap() {
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(rest.trim_start().starts_with("event: bookmark\nid: v1."), "{rest}");
    assert!(get(format!("{url}/readyz")).await.is_err());
}

/// Events that a slow reader has not read wait in the process, where they can be merged. In the
/// kernel they would become old.
#[tokio::test]
async fn changes_for_a_slow_reader_do_not_queue_in_the_kernel() {
    const CHANGES: usize = 2_000;
    let running = RunningServer::start(&[local()], &ApiOptions::default()).await;
    let url = running.addresses[0].clone();
    let slow = tokio::net::TcpSocket::new_v4().unwrap();
    slow.set_recv_buffer_size(4_096).unwrap();
    let mut slow = slow.connect(url.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap();
    slow.write_all(b"GET /v1/events?kind=identity HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    slow.readable().await.unwrap();
    let mut fast = get(format!("{url}/v1/events?kind=identity")).await.unwrap();
    read_until(&mut fast, "event: synced").await;
    for change in 1..=CHANGES {
        let app = format!("{change:->4000}");
        let revision = i64::try_from(100 + change).unwrap();
        running.fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, &app), revision)).await;
        read_until(&mut fast, &app).await;
    }
    let metrics = get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let lag = metrics.lines().find_map(|line| line.strip_prefix("meshkeep_stream_lag_changes ")).unwrap();
    let bytes = (CHANGES - lag.parse::<usize>().unwrap()) * 4_000;
    assert!(bytes < 1 << 20, "{bytes} bytes of {CHANGES} changes are in the kernel");
    drop(slow);
    running.stopped().await;
}

#[tokio::test]
async fn a_silent_connection_does_not_delay_a_shutdown() {
    let running = RunningServer::start(&[local()], &ApiOptions::default()).await;
    let address = running.addresses[0].strip_prefix("http://").unwrap().to_owned();
    let mut silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    get(format!("http://{address}/livez")).await.unwrap();
    running.stopped().await;
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
}

async fn ask_unix(path: &Path, request: &str) -> String {
    let mut socket = UnixStream::connect(path).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_unix_socket_replaces_a_stale_file_and_is_removed_at_the_end() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meshkeep.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = ListenAddress::parse(&format!("unix://{}", path.display())).unwrap();
    let running = RunningServer::start(std::slice::from_ref(&listen), &ApiOptions::default()).await;
    assert_eq!(running.addresses, [listen.to_string()]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let answer = ask_unix(&path, "GET /v1/identities/2 HTTP/1.1\r\nHost: anything.example\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"reserved\":\"world\""), "{answer}");
    let busy = BoundApi::bind(std::slice::from_ref(&listen), &ApiOptions::default()).await.unwrap_err();
    assert_eq!(busy.to_string(), format!("cannot listen on unix://{}: another process uses it", path.display()));
    running.stopped().await;
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let other = BoundApi::bind(&[listen], &ApiOptions::default()).await.unwrap_err();
    assert!(other.to_string().ends_with("the file is not a socket; remove it or choose another path"), "{other}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_socket_in_use_is_refused_and_its_file_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meshkeep.sock");
    let listen = ListenAddress::parse(&format!("unix://{}", path.display())).unwrap();
    // a process that accepts no connections: once its backlog is full, a client would wait forever
    let busy = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    busy.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    busy.listen(0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = UnixStream::connect(&path).await {
        waiting.push(stream);
    }
    let options = ApiOptions::default();
    let bind = BoundApi::bind(std::slice::from_ref(&listen), &options);
    let error = tokio::time::timeout(Duration::from_secs(5), bind).await.expect("must not wait").unwrap_err();
    assert!(error.to_string().ends_with("another process uses it"), "{error}");
    drop((busy, waiting));

    let running = RunningServer::start(std::slice::from_ref(&listen), &ApiOptions::default()).await;
    std::fs::remove_file(&path).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    running.stopped().await;
    assert!(path.exists());
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let running = RunningServer::start(&[local()], &ApiOptions::default()).await;
    let taken = running.addresses[0].strip_prefix("http://").unwrap().to_owned();
    let error = BoundApi::bind(&[local(), ListenAddress::parse(&taken).unwrap()], &ApiOptions::default()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {taken}: Address already in use (os error 98)"));
    running.stopped().await;
}

#[tokio::test]
async fn hosts_and_tokens_are_checked_but_probes_are_open() {
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, "sesame\n").unwrap();
    let options = ApiOptions { allowed_hosts: vec!["meshkeep.svc".to_owned()], token_file: Some(token_file), ..ApiOptions::default() };
    let running = RunningServer::start(&[local()], &options).await;
    let url = running.addresses[0].clone();
    set_provider();
    let client = reqwest::Client::new();
    let ask = async |path: &str, host: Option<&str>, token: Option<&str>| {
        let mut request = client.get(format!("{url}{path}"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(ask("/v1/nodes", None, None).await, 401);
    assert_eq!(ask("/v1/nodes", None, Some("open")).await, 401);
    assert_eq!(ask("/v1/nodes", None, Some("sesame")).await, 200);
    assert_eq!(ask("/v1/nodes", Some("meshkeep.svc:9870"), Some("sesame")).await, 200);
    assert_eq!(ask("/v1/nodes", Some("evil.example"), Some("sesame")).await, 421);
    assert_eq!(ask("/readyz", Some("10.0.0.7:9870"), None).await, 200);
    // the page asks for the token itself: with a valid `Host`, only its files and the pages about
    // problems, and the description of the API, are open
    let asset = format!("/assets/{}/main.js", crate::page::version());
    for path in ["/", "/problems", "/docs", "/docs/script.js", "/openapi.json", &asset] {
        assert_eq!((ask(path, None, None).await, ask(path, Some("evil.example"), None).await), (200, 421), "{path}");
    }
    for path in ["/docsy", "/openapi", "/metrics", "/v1/status", "/v1/events", "/problemsolver", "/assets", "/nothing"] {
        assert_eq!(ask(path, None, None).await, 401, "{path}");
    }
    running.stopped().await;
    let options = ApiOptions { token_file: Some(directory.path().join("none")), ..ApiOptions::default() };
    let error = BoundApi::bind(&[local()], &options).await.unwrap_err().to_string();
    assert!(error.contains("/none: No such file"), "{error}");
}

/// An authority, and its certificates for 127.0.0.1 and for a client.
pub(in crate::api::tests) struct Certificates {
    directory: tempfile::TempDir,
    authority: String,
    client: String,
}

impl Certificates {
    pub(in crate::api::tests) fn new() -> Self {
        Self::ending_in(Duration::from_secs(365 * 86_400))
    }

    /// Certificates of the server and the client that expire after this time.
    pub(in crate::api::tests) fn ending_in(left: Duration) -> Self {
        let end = rcgen::date_time_ymd(1970, 1, 1) + std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + left;
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_after = end;
            let certificate = params.signed_by(&key, &authority).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (certificate, key) = issue("127.0.0.1");
        std::fs::write(directory.path().join("tls.crt"), certificate).unwrap();
        std::fs::write(directory.path().join("tls.key"), key).unwrap();
        std::fs::write(directory.path().join("ca.crt"), authority.pem()).unwrap();
        let (certificate, key) = issue("client");
        Self { directory, authority: authority.pem(), client: certificate + &key }
    }

    pub(in crate::api::tests) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(in crate::api::tests) fn files(&self, client_ca: bool) -> TlsFiles {
        TlsFiles { certificate: self.path("tls.crt"), key: self.path("tls.key"), client_ca: client_ca.then(|| self.path("ca.crt")) }
    }

    pub(in crate::api::tests) fn client(&self, with_certificate: bool) -> reqwest::Client {
        if with_certificate { self.client_of(self) } else { self.builder().build().unwrap() }
    }

    /// A client of these servers with a certificate from another authority.
    pub(in crate::api::tests) fn client_of(&self, other: &Self) -> reqwest::Client {
        self.builder().identity(reqwest::Identity::from_pem(other.client.as_bytes()).unwrap()).build().unwrap()
    }

    fn builder(&self) -> reqwest::ClientBuilder {
        set_provider();
        let authority = reqwest::Certificate::from_pem(self.authority.as_bytes()).unwrap();
        reqwest::Client::builder().use_rustls_tls().add_root_certificate(authority)
    }
}

#[tokio::test]
async fn tls_serves_streams_and_checks_client_certificates() {
    let certificates = Certificates::new();
    let options = ApiOptions { tls: Some(certificates.files(false)), ..ApiOptions::default() };
    let running = RunningServer::start(&[local()], &options).await;
    assert!(running.addresses[0].starts_with("https://127.0.0.1:"));
    let mut stream = certificates.client(false).get(format!("{}/v1/events", running.addresses[0])).send().await.unwrap();
    read_until(&mut stream, "event: synced").await;
    running.stopped().await;
    read_until(&mut stream, "event: bookmark").await;

    let options = ApiOptions { tls: Some(certificates.files(true)), ..ApiOptions::default() };
    let running = RunningServer::start(&[local()], &options).await;
    let url = format!("{}/v1/status", running.addresses[0]);
    assert!(certificates.client(false).get(&url).send().await.is_err());
    assert_eq!(certificates.client(true).get(&url).send().await.unwrap().status().as_u16(), 200);
    running.stopped().await;
}

#[tokio::test]
async fn an_invalid_certificate_is_named() {
    let certificates = Certificates::new();
    let broken = TlsFiles { key: certificates.path("ca.crt"), ..certificates.files(false) };
    let missing = TlsFiles { certificate: certificates.path("none.crt"), ..certificates.files(false) };
    std::fs::write(certificates.path("empty.crt"), "").unwrap();
    let empty = TlsFiles { client_ca: Some(certificates.path("empty.crt")), ..certificates.files(false) };
    for (files, name) in [(broken, "ca.crt"), (missing, "none.crt"), (empty, "empty.crt")] {
        let options = ApiOptions { tls: Some(files), ..ApiOptions::default() };
        let error = BoundApi::bind(&[local()], &options).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot use {} for TLS: ", certificates.path(name).display())), "{error}");
    }
}

#[tokio::test]
async fn a_request_that_never_ends_is_dropped_after_the_grace_period() {
    let fixture = ApiFixture::new();
    let bound = BoundApi::bind(&[local()], &ApiOptions::default()).await.unwrap();
    let address = bound.addresses()[0].strip_prefix("http://").unwrap().to_owned();
    let (stop, grace) = (CancellationToken::new(), Duration::from_millis(300));
    let mut tasks = JoinSet::new();
    tasks.spawn(bound.serve(fixture.handle.clone(), stop.clone(), grace));
    let mut half = tokio::net::TcpStream::connect(&address).await.unwrap();
    let head = "POST /v1/ipcache/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n";
    half.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).await.unwrap();
    // the server asks for the body once it is inside the handler, so the request is in flight from
    // here on
    half.read_exact(&mut [0; 12]).await.unwrap();
    let began = Instant::now();
    stop.cancel();
    ended(&mut tasks).await;
    assert!(began.elapsed() >= grace, "{:?}", began.elapsed());
}
