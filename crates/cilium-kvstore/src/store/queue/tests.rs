//! Tests of a queue: its effects on keys, and its state after a dropped run.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{ClientOptions, EtcdConfig, SessionOptions};

/// Numbered keys. The desired value of each key is the key itself.
struct Numbered(usize);

impl Numbered {
    fn key(number: usize) -> Vec<u8> {
        format!("{number:06}").into_bytes()
    }
}

impl DesiredState for Numbered {
    type Key = Vec<u8>;

    fn etcd_key(&self, key: &Vec<u8>) -> Vec<u8> {
        key.clone()
    }

    fn value(&self, key: &Vec<u8>) -> Option<Arc<[u8]>> {
        Some(key.as_slice().into())
    }

    fn keys_after(&self, last: Option<&Vec<u8>>, count: usize) -> Vec<Vec<u8>> {
        let keys = (0..self.0).map(Self::key);
        keys.skip_while(|key| last.is_some_and(|last| key <= last)).take(count).collect()
    }
}

/// Returns a queue whose session has no server: each write fails after 20 ms.
fn queue(keys: usize) -> SyncQueue<Numbered> {
    let file = EtcdConfig::new("http://127.0.0.1:1");
    let client = ClientOptions { request_timeout: Duration::from_millis(20), ..ClientOptions::default() };
    let session = Session::start(file, SessionOptions { client, ..SessionOptions::default() }, CancellationToken::new());
    SyncQueue::new(session, Arc::new(Numbered(keys)), KeyLifetime::Leased, 4)
}

#[tokio::test]
async fn interrupted_writes_are_repeated_by_the_next_run() {
    let queue = queue(1);
    queue.add_now(b"a".to_vec(), 1);
    {
        let mut run = std::pin::pin!(queue.run());
        assert!(futures_util::poll!(&mut run).is_pending());
        assert!(queue.shared.state().items[&b"a"[..]].running);
        queue.add_now(b"a".to_vec(), 1);
    }
    assert_eq!(queue.counts().failed, 0, "the first run did not finish its write");
    let retried = async {
        while queue.counts().failed == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = queue.run() => {}
        result = tokio::time::timeout(Duration::from_secs(10), retried) => result.expect("the second run must try to write the key again"),
    }
    assert_eq!((queue.pending(1), queue.counts().waiting), (1, 1));
    queue.clear();
    assert_eq!((queue.pending(1), queue.counts().waiting), (0, 0));
}

#[tokio::test]
async fn lost_keys_are_searched_in_batches_while_there_is_capacity() {
    let count = WAITING_MAX + 3 * LOST_KEY_BATCH;
    let queue = queue(count);
    let all: Vec<Vec<u8>> = (0..count).map(Numbered::key).collect();
    queue.add_lost_keys(&LostKeys::from_keys(all.iter().map(Vec::as_slice)));
    assert_eq!(queue.pending(SyncQueue::<Numbered>::LOST), 1, "the search has found no key yet, so the group must not count as written");
    assert!(queue.scan_for_lost_keys());
    assert_eq!(queue.counts().waiting, LOST_KEY_BATCH);
    while queue.scan_for_lost_keys() {}
    assert_eq!(queue.counts().waiting, WAITING_MAX, "the queue is full");
    assert_eq!(queue.pending(SyncQueue::<Numbered>::LOST), WAITING_MAX + 1);
    let now = Instant::now();
    let (mut written, mut scans) = (0, 0);
    while queue.pending(SyncQueue::<Numbered>::LOST) > 0 {
        let due = queue.shared.state().next_due(now);
        due.iter().for_each(|key| queue.shared.state().succeeded(key));
        written += usize::from(due.is_some());
        scans += usize::from(queue.scan_for_lost_keys());
    }
    assert_eq!(written, count, "each key is written once");
    assert!(scans >= 3, "{scans}");
}

#[tokio::test]
async fn a_key_is_queued_once_and_counts_until_it_is_written() {
    let mut state = QueueState::<&str>::default();
    let now = Instant::now();
    assert!(state.add("a", 1));
    assert!(!state.add("a", 1), "the key is in the queue already");
    assert!(state.add("b", 1));
    assert_eq!(state.next_due(now), Some("a"));
    assert!(!state.add("a", 1), "the key changed while it was being written");
    state.succeeded(&"a");
    assert_eq!(state.groups.get(&1), Some(&2));
    assert_eq!(state.next_due(now), Some("b"));
    state.reschedule(&"b", now);
    assert_eq!(state.next_due(now), Some("a"));
    state.succeeded(&"a");
    assert_eq!(state.groups.get(&1), Some(&1));
    assert_eq!(state.next_due(now), None, "b is not due before its retry");
    assert_eq!(state.next_due(now + RETRY_MIN), Some("b"));
    state.reschedule(&"b", now);
    assert_eq!(state.retries.first().unwrap().0, now + 2 * RETRY_MIN);
    for _ in 0..40 {
        state.retries.clear();
        state.reschedule(&"b", now);
    }
    assert_eq!(state.retries.first().unwrap().0, now + RETRY_MAX);
    state.succeeded(&"b");
    assert!(state.groups.is_empty() && state.items.is_empty());
}
