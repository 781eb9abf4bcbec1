//! Diagnosis of one endpoint, layer by layer, with the checks that a person would do with `dig`,
//! `nc`, `openssl s_client` and `curl`. Modelled on Cilium's `pkg/kvstore/etcd_debug.go`.
//!
//! It opens its own connections, uses each of them once, and returns an [`Examination`] without
//! advice.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::FromDer;

use super::dial::{resolve, tls_refusal};
use crate::endpoint::EndpointAddress;
use crate::tls::{ClientTls, ServerVerifier, tls_error};
use crate::{CertificateFacts, ClientOptions, Endpoint, EtcdConfig, KvstoreError, TlsRefusal};

/// Maximum bytes of the response to `/version`. etcd's has some 60.
const VERSION_BYTES_MAX: usize = 4096;

/// Results of the steps at an endpoint. The steps after a failed one are `None`.
#[derive(Debug, Clone, Default)]
pub struct Examination {
    /// Name or address of the endpoint.
    pub host: String,
    /// Addresses that the name resolves to, or the error.
    pub addresses: Option<Result<Vec<SocketAddr>, String>>,
    /// Address that accepted the connection and the time to connect, or the error.
    pub connected: Option<Result<(SocketAddr, Duration), String>>,
    /// TLS handshake, if the endpoint uses TLS.
    pub handshake: Option<Handshake>,
    /// Facts that the server reports about itself, or the error.
    pub server: Option<Result<ServerFacts, String>>,
}

/// Observations during a TLS handshake, even a failed one.
#[derive(Debug, Clone, Default)]
pub struct Handshake {
    /// TLS version and cipher suite.
    pub protocol: Option<String>,
    /// Certificates of the server, its own first.
    pub chain: Vec<CertificateFacts>,
    /// Reason why the server's certificate is not trusted.
    pub untrusted: Option<TlsRefusal>,
    /// Authorities whose client certificates the server accepts; `None` if it requested no
    /// certificate.
    pub acceptable_authorities: Option<Vec<String>>,
    /// Certificate of the client and the certificates that were sent with it, if the server
    /// requested one.
    pub client_chain: Vec<CertificateFacts>,
    /// Reason why the handshake failed.
    pub error: Option<TlsRefusal>,
}

/// Facts from a server's response to `/version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Version of etcd, such as `3.5.21`.
    pub version: String,
    /// Number of seconds that the server's clock is ahead of ours, accurate to about a second;
    /// `None` if the server does not report its time.
    pub clock_ahead_seconds: Option<i64>,
}

/// Runs the steps: name resolution, TCP, TLS, `/version`. Each step may take up to `step_max`.
///
/// # Errors
/// [`KvstoreError`] if the endpoint or a file of the client cannot be used.
pub async fn examine(config: &EtcdConfig, endpoint: &Endpoint, step_max: Duration) -> Result<Examination, KvstoreError> {
    let address = EndpointAddress::parse(endpoint, config.insecure_transport)?;
    let mut examination = Examination { host: address.host.clone(), ..Examination::default() };
    let addresses = within(step_max, addresses(config, &address)).await;
    examination.addresses = Some(addresses.clone());
    let Ok(addresses) = addresses else { return Ok(examination) };
    let connected = connect(&addresses, step_max).await;
    examination.connected = Some(connected.as_ref().map(|(_, peer, took)| (*peer, *took)).map_err(Clone::clone));
    let Ok((stream, _, _)) = connected else { return Ok(examination) };
    if !address.secure {
        examination.server = Some(within(step_max, request_version(stream, &address, None)).await.map_err(|error| error.text));
        return Ok(examination);
    }
    let recorder = Arc::new(HandshakeRecorder::default());
    let tls = {
        let (config, recorder) = (config.clone(), Arc::clone(&recorder));
        let reading_files = tokio::task::spawn_blocking(move || recording_tls(&config, &recorder));
        reading_files.await.map_err(|error| KvstoreError::Malformed { reason: error.to_string() })??
    };
    let opened = perform_handshake(&tls, stream, &address, step_max).await;
    let mut handshake = recorder.facts();
    match opened {
        Ok(stream) => {
            let (_, session) = stream.get_ref();
            let version = session.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS");
            let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or("of an unknown suite");
            handshake.protocol = Some(format!("{}, {suite}", version.replace("TLSv1_", "TLS 1.")));
            match within(step_max, request_version(stream, &address, Some(&tls))).await {
                Ok(server) => examination.server = Some(Ok(server)),
                Err(VersionError { text, refusal }) => {
                    handshake.error = match refusal {
                        Some(refusal) => Some(refusal),
                        // our own write can break the connection before the server's alert is read
                        None => listen_for_refusal(config, &address, step_max).await,
                    };
                    examination.server = if handshake.error.is_none() { Some(Err(text)) } else { None };
                }
            }
        }
        Err(error) => handshake.error = Some(error),
    }
    examination.handshake = Some(handshake);
    Ok(examination)
}

