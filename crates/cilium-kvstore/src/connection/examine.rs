//! Diagnosis of one endpoint, step by step from the bottom up, as a person would do it with `dig`,
//! `nc`, `openssl s_client` and `curl`. Modelled on Cilium's `pkg/kvstore/etcd_debug.go`.
//!
//! It opens its own connections, each used once, and returns an [`Examination`] without advice.

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
    /// Address that accepted the connection and the time that took, or the error.
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
    /// Certificate of the client and those that were sent with it, if the server requested one.
    pub client_chain: Vec<CertificateFacts>,
    /// Reason why the handshake failed.
    pub error: Option<TlsRefusal>,
}

/// Facts from a server's response to `/version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Version of etcd, such as `3.5.21`.
    pub version: String,
    /// Seconds by which its clock is ahead of ours, to about a second; `None` if it does not report
    /// its time.
    pub clock_ahead_seconds: Option<i64>,
}

/// Runs the steps: name resolution, TCP, TLS, `/version`. Each step may take up to `step_max`.
///
/// # Errors
/// [`KvstoreError`] if the endpoint or a file of the client cannot be used.
pub async fn examine(file: &EtcdConfig, endpoint: &Endpoint, step_max: Duration) -> Result<Examination, KvstoreError> {
    let address = EndpointAddress::parse(endpoint, file.insecure_transport)?;
    let mut found = Examination { host: address.host.clone(), ..Examination::default() };
    let addresses = within(step_max, addresses(file, &address)).await;
    found.addresses = Some(addresses.clone());
    let Ok(addresses) = addresses else { return Ok(found) };
    let connected = connect(&addresses, step_max).await;
    found.connected = Some(connected.as_ref().map(|(_, peer, took)| (*peer, *took)).map_err(Clone::clone));
    let Ok((stream, _, _)) = connected else { return Ok(found) };
    if !address.secure {
        found.server = Some(within(step_max, request_version(stream, &address, None)).await.map_err(|unanswered| unanswered.text));
        return Ok(found);
    }
    let recorder = Arc::new(HandshakeRecorder::default());
    let tls = {
        let (file, recorder) = (file.clone(), Arc::clone(&recorder));
        let reading = tokio::task::spawn_blocking(move || recording(&file, &recorder));
        reading.await.map_err(|error| KvstoreError::Malformed { reason: error.to_string() })??
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
                Ok(server) => found.server = Some(Ok(server)),
                Err(VersionError { text, refusal }) => {
                    handshake.error = match refusal {
                        Some(refusal) => Some(refusal),
                        // our own write can break the connection before the alert is read
                        None => listen_for_refusal(file, &address, step_max).await,
                    };
                    found.server = if handshake.error.is_none() { Some(Err(text)) } else { None };
                }
            }
        }
        Err(error) => handshake.error = Some(error),
    }
    found.handshake = Some(handshake);
    Ok(found)
}

/// Returns why the server ends a second connection, on which nothing is written, if it does.
async fn listen_for_refusal(file: &EtcdConfig, address: &EndpointAddress, step_max: Duration) -> Option<TlsRefusal> {
    let options = ClientOptions { connect_timeout: step_max, ..ClientOptions::default() };
    match tls_refusal(file, address, &options).await? {
        KvstoreError::Tls { refusal, .. } => Some(refusal),
        _ => None,
    }
}

/// Returns the result of a step, or a timeout message.
async fn within<T, E: From<String>>(limit: Duration, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(limit, step).await.unwrap_or_else(|_| Err(silence(limit).into()))
}

