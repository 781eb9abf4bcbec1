//! A server in front of an etcd whose watches lose, falsify or delay changes on request, and that
//! refuses some reads on request. All other calls are forwarded unchanged.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchServer, PbWatchService};
use etcd_client::{Client, WatchOptions};
use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use super::etcd::Etcd;
use super::read_only::forward;

/// Error in the watches, which ends once it has occurred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchError {
    /// The next event of each of these keys is lost.
    Lose(Vec<String>),
    /// The next event of the first key is lost. The next put of the second key also sets the first
    /// one, with the value and the revision of the second.
    Confuse(String, String),
    /// The next put of this key has another value: a space follows it.
    Falsify(String),
    /// The existing watches send nothing any more except progress.
    Freeze,
}

/// The server, which ends when it is dropped.
pub(crate) struct LossyWatches {
    port: u16,
    state: Arc<WatchState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct WatchState {
    url: String,
    error: Mutex<Option<WatchError>>,
    /// Time of the last call of [`LossyWatches::make_error`].
    error_requested: Mutex<Option<Instant>>,
    counts: Mutex<WatchCounts>,
    /// True while the watches send nothing at all.
    paused: watch::Sender<bool>,
    /// Number of transactions that were forwarded.
    transactions: AtomicU64,
    /// Part of the keys whose reads are refused, also in transactions.
    refused: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct WatchCounts {
    created: u64,
    /// Number of watches that are frozen: the ones that were created first.
    frozen: u64,
}

#[derive(Clone)]
struct Service(Arc<WatchState>);

/// A watch of the client, with its request to the etcd.
struct ForwardedWatch {
    /// Position in the order in which the watches were created.
    number: u64,
    id: i64,
    key: Vec<u8>,
    options: WatchOptions,
}

type Answer = Result<PbWatchResponse, Status>;

impl LossyWatches {
    /// Starts a server in front of an etcd without TLS.
    pub(crate) async fn start(etcd: &Etcd) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let channel = Endpoint::from_shared(etcd.url()).unwrap().connect_lazy();
        let state = Arc::new(WatchState { url: etcd.url(), ..WatchState::default() });
        let counted = Arc::clone(&state);
        let others = axum::Router::new().fallback(move |request: axum::extract::Request| {
            counted.transactions.fetch_add(u64::from(request.uri().path().ends_with("/Txn")), Ordering::Relaxed);
            let is_read = ["/Range", "/Txn"].iter().any(|call| request.uri().path().ends_with(call));
            let refused = counted.refused.lock().unwrap().clone().filter(|_| is_read);
            forward_unless(refused, channel.clone(), request)
        });
        let routes = Routes::from(others).add_service(PbWatchServer::new(Service(Arc::clone(&state))));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            Server::builder().add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { port, state, _tasks: tasks }
    }

    /// Returns the client file of this server.
    pub(crate) fn client_file(&self) -> String {
        format!("endpoints:\n- http://127.0.0.1:{}\n", self.port)
    }

    /// Lets the watches make this error once.
    pub(crate) fn make_error(&self, error: WatchError) {
        *self.state.error_requested.lock().unwrap() = Some(Instant::now());
        if error == WatchError::Freeze {
            let mut counts = self.state.counts.lock().unwrap();
            counts.frozen = counts.created;
        } else {
            *self.state.error.lock().unwrap() = Some(error);
        }
    }

    /// Holds back everything that the watches send, or sends it.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.state.paused.send_replace(paused);
    }

    /// Refuses the reads of keys that contain this text, also if they are only a part of a
    /// transaction, or no read any more.
    pub(crate) fn refuse_reads(&self, part: Option<&str>) {
        *self.state.refused.lock().unwrap() = part.map(str::to_owned);
    }

    /// Returns the number of transactions so far. Each comparison of the counts is one.
    pub(crate) fn transaction_count(&self) -> u64 {
        self.state.transactions.load(Ordering::Relaxed)
    }

    /// Returns whether the error was made.
    pub(crate) fn error_was_made(&self) -> bool {
        self.state.error.lock().unwrap().is_none()
    }

    /// Returns the time since an error was requested. The error itself is younger.
    pub(crate) fn error_age_max(&self) -> Duration {
        self.state.error_requested.lock().unwrap().expect("make_error must be called first").elapsed()
    }
}

