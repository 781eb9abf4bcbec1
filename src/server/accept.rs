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

use super::kept::Kept;
use super::listen::{Listener, Socket};
use super::pieces::{Pieces, Tracked};
use super::seats::{Seat, Seats};
use super::stall::Stallable;
use super::tls::Serving;
use super::visit::{Answer, Transport, Visit};
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
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// Bytes that an HTTP/2 client may send before they are read, per request and per connection.
///
/// This bounds the memory of connections whose requests wait. The rest of a 1 MiB body follows as
/// the body is read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Time limit of a body on endpoints without one: some years.
const NO_BODY_MAX: Duration = Duration::from_secs(1 << 28);

/// Pause after an accept error, such as too many open files. It keeps the retries from using a
/// whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Recently logged accept errors.
static REFUSED: LogLimiter = LogLimiter::new();

/// First bytes of an HTTP/2 connection without TLS. No HTTP/1.1 request starts with them (RFC 9113
/// §3.4).
const HTTP2_BEGINNING: &[u8] = b"PRI ";

/// Transport, client and connection slot of a request.
type Caller = (Transport, Client, Arc<Seat>);

/// Future that runs a connection until it ends.
type Conversation = BoxFuture<'static, ()>;

/// Future that detects the HTTP version of a new connection. `None` if the client left first.
type Beginning = BoxFuture<'static, Option<Conversation>>;

/// State that every connection needs. Cheap to clone.
#[derive(Clone)]
struct Server {
    router: Router,
    tls: Option<Arc<Kept<Serving>>>,
    /// Tracks every connection and every task that HTTP/2 starts for one.
    tasks: TaskTracker,
    seats: Seats,
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
    pub(crate) tls: Option<Arc<Kept<Serving>>>,
    /// Connection limits. Several endpoints can share them.
    pub(crate) seats: Seats,
    /// Maximum time for the body of a request; `None` for no limit.
    pub(crate) body_max: Option<Duration>,
}

