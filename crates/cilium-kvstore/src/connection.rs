//! One connection to an etcd: dialling, login, single reads, and the checks of every reply.

mod alarms;
mod dial;
mod examine;
mod followed_range;
mod key_range;
mod lease;
mod limits;
mod list_checker;
mod paged_list;
mod watch;
mod watch_stream;
mod writes;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbResponseHeader, PbTxnOpResponse};
use etcd_client::{
    Channel, Client, ConnectOptions, GetOptions, GetStreamResponse, KvClient, LeaseTimeToLiveResponse, Txn, TxnOp, WatchClient,
};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use self::dial::{dial, tls_refusal};
use self::limits::RateLimiter;
use self::watch_stream::{CreateRequest, SharedStream, Subscription};
use crate::endpoint::EndpointAddress;
use crate::error::{printable, with_causes};
use crate::{Credentials, Endpoint, EtcdClusterId, EtcdConfig, KeyValue, KvstoreError, LeaseId, Revision};

pub use self::examine::{Examination, Handshake, ServerFacts, examine};
pub use self::followed_range::FollowedRange;
pub use self::key_range::KeyRange;
pub use self::lease::LeaseLife;
pub use self::limits::ClientOptions;
pub use self::paged_list::{ChangedKeys, Page, PagedList};
#[cfg(feature = "test-util")]
pub use self::watch::ScriptedWatch;
pub use self::watch::{Watch, WatchMessage};

/// Start of the range that every etcd role created by Cilium may read
/// (`clustermesh-apiserver/etcdinit`), whether its key exists or not.
const HEARTBEAT_KEY: &[u8] = b"cilium/.heartbeat";
/// End of the range that starts at [`HEARTBEAT_KEY`].
const HEARTBEAT_END: &[u8] = b"cilium/.heartbeau";

/// One connection to one etcd process. Clones share it. A broken connection stays broken, and every
/// call fails.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<ConnectionState>,
}

struct ConnectionState {
    client: Client,
    kv: KvClient,
    watch: WatchClient,
    /// Stream that new watches join.
    watch_stream: Mutex<Option<Arc<SharedStream>>>,
    options: ClientOptions,
    /// Cluster id of the etcd. 0 until the first reply.
    etcd_cluster_id: EtcdClusterId,
    /// Highest revision in the replies to unary calls, as opposed to streams.
    newest_revision: AtomicI64,
    /// True if lists may use `RangeStream`. Set to false when the server does not implement it.
    range_stream: AtomicBool,
    /// True if several keys may be read in one transaction. Set to false when the server refuses
    /// `Txn`.
    transactions: AtomicBool,
    has_user: bool,
    rate_limiter: RateLimiter,
    in_flight: Semaphore,
    /// Time of the last token renewal for a watch.
    token_renewed: Mutex<Option<Instant>>,
}

impl Connection {
    /// Returns whether progress requests on the watch stream stay unanswered. A proxy that forwards
    /// only changes causes this.
    pub async fn progress_is_unanswered(&self) -> bool {
        self.shared.watch_stream.lock().await.as_ref().is_some_and(|stream| stream.progress_is_unanswered())
    }

    /// Connects to one endpoint of a configuration, logs in if the configuration has a user, and
    /// reads the heartbeat's range once to get the etcd's cluster id.
    ///
    /// # Errors
    /// [`KvstoreError`], which names the host, file or user that failed.
    pub async fn open(config: &EtcdConfig, endpoint: &Endpoint, options: &ClientOptions) -> Result<Self, KvstoreError> {
        let address = EndpointAddress::parse(endpoint, config.insecure_transport)?;
        let channel = dial(config, &address, options).await?;
        match Self::begin(channel, config, options).await {
            Err(error @ KvstoreError::Rpc { .. }) if address.secure => Err(tls_refusal(config, &address, options).await.unwrap_or(error)),
            result => result,
        }
    }

