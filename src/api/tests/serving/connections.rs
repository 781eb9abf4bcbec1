//! Idle and slow connections, and evictions when slots run out; over TCP, TLS and unix sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::sockets::{Certificates, RunningServer, local};
use crate::api::ApiOptions;
use crate::api::tests::fixture::{identity, key, put};
use crate::model::{Kind, ListenAddress};
use crate::server::ConnectionLimits;

/// Maximum time that a test waits: far above its own limits, far below those of production.
const PATIENCE: Duration = Duration::from_secs(8);

const QUICK: Duration = Duration::from_millis(300);

/// First bytes of an HTTP/2 connection (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A byte stream in both directions over any transport.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

fn quick() -> ConnectionLimits {
    ConnectionLimits { first_request: QUICK, idle: QUICK, body: QUICK, write: QUICK, ..ConnectionLimits::default() }
}

/// An HTTP/2 frame: type, flags, stream (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The start of a connection and a request.
fn http2_request(method: u8, path: &str, flags: u8) -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[]), &http2_headers(method, path, flags, 1)].concat()
}

/// A request with HPACK's static table: 3 POST, 2 GET, 6 http, 1 authority, 4 path, 31
/// content-type. Nothing is added to the dynamic table.
fn http2_headers(method: u8, path: &str, flags: u8, stream: u8) -> Vec<u8> {
    let text = |name: &[u8], value: &str| [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let headers = [vec![0x80 | method, 0x86], text(&[1], "localhost"), text(&[4], path), text(&[15, 16], "application/json")].concat();
    frame(1, flags, stream, &headers)
}

/// Bytes that a client sends, and whether it then sends a byte every 50 ms.
fn cases() -> Vec<(&'static str, Vec<u8>, bool)> {
    let post = b"POST /v1/ipcache/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n";
    let half = b"GET /livez HTTP/1.1\r\nHost: local".to_vec();
    vec![
        ("silence", Vec::new(), false),
        ("a lone PRI", b"PRI ".to_vec(), false),
        ("a preface and silence", PREFACE.to_vec(), false),
        ("settings and silence", [PREFACE, &frame(4, 0, 0, &[])].concat(), false),
        ("half of the headers", half.clone(), false),
        ("headers that drip", half, true),
        ("headers in HTTP/2 that do not end", http2_request(2, "/livez", 0x1), false),
        ("a body that never comes", post.to_vec(), false),
        ("a body that drips", post.to_vec(), true),
        ("a body in HTTP/2 that never comes", http2_request(3, "/v1/ipcache/lookup", 0x4), false),
        ("an answer and silence", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), false),
    ]
}

/// Sends the bytes of a case, and waits until the server closes the connection.
async fn until_closed(wire: Box<dyn ByteStream>, sent: Vec<u8>, drips: bool) {
    let (mut reader, mut writer) = tokio::io::split(wire);
    let drip = async move {
        writer.write_all(&sent).await?;
        writer.flush().await?;
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        if drips {
            loop {
                ticks.tick().await;
                writer.write_all(b"a").await?;
            }
        }
        std::future::pending::<std::io::Result<()>>().await
    };
    let mut received = Vec::new();
    tokio::select! {
        // a reset is an end too
        _ = reader.read_to_end(&mut received) => {}
        _ = drip => {}
    }
}

async fn tls(certificates: &Certificates, address: &str, protocol: &[u8]) -> Box<dyn ByteStream> {
    super::sockets::set_provider();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.path("ca.crt")).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    Box::new(TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap())
}

fn bare(url: &str) -> String {
    url.rsplit_once("//").unwrap().1.to_owned()
}

