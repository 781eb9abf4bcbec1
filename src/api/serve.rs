//! The accept loop: every connection is owned, has its time-outs, and ends when it is asked to.
//!
//! Not `axum::serve`: with a stream open that never shuts down, and it has neither TLS, unix sockets nor a time-out for headers
//! (http.md §4).

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower::ServiceExt;

use super::events::{Client, STREAM_COUNT_MAX};
use super::guard::Transport;
use super::kept::Kept;
use super::listen::{Bound, Listener};
use super::stall::Stallable;
use super::state::ApiState;
use crate::handle::Handle;

/// How many connections may be open: one for each stream, and some for everything else. Above that new ones wait in the kernel's queue.
const CONNECTION_COUNT_MAX: usize = STREAM_COUNT_MAX + 2_000;

/// How long a client may take for its TLS handshake or for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How large each of the two buffers of an HTTP/1 connection may get: it bounds the headers of a request, and what a stream keeps while
/// it waits (http.md §5.2: 10.8 KiB for each instead of 21.2). The bodies of answers do not go through it.
const HTTP1_BUFFER_BYTES: usize = 8 * 1024;

/// How much the kernel takes for a connection beyond what is on its way (tcp(7), `TCP_NOTSENT_LOWAT`): two chunks of a stream, so that one
/// is there when another was sent. What more it would take (4 MB by Linux' default) is old by the time a slow reader gets it, and memory.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// HTTP/2 connections are asked for a sign of life this often, below the idle time-outs of proxies (60 s).
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many requests one HTTP/2 connection may have open: what browsers take as the usual number (RFC 9113 recommends at least 100).
const REQUESTS_PER_CONNECTION_MAX: u32 = 256;

/// How long to wait when a connection cannot be accepted (too many open files), so that trying again does not burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What an HTTP/2 connection without TLS begins with, and no request of HTTP/1.1 (RFC 9113 §3.4).
const HTTP2_BEGINNING: &[u8] = b"PRI ";

/// Who asks, and over what.
type Caller = (Transport, Client);

/// A connection to its end.
type Conversation = BoxFuture<'static, ()>;

/// What comes before: it tells which HTTP is spoken, or nothing where the client goes.
type Beginning = BoxFuture<'static, Option<Conversation>>;

/// What every connection needs. Cheap to clone.
#[derive(Clone)]
struct Server {
    router: Router,
    tls: Option<Arc<Kept<ServerConfig>>>,
    /// Every connection and every task that HTTP/2 starts for one.
    tasks: TaskTracker,
    places: Arc<Semaphore>,
    /// Stop accepting; connections finish what they have.
    stop: CancellationToken,
    /// The grace is over.
    abort: CancellationToken,
}

/// Runs hyper's own tasks where they are waited for.
#[derive(Debug, Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

impl Bound {
    /// Serves until `stop_accepting` is cancelled: then the face is no longer ready, accepts nothing more, ends every stream with a
    /// last bookmark, and lets requests finish for `grace` at most. Returns when no connection is left.
    pub async fn serve(self, handle: Handle, stop_accepting: CancellationToken, grace: Duration) {
        let state = ApiState::new(handle, stop_accepting.clone()).with_files(self.files.clone());
        let watching = AbortOnDropHandle::new(tokio::spawn(self.files.watch(self.reread)));
        let server = Server {
            router: super::router(state, self.guard),
            tls: self.tls,
            tasks: TaskTracker::new(),
            places: Arc::new(Semaphore::new(CONNECTION_COUNT_MAX)),
            stop: stop_accepting,
            abort: CancellationToken::new(),
        };
        futures_util::future::join_all(self.listeners.into_iter().map(|listener| server.clone().accept(listener))).await;
        server.tasks.close();
        if tokio::time::timeout(grace, server.tasks.wait()).await.is_err() {
            tracing::warn!(connections = server.tasks.len(), "closing connections that did not end in time");
            server.abort.cancel();
            server.tasks.wait().await;
        }
        drop(watching);
    }
}

