//! A malicious etcd: a server with etcd's API. It gives answers that no real etcd gives, but that
//! the owner of a remote cluster could forge.
//!
//! It names its cluster `c02`. It implements only the calls that meshkeep uses, and no leases.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbEvent, PbKeyValue, PbKvServer, PbKvService,
    PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbResponseHeader, PbResponseOp, PbTxnOpResponse,
    PbTxnRequest, PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchServer, PbWatchService,
};
use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::slices;

/// Prefix of services. Most modes give false answers about services.
const SERVICES: &str = "cilium/state/services/v1/c02/";

const SLICES: &str = "cilium/state/endpointslices/v1/c02/";

/// Prefix of the heartbeat, which is one key.
const HEARTBEAT: &str = "cilium/.heartbeat";

/// Number of keys in a page of small values: Cilium's own limit.
const PAGE_KEYS: u64 = 256;

/// Number of large values in a page: 24 MiB in total, which one message can still carry.
const PAGE_LARGE_VALUES: u64 = 16;

/// Largest value that etcd accepts (`--max-request-bytes`, default 1.5 MiB), minus 1 KiB for its
/// key and the other parts of the request.
const LARGE_VALUE_BYTES: usize = (3 << 19) - 1_024;

/// Number of keys that the server returns where Cilium writes one or a few.
const MANY: u64 = 5_000;

/// Behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A list that claims 10,000 keys and whose pages never end.
    EndlessList,
    /// A page with this many keys in a list that claims three.
    MoreThanCounted(u64),
    /// A list that claims the largest possible number of keys.
    MaximumCount,
    /// A list of values of the largest size.
    LargeValues,
    /// Endpoint slices. The first number is how many there are, the second is the number of
    /// endpoints in every other slice. Those endpoints have no address and are a few bytes each in
    /// etcd. The slices in between have half as many endpoints, with one address each.
    Slices(u64, u32),
    /// Thousands of heartbeats.
    Heartbeats,
    /// Thousands of canaries.
    Canaries,
    /// Thousands of keys instead of one cluster config.
    Configs,
    /// An empty list, and a watch that announces new services without end.
    EndlessWatch,
    /// One heartbeat, and a watch that announces more of them without end.
    EndlessHeartbeats,
    /// Watches are created, but then send nothing, not even progress notifications.
    SilentWatch,
    /// An empty list, and a watch that announces the same services again and again.
    Churn,
    /// Every answer has an older revision than the one before.
    DecreasingRevision,
    /// A service at the largest possible revision, and nothing after it.
    LastRevision,
    /// Only errors, with the text [`HOSTILE_TEXT`].
    ErrorText,
}

/// Characters that a terminal or a browser acts on: escape sequences that set colours, set the
/// window title and clear the screen, DEL, a C1 control, marks that change the direction of text,
/// line separators, a carriage return and a backspace.
pub(crate) const HOSTILE_TEXT: &str = "a\u{1b}[31mb\u{1b}]0;c\u{7}d\u{7f}e\u{9b}2Jf\u{202e}g\u{2066}h\u{61c}i\u{200f}j\u{2028}k\r\u{8}l";