fn silence(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

async fn addresses(file: &EtcdConfig, address: &EndpointAddress) -> Result<Vec<SocketAddr>, String> {
    let found = resolve(file, address).await.map_err(|error| error.to_string())?;
    if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
}

/// Connects to the first address that accepts the connection.
async fn connect(addresses: &[SocketAddr], step_max: Duration) -> Result<(TcpStream, SocketAddr, Duration), String> {
    let mut last = String::new();
    for address in addresses {
        let began = Instant::now();
        let connecting = async { TcpStream::connect(address).await.map_err(|error: io::Error| error.to_string()) };
        match within(step_max, connecting).await {
            Ok(stream) => return Ok((stream, *address, began.elapsed())),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
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
    let late = || io::Error::new(io::ErrorKind::TimedOut, silence(limit));
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(late())).map_err(|error| tls.refusal(&error))
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

/// Requests `GET /version`. In TLS 1.3 a server that refuses our certificate reports that only
/// instead of this response.
async fn request_version(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    address: &EndpointAddress,
    tls: Option<&ClientTls>,
) -> Result<ServerFacts, VersionError> {
    let shown = |error: hyper::Error| VersionError::from_http(&error, tls);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(shown)?;
    let request = hyper::Request::get("/version").header("host", address.authority()).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(shown)?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok()).and_then(seconds_of);
        let body = Limited::new(response.into_body(), VERSION_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).map_err(|_| "the server is not an etcd".to_owned())?;
        let version = body.get("etcdserver").and_then(|version| version.as_str()).ok_or_else(|| "the server is not an etcd".to_owned())?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|now| i64::try_from(now.as_secs()).ok());
        Ok(ServerFacts { version: version.to_owned(), clock_ahead_seconds: date.zip(now).map(|(theirs, ours)| theirs - ours) })
    };
    let mut asking = pin!(asking);
    let ended = tokio::select! {
        answer = asking.as_mut() => return answer,
        ended = connection => ended,
    };
    // a server that closes the connection after its response (`Connection: close`) has still
    // answered
    match (asking.await, ended) {
        (Ok(facts), _) => Ok(facts),
        (Err(_), Err(error)) => Err(shown(error)),
        (Err(error), Ok(())) => Err(error),
    }
}

/// Parses an HTTP date (RFC 9110, 5.6.7) into seconds since 1970.
fn seconds_of(date: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(date).ok().map(|time| time.timestamp().as_second())
}

/// Returns the client's TLS configuration, which records everything that the server presents and
/// accepts any certificate: no data is sent over this connection.
fn recording(file: &EtcdConfig, recorder: &Arc<HandshakeRecorder>) -> Result<ClientTls, KvstoreError> {
    let mut tls = ClientTls::read(file)?;
    let config = &mut tls.config;
    let verifier = Arc::clone(&tls.verifier);
    config.dangerous().set_certificate_verifier(Arc::new(RecordingVerifier { recorder: Arc::clone(recorder), verifier }));
    config.client_auth_cert_resolver =
        Arc::new(RecordingResolver { recorder: Arc::clone(recorder), resolver: Arc::clone(&config.client_auth_cert_resolver) });
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// Record of a handshake in progress.
#[derive(Debug, Default)]
struct HandshakeRecorder(Mutex<Handshake>);

impl HandshakeRecorder {
    fn note(&self, note: impl FnOnce(&mut Handshake)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
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
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(own, between, name, stapled, now);
        self.recorder.note(|handshake| {
            handshake.chain = std::iter::once(own).chain(between).filter_map(CertificateFacts::of).collect();
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

/// Records that the server requested a certificate, and from which authorities.
#[derive(Debug)]
struct RecordingResolver {
    recorder: Arc<HandshakeRecorder>,
    resolver: Arc<dyn ResolvesClientCert>,
}

impl ResolvesClientCert for RecordingResolver {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let shown = |der: &&[u8]| x509_parser::x509::X509Name::from_der(der).ok().map(|(_, name)| name.to_string());
        let key = self.resolver.resolve(authorities, schemes);
        self.recorder.note(|handshake| {
            handshake.acceptable_authorities = Some(authorities.iter().filter_map(shown).collect());
            handshake.client_chain = key.iter().flat_map(|key| &key.cert).filter_map(CertificateFacts::of).collect();
        });
        key
    }

    fn has_certs(&self) -> bool {
        // true even without a certificate, so that the server's request is recorded
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
        tokio::join!(request_version(client, &address, None), serving).0.map_err(|unanswered| unanswered.text)
    }

    #[tokio::test]
    async fn a_server_may_close_the_connection_after_its_answer() {
        let expected = Ok(ServerFacts { version: "3.5.21".to_owned(), clock_ahead_seconds: None });
        // it is random which of the two is seen first
        for _ in 0..100 {
            let body = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 23\r\n\r\n{\"etcdserver\":\"3.5.21\"}";
            assert_eq!(version_of(body).await, expected);
            assert_eq!(version_of("HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.21\"}").await, expected);
            let other = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK";
            assert_eq!(version_of(other).await, Err("the server is not an etcd".to_owned()));
        }
        assert_eq!(version_of("").await, Err("the server closed the connection".to_owned()));
    }

    #[test]
    fn an_http_date_is_read() {
        assert_eq!(seconds_of("Tue, 15 Nov 1994 08:12:31 GMT"), Some(784_887_151));
        assert_eq!(seconds_of("yesterday"), None);
    }
}
