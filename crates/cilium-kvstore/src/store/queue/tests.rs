//! Tests of a queue: its effects on keys, and its state after a dropped run.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{ClientOptions, EtcdConfig, SessionOptions};

/// Numbered keys, each with its own name as the desired value.
struct Numbered(usize);

impl Numbered {
    fn key(number: usize) -> Vec<u8> {
        format!("{number:06}").into_bytes()
    }
}

impl Wanted for Numbered {
    type Key = Vec<u8>;

    fn etcd_key(&self, key: &Vec<u8>) -> Vec<u8> {
        key.clone()
    }

    fn value(&self, key: &Vec<u8>) -> Option<Arc<[u8]>> {
        Some(key.as_slice().into())
    }

    fn keys_behind(&self, last: Option<&Vec<u8>>, count: usize) -> Vec<Vec<u8>> {
        let keys = (0..self.0).map(Self::key);
        keys.skip_while(|key| last.is_some_and(|last| key <= last)).take(count).collect()
    }
}

/// Returns a queue over an endpoint without a server: each attempt fails after 20 ms.
fn queue(keys: usize) -> SyncQueue<Numbered> {
    let file = EtcdConfig::new("http://127.0.0.1:1");
    let client = ClientOptions { request_timeout: Duration::from_millis(20), ..ClientOptions::default() };
    let session = Session::start(file, SessionOptions { client, ..SessionOptions::default() }, CancellationToken::new());
    SyncQueue::new(session, Arc::new(Numbered(keys)), Life::Leased, 4)
}

#[tokio::test]
async fn what_was_being_written_when_a_run_was_dropped_is_written_by_the_next_one() {
    let queue = queue(1);
    queue.add_now(b"a".to_vec(), 1);
    {
        let mut run = std::pin::pin!(queue.run());
        assert!(futures_util::poll!(&mut run).is_pending());
        assert!(queue.shared.state().items[&b"a"[..]].running);
        queue.add_now(b"a".to_vec(), 1);
    }
    assert_eq!(queue.counts().failed, 0, "the first run came to no end of its try");
    let second = async {
        while queue.counts().failed == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = queue.run() => {}
        tried = tokio::time::timeout(Duration::from_secs(10), second) => tried.expect("must be tried again"),
    }
    assert_eq!((queue.pending(1), queue.counts().waiting), (1, 1));
    queue.clear();
    assert_eq!((queue.pending(1), queue.counts().waiting), (0, 0));
}

#[tokio::test]
async fn keys_of_lost_leases_are_found_piece_by_piece_as_far_as_there_is_room() {
    let count = WAITING_MAX + 3 * LOOKED_AT_ONCE;
    let queue = queue(count);
    let all: Vec<Vec<u8>> = (0..count).map(Numbered::key).collect();
    queue.add_lost(&LostKeys::of(all.iter().map(Vec::as_slice)));
    assert_eq!(queue.pending(SyncQueue::<Numbered>::LOST), 1, "nothing is found yet, and nothing may be taken for written");
    assert!(queue.look_for_lost());
    assert_eq!(queue.counts().waiting, LOOKED_AT_ONCE);
    while queue.look_for_lost() {}
    assert_eq!(queue.counts().waiting, WAITING_MAX, "there is no room for more");
    assert_eq!(queue.pending(SyncQueue::<Numbered>::LOST), WAITING_MAX + 1);
    let now = Instant::now();
    let (mut written, mut looks) = (0, 0);
    while queue.pending(SyncQueue::<Numbered>::LOST) > 0 {
        let taken = queue.shared.state().take(now);
        taken.iter().for_each(|key| queue.shared.state().succeeded(key));
        written += usize::from(taken.is_some());
        looks += usize::from(queue.look_for_lost());
    }
    assert_eq!(written, count, "each once");
    assert!(looks >= 3, "{looks}");
}

#[tokio::test]
async fn a_key_waits_once_is_written_again_if_it_changed_meanwhile_and_counts_until_it_succeeded() {
    let mut state = QueueState::<&str>::default();
    let now = Instant::now();
    assert!(state.add("a", 1));
    assert!(!state.add("a", 1), "it waits already");
    assert!(state.add("b", 1));
    assert_eq!(state.take(now), Some("a"));
    assert!(!state.add("a", 1), "it changed while it was written");
    state.succeeded(&"a");
    assert_eq!(state.groups.get(&1), Some(&2));
    assert_eq!(state.take(now), Some("b"));
    state.put_off(&"b", now);
    assert_eq!(state.take(now), Some("a"));
    state.succeeded(&"a");
    assert_eq!(state.groups.get(&1), Some(&1));
    assert_eq!(state.take(now), None, "b waits before it is tried again");
    assert_eq!(state.take(now + RETRY_MIN), Some("b"));
    state.put_off(&"b", now);
    assert_eq!(state.later.first().unwrap().0, now + 2 * RETRY_MIN);
    for _ in 0..40 {
        state.later.clear();
        state.put_off(&"b", now);
    }
    assert_eq!(state.later.first().unwrap().0, now + RETRY_MAX);
    state.succeeded(&"b");
    assert!(state.groups.is_empty() && state.items.is_empty());
}
