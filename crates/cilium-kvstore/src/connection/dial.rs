//! Dialling: turns one TCP or TLS connection into a gRPC channel that never dials again.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{self, Channel, Uri};

use crate::endpoint::EndpointAddress;
use crate::error::with_causes;
use crate::tls::ClientTls;
use crate::{ClientOptions, Endpoint, EtcdConfig, KvstoreError};

/// HTTP/2 receive window of one stream: etcd's largest message (1.5 MiB, `--max-request-bytes`)
/// needs two round trips.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// HTTP/2 receive window of the connection: enough for a watch stream that is not read and lists of
/// ten kinds.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A TCP or TLS stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type BoxedStream = Box<dyn Stream>;

/// Opens the connection and creates its channel.
pub(crate) async fn dial(config: &EtcdConfig, address: &EndpointAddress, options: &ClientOptions) -> Result<Channel, KvstoreError> {
    let authority = address.authority();
    let limit = options.connect_timeout;
    let opening = async {
        let (stream, _) = open_stream(config, address).await?;
        into_channel(stream, address, options).await
    };
    timeout(limit, opening).await.unwrap_or_else(|_| Err(KvstoreError::Timeout { operation: format!("connecting to {authority}"), limit }))
}

/// Opens a second connection to find out whether the server refuses our certificate or requires
/// one, after a TLS connection failed without a reason. In TLS 1.3 the server reports this only
/// after the handshake, and our own writes can break the connection before we have read the alert.
/// The second connection therefore only reads.
pub(crate) async fn tls_refusal(config: &EtcdConfig, address: &EndpointAddress, options: &ClientOptions) -> Option<KvstoreError> {
    let reading_alert = async {
        let (mut stream, tls) = open_stream(config, address).await.ok()?;
        // tokio-rustls gives TLS errors this kind; any other kind adds no information
        let error = stream.read_u8().await.err().filter(|error| error.kind() == io::ErrorKind::InvalidData)?;
        Some(tls?.refusal(&error))
    };
    let refusal = timeout(options.connect_timeout, reading_alert).await.ok()??;
    Some(KvstoreError::Tls { authority: address.authority(), refusal })
}

/// Opens the stream. With TLS, also returns the object that explains its errors.
async fn open_stream(config: &EtcdConfig, address: &EndpointAddress) -> Result<(BoxedStream, Option<ClientTls>), KvstoreError> {
    let authority = address.authority();
    // the files are read first: a missing certificate is a more useful error than a refused
    // connection
    let connect_error = |cause| KvstoreError::Connect { authority: authority.clone(), cause };
    let tls = if address.secure { Some(read_tls(config).await.map_err(connect_error)??) } else { None };
    let addresses = resolve(config, address).await.map_err(connect_error)?;
    let stream = TcpStream::connect(addresses.as_slice()).await.map_err(connect_error)?;
    stream.set_nodelay(true).map_err(connect_error)?;
    let Some(tls) = tls else {
        return Ok((Box::new(stream), None));
    };
    let name = address.server_name().map_err(|_| KvstoreError::InvalidEndpoint {
        endpoint: Endpoint::new(&authority),
        reason: "not a host name that TLS can verify",
    })?;
    let connector = TlsConnector::from(Arc::new(tls.config.clone()));
    match connector.connect(name, stream).await {
        Ok(stream) => Ok((Box::new(stream), Some(tls))),
        Err(error) => Err(KvstoreError::Tls { authority, refusal: tls.refusal(&error) }),
    }
}

/// Resolves the host of an endpoint with the configured aliases, or otherwise with the system's
/// resolver.
pub(crate) async fn resolve(config: &EtcdConfig, address: &EndpointAddress) -> io::Result<Vec<SocketAddr>> {
    if let Some(ips) = config.host_aliases.addresses(&address.host) {
        return Ok(ips.iter().map(|ip| SocketAddr::new(*ip, address.port)).collect());
    }
    Ok(lookup_host((address.host.as_str(), address.port)).await?.collect())
}

/// Reads the TLS files on a blocking thread. The outer error means that the thread was cancelled,
/// which happens only when the runtime shuts down.
async fn read_tls(config: &EtcdConfig) -> io::Result<Result<ClientTls, KvstoreError>> {
    let config = config.clone();
    Ok(tokio::task::spawn_blocking(move || ClientTls::read(&config)).await?)
}

/// Creates a channel over the stream. tonic gets the stream once: after it breaks, every attempt of
/// tonic to reconnect fails.
async fn into_channel(stream: BoxedStream, address: &EndpointAddress, options: &ClientOptions) -> Result<Channel, KvstoreError> {
    let authority = address.authority();
    let invalid = || KvstoreError::InvalidEndpoint { endpoint: Endpoint::new(&authority), reason: "not of the form https://host:port" };
    let uri = |scheme: &str| format!("{scheme}://{authority}").parse::<Uri>().map_err(|_| invalid());
    // tonic itself must not add TLS to our stream, so it gets http://; requests name the true
    // scheme
    let origin = uri(if address.secure { "https" } else { "http" })?;
    let endpoint = transport::Endpoint::from(uri("http")?)
        .origin(origin)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(options.keepalive_heartbeat)
        .keep_alive_timeout(options.keepalive_timeout)
        // etcd closes connections that ping without an open call ("too_many_pings": its
        // PermitWithoutStream is off)
        .keep_alive_while_idle(false);
    let unused_stream = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = unused_stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move { stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection is broken")) }
    });
    endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|e| KvstoreError::Connect { authority: authority.clone(), cause: io::Error::other(with_causes(&e.to_string(), &e)) })
}