/// Opens a second connection and writes nothing on it. Returns the TLS error with which the server
/// ends it, if there is one.
async fn listen_for_refusal(config: &EtcdConfig, address: &EndpointAddress, step_max: Duration) -> Option<TlsRefusal> {
    let options = ClientOptions { connect_timeout: step_max, ..ClientOptions::default() };
    match tls_refusal(config, address, &options).await? {
        KvstoreError::Tls { refusal, .. } => Some(refusal),
        _ => None,
    }
}

/// Returns the result of a step, or a timeout message.
async fn within<T, E: From<String>>(limit: Duration, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(limit, step).await.unwrap_or_else(|_| Err(no_answer(limit).into()))
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

async fn addresses(config: &EtcdConfig, address: &EndpointAddress) -> Result<Vec<SocketAddr>, String> {
    let resolved = resolve(config, address).await.map_err(|error| error.to_string())?;
    if resolved.is_empty() { Err("the name has no address".to_owned()) } else { Ok(resolved) }
}

/// Connects to the first address that accepts the connection.
async fn connect(addresses: &[SocketAddr], step_max: Duration) -> Result<(TcpStream, SocketAddr, Duration), String> {
    let mut last_error = String::new();
    for address in addresses {
        let started = Instant::now();
        let connecting = async { TcpStream::connect(address).await.map_err(|error: io::Error| error.to_string()) };
        match within(step_max, connecting).await {
            Ok(stream) => return Ok((stream, *address, started.elapsed())),
            Err(error) => last_error = format!("{address}: {error}"),
        }
    }
    Err(last_error)
}

async fn perform_handshake(
    tls: &ClientTls,
    stream: TcpStream,
    address: &EndpointAddress,
    limit: Duration,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, TlsRefusal> {
    let connecting = async {
        let name = address.server_name().map_err(|_| io::Error::other("not a host name that TLS can verify"))?;
        TlsConnector::from(Arc::new(tls.config.clone())).connect(name, stream).await
    };
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, no_answer(limit));
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(timed_out())).map_err(|error| tls.refusal(&error))
}

/// Reason why `/version` was not answered.
struct VersionError {
    text: String,
    /// Error of TLS, if that was the reason.
    refusal: Option<TlsRefusal>,
}

impl From<String> for VersionError {
    fn from(text: String) -> Self {
        Self { text, refusal: None }
    }
}

impl VersionError {
    fn from_http(error: &hyper::Error, tls: Option<&ClientTls>) -> Self {
        let cause = std::error::Error::source(error);
        let io = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
        let refusal = io.filter(|error| tls_error(error).is_some()).zip(tls).map(|(error, tls)| tls.refusal(error));
        let text = match cause {
            Some(cause) => cause.to_string(),
            None if error.is_canceled() || error.is_closed() || error.is_incomplete_message() => {
                "the server closed the connection".to_owned()
            }
            None => error.to_string(),
        };
        Self { text, refusal }
    }
}

/// Requests `GET /version`. In TLS 1.3, a server that refuses our certificate sends its alert
/// instead of this response.
async fn request_version(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    address: &EndpointAddress,
    tls: Option<&ClientTls>,
) -> Result<ServerFacts, VersionError> {
    let http_error = |error: hyper::Error| VersionError::from_http(&error, tls);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http_error)?;
    let request = hyper::Request::get("/version").header("host", address.authority()).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http_error)?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok()).and_then(parse_http_date);
        let body = Limited::new(response.into_body(), VERSION_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).map_err(|_| "the server is not an etcd".to_owned())?;
        let version = body.get("etcdserver").and_then(|version| version.as_str()).ok_or_else(|| "the server is not an etcd".to_owned())?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|now| i64::try_from(now.as_secs()).ok());
        Ok(ServerFacts { version: version.to_owned(), clock_ahead_seconds: date.zip(now).map(|(theirs, ours)| theirs - ours) })
    };
    let mut exchange = pin!(exchange);
    let ended = tokio::select! {
        answer = exchange.as_mut() => return answer,
        ended = connection => ended,
    };
    // a server that closes the connection after its response (`Connection: close`) has still
    // answered
    match (exchange.await, ended) {
        (Ok(facts), _) => Ok(facts),
        (Err(_), Err(error)) => Err(http_error(error)),
        (Err(error), Ok(())) => Err(error),
    }
}