/// Returns whether a terminal displays every character of a text and acts on none. Line feeds and
/// tabs are allowed.
pub(crate) fn is_safe_to_display(text: &str) -> bool {
    let acts = |character: char| {
        (character.is_control() && !matches!(character, '\n' | '\t'))
            || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !text.chars().any(acts)
}

/// The server, which ends when it is dropped.
pub(crate) struct HostileEtcd {
    port: u16,
    state: Arc<ServerState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct ServerState {
    mode: Mode,
    revision: AtomicI64,
    answers: AtomicU64,
    /// Number of lists of services.
    lists: AtomicU64,
}

#[derive(Clone)]
struct Service(Arc<ServerState>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Mode {
    /// Returns the prefix whose watches send events without end.
    fn endless_prefix(self) -> Option<&'static str> {
        match self {
            Self::EndlessWatch | Self::Churn => Some(SERVICES),
            Self::EndlessHeartbeats => Some(HEARTBEAT),
            _ => None,
        }
    }
}

impl HostileEtcd {
    pub(crate) async fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let revision = if mode == Mode::LastRevision { i64::MAX } else { 1_000_000_000 };
        let state =
            Arc::new(ServerState { mode, revision: AtomicI64::new(revision), answers: AtomicU64::new(0), lists: AtomicU64::new(0) });
        let service = Service(Arc::clone(&state));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(PbKvServer::new(service.clone()));
            server.add_service(PbWatchServer::new(service)).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { port, state, _tasks: tasks }
    }

    /// Returns the client file of this server.
    pub(crate) fn client_file(&self) -> String {
        format!("endpoints:\n- http://127.0.0.1:{}\n", self.port)
    }

    /// Returns the number of answers given so far.
    pub(crate) fn answers(&self) -> u64 {
        self.state.answers.load(Ordering::Relaxed)
    }

    /// Returns the number of lists of services so far.
    pub(crate) fn lists(&self) -> u64 {
        self.state.lists.load(Ordering::Relaxed)
    }
}

impl ServerState {
    fn fail_in_error_mode(&self) -> Result<(), Status> {
        if self.mode == Mode::ErrorText { Err(Status::unknown(HOSTILE_TEXT)) } else { Ok(()) }
    }

    fn header(&self) -> Option<PbResponseHeader> {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let step = if self.mode == Mode::DecreasingRevision { -1 } else { 0 };
        let revision = self.revision.fetch_add(step, Ordering::Relaxed);
        Some(PbResponseHeader { cluster_id: 0xbad, member_id: 1, revision, raft_term: 1 })
    }

    fn range(&self, request: &PbRangeRequest) -> PbRangeResponse {
        let key = String::from_utf8_lossy(&request.key).into_owned();
        let (kvs, more, count) = match key.as_str() {
            _ if request.keys_only || request.count_only => (Vec::new(), false, 0),
            HEARTBEAT => single_page(self.one_or_many(&key, Mode::Heartbeats, b"2026-01-12T09:31:07Z")),
            "cilium/cluster-config/c02" => {
                let value = br#"{"id":2,"capabilities":{"syncedCanaries":CANARIES,"maxConnectedClusters":255,"serviceExportsEnabled":true,"endpointSlicesExportMode":"services-and-endpointslices"}}"#;
                let canaries = if self.mode == Mode::Canaries { "true" } else { "false" };
                single_page(self.one_or_many(&key, Mode::Configs, String::from_utf8_lossy(value).replace("CANARIES", canaries).as_bytes()))
            }
            "cilium/synced/c02/" => single_page(self.one_or_many(&key, Mode::Canaries, b"2026-01-12T09:31:07Z")),
            _ if key.starts_with(SERVICES) => self.services(key.trim_end_matches('\0')),
            _ if key.starts_with(SLICES) => self.slices(key.trim_end_matches('\0')),
            _ => (Vec::new(), false, 0),
        };
        PbRangeResponse { header: self.header(), kvs, more, count }
    }

    /// Returns one key, or thousands if the server is in `mode`.
    fn one_or_many(&self, key: &str, mode: Mode, value: &[u8]) -> Vec<PbKeyValue> {
        let is_many = self.mode == mode;
        let name = |number| if is_many { format!("{key}{number:09}") } else { key.to_owned() };
        (0..if is_many { MANY } else { 1 }).map(|number| pb_key_value(name(number), value.to_vec(), 7)).collect()
    }

    fn services(&self, key: &str) -> (Vec<PbKeyValue>, bool, i64) {
        let small = |numbers: std::ops::Range<u64>| numbers.map(|number| service(number, 10, 7)).collect();
        let from = first_number(key, SERVICES);
        self.lists.fetch_add(1, Ordering::Relaxed);
        match self.mode {
            Mode::EndlessList => (small(from..from + PAGE_KEYS), true, 10_000),
            Mode::MoreThanCounted(keys) => (small(0..keys), false, 3),
            Mode::MaximumCount => (small(from..from + PAGE_KEYS), true, i64::MAX),
            Mode::LargeValues => {
                let page = (from..from + PAGE_LARGE_VALUES).map(|number| service(number, LARGE_VALUE_BYTES, 7));
                (page.collect(), true, 10_000)
            }
            Mode::LastRevision => single_page(vec![service(0, 10, i64::MAX)]),
            _ => (Vec::new(), false, 0),
        }
    }

    fn slices(&self, key: &str) -> (Vec<PbKeyValue>, bool, i64) {
        let Mode::Slices(slices, endpoints) = self.mode else { return (Vec::new(), false, 0) };
        let from = first_number(key, SLICES);
        let to = slices.min(from + PAGE_LARGE_VALUES);
        let slice = |number: u64| {
            let name = format!("s{number:09}");
            let first = u32::try_from(number).unwrap() * endpoints;
            // half as many endpoints, because each address is one more element of the value, and
            // meshkeep limits the number of elements
            let addresses =
                (number % 2 == 1).then(|| (first..first + endpoints / 2).map(|address| std::net::Ipv4Addr::from(address).to_string()));
            let endpoints = match addresses {
                Some(addresses) => slices::endpoints(addresses),
                None => slices::endpoints((0..endpoints).map(|_| String::new())),
            };
            pb_key_value(format!("{SLICES}shop/{name}"), slices::encode_slice("c02", 2, "shop", &name, &endpoints), 7)
        };
        ((from..to).map(slice).collect(), to < slices, i64::try_from(slices).unwrap())
    }
}

/// Returns a list with a single page.
fn single_page(kvs: Vec<PbKeyValue>) -> (Vec<PbKeyValue>, bool, i64) {
    let count = i64::try_from(kvs.len()).unwrap();
    (kvs, false, count)
}

/// Returns the number of the first object of a page. `key` is the prefix, or the last key of the
/// page before.
fn first_number(key: &str, prefix: &str) -> u64 {
    key.strip_prefix(prefix).and_then(|name| name.strip_prefix("shop/s")?.parse::<u64>().ok()).map_or(0, |last| last + 1)
}

fn pb_key_value(key: String, value: Vec<u8>, mod_revision: i64) -> PbKeyValue {
    PbKeyValue { key: key.into_bytes(), create_revision: 7, mod_revision, version: 1, value, lease: 0 }
}

fn service(number: u64, bytes: usize, revision: i64) -> PbKeyValue {
    let (name, filling) = (format!("s{number:09}"), "x".repeat(bytes));
    let value = format!(r#"{{"cluster":"c02","clusterID":2,"namespace":"shop","name":"{name}","labels":{{"x":"{filling}"}}}}"#);
    pb_key_value(format!("{SERVICES}shop/{name}"), value.into_bytes(), revision)
}

#[tonic::async_trait]
impl PbKvService for Service {
    type RangeStreamStream = Answers<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        self.0.fail_in_error_mode()?;
        Ok(Response::new(self.0.range(request.get_ref())))
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("this server is older than etcd 3.7"))
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(Status::unimplemented("this server is read-only"))
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(Status::unimplemented("this server is read-only"))
    }

    /// Answers every read in a transaction with an empty range, as if none of the keys existed.
    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        self.0.fail_in_error_mode()?;
        let empty = |_| PbResponseOp { response: Some(PbTxnOpResponse::ResponseRange(PbRangeResponse::default())) };
        let responses = request.get_ref().success.iter().map(empty).collect();
        Ok(Response::new(PbTxnResponse { header: self.0.header(), succeeded: true, responses }))
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(Status::unimplemented("this server is read-only"))
    }
}

