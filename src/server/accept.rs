//! The accept loop: every connection is owned, has its time-outs, and ends when it is asked to.
//!
//! Not `axum::serve`: with a stream open that never shuts down, and it has neither TLS, unix sockets nor a time-out for headers
//! (docs/develop/http.md §4).

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
use crate::model::{Causes, Due};

/// How large each of the two buffers of an HTTP/1 connection may get: it bounds the headers of a request, and what a stream keeps while
/// it waits (docs/develop/http.md §5.2: 10.8 KiB for each instead of 21.2). The bodies of answers do not go through it.
const HTTP1_BUFFER_BYTES: usize = 8 * 1024;

/// HTTP/2 connections are asked for a sign of life this often, below the idle time-outs of proxies (60 s).
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many requests one HTTP/2 connection may have open: what browsers take as the usual number (RFC 9113 recommends at least 100).
const REQUESTS_PER_CONNECTION_MAX: u32 = 256;

/// How long a connection that did nothing for too long has to end what it would like to, such as telling that it goes (HTTP/2).
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// How much of a request an HTTP/2 client may send before it is read, and of all requests of its connection: so much is in memory of each connection whose
/// requests wait. Of a body of 1 MiB the rest follows as it is read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Where a request may send as long as it stands: some years.
const NO_BODY_MAX: Duration = Duration::from_secs(1 << 28);

/// How long to wait when a connection cannot be accepted (too many open files), so that trying again does not burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why connections could not be accepted, as far as it was logged lately.
static REFUSED: Causes = Causes::new();

/// What an HTTP/2 connection without TLS begins with, and no request of HTTP/1.1 (RFC 9113 §3.4).
const HTTP2_BEGINNING: &[u8] = b"PRI ";

/// Who asks, over what, and in which place.
type Caller = (Transport, Client, Arc<Seat>);

/// A connection to its end.
type Conversation = BoxFuture<'static, ()>;

/// What comes before: it tells which HTTP is spoken, or nothing where the client goes.
type Beginning = BoxFuture<'static, Option<Conversation>>;

/// What every connection needs. Cheap to clone.
#[derive(Clone)]
struct Server {
    router: Router,
    tls: Option<Arc<Kept<Serving>>>,
    /// Every connection and every task that HTTP/2 starts for one.
    tasks: TaskTracker,
    seats: Seats,
    /// How long the body of a request may take.
    body_max: Duration,
    /// Stop accepting; connections finish what they have.
    stop: CancellationToken,
    /// The grace is over.
    abort: CancellationToken,
}

/// An address with the routes that answer on it, its TLS and its limits.
pub(crate) struct Endpoint {
    /// The bound address.
    pub(crate) listener: Listener,
    /// What answers there.
    pub(crate) router: Router,
    /// TLS for connections over TCP.
    pub(crate) tls: Option<Arc<Kept<Serving>>>,
    /// The limits on its connections, which endpoints can share.
    pub(crate) seats: Seats,
    /// How long the body of a request may take; `None` where a request may send as long as it stands.
    pub(crate) body_max: Option<Duration>,
}

/// Serves every endpoint until `stop` is cancelled: then nothing more is accepted, and requests may finish for `grace` at most. Returns when no
/// connection is left.
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
    /// Accepts until told to stop.
    async fn accept(self, listener: Listener) {
        while let Some(accepted) = self.stop.run_until_cancelled(listener.accept()).await {
            let (socket, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(Due { more }) = REFUSED.due(&error.to_string()) {
                        tracing::warn!(%error, more, "cannot accept connections: trying again ten times a second");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(seat) = self.stop.run_until_cancelled(self.seats.take(client)).await else { return };
            match seat {
                Some(seat) => self.own(socket, Arc::new(seat), client),
                None => tracing::debug!(?client, "refused a connection: this client has as many as it may"),
            }
        }
    }

    /// Runs a connection until it ends, gives way to another or the grace is over. Its beginning is over and gone before the rest, which may
    /// stand for days.
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

    /// A connection without TLS. Its first bytes tell which HTTP it speaks (RFC 9113 §3.4).
    fn plain(self, stream: TcpStream, caller: Caller) -> Beginning {
        Box::pin(async move {
            let mut first = [0; HTTP2_BEGINNING.len()];
            let peeked = self.stop.run_until_cancelled(tokio::time::timeout(self.seats.limits().first, stream.peek(&mut first))).await;
            let Some(Ok(Ok(length))) = peeked else { return None };
            let is_http2 = HTTP2_BEGINNING.starts_with(&first[..length]);
            Some(if is_http2 { self.either(stream, caller) } else { self.http1(stream, caller) })
        })
    }

    /// A connection with TLS, which agrees on one HTTP or the other in its handshake.
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

    /// HTTP/1.1 alone, which is what most streams speak: it takes half the room of what can be both.
    fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) -> Conversation {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.seats.limits().idle).max_buf_size(HTTP1_BUFFER_BYTES);
        let (seat, stop) = (Arc::clone(&caller.2), self.stop.clone());
        let service = hyper::service::service_fn(requests(self.router, self.body_max, caller));
        conversation(stop, Arc::clone(&seat), builder.serve_connection(TokioIo::new(Stallable::new(stream, seat.unread())), service))
    }

    /// HTTP/1.1 or HTTP/2, whichever the client begins with.
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

/// Answers requests of one caller. The answer in the making is boxed: a connection keeps room for it as long as it stands.
///
/// Every answer tells browsers to take it for what its `Content-Type` says: names and values of a mesh are in it, and none may become markup.
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

/// Lets a connection go on until it ends, or finish what it has once `stop` is cancelled.
fn conversation<C>(stop: CancellationToken, seat: Arc<Seat>, connection: C) -> Conversation
where
    C: GracefulConnection<Error: Display + Send> + Send + 'static,
{
    // boxed here and not in the block, which would have room for it twice
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