/// Serves every endpoint until `stop` is cancelled.
///
/// It then stops accepting, gives open requests up to `grace` to finish, and closes the rest.
/// Returns when no connection is left.
pub(crate) async fn serve(endpoints: Vec<Endpoint>, stop: CancellationToken, grace: Duration) {
    let (tasks, abort) = (TaskTracker::new(), CancellationToken::new());
    let accepting = endpoints.into_iter().map(|Endpoint { listener, router, tls, seats, body_max }| {
        let (tasks, stop, abort) = (tasks.clone(), stop.clone(), abort.clone());
        Server { router, tls, tasks, seats, body_max: body_max.unwrap_or(NO_BODY_MAX), stop, abort }.accept(listener)
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
                    if let Some(LogPermit { more }) = REFUSED.permit(&error.to_string()) {
                        tracing::warn!(%error, more, "cannot accept connections: trying again ten times a second");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(seat) = self.stop.run_until_cancelled(self.seats.take(client)).await else { return };
            match seat {
                Some(seat) => self.own(socket, Arc::new(seat), client),
                None => tracing::debug!(?client, "refused a connection: the client has reached its limit"),
            }
        }
    }

    /// Runs a connection in a task until it ends, is evicted, or the grace period is over.
    ///
    /// The detection of the HTTP version is dropped before the connection runs, because the
    /// connection may last for days.
    fn own(&self, socket: Socket, seat: Arc<Seat>, client: Client) {
        let (abort, server) = (self.abort.clone(), self.clone());
        let beginning = match socket {
            Socket::Tcp(stream) => match server.tls.clone() {
                None => server.plain(stream, (Transport::Tcp, client, Arc::clone(&seat))),
                Some(tls) => server.tls(Arc::clone(&tls.now().config).into(), stream, (Transport::Tcp, client, Arc::clone(&seat))),
            },
            Socket::Unix(stream) => {
                let conversation = server.either(stream, (Transport::Unix, client, Arc::clone(&seat)));
                Box::pin(std::future::ready(Some(conversation)))
            }
        };
        self.tasks.spawn(async move {
            let life = async {
                let conversation = beginning.await;
                if let Some(conversation) = conversation {
                    conversation.await;
                }
            };
            tokio::select! {
                () = life => {}
                () = seat.gives_way() => tracing::debug!(?client, "closed a connection for a new one"),
                () = abort.cancelled() => {}
            }
        });
    }

    /// Starts a connection without TLS. Its first bytes decide between HTTP/1.1 and HTTP/2 (RFC
    /// 9113 §3.4).
    fn plain(self, stream: TcpStream, caller: Caller) -> Beginning {
        Box::pin(async move {
            let mut first = [0; HTTP2_BEGINNING.len()];
            let peeked = self.stop.run_until_cancelled(tokio::time::timeout(self.seats.limits().first, stream.peek(&mut first))).await;
            let Some(Ok(Ok(length))) = peeked else { return None };
            let is_http2 = HTTP2_BEGINNING.starts_with(&first[..length]);
            Some(if is_http2 { self.either(stream, caller) } else { self.http1(stream, caller) })
        })
    }

    /// Starts a TLS connection. The handshake (ALPN) decides between HTTP/1.1 and HTTP/2.
    fn tls(self, tls: TlsAcceptor, stream: TcpStream, caller: Caller) -> Beginning {
        Box::pin(async move {
            let Ok(Ok(stream)) = tokio::time::timeout(self.seats.limits().first, tls.accept(stream)).await else { return None };
            let (_, _, seat) = &caller;
            seat.begin();
            if stream.get_ref().1.peer_certificates().is_some() {
                seat.befriend();
            }
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Some(if is_http2 { self.either(stream, caller) } else { self.http1(stream, caller) })
        })
    }

    /// Runs an HTTP/1.1 connection. Most streams use it, and it needs half the memory of
    /// [`Self::either`].
    fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) -> Conversation {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.seats.limits().idle).max_buf_size(HTTP1_BUFFER_BYTES);
        let (seat, stop) = (Arc::clone(&caller.2), self.stop.clone());
        let service = hyper::service::service_fn(requests(self.router, self.body_max, caller));
        conversation(stop, Arc::clone(&seat), builder.serve_connection(TokioIo::new(Stallable::new(stream, seat.unread())), service))
    }

    /// Runs a connection as HTTP/1.1 or HTTP/2, depending on its first bytes.
    fn either(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) -> Conversation {
        let mut builder = auto::Builder::new(Tracked::new(self.tasks.clone(), self.seats.limits().stall));
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.seats.limits().idle).max_buf_size(HTTP1_BUFFER_BYTES);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX);
        builder.http2().initial_stream_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (seat, stop) = (Arc::clone(&caller.2), self.stop.clone());
        let service = hyper::service::service_fn(requests(self.router, self.body_max, caller));
        let connection = builder.serve_connection(TokioIo::new(Stallable::new(stream, seat.unread())), service).into_owned();
        conversation(stop, seat, connection)
    }
}

/// Returns the service that answers the requests of one connection.
///
/// The future of an answer is boxed: otherwise the connection would reserve memory for it as long
/// as it is open. Every answer gets `X-Content-Type-Options: nosniff`, because answers contain
/// names and values from the mesh, and a browser must not interpret them as markup.
fn requests(
    router: Router,
    body_max: Duration,
    (transport, client, seat): Caller,
) -> impl Fn(hyper::Request<Incoming>) -> BoxFuture<'static, Result<hyper::Response<Answer>, Infallible>> {
    move |mut request| {
        let visit = Visit::begin(&seat);
        request.extensions_mut().insert(Arc::clone(&visit));
        request.extensions_mut().insert(transport);
        request.extensions_mut().insert(client);
        let answer = router.clone().oneshot(request.map(|body| visit.body(body, body_max)));
        let typed = |mut response: axum::response::Response| {
            response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            response
        };
        answer.map_ok(move |response| typed(response).map(|body| visit.answer(Pieces::of(body)))).boxed()
    }
}

/// Runs a connection until it ends. It shuts down gracefully when `stop` is cancelled or it is
/// overdue.
fn conversation<C>(stop: CancellationToken, seat: Arc<Seat>, connection: C) -> Conversation
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
            () = seat.overdue() => {
                connection.as_mut().graceful_shutdown();
                let Ok(ended) = tokio::time::timeout(CLOSING_MAX, connection).await else { return };
                ended
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    })
}
