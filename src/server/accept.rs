//! Accept loop for HTTP/1.1 and HTTP/2 over TCP, TLS and unix sockets.
//!
//! Every connection runs in a tracked task, has time-outs, and closes gracefully on shutdown. This
//! module replaces `axum::serve`, which has neither TLS, unix sockets nor a time-out for headers,
//! and never shuts down while a stream is open (docs/develop/http.md §4).

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use super::exchange::{HttpExchange, TrackedResponseBody, Transport};
use super::framed_body::{FramedBody, StreamExecutor};
use super::listen::{Listener, Socket};
use super::reloadable_file::ReloadableFile;
use super::tls::TlsConfig;
use super::write_timeout::WriteTimeout;
use crate::admission::Client;
use crate::instruments::{LogLimiter, LogPermit};

/// Maximum size of each of the two buffers of an HTTP/1 connection, in bytes.
///
/// It bounds the headers of a request and the bytes that an idle stream retains
/// (docs/develop/http.md §5.2: 10.8 KiB per stream instead of 21.2). Bodies of answers bypass these
/// buffers.
const HTTP1_BUFFER_BYTES: usize = 8 * 1024;

/// Interval between HTTP/2 keep-alive pings. It is below the idle time-outs of proxies (60 s).
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Maximum number of open requests per HTTP/2 connection. RFC 9113 recommends at least 100.
const REQUESTS_PER_CONNECTION_MAX: u32 = 256;

/// Maximum time for the graceful shutdown of an overdue connection, such as an HTTP/2 `GOAWAY`.
const GRACEFUL_SHUTDOWN_MAX: Duration = Duration::from_secs(1);

/// Bytes that an HTTP/2 client may send before they are read, per request and per connection.
///
/// This bounds the memory of connections whose requests wait. The rest of a 1 MiB body follows as
/// the body is read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Time limit of a request body on endpoints that set none: about eight years.
const BODY_TIME_UNLIMITED: Duration = Duration::from_secs(1 << 28);

/// Pause after an accept error, such as too many open files. It keeps the retries from using a
/// whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Recently logged accept errors.
static ACCEPT_ERRORS: LogLimiter = LogLimiter::new();

/// First bytes of an HTTP/2 connection without TLS. No HTTP/1.1 request starts with them (RFC 9113
/// §3.4).
const HTTP2_PREFACE: &[u8] = b"PRI ";

/// Transport, client and permit of the connection that a request came over.
type ConnectionContext = (Transport, Client, Arc<ConnectionPermit>);

/// Future that runs a connection until it ends.
type ConnectionFuture = BoxFuture<'static, ()>;

/// Future that detects the HTTP version of a new connection. `None` if the client disconnected
/// first.
type DetectionFuture = BoxFuture<'static, Option<ConnectionFuture>>;

/// State that every connection needs. Cheap to clone.
#[derive(Clone)]
struct Server {
    router: Router,
    tls: Option<Arc<ReloadableFile<TlsConfig>>>,
    /// Tracks every connection and every task that HTTP/2 starts for one.
    tasks: TaskTracker,
    limiter: ConnectionLimiter,
    /// Maximum time that the body of a request may take.
    body_max: Duration,
    /// Stops accepting; open connections finish their requests.
    stop: CancellationToken,
    /// Closes the remaining connections once the grace period is over.
    abort: CancellationToken,
}

/// A bound address with its routes, TLS and connection limits.
pub(crate) struct Endpoint {
    pub(crate) listener: Listener,
    /// Routes of this address.
    pub(crate) router: Router,
    /// TLS for TCP connections; `None` serves them in plain text.
    pub(crate) tls: Option<Arc<ReloadableFile<TlsConfig>>>,
    /// Connection limits. Several endpoints can share them.
    pub(crate) limiter: ConnectionLimiter,
    /// Maximum time for the body of a request; `None` for no limit.
    pub(crate) body_max: Option<Duration>,
}