    async fn begin(channel: tonic::transport::Channel, config: &EtcdConfig, options: &ClientOptions) -> Result<Self, KvstoreError> {
        let limit = options.request_timeout;
        let (client, has_user) = timeout(limit, Box::pin(log_in(channel, config, options)))
            .await
            .unwrap_or_else(|_| Err(KvstoreError::Timeout { operation: "logging in".into(), limit }))?;
        let mut connection = ConnectionState {
            kv: client.kv_client().max_decoding_message_size(options.message_bytes_max),
            watch: client.watch_client().max_decoding_message_size(options.message_bytes_max),
            watch_stream: Mutex::new(None),
            client,
            options: options.clone(),
            etcd_cluster_id: EtcdClusterId(0),
            newest_revision: AtomicI64::new(0),
            range_stream: AtomicBool::new(options.range_stream),
            transactions: AtomicBool::new(true),
            has_user,
            rate_limiter: RateLimiter::new(options.requests_per_second_max, options.bootstrap_requests_per_second_max),
            in_flight: Semaphore::new(options.requests_in_flight_max.max(1)),
            token_renewed: Mutex::new(None),
        };
        let first = GetOptions::new().with_range(HEARTBEAT_END).with_limit(1).with_keys_only();
        let (reply, _) = connection.range(HEARTBEAT_KEY, first).await?;
        (connection.etcd_cluster_id, _) = check_header(None, reply.header.as_ref())?;
        Ok(Self { shared: Arc::new(connection) })
    }

    /// Returns the cluster id of the etcd. Every reply must have the same id in its header.
    #[must_use]
    pub fn etcd_cluster_id(&self) -> EtcdClusterId {
        self.shared.etcd_cluster_id
    }

    /// Returns the highest revision in the replies to unary calls so far.
    #[must_use]
    pub fn newest_revision(&self) -> Revision {
        Revision(self.shared.newest_revision.load(Ordering::SeqCst))
    }

    /// Ends the bootstrap phase: from now on, lists and watches use the normal rate limit.
    pub fn end_bootstrap(&self) {
        self.shared.rate_limiter.end_bootstrap();
    }

    /// Reads one key at a revision, or at the newest revision if `at_revision` is `None`. Also
    /// returns etcd's newest revision in both cases.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Compacted` or `FutureRevision` if etcd does not have the revision.
    pub async fn get(&self, key: &[u8], at_revision: Option<Revision>) -> Result<(Option<KeyValue>, Revision), KvstoreError> {
        let (reply, revision) = self.range(key, GetOptions::new().with_revision(at_revision.map_or(0, |revision| revision.0))).await?;
        Ok((reply.kvs.into_iter().next().map(KeyValue::from), revision))
    }