/// Parses an HTTP date (RFC 9110, 5.6.7) into seconds since 1970.
fn parse_http_date(date: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(date).ok().map(|time| time.timestamp().as_second())
}

/// Returns a TLS configuration of the client that records everything the server presents and
/// accepts any certificate. Only `GET /version` is sent over its connection, and no password.
fn recording_tls(config: &EtcdConfig, recorder: &Arc<HandshakeRecorder>) -> Result<ClientTls, KvstoreError> {
    let mut tls = ClientTls::read(config)?;
    let tls_config = &mut tls.config;
    let verifier = Arc::clone(&tls.verifier);
    tls_config.dangerous().set_certificate_verifier(Arc::new(RecordingVerifier { recorder: Arc::clone(recorder), verifier }));
    tls_config.client_auth_cert_resolver =
        Arc::new(RecordingResolver { recorder: Arc::clone(recorder), resolver: Arc::clone(&tls_config.client_auth_cert_resolver) });
    tls_config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// Records the facts of a handshake in progress.
#[derive(Debug, Default)]
struct HandshakeRecorder(Mutex<Handshake>);

impl HandshakeRecorder {
    fn record(&self, record: impl FnOnce(&mut Handshake)) {
        record(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn facts(&self) -> Handshake {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Records the server's certificates and whether they are trusted.
#[derive(Debug)]
struct RecordingVerifier {
    recorder: Arc<HandshakeRecorder>,
    verifier: Arc<ServerVerifier>,
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(end_entity, intermediates, name, stapled, now);
        self.recorder.record(|handshake| {
            handshake.chain = std::iter::once(end_entity).chain(intermediates).filter_map(CertificateFacts::from_der).collect();
            handshake.untrusted = verified.err().and_then(|_| self.verifier.refusal());
        });
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Records that the server requested a certificate, and which authorities it accepts.
#[derive(Debug)]
struct RecordingResolver {
    recorder: Arc<HandshakeRecorder>,
    resolver: Arc<dyn ResolvesClientCert>,
}

impl ResolvesClientCert for RecordingResolver {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let authority_name = |der: &&[u8]| x509_parser::x509::X509Name::from_der(der).ok().map(|(_, name)| name.to_string());
        let key = self.resolver.resolve(authorities, schemes);
        self.recorder.record(|handshake| {
            handshake.acceptable_authorities = Some(authorities.iter().filter_map(authority_name).collect());
            handshake.client_chain = key.iter().flat_map(|key| &key.cert).filter_map(CertificateFacts::from_der).collect();
        });
        key
    }

    fn has_certs(&self) -> bool {
        // true even without a certificate, so that rustls calls `resolve` and the request is
        // recorded
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Returns the result of `/version` for a server that sends this answer and closes the
    /// connection.
    async fn version_of(answer: &'static str) -> Result<ServerFacts, String> {
        let (client, mut server) = duplex(4096);
        let serving = async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(server.read_u8().await.unwrap());
            }
            server.write_all(answer.as_bytes()).await.unwrap();
        };
        let address = EndpointAddress { host: "etcd".into(), port: 2379, secure: false };
        tokio::join!(request_version(client, &address, None), serving).0.map_err(|error| error.text)
    }

    #[tokio::test]
    async fn a_server_may_close_the_connection_after_its_answer() {
        let expected = Ok(ServerFacts { version: "3.5.21".to_owned(), clock_ahead_seconds: None });
        // it is random whether the client first sees the answer or the closed connection
        for _ in 0..100 {
            let body = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 23\r\n\r\n{\"etcdserver\":\"3.5.21\"}";
            assert_eq!(version_of(body).await, expected);
            assert_eq!(version_of("HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.21\"}").await, expected);
            let not_etcd = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK";
            assert_eq!(version_of(not_etcd).await, Err("the server is not an etcd".to_owned()));
        }
        assert_eq!(version_of("").await, Err("the server closed the connection".to_owned()));
    }

    #[test]
    fn http_dates_are_parsed() {
        assert_eq!(parse_http_date("Tue, 15 Nov 1994 08:12:31 GMT"), Some(784_887_151));
        assert_eq!(parse_http_date("yesterday"), None);
    }
}