#[tonic::async_trait]
impl PbWatchService for Service {
    type WatchStream = Answers<PbWatchResponse>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        // capacity 1: answers are only created when the client reads
        let (sender, receiver) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(serve_watches(Arc::clone(&self.0), request.into_inner(), sender));
        // the task ends with the stream
        let next = |(mut receiver, task): (mpsc::Receiver<_>, JoinSet<()>)| async move { Some((receiver.recv().await?, (receiver, task))) };
        let answers = futures_util::stream::unfold((receiver, task), next);
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Answers the requests of one watch stream until it ends.
async fn serve_watches(
    state: Arc<ServerState>,
    mut requests: Streaming<PbWatchRequest>,
    answers: mpsc::Sender<Result<PbWatchResponse, Status>>,
) {
    let mut senders = JoinSet::new();
    while let Some(Ok(request)) = requests.next().await {
        let mut answer = PbWatchResponse { header: state.header(), watch_id: -1, ..PbWatchResponse::default() };
        let mut is_endless = false;
        let Some(union) = request.request_union else { continue };
        if let PbWatchRequestUnion::CreateRequest(create) = union {
            (answer.watch_id, answer.created) = (create.watch_id, true);
            is_endless = state.mode.endless_prefix() == Some(&*String::from_utf8_lossy(&create.key));
        }
        let watch_id = answer.watch_id;
        if state.mode == Mode::SilentWatch && !answer.created {
            continue;
        }
        if answers.send(Ok(answer)).await.is_err() {
            return;
        }
        if is_endless {
            senders.spawn(send_events_without_end(Arc::clone(&state), watch_id, answers.clone()));
        }
    }
}

async fn send_events_without_end(state: Arc<ServerState>, watch_id: i64, answers: mpsc::Sender<Result<PbWatchResponse, Status>>) {
    for page in 0.. {
        let revision = state.revision.fetch_add(1, Ordering::Relaxed) + 1;
        let key_value = |number| match state.mode {
            Mode::EndlessHeartbeats => pb_key_value(format!("{HEARTBEAT}{number:09}"), b"2026-01-12T09:31:07Z".to_vec(), revision),
            _ => service(number, 10, revision),
        };
        let put_event = |number| PbEvent { r#type: 0, kv: Some(key_value(number)), prev_kv: None };
        let page = if state.mode == Mode::Churn { 0 } else { page };
        let events = (page * PAGE_KEYS..(page + 1) * PAGE_KEYS).map(put_event).collect();
        let answer = PbWatchResponse { header: state.header(), watch_id, events, ..PbWatchResponse::default() };
        if answers.send(Ok(answer)).await.is_err() {
            return;
        }
    }
}