    /// Reads several keys in one read-only transaction, all as of the returned revision. Returns
    /// one result per key, in their order. etcd accepts up to 128 keys (`--max-txn-ops`).
    ///
    /// Servers with a read-only etcd API refuse `Txn`, which Cilium's readers do not need. For such
    /// a server each key is read with its own request, in the same order: no value is older than
    /// the returned revision, and some may be newer.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn get_many(&self, keys: &[Vec<u8>]) -> Result<(Vec<Option<KeyValue>>, Revision), KvstoreError> {
        if self.shared.transactions.load(Ordering::Relaxed) {
            match self.get_in_transaction(keys).await {
                Err(error) if error.is_unimplemented_or_denied() => {}
                result => return result,
            }
        }
        let result = self.get_one_by_one(keys).await?;
        // set only after these reads have succeeded: etcd also refuses a transaction if the user
        // may not read one of its keys, and then one of these reads fails too
        self.shared.transactions.store(false, Ordering::Relaxed);
        Ok(result)
    }

    async fn get_one_by_one(&self, keys: &[Vec<u8>]) -> Result<(Vec<Option<KeyValue>>, Revision), KvstoreError> {
        let (mut values, mut first_revision) = (Vec::with_capacity(keys.len()), None);
        for key in keys {
            let (value, revision) = self.get(key, None).await?;
            values.push(value);
            first_revision.get_or_insert(revision);
        }
        Ok((values, first_revision.unwrap_or_else(|| self.newest_revision())))
    }

    async fn get_in_transaction(&self, keys: &[Vec<u8>]) -> Result<(Vec<Option<KeyValue>>, Revision), KvstoreError> {
        let operations: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(key.clone(), None)).collect();
        let operation = || format!("reading {} keys together", keys.len());
        let (ranges, revision) = self.range_in_transaction(operations, operation).await?;
        let mut values = Vec::with_capacity(keys.len());
        for range in ranges {
            check_keys(&range.kvs, revision)?;
            values.push(range.kvs.into_iter().next().map(KeyValue::from));
        }
        Ok((values, revision))
    }

    /// Makes several `Range` calls in one read-only transaction. Returns an answer for each.
    async fn range_in_transaction(
        &self,
        ranges: Vec<TxnOp>,
        operation: impl Fn() -> String,
    ) -> Result<(Vec<PbRangeResponse>, Revision), KvstoreError> {
        let malformed = |reason: String| KvstoreError::Malformed { reason };
        let range_count = ranges.len();
        let mut kv = self.shared.kv.clone();
        let call = Box::pin(kv.txn(Txn::new().and_then(ranges)));
        let (reply, revision) = self.shared.call(operation, call, |reply| reply.0.header.as_ref()).await?;
        let answers = reply.0.responses.into_iter().map(|response| match response.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => Ok(range),
            _ => Err(malformed("a read in a transaction got the answer of another request".into())),
        });
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        if answers.len() != range_count {
            return Err(malformed(format!("{} answers to a transaction of {range_count} reads", answers.len())));
        }
        Ok((answers, revision))
    }

    /// Returns a list of all keys with a prefix, as of one revision. [`PagedList::next_page`] sends
    /// its first request.
    #[must_use]
    pub fn list(&self, prefix: &[u8]) -> PagedList {
        PagedList::new(self.clone(), prefix)
    }

    /// Requests the remaining time to live of a lease.
    pub(crate) async fn time_to_live(&self, lease: LeaseId) -> Result<LeaseTimeToLiveResponse, KvstoreError> {
        let mut leases = self.shared.client.lease_client();
        let operation = || format!("reading the time to live of lease {:x}", lease.0);
        let call = Box::pin(leases.time_to_live(lease.0, None));
        Ok(self.shared.call(operation, call, |reply| reply.0.header.as_ref()).await?.0)
    }

    /// Returns the first key of the range `[from, end)`, or `None` if the range is empty.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn first_key(&self, from: &[u8], end: &[u8]) -> Result<Option<Vec<u8>>, KvstoreError> {
        Ok(self.first_keys(from, end, 1).await?.into_iter().next())
    }

    /// Returns the first keys of the range `[from, end)`, at most `limit`.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn first_keys(&self, from: &[u8], end: &[u8], limit: u32) -> Result<Vec<Vec<u8>>, KvstoreError> {
        let options = GetOptions::new().with_range(end).with_limit(limit.into()).with_keys_only();
        let (reply, _) = self.range(from, options).await?;
        Ok(reply.kvs.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)).map(|key_value| key_value.key).collect())
    }

    /// Makes one `Range` call and checks the reply. Also returns etcd's newest revision.
    pub(crate) async fn range(&self, key: &[u8], options: GetOptions) -> Result<(PbRangeResponse, Revision), KvstoreError> {
        self.shared.range(key, options).await
    }

    /// Returns whether lists may use `RangeStream`. False if the server is known not to implement
    /// it.
    #[must_use]
    pub fn has_range_stream(&self) -> bool {
        self.shared.range_stream.load(Ordering::Relaxed)
    }

    /// Records that the server does not implement `RangeStream`.
    pub(crate) fn disable_range_stream(&self) {
        self.shared.range_stream.store(false, Ordering::Relaxed);
    }

    /// Opens a `RangeStream`. If the server does not implement it, the first read fails.
    pub(crate) async fn range_stream(&self, key: &[u8], options: GetOptions) -> Result<GetStreamResponse, KvstoreError> {
        let mut kv = self.shared.kv.clone();
        self.shared.unary(|| format!("reading {}", printable(key)), Box::pin(kv.get_stream(key, Some(options)))).await
    }

    /// Returns the next part of a `RangeStream`. Only the last part has a header, with the server's
    /// newest revision at the start of the stream. Fails if that is older than `pinned`, the
    /// revision of the list.
    pub(crate) async fn next_part(
        &self,
        stream: &mut GetStreamResponse,
        key: &[u8],
        pinned: Revision,
    ) -> Result<PbRangeResponse, KvstoreError> {
        let operation = || format!("reading {}", printable(key));
        let part = self.shared.unary(operation, Box::pin(stream.message())).await?;
        let part = part.ok_or_else(|| KvstoreError::Malformed { reason: "a list that ended before its last part".into() })?.0;
        if part.header.is_some() {
            let (_, revision) = check_header(Some(self.shared.etcd_cluster_id), part.header.as_ref())?;
            if revision < pinned {
                return Err(KvstoreError::WentBack { operation: operation(), from: pinned, to: revision });
            }
        }
        Ok(part)
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// Waits until the rate limit permits another list or watch.
    pub(crate) async fn wait_for_rate_limit(&self) {
        self.shared.rate_limiter.acquire().await;
    }

    /// Requests a watch: on the shared stream if that accepts another watch, otherwise on a new
    /// stream, which the next watches share.
    pub(crate) async fn subscribe(&self, request: CreateRequest) -> Result<Subscription, etcd_client::Error> {
        // keeps the lock while it opens a stream, so that the other watches wait and join that
        // stream
        let mut shared_stream = self.shared.watch_stream.lock().await;
        if let Some(subscription) = shared_stream.as_ref().and_then(|stream| stream.subscribe(&request)) {
            return Ok(subscription);
        }
        let (stream, subscription) = SharedStream::open(self.shared.watch.clone(), request, self.options().progress_interval).await?;
        *shared_stream = Some(stream);
        Ok(subscription)
    }

    pub(crate) fn has_user(&self) -> bool {
        self.shared.has_user
    }

    /// Renews the token, unless it was already renewed after `unless_since`. If several watches
    /// fail because of an expired token, only one of them logs in. (For unary calls the client
    /// crate renews the token itself.)
    pub(crate) async fn renew_token(&self, unless_since: Instant) -> Result<(), KvstoreError> {
        // keeps the lock during the call, so that the other watches wait for its result
        let mut renewed = self.shared.token_renewed.lock().await;
        if renewed.is_some_and(|time| time >= unless_since) {
            return Ok(());
        }
        let client = &self.shared.client;
        self.shared.unary(|| "logging in again".into(), Box::pin(client.refresh_token())).await?;
        *renewed = Some(Instant::now());
        Ok(())
    }
}

