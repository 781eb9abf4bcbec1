//! Looking at one endpoint from below, one step after the other, as a person would with `dig`, `nc`, `openssl s_client` and `curl`; after Cilium's
//! `pkg/kvstore/etcd_debug.go`.
//!
//! Owns: connections of its own, each used once, which mirror nothing. Emits: an [`Examination`]. Deliberately lacks: what to do about it.

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
use crate::endpoint::Address;
use crate::tls::{ClientTls, ServerVerifier, tls_error};
use crate::{CertificateFacts, ClientOptions, Endpoint, EtcdConfig, KvstoreError, TlsRefusal};

/// etcd's answer to `/version` has some 60 bytes.
const VERSION_BYTES_MAX: usize = 4096;

/// What was found at an endpoint, as far as it was reached: a step that failed has no successors.
#[derive(Debug, Clone, Default)]
pub struct Examination {
    /// The name or address of the endpoint.
    pub host: String,
    /// The addresses that the name stands for, or why it stands for none.
    pub addresses: Option<Result<Vec<SocketAddr>, String>>,
    /// Which address took the connection, and how soon; or why none did.
    pub connected: Option<Result<(SocketAddr, Duration), String>>,
    /// The handshake, where the endpoint is spoken to by TLS.
    pub handshake: Option<Handshake>,
    /// What the server says of itself.
    pub server: Option<Result<ServerFacts, String>>,
}

/// What a TLS handshake showed, also one that failed.
#[derive(Debug, Clone, Default)]
pub struct Handshake {
    /// Version and cipher suite.
    pub protocol: Option<String>,
    /// The server's certificates, its own first.
    pub chain: Vec<CertificateFacts>,
    /// Why the server's certificate is not trusted.
    pub untrusted: Option<TlsRefusal>,
    /// The authorities whose client certificates the server takes; `None` if it asked for no certificate.
    pub acceptable_authorities: Option<Vec<String>>,
    /// The client's certificate and those that were sent with it, if the server asked for one.
    pub client_chain: Vec<CertificateFacts>,
    /// Why the handshake failed.
    pub error: Option<TlsRefusal>,
}

/// What a server says of itself at `/version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its release, such as `3.5.21`.
    pub version: String,
    /// By how many seconds its clock is ahead of ours, to the second or so; `None` if it does not say.
    pub clock_ahead_seconds: Option<i64>,
}