/// Serves every endpoint until `stop` is cancelled.
///
/// It then stops accepting, gives open requests up to `grace` to finish, and closes the rest.
/// Returns when no connection is left.
pub(crate) async fn serve(endpoints: Vec<Endpoint>, stop: CancellationToken, grace: Duration) {
    let (tasks, abort) = (TaskTracker::new(), CancellationToken::new());
    let accepting = endpoints.into_iter().map(|Endpoint { listener, router, tls, limiter, body_max }| {
        let (tasks, stop, abort) = (tasks.clone(), stop.clone(), abort.clone());
        Server { router, tls, tasks, limiter, body_max: body_max.unwrap_or(BODY_TIME_UNLIMITED), stop, abort }.accept(listener)
    });
    futures_util::future::join_all(accepting).await;
    tasks.close();
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "closing connections that did not end in time");
        abort.cancel();
        tasks.wait().await;
    }
}

impl Server {
    /// Accepts connections until `stop` is cancelled.
    async fn accept(self, listener: Listener) {
        while let Some(accepted) = self.stop.run_until_cancelled(listener.accept()).await {
            let (socket, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(LogPermit { more }) = ACCEPT_ERRORS.permit(&error.to_string()) {
                        tracing::warn!(%error, more, "cannot accept connections: trying again ten times a second");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(permit) = self.stop.run_until_cancelled(self.limiter.acquire(client)).await else { return };
            match permit {
                Some(permit) => self.spawn_connection(socket, Arc::new(permit), client),
                None => tracing::debug!(%client, "refused a connection: the client has reached its limit"),
            }
        }
    }

    /// Runs a connection in a task until it ends, is evicted, or the grace period is over.
    ///
    /// The future that detects the HTTP version is dropped before the connection runs, because its
    /// memory would otherwise be in use for as long as the connection lasts, which may be days.
    fn spawn_connection(&self, socket: Socket, permit: Arc<ConnectionPermit>, client: Client) {
        let (abort, server) = (self.abort.clone(), self.clone());
        let detection = match socket {
            Socket::Tcp(stream) => match server.tls.clone() {
                None => server.detect_plaintext(stream, (Transport::Tcp, client, Arc::clone(&permit))),
                Some(tls) => {
                    server.handshake_tls(Arc::clone(&tls.current().config).into(), stream, (Transport::Tcp, client, Arc::clone(&permit)))
                }
            },
            Socket::Unix(stream) => {
                let connection = server.serve_auto(stream, (Transport::Unix, client, Arc::clone(&permit)));
                Box::pin(std::future::ready(Some(connection)))
            }
        };
        self.tasks.spawn(async move {
            let run = async {
                let connection = detection.await;
                if let Some(connection) = connection {
                    connection.await;
                }
            };
            tokio::select! {
                () = run => {}
                () = permit.evicted() => tracing::debug!(%client, "closed a connection for a new one"),
                () = abort.cancelled() => {}
            }
        });
    }

    /// Starts a connection without TLS. Its first bytes decide between HTTP/1.1 and HTTP/2
    /// (RFC 9113 §3.4).
    fn detect_plaintext(self, stream: TcpStream, context: ConnectionContext) -> DetectionFuture {
        Box::pin(async move {
            let mut first = [0; HTTP2_PREFACE.len()];
            let peeked =
                self.stop.run_until_cancelled(tokio::time::timeout(self.limiter.limits().first_request, stream.peek(&mut first))).await;
            let Some(Ok(Ok(length))) = peeked else { return None };
            // if fewer bytes have arrived, `serve_auto` waits for the rest before it decides
            let is_http2 = HTTP2_PREFACE.starts_with(&first[..length]);
            Some(if is_http2 { self.serve_auto(stream, context) } else { self.serve_http1(stream, context) })
        })
    }

    /// Starts a TLS connection. The handshake (ALPN) decides between HTTP/1.1 and HTTP/2.
    fn handshake_tls(self, tls: TlsAcceptor, stream: TcpStream, context: ConnectionContext) -> DetectionFuture {
        Box::pin(async move {
            let Ok(Ok(stream)) = tokio::time::timeout(self.limiter.limits().first_request, tls.accept(stream)).await else { return None };
            let (_, _, permit) = &context;
            permit.handshake_done();
            if stream.get_ref().1.peer_certificates().is_some() {
                permit.authenticate();
            }
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Some(if is_http2 { self.serve_auto(stream, context) } else { self.serve_http1(stream, context) })
        })
    }

    /// Runs an HTTP/1.1 connection. Most streams use it, and it needs half the memory of
    /// [`Self::serve_auto`].
    fn serve_http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, context: ConnectionContext) -> ConnectionFuture {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.limiter.limits().idle).max_buf_size(HTTP1_BUFFER_BYTES);
        let (permit, stop) = (Arc::clone(&context.2), self.stop.clone());
        let service = hyper::service::service_fn(request_service(self.router, self.body_max, context));
        run_connection(
            stop,
            Arc::clone(&permit),
            builder.serve_connection(TokioIo::new(WriteTimeout::new(stream, permit.drain_flag())), service),
        )
    }