impl ConnectionState {
    /// Waits for a permit for a call in flight.
    async fn permit(&self) -> SemaphorePermit<'_> {
        self.in_flight.acquire().await.expect("the semaphore is never closed")
    }

    async fn range(&self, key: &[u8], options: GetOptions) -> Result<(PbRangeResponse, Revision), KvstoreError> {
        let mut kv = self.kv.clone();
        let operation = || format!("reading {}", printable(key));
        let (reply, revision) = self.call(operation, Box::pin(kv.get(key, Some(options))), |reply| reply.0.header.as_ref()).await?;
        check_keys(&reply.0.kvs, revision)?;
        Ok((reply.0, revision))
    }

    /// Runs a call whose reply has a header, and checks the header's cluster id and revision. Also
    /// returns the revision. Replies to concurrent calls may arrive in any order, but a call that
    /// starts after another call's reply must not get an older revision.
    async fn call<T>(
        &self,
        operation: impl Fn() -> String,
        call: Pin<Box<impl Future<Output = Result<T, etcd_client::Error>>>>,
        header: impl Fn(&T) -> Option<&PbResponseHeader>,
    ) -> Result<(T, Revision), KvstoreError> {
        let _permit = self.permit().await;
        self.call_without_permit(operation, call, header).await
    }

    /// Like [`Self::call`], but without waiting for a permit. For leases and locks, whose calls
    /// must not wait behind other calls.
    async fn call_without_permit<T>(
        &self,
        operation: impl Fn() -> String,
        call: Pin<Box<impl Future<Output = Result<T, etcd_client::Error>>>>,
        header: impl Fn(&T) -> Option<&PbResponseHeader>,
    ) -> Result<(T, Revision), KvstoreError> {
        let newest_before = Revision(self.newest_revision.load(Ordering::SeqCst));
        let reply = self.timed(&operation, call).await?;
        let expected = Some(self.etcd_cluster_id).filter(|id| id.0 != 0);
        let (_, revision) = check_header(expected, header(&reply))?;
        if revision < newest_before {
            return Err(KvstoreError::WentBack { operation: operation(), from: newest_before, to: revision });
        }
        self.newest_revision.fetch_max(revision.0, Ordering::SeqCst);
        Ok((reply, revision))
    }

    /// Runs a call with the limits on time and on calls in flight. Callers box the call: it uses
    /// some 4 KB, which would otherwise be part of each task permanently, and there is a task for
    /// each kind of each cluster (`just bench sync churn`: 12 MB for 255 clusters).
    async fn unary<T>(
        &self,
        operation: impl FnOnce() -> String,
        call: Pin<Box<impl Future<Output = Result<T, etcd_client::Error>>>>,
    ) -> Result<T, KvstoreError> {
        let _permit = self.permit().await;
        self.timed(operation, call).await
    }

    async fn timed<T>(
        &self,
        operation: impl FnOnce() -> String,
        call: Pin<Box<impl Future<Output = Result<T, etcd_client::Error>>>>,
    ) -> Result<T, KvstoreError> {
        let limit = self.options.request_timeout;
        match timeout(limit, call).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(KvstoreError::from_call(operation(), self.options.message_bytes_max, &error)),
            Err(_) => Err(KvstoreError::Timeout { operation: operation(), limit }),
        }
    }
}