#[tokio::test]
async fn idle_and_slow_connections_are_closed_and_streams_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meshkeep.sock");
    let unix = ListenAddress::parse(&format!("unix://{}", path.display())).unwrap();
    let plain = RunningServer::start(&[local(), unix], &ApiOptions { limits: quick(), ..ApiOptions::default() }).await;
    let certificates = Certificates::new();
    let options = ApiOptions { tls: Some(certificates.files(false)), limits: quick(), ..ApiOptions::default() };
    let secure = RunningServer::start(&[local()], &options).await;
    let (address, secure_address) = (bare(&plain.addresses[0]), bare(&secure.addresses[0]));

    let ask = b"GET /v1/events?kind=identity HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let mut streams = Vec::new();
    for sent in [ask, http2_request(2, "/v1/events?kind=identity", 0x5)] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&sent).await.unwrap();
        read_until(&mut stream, "synced").await;
        streams.push(stream);
    }

    let mut ends = JoinSet::new();
    let mut expect = |what: String, wire: Box<dyn ByteStream>, sent: Vec<u8>, drips: bool| {
        ends.spawn(async move {
            assert!(tokio::time::timeout(PATIENCE, until_closed(wire, sent, drips)).await.is_ok(), "still open: {what}");
        });
    };
    for (what, sent, drips) in cases() {
        expect(format!("{what} over TCP"), Box::new(TcpStream::connect(&address).await.unwrap()), sent.clone(), drips);
        expect(format!("{what} over a unix socket"), Box::new(UnixStream::connect(&path).await.unwrap()), sent.clone(), drips);
        let is_http2 = sent.starts_with(b"PRI");
        let wire = tls(&certificates, &secure_address, if is_http2 { b"h2" } else { b"http/1.1" }).await;
        expect(format!("{what} over TLS"), wire, sent, drips);
    }
    expect("no handshake".to_owned(), Box::new(TcpStream::connect(&secure_address).await.unwrap()), Vec::new(), false);
    expect("silence in TLS that agreed on h2".to_owned(), tls(&certificates, &secure_address, b"h2").await, Vec::new(), false);
    let began = Instant::now();
    while let Some(ended) = ends.join_next().await {
        ended.unwrap();
    }
    assert!(began.elapsed() >= QUICK);

    plain.fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "later"), 900)).await;
    for mut stream in streams {
        read_until(&mut stream, "later").await;
    }
    plain.stopped().await;
    secure.stopped().await;
}

/// A stream without a flow-control window for its events, and two with a window of one byte, next
/// to one with a large window.
#[tokio::test]
async fn a_stalled_http2_stream_is_reset_and_other_streams_continue() {
    let running = RunningServer::start(&[local()], &ApiOptions { limits: quick(), ..ApiOptions::default() }).await;
    running.fixture.change(put(key(Kind::Identity, "paris", "60000"), identity(60_000, "before"), 899)).await;
    let mut wire = TcpStream::connect(bare(&running.addresses[0])).await.unwrap();
    let window = |stream: u8, bytes: u16| frame(8, 0, stream, &u32::from(bytes).to_be_bytes());
    // SETTINGS_INITIAL_WINDOW_SIZE of 0 (RFC 9113 §6.5.2)
    let mut sent = [PREFACE, &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    let events = "/v1/events?kind=identity";
    for (stream, path) in [(1, events), (3, events), (5, "/v1/identities"), (7, events)] {
        sent.extend(http2_headers(2, path, 0x5, stream));
    }
    for (stream, bytes) in [(3, 1), (5, 1), (7, 60_000)] {
        sent.extend(window(stream, bytes));
    }
    wire.write_all(&sent).await.unwrap();
    let mut received = BytesMut::new();
    let mut resets = BTreeSet::new();
    while resets.len() < 3 {
        let (kind, stream, _) = next_frame(&mut wire, &mut received).await;
        if kind == 3 {
            resets.insert(stream);
        }
        assert_ne!(kind, 7, "the connection ends");
    }
    assert_eq!(resets, BTreeSet::from([1, 3, 5]));
    running.fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "later"), 900)).await;
    while !matches!(next_frame(&mut wire, &mut received).await, (0, 7, data) if String::from_utf8_lossy(&data).contains("later")) {}
    drop(wire);
    running.stopped().await;
}

/// Type, stream and payload of the next HTTP/2 frame.
async fn next_frame(wire: &mut TcpStream, received: &mut BytesMut) -> (u8, u32, BytesMut) {
    let reading = async {
        loop {
            if let Some(&[high, middle, low, kind, _, a, b, c, d]) = received.first_chunk::<9>() {
                let length = u32::from_be_bytes([0, high, middle, low]) as usize;
                if received.len() >= 9 + length {
                    received.advance(9);
                    return (kind, u32::from_be_bytes([a, b, c, d]), received.split_to(length));
                }
            }
            assert_ne!(wire.read_buf(received).await.unwrap(), 0, "the connection ended");
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("no frame came")
}

async fn read_until(stream: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
    let mut received = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&received).contains(wanted) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "ended before {wanted}");
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("never saw {wanted}"));
    String::from_utf8_lossy(&received).into_owned()
}

/// Opens silent connections, which occupy as many slots as they can.
async fn open_silent_connections(address: &str, count: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    silent
}