impl WatchState {
    /// Applies the error to the events of one response.
    fn falsify(&self, events: Vec<PbEvent>) -> Vec<PbEvent> {
        let mut error = self.error.lock().unwrap();
        let mut sent = Vec::new();
        for event in events {
            let key = event.kv.as_ref().map(|key_value| key_value.key.clone()).unwrap_or_default();
            match error.clone() {
                Some(WatchError::Lose(mut lost)) if lost.iter().any(|lost| lost.as_bytes() == key) => {
                    lost.retain(|lost| lost.as_bytes() != key);
                    *error = Some(WatchError::Lose(lost)).filter(|error| *error != WatchError::Lose(Vec::new()));
                }
                Some(WatchError::Falsify(falsified)) if falsified.as_bytes() == key => {
                    let value = |key_value: &PbKeyValue| [&key_value.value[..], b" "].concat();
                    let falsified = event.kv.clone().map(|key_value| PbKeyValue { value: value(&key_value), ..key_value });
                    sent.push(PbEvent { kv: falsified, ..event });
                    *error = None;
                }
                Some(WatchError::Confuse(lost, _)) if lost.as_bytes() == key => {}
                Some(WatchError::Confuse(first, second)) if second.as_bytes() == key => {
                    let confused = event.kv.clone().map(|key_value| PbKeyValue { key: first.into_bytes(), ..key_value });
                    sent.extend([event.clone(), PbEvent { kv: confused, ..event }]);
                    *error = None;
                }
                _ => sent.push(event),
            }
        }
        sent
    }

    async fn wait_while_paused(&self) {
        let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
    }

    fn is_frozen(&self, number: u64) -> bool {
        number <= self.counts.lock().unwrap().frozen
    }
}

/// Forwards a read, unless its request contains the text `refused`.
async fn forward_unless(refused: Option<String>, channel: Channel, request: axum::extract::Request) -> axum::http::Response<Body> {
    let Some(refused) = refused else { return forward(channel, request).await };
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    if bytes.windows(refused.len()).any(|part| part == refused.as_bytes()) {
        return Status::permission_denied("this read is refused").into_http();
    }
    forward(channel, axum::extract::Request::from_parts(head, Body::from(bytes))).await
}

#[tonic::async_trait]
impl PbWatchService for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Answer> + Send>>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(16);
        let mut task = JoinSet::new();
        task.spawn(serve_watches(Arc::clone(&self.0), request.into_inner(), sender));
        // the task ends with the stream
        let next = |(mut receiver, task): (mpsc::Receiver<_>, JoinSet<()>)| async move { Some((receiver.recv().await?, (receiver, task))) };
        Ok(Response::new(Box::pin(futures_util::stream::unfold((receiver, task), next))))
    }
}

/// Answers the requests of one watch stream until it ends.
async fn serve_watches(state: Arc<WatchState>, mut requests: Streaming<PbWatchRequest>, answers: mpsc::Sender<Answer>) {
    let Ok(mut client) = Client::connect([&state.url], None).await else { return };
    let mut watches = JoinSet::new();
    let mut by_id = HashMap::new();
    while let Some(Ok(request)) = requests.next().await {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                let number = {
                    let mut counts = state.counts.lock().unwrap();
                    counts.created += 1;
                    counts.created
                };
                let mut options = WatchOptions::new().with_start_revision(create.start_revision).with_progress_notify();
                if !create.range_end.is_empty() {
                    options = options.with_range(create.range_end);
                }
                let watch = ForwardedWatch { number, id: create.watch_id, key: create.key, options };
                let task = watches.spawn(watch.serve(Arc::clone(&state), client.clone(), answers.clone()));
                by_id.insert(create.watch_id, task);
            }
            // the error must not be made in a watch that the client does not read any more
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                if let Some(task) = by_id.remove(&cancel.watch_id) {
                    task.abort();
                }
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                let Ok(reply) = client.get("progress", None).await else { return };
                let header = reply.0.header;
                state.wait_while_paused().await;
                if answers.send(Ok(PbWatchResponse { header, watch_id: -1, ..PbWatchResponse::default() })).await.is_err() {
                    return;
                }
            }
            None => {}
        }
    }
}

impl ForwardedWatch {
    /// Forwards the watch until it ends.
    async fn serve(self, state: Arc<WatchState>, mut client: Client, answers: mpsc::Sender<Answer>) {
        let Ok(mut upstream) = client.watch(self.key, Some(self.options)).await else { return };
        while let Ok(Some(response)) = upstream.message().await {
            let mut response = PbWatchResponse { watch_id: self.id, ..response.0 };
            let had_events = !response.events.is_empty();
            response.events = state.falsify(std::mem::take(&mut response.events));
            state.wait_while_paused().await;
            let is_lost = had_events && (response.events.is_empty() || state.is_frozen(self.number));
            if !is_lost && answers.send(Ok(response)).await.is_err() {
                return;
            }
        }
    }
}
