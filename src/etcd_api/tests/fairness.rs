//! Fairness between clients of the etcd API.

use std::net::IpAddr;

use etcd_client::proto::{PbCompare, PbKvService, PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use futures_util::FutureExt;
use tonic::{Code, Request};

use super::*;
use crate::admission::{Client, ScanExecutor, ScanLimits};
use crate::etcd_api::kv::KvService;
use crate::handle::SliceLimit;

const KEYS: u8 = 200;

/// One row per slice.
const ONE_ROW_SLICES: ScanLimits = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(1_000) };

/// An etcd API over [`KEYS`] keys, and its scheduler of long requests, which uses one thread.
fn api_with_keys(value: &[u8]) -> (InMemoryMirror, KvService, ScanExecutor) {
    let (mut mirror, scans) = (InMemoryMirror::new(), ScanExecutor::with_threads(ONE_ROW_SLICES, 1));
    (0..KEYS).for_each(|last| mirror.put(&format!("10.0.0.{last}"), value));
    let options = EtcdOptions { scans: scans.clone(), ..EtcdOptions::default() };
    let kv = KvService(Arc::new(EtcdApi::new(mirror.handle.clone(), options)));
    (mirror, kv, scans)
}

fn from_client<T>(client: u8, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Client::from_ip(IpAddr::from([192, 0, 2, client])));
    request
}

fn single_key() -> PbRangeRequest {
    PbRangeRequest { key: b"cilium/cache/ip/v1/paris/10.0.0.1".to_vec(), ..PbRangeRequest::default() }
}

fn all_keys() -> PbRangeRequest {
    PbRangeRequest { key: vec![0], range_end: vec![0], ..PbRangeRequest::default() }
}

/// A range sorted by revision, the newest first.
fn newest_first() -> PbRangeRequest {
    PbRangeRequest { sort_target: 3, sort_order: 2, ..all_keys() }
}

/// A transaction with these ranges and a comparison of all keys.
fn transaction(ranges: Vec<PbRangeRequest>) -> PbTxnRequest {
    let operation = |range| PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestRange(range)) };
    let compare = vec![PbCompare { key: vec![0], range_end: vec![0], result: 3, ..PbCompare::default() }];
    PbTxnRequest { compare, success: ranges.into_iter().map(operation).collect(), failure: Vec::new() }
}

#[tokio::test]
async fn long_requests_run_in_slices_and_end_when_their_client_disconnects() {
    let (mirror, kv, scans) = api_with_keys(b"{}");
    let head = mirror.reading().await.position().sequence.0;
    let earlier = PbRangeRequest { revision: i64::try_from(head).unwrap() - 50, ..all_keys() };
    let many = transaction(vec![earlier.clone(); 100]);
    for (name, rows) in [("sorted", 400), ("earlier", 250), ("txn", 20_000)] {
        let before = scans.total_usage().rows;
        let send = async || match name {
            "sorted" => kv.range(from_client(1, newest_first())).await.map(drop),
            "earlier" => kv.range(from_client(1, earlier.clone())).await.map(drop),
            _ => kv.txn(from_client(1, many.clone())).await.map(drop),
        };
        send().await.unwrap();
        let rows_alone = scans.total_usage().rows - before;
        assert!(rows_alone >= rows, "{name}: {rows_alone} rows");
        // another client's request waits for a few slices, not for all requests of this client
        let before = scans.total_usage().rows;
        let mut running = Box::pin(futures_util::future::join_all((0..20).map(|_| send())));
        assert!((&mut running).now_or_never().is_none());
        let small = PbRangeRequest { count_only: true, ..all_keys() };
        tokio::select! {
            answer = kv.range(from_client(2, small)) => drop(answer.unwrap()),
            _ = &mut running => unreachable!("{name}: all long requests finished before the short one"),
        }
        let rows_meanwhile = scans.total_usage().rows - before;
        assert!(rows_meanwhile < rows_alone / 2, "{name}: {rows_meanwhile} rows before the short one");
        drop(running);
        kv.range(from_client(2, PbRangeRequest { count_only: true, ..all_keys() })).await.unwrap();
        let after = scans.total_usage().rows - before;
        assert!(after < rows_meanwhile + 60, "{name}: work continues for a client that disconnected");
        assert_eq!(scans.admitted_count(), 0, "{name}");
    }
}

#[tokio::test]
async fn unread_answers_reserve_only_their_own_bytes() {
    let (_mirror, kv, _scans) = api_with_keys(&[b'x'; 300]);
    let mut unread = Vec::new();
    // more than the number of 64 KiB pieces in the budget of all answers
    for _ in 0..9_000 {
        unread.push(kv.range(from_client(1, single_key())).await.unwrap());
    }
    kv.range(from_client(2, single_key())).await.unwrap();
    drop(unread);
    let (_mirror, kv, _scans) = api_with_keys(&vec![b'x'; 1 << 20]);
    // 200 MiB each
    let list = kv.range(from_client(1, PbRangeRequest { sort_target: 4, sort_order: 1, ..all_keys() })).await.unwrap();
    let refused = kv.range(from_client(1, all_keys())).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("etcdserver: too many requests: the unread answers of this client")),
        (Code::ResourceExhausted, true)
    );
    // quick answers have their own budget, and other clients have their shares
    kv.range(from_client(1, single_key())).await.unwrap();
    let small = PbRangeRequest { limit: 100, ..all_keys() };
    kv.range(from_client(2, small)).await.unwrap();
    drop(list);
    kv.range(from_client(1, all_keys())).await.unwrap();
}

#[tokio::test]
async fn unread_quick_answers_do_not_use_the_share_of_other_clients() {
    let (_mirror, kv, _scans) = api_with_keys(&vec![b'x'; 1 << 20]);
    let mut unread = Vec::new();
    let refused = loop {
        match kv.range(from_client(1, single_key())).await {
            Ok(answer) => unread.push(answer),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    kv.range(from_client(2, single_key())).await.unwrap();
}