async fn ask(address: &str, headers: &str) -> String {
    let asking = async {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(format!("GET /v1/clusters HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("must be answered")
}

#[tokio::test]
async fn anonymous_connections_are_evicted_for_clients_with_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "sesame").unwrap();
    let limits = ConnectionLimits { count_max: 20, ..ConnectionLimits::default() };
    let running = RunningServer::start(&[local()], &ApiOptions { token_file: Some(token), limits, ..ApiOptions::default() }).await;
    let address = bare(&running.addresses[0]);
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = "Host: localhost\r\nAuthorization: Bearer sesame\r\n";
    stream.write_all(format!("GET /v1/events?kind=identity HTTP/1.1\r\n{head}\r\n").as_bytes()).await.unwrap();
    read_until(&mut stream, "synced").await;
    let mut silent = open_silent_connections(&address, 60).await;
    for _ in 0..5 {
        assert!(ask(&address, head).await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0);
    running.fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "later"), 900)).await;
    read_until(&mut stream, "later").await;
    running.stopped().await;
}

#[tokio::test]
async fn without_a_token_idle_connections_are_evicted_and_streams_are_not() {
    let limits = ConnectionLimits { count_max: 3, ..ConnectionLimits::default() };
    let running = RunningServer::start(&[local()], &ApiOptions { limits, ..ApiOptions::default() }).await;
    let address = bare(&running.addresses[0]);
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(b"GET /v1/events?kind=identity HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut stream, "synced").await;
    let _held = open_silent_connections(&address, 4).await;
    assert!(ask(&address, "Host: localhost\r\n").await.starts_with("HTTP/1.1 200 "));
    running.fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "later"), 900)).await;
    read_until(&mut stream, "later").await;
    running.stopped().await;
}

#[tokio::test]
async fn a_request_must_name_exactly_one_host() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meshkeep.sock");
    let unix = ListenAddress::parse(&format!("unix://{}", path.display())).unwrap();
    let running = RunningServer::start(&[local(), unix], &ApiOptions::default()).await;
    let address = bare(&running.addresses[0]);
    for (headers, status) in [
        ("", "400"),
        ("Host: localhost\r\nHost: localhost\r\n", "400"),
        ("Host: localhost\r\nHost: evil.example\r\n", "400"),
        ("Host: [::1].evil.example\r\n", "421"),
        ("Host: 127.0.0.1:evil\r\n", "421"),
        ("Host: [::1]:80\r\n", "200"),
    ] {
        let answer = ask(&address, headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
    }
    for (wire, line, status) in [
        (Box::new(TcpStream::connect(&address).await.unwrap()) as Box<dyn ByteStream>, "GET /livez HTTP/1.1", "400"),
        (Box::new(UnixStream::connect(&path).await.unwrap()), "GET /v1/clusters HTTP/1.1", "400"),
        (Box::new(TcpStream::connect(&address).await.unwrap()), "GET /v1/clusters HTTP/1.0", "200"),
    ] {
        let mut wire = wire;
        wire.write_all(format!("{line}\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let answer = read_until(&mut wire, "\r\n").await;
        assert!(answer[8..].starts_with(&format!(" {status} ")), "{line}: {answer}");
    }
    running.stopped().await;
}

#[tokio::test]
async fn a_body_with_a_too_large_content_length_is_refused_before_it_is_read() {
    const LENGTH: usize = 2 << 20;
    let running = RunningServer::start(&[local()], &ApiOptions::default()).await;
    let address = bare(&running.addresses[0]);
    let head =
        format!("POST /v1/ipcache/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {LENGTH}\r\n");
    let mut asking = TcpStream::connect(&address).await.unwrap();
    asking.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).await.unwrap();
    assert!(read_until(&mut asking, "\r\n").await.starts_with("HTTP/1.1 413 "));
    // a client that sends the body without waiting, and reads only afterwards
    let mut sending = TcpStream::connect(&address).await.unwrap();
    sending.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    sending.write_all(&vec![b' '; LENGTH]).await.unwrap();
    let answer = read_until(&mut sending, "}").await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("tooLarge"), "{answer}");
    running.stopped().await;
}

#[tokio::test]
async fn a_body_that_arrives_too_late_gets_408() {
    let running = RunningServer::start(&[local()], &ApiOptions { limits: quick(), ..ApiOptions::default() }).await;
    let address = bare(&running.addresses[0]);
    let head = "POST /v1/ipcache/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{";
    let mut asking = TcpStream::connect(&address).await.unwrap();
    asking.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut asking, "}").await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("bodyTimeout") && answer.contains("did not arrive in time"), "{answer}");
    running.stopped().await;
}