impl Server {
    /// Accepts until told to stop.
    async fn accept(self, listener: Listener) {
        while let Some(Ok(place)) = self.stop.run_until_cancelled(Arc::clone(&self.places).acquire_owned()).await {
            let Some(accepted) = self.stop.run_until_cancelled(self.accept_one(&listener, place)).await else { return };
            if let Err(error) = accepted {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    async fn accept_one(&self, listener: &Listener, place: OwnedSemaphorePermit) -> io::Result<()> {
        match listener {
            Listener::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // a system without it serves all the same
                drop(SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
                let (server, caller) = (self.clone(), (Transport::Tcp, Client::at(peer.ip())));
                let connection = match server.tls.clone() {
                    None => server.plain(stream, caller),
                    Some(tls) => server.tls(tls.now().into(), stream, caller),
                };
                self.own(place, connection);
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let conversation = self.clone().either(stream, (Transport::Unix, Client::Local));
                self.own(place, Box::pin(std::future::ready(Some(conversation))));
            }
        }
        Ok(())
    }

    /// Runs a connection until it ends or the grace is over. Its beginning is over and gone before the rest, which may stand for days.
    fn own(&self, place: OwnedSemaphorePermit, beginning: Beginning) {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            if let Some(Some(conversation)) = abort.run_until_cancelled(beginning).await {
                abort.run_until_cancelled(conversation).await;
            }
            drop(place);
        });
    }

    /// A connection without TLS. Its first bytes tell which HTTP it speaks (RFC 9113 §3.4).
    fn plain(self, stream: TcpStream, caller: Caller) -> Beginning {
        Box::pin(async move {
            let mut first = [0; HTTP2_BEGINNING.len()];
            let peeked = self.stop.run_until_cancelled(tokio::time::timeout(HEADER_TIMEOUT, stream.peek(&mut first))).await;
            let Some(Ok(Ok(length))) = peeked else { return None };
            let is_http2 = HTTP2_BEGINNING.starts_with(&first[..length]);
            Some(if is_http2 { self.either(stream, caller) } else { self.http1(stream, caller) })
        })
    }

    /// A connection with TLS, which agrees on one HTTP or the other in its handshake.
    fn tls(self, tls: TlsAcceptor, stream: TcpStream, caller: Caller) -> Beginning {
        Box::pin(async move {
            let Ok(Ok(stream)) = tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await else { return None };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Some(if is_http2 { self.either(stream, caller) } else { self.http1(stream, caller) })
        })
    }

    /// HTTP/1.1 alone, which is what most streams speak: it takes half the room of what can be both.
    fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) -> Conversation {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HTTP1_BUFFER_BYTES);
        let service = hyper::service::service_fn(requests(self.router, caller));
        conversation(self.stop, builder.serve_connection(TokioIo::new(Stallable::new(stream)), service))
    }

    /// HTTP/1.1 or HTTP/2, whichever the client begins with.
    fn either(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) -> Conversation {
        let mut builder = auto::Builder::new(Tracked(self.tasks));
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HTTP1_BUFFER_BYTES);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX);
        let service = hyper::service::service_fn(requests(self.router, caller));
        let connection = builder.serve_connection(TokioIo::new(Stallable::new(stream)), service).into_owned();
        conversation(self.stop, connection)
    }
}

/// Answers requests of one caller. The answer in the making is boxed: a connection keeps room for it as long as it stands.
fn requests(
    router: Router,
    (transport, client): Caller,
) -> impl Fn(hyper::Request<Incoming>) -> BoxFuture<'static, Result<Response, Infallible>> {
    move |mut request| {
        request.extensions_mut().insert(transport);
        request.extensions_mut().insert(client);
        router.clone().oneshot(request.map(Body::new)).boxed()
    }
}

/// Lets a connection go on until it ends, or finish what it has once `stop` is cancelled.
fn conversation<C>(stop: CancellationToken, connection: C) -> Conversation
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
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    })
}