    /// Runs a connection as HTTP/1.1 or HTTP/2, depending on its first bytes.
    fn serve_auto(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, context: ConnectionContext) -> ConnectionFuture {
        let mut builder = auto::Builder::new(StreamExecutor::new(self.tasks.clone(), self.limiter.limits().write));
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limiter.limits().idle).max_buf_size(HTTP1_BUFFER_BYTES);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX);
        builder.http2().initial_stream_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (permit, stop) = (Arc::clone(&context.2), self.stop.clone());
        let service = hyper::service::service_fn(request_service(self.router, self.body_max, context));
        let connection = builder.serve_connection(TokioIo::new(WriteTimeout::new(stream, permit.drain_flag())), service).into_owned();
        run_connection(stop, permit, connection)
    }
}

/// Returns the service that answers the requests of one connection.
///
/// The future of an answer is boxed: otherwise the connection would reserve memory for it as long
/// as it is open. Every answer gets `X-Content-Type-Options: nosniff`, because answers contain
/// names and values from the mesh, and a browser must not interpret them as markup.
fn request_service(
    router: Router,
    body_max: Duration,
    (transport, client, permit): ConnectionContext,
) -> impl Fn(hyper::Request<Incoming>) -> BoxFuture<'static, Result<hyper::Response<TrackedResponseBody>, Infallible>> {
    move |mut request| {
        let exchange = HttpExchange::start(&permit);
        request.extensions_mut().insert(Arc::clone(&exchange));
        request.extensions_mut().insert(transport);
        request.extensions_mut().insert(client);
        let answer = router.clone().oneshot(request.map(|body| exchange.wrap_request(body, body_max)));
        let with_nosniff = |mut response: axum::response::Response| {
            response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            response
        };
        answer.map_ok(move |response| with_nosniff(response).map(|body| exchange.wrap_response(FramedBody::wrap(body)))).boxed()
    }
}

/// Runs a connection until it ends. It shuts down gracefully when `stop` is cancelled or it is
/// overdue.
fn run_connection<C>(stop: CancellationToken, permit: Arc<ConnectionPermit>, connection: C) -> ConnectionFuture
where
    C: GracefulConnection<Error: Display + Send> + Send + 'static,
{
    // boxed here because the async block would reserve space for the connection twice
    let mut connection = Box::pin(connection);
    Box::pin(async move {
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = permit.timed_out() => {
                connection.as_mut().graceful_shutdown();
                let Ok(ended) = tokio::time::timeout(GRACEFUL_SHUTDOWN_MAX, connection).await else { return };
                ended
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    })
}