/// Takes the steps: name, TCP, TLS, `/version`. Each may take the time given.
///
/// # Errors
/// When the endpoint or a file of the client's cannot be used.
pub async fn examine(file: &EtcdConfig, endpoint: &Endpoint, step_max: Duration) -> Result<Examination, KvstoreError> {
    let address = Address::parse(endpoint, file.insecure_transport)?;
    let mut found = Examination { host: address.host.clone(), ..Examination::default() };
    let addresses = within(step_max, addresses(file, &address)).await;
    found.addresses = Some(addresses.clone());
    let Ok(addresses) = addresses else { return Ok(found) };
    let connected = connect(&addresses, step_max).await;
    found.connected = Some(connected.as_ref().map(|(_, peer, took)| (*peer, *took)).map_err(Clone::clone));
    let Ok((stream, _, _)) = connected else { return Ok(found) };
    if !address.secure {
        found.server = Some(within(step_max, ask_version(stream, &address, None)).await.map_err(|unanswered| unanswered.text));
        return Ok(found);
    }
    let recorder = Arc::new(Recorder::default());
    let tls = {
        let (file, recorder) = (file.clone(), Arc::clone(&recorder));
        let reading = tokio::task::spawn_blocking(move || recording(&file, &recorder));
        reading.await.map_err(|error| KvstoreError::Malformed { reason: error.to_string() })??
    };
    let opened = shake_hands(&tls, stream, &address, step_max).await;
    let mut handshake = recorder.told();
    match opened {
        Ok(stream) => {
            let (_, session) = stream.get_ref();
            let version = session.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS");
            let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or("of an unknown suite");
            handshake.protocol = Some(format!("{}, {suite}", version.replace("TLSv1_", "TLS 1.")));
            match within(step_max, ask_version(stream, &address, Some(&tls))).await {
                Ok(server) => found.server = Some(Ok(server)),
                Err(Unanswered { text, refusal }) => {
                    handshake.error = match refusal {
                        Some(refusal) => Some(refusal),
                        // what was written can break the connection before the alert is read
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

/// Why the server ends a second connection on which nothing is written, if it does.
async fn listen_for_refusal(file: &EtcdConfig, address: &Address, step_max: Duration) -> Option<TlsRefusal> {
    let options = ClientOptions { connect_timeout: step_max, ..ClientOptions::default() };
    match tls_refusal(file, address, &options).await? {
        KvstoreError::Tls { refusal, .. } => Some(refusal),
        _ => None,
    }
}

/// The answer, or that there was none in time.
async fn within<T, E: From<String>>(limit: Duration, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(limit, step).await.unwrap_or_else(|_| Err(silence(limit).into()))
}

fn silence(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

async fn addresses(file: &EtcdConfig, address: &Address) -> Result<Vec<SocketAddr>, String> {
    let found = resolve(file, address).await.map_err(|error| error.to_string())?;
    if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
}

/// The first address that takes the connection.
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

async fn shake_hands(
    tls: &ClientTls,
    stream: TcpStream,
    address: &Address,
    limit: Duration,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, TlsRefusal> {
    let connecting = async {
        let name = address.server_name().map_err(|_| io::Error::other("not a host name that TLS can verify"))?;
        TlsConnector::from(Arc::new(tls.config.clone())).connect(name, stream).await
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, silence(limit));
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(late())).map_err(|error| tls.refusal(&error))
}

/// Why `/version` was not answered.
struct Unanswered {
    text: String,
    /// The reason in TLS, where it is one.
    refusal: Option<TlsRefusal>,
}

impl From<String> for Unanswered {
    fn from(text: String) -> Self {
        Self { text, refusal: None }
    }
}

impl Unanswered {
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

/// `GET /version`. In TLS 1.3 a server that refuses our certificate says so only in place of this answer.
async fn ask_version(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    address: &Address,
    tls: Option<&ClientTls>,
) -> Result<ServerFacts, Unanswered> {
    let shown = |error: hyper::Error| Unanswered::from_http(&error, tls);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(shown)?;
    let request = hyper::Request::get("/version").header("host", address.authority()).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(shown)?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok()).and_then(seconds_of);
        let body = Limited::new(response.into_body(), VERSION_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).map_err(|_| "what answers is no etcd".to_owned())?;
        let version = body.get("etcdserver").and_then(|version| version.as_str()).ok_or_else(|| "what answers is no etcd".to_owned())?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|now| i64::try_from(now.as_secs()).ok());
        Ok(ServerFacts { version: version.to_owned(), clock_ahead_seconds: date.zip(now).map(|(theirs, ours)| theirs - ours) })
    };
    let mut asking = pin!(asking);
    let ended = tokio::select! {
        answer = asking.as_mut() => return answer,
        ended = connection => ended,
    };
    // a server that closes the connection behind its answer (`Connection: close`) has answered all the same
    match (asking.await, ended) {
        (Ok(facts), _) => Ok(facts),
        (Err(_), Err(error)) => Err(shown(error)),
        (Err(error), Ok(())) => Err(error),
    }
}

/// An HTTP date (RFC 9110, 5.6.7), in seconds since 1970.
fn seconds_of(date: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(date).ok().map(|time| time.timestamp().as_second())
}

/// The client's TLS configuration, with everything that the server shows written down, and its certificate taken whatever it is: this connection
/// carries nothing.
fn recording(file: &EtcdConfig, recorder: &Arc<Recorder>) -> Result<ClientTls, KvstoreError> {
    let mut tls = ClientTls::read(file)?;
    let config = &mut tls.config;
    let verifier = Arc::clone(&tls.verifier);
    config.dangerous().set_certificate_verifier(Arc::new(RecordServer { recorder: Arc::clone(recorder), verifier }));
    config.client_auth_cert_resolver =
        Arc::new(RecordRequest { recorder: Arc::clone(recorder), resolver: Arc::clone(&config.client_auth_cert_resolver) });
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// What a handshake showed so far.
#[derive(Debug, Default)]
struct Recorder(Mutex<Handshake>);

impl Recorder {
    fn note(&self, note: impl FnOnce(&mut Handshake)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn told(&self) -> Handshake {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notes the server's certificates and whether they are trusted.
#[derive(Debug)]
struct RecordServer {
    recorder: Arc<Recorder>,
    verifier: Arc<ServerVerifier>,
}

impl ServerCertVerifier for RecordServer {
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

/// Notes that the server asked for a certificate, and whose it takes.
#[derive(Debug)]
struct RecordRequest {
    recorder: Arc<Recorder>,
    resolver: Arc<dyn ResolvesClientCert>,
}

impl ResolvesClientCert for RecordRequest {
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
        // asked also without one, so that what the server wants is seen
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// What comes of `/version` of a server that sends this and closes the connection.
    async fn version_of(answer: &'static str) -> Result<ServerFacts, String> {
        let (client, mut server) = duplex(4096);
        let serving = async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(server.read_u8().await.unwrap());
            }
            server.write_all(answer.as_bytes()).await.unwrap();
        };
        let address = Address { host: "etcd".into(), port: 2379, secure: false };
        tokio::join!(ask_version(client, &address, None), serving).0.map_err(|unanswered| unanswered.text)
    }

    #[tokio::test]
    async fn a_server_that_closes_the_connection_behind_its_answer_has_answered() {
        let expected = Ok(ServerFacts { version: "3.5.21".to_owned(), clock_ahead_seconds: None });
        // which of the two is seen first is a matter of chance
        for _ in 0..100 {
            let body = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 23\r\n\r\n{\"etcdserver\":\"3.5.21\"}";
            assert_eq!(version_of(body).await, expected);
            assert_eq!(version_of("HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.21\"}").await, expected);
            let other = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK";
            assert_eq!(version_of(other).await, Err("what answers is no etcd".to_owned()));
        }
        assert_eq!(version_of("").await, Err("the server closed the connection".to_owned()));
    }

    #[test]
    fn an_http_date_is_read() {
        assert_eq!(seconds_of("Tue, 15 Nov 1994 08:12:31 GMT"), Some(784_887_151));
        assert_eq!(seconds_of("yesterday"), None);
    }
}