/// Creates the client, and logs in if the configuration has a user. Returns whether it is logged
/// in.
async fn log_in(channel: tonic::transport::Channel, config: &EtcdConfig, options: &ClientOptions) -> Result<(Client, bool), KvstoreError> {
    let plain = ConnectOptions::new().with_require_leader(true);
    let anonymous = async |channel| {
        let client = Client::from_channel(Channel::Tonic(channel), Some(plain.clone())).await;
        client.map_err(|e| KvstoreError::from_call("opening".into(), options.message_bytes_max, &e))
    };
    let Some(Credentials { username, password }) = &config.credentials else {
        return Ok((anonymous(channel).await?, false));
    };
    let with_user = plain.clone().with_user(username, password).with_auto_token_refresh(true);
    match Client::from_channel(Channel::Tonic(channel.clone()), Some(with_user)).await {
        Ok(client) => Ok((client, true)),
        // as in etcd's own client, configuring a user is not an error if authentication is disabled
        Err(etcd_client::Error::GRpcStatus(status)) if status.message().contains("authentication is not enabled") => {
            Ok((anonymous(channel).await?, false))
        }
        Err(etcd_client::Error::GRpcStatus(status)) if status.message().contains("authentication failed") => {
            Err(KvstoreError::Authentication { message: with_causes(status.message(), &status) })
        }
        Err(error) => Err(KvstoreError::from_call("logging in".into(), options.message_bytes_max, &error)),
    }
}

/// Returns the cluster id and revision of a reply. Fails if another etcd than expected sent the
/// reply, or if the cluster id is missing or 0.
pub(crate) fn check_header(
    expected: Option<EtcdClusterId>,
    header: Option<&PbResponseHeader>,
) -> Result<(EtcdClusterId, Revision), KvstoreError> {
    let header = header.filter(|header| header.cluster_id != 0).ok_or(KvstoreError::MissingHeader)?;
    let found = EtcdClusterId(header.cluster_id);
    match expected {
        Some(expected) if expected != found => Err(KvstoreError::ClusterIdChanged { expected, found }),
        Some(_) | None => Ok((found, Revision(header.revision))),
    }
}

/// Checks that no key has a newer revision than its reply.
pub(crate) fn check_keys(key_values: &[PbKeyValue], newest: Revision) -> Result<(), KvstoreError> {
    match key_values.iter().find(|key_value| key_value.mod_revision > newest.0) {
        None => Ok(()),
        Some(newer) => {
            let (key, revision) = (printable(&newer.key), newer.mod_revision);
            Err(KvstoreError::Malformed { reason: format!("{key} of revision {revision} in a reply of revision {newest}") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_newer_than_their_reply_are_refused() {
        let key = |mod_revision| PbKeyValue { key: b"a".to_vec(), mod_revision, ..Default::default() };
        check_keys(&[key(6), key(7)], Revision(7)).unwrap();
        check_keys(&[key(i64::MAX)], Revision(i64::MAX)).unwrap();
        let error = check_keys(&[key(6), key(8)], Revision(7)).unwrap_err().to_string();
        assert_eq!(error, "etcd sent an invalid answer: \"a\" of revision 8 in a reply of revision 7");
    }

    #[test]
    fn replies_from_another_etcd_or_without_an_id_are_refused() {
        let header = |cluster_id| Some(PbResponseHeader { cluster_id, revision: 7, ..Default::default() });
        let message = |expected, header: Option<PbResponseHeader>| check_header(expected, header.as_ref()).map_err(|e| e.to_string());
        let (first, second) = (EtcdClusterId(0xabc), EtcdClusterId(0xdef));
        assert_eq!(message(None, header(0xabc)), Ok((first, Revision(7))));
        assert_eq!(message(Some(first), header(0xabc)), Ok((first, Revision(7))));
        assert_eq!(message(Some(second), header(0xabc)), Err("etcd cluster id changed from def to abc".into()));
        assert_eq!(message(Some(first), None), Err("reply without header".into()));
        assert_eq!(message(None, header(0)), Err("reply without header".into()));
    }
}
