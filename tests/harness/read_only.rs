//! A server in front of an etcd that forwards only `Range` and `Watch`, like read-only replacements
//! of etcd. It refuses every other call.

use std::future::poll_fn;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::client::GrpcService;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};

use super::etcd::Etcd;

/// Forwarded calls: the ones that Cilium's readers use (docs/develop/protocol.md §9.1).
const OFFERED: [&str; 2] = ["/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"];

/// The server, which ends when it is dropped.
pub(crate) struct ReadOnlyServer {
    port: u16,
    _tasks: JoinSet<()>,
}

impl ReadOnlyServer {
    /// Starts a server in front of an etcd without TLS. It refuses calls with the status `refusal`.
    pub(crate) async fn start(etcd: &Etcd, refusal: Code) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let channel = Endpoint::from_shared(etcd.url()).unwrap().connect_lazy();
        let offer = move |request: axum::extract::Request| {
            let channel = channel.clone();
            async move {
                if !OFFERED.contains(&request.uri().path()) {
                    return Status::new(refusal, "this server can only be read and watched").into_http::<axum::body::Body>();
                }
                forward(channel, request).await
            }
        };
        let routes = Routes::from(axum::Router::new().fallback(offer));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            Server::builder().add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { port, _tasks: tasks }
    }

    /// Returns the client file of this server.
    pub(crate) fn client_file(&self) -> String {
        format!("endpoints:\n- http://127.0.0.1:{}\n", self.port)
    }
}

/// Forwards a call to an etcd.
pub(super) async fn forward(mut channel: Channel, request: axum::extract::Request) -> axum::http::Response<axum::body::Body> {
    let forwarded = async {
        poll_fn(|context| GrpcService::<tonic::body::Body>::poll_ready(&mut channel, context)).await?;
        GrpcService::call(&mut channel, request.map(tonic::body::Body::new)).await
    };
    match forwarded.await {
        Ok(response) => response.map(axum::body::Body::new),
        Err(error) => Status::unavailable(error.to_string()).into_http(),
    }
}
