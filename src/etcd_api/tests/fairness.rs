//! Fairness between clients of the etcd API.

use std::net::IpAddr;

use etcd_client::proto::{PbCompare, PbKvService, PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use futures_util::FutureExt;
use tonic::{Code, Request};

use super::*;
use crate::admission::{Client, Pace, Scans};
use crate::etcd_api::kv::Keys;
use crate::handle::Allowance;

const KEYS: u8 = 200;

/// One row per slice, on one thread.
const SHORT: Pace = Pace { slice: Allowance::Rows(1), page: Allowance::Rows(1_000) };

/// An etcd API over [`KEYS`] keys, and its scheduler of long requests.
fn face(value: &[u8]) -> (Mirror, Keys, Scans) {
    let (mut mirror, scans) = (Mirror::new(), Scans::on_threads(SHORT, 1));
    (0..KEYS).for_each(|last| mirror.put(&format!("10.0.0.{last}"), value));
    let options = EtcdOptions { scans: scans.clone(), ..EtcdOptions::default() };
    let keys = Keys(Arc::new(Face::new(mirror.handle.clone(), options)));
    (mirror, keys, scans)
}

fn of<T>(client: u8, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Client::at(IpAddr::from([192, 0, 2, client])));
    request
}

fn one() -> PbRangeRequest {
    PbRangeRequest { key: b"cilium/cache/ip/v1/paris/10.0.0.1".to_vec(), ..PbRangeRequest::default() }
}

fn all() -> PbRangeRequest {
    PbRangeRequest { key: vec![0], range_end: vec![0], ..PbRangeRequest::default() }
}

/// A range sorted by revision, the newest first.
fn sorted() -> PbRangeRequest {
    PbRangeRequest { sort_target: 3, sort_order: 2, ..all() }
}

/// A transaction with these ranges and a comparison of all keys.
fn transaction(ranges: Vec<PbRangeRequest>) -> PbTxnRequest {
    let operation = |range| PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestRange(range)) };
    let compare = vec![PbCompare { key: vec![0], range_end: vec![0], result: 3, ..PbCompare::default() }];
    PbTxnRequest { compare, success: ranges.into_iter().map(operation).collect(), failure: Vec::new() }
}

#[tokio::test]
async fn what_takes_long_goes_in_slices_and_ends_with_its_client() {
    let (mirror, keys, scans) = face(b"{}");
    let head = mirror.reading().await.position().sequence.0;
    let earlier = PbRangeRequest { revision: i64::try_from(head).unwrap() - 50, ..all() };
    let many = transaction(vec![earlier.clone(); 100]);
    for (what, rows) in [("sorted", 400), ("earlier", 250), ("txn", 20_000)] {
        let before = scans.spent().rows;
        let ask = async || match what {
            "sorted" => keys.range(of(1, sorted())).await.map(drop),
            "earlier" => keys.range(of(1, earlier.clone())).await.map(drop),
            _ => keys.txn(of(1, many.clone())).await.map(drop),
        };
        ask().await.unwrap();
        let whole = scans.spent().rows - before;
        assert!(whole >= rows, "{what}: {whole} rows");
        // another client's request waits for a few slices, not for all requests of this client
        let before = scans.spent().rows;
        let mut running = Box::pin(futures_util::future::join_all((0..20).map(|_| ask())));
        assert!((&mut running).now_or_never().is_none());
        let small = PbRangeRequest { count_only: true, ..all() };
        tokio::select! {
            answer = keys.range(of(2, small)) => drop(answer.unwrap()),
            _ = &mut running => unreachable!("{what}: all of the long ones before the short one"),
        }
        let meanwhile = scans.spent().rows - before;
        assert!(meanwhile < whole / 2, "{what}: {meanwhile} rows before the short one");
        drop(running);
        keys.range(of(2, PbRangeRequest { count_only: true, ..all() })).await.unwrap();
        let after = scans.spent().rows - before;
        assert!(after < meanwhile + 60, "{what}: work goes on for a client that is gone");
        assert_eq!(scans.count(), 0, "{what}");
    }
}

#[tokio::test]
async fn answers_that_nobody_reads_take_what_they_have_and_no_more_than_a_share() {
    let (_mirror, keys, _scans) = face(&[b'x'; 300]);
    let mut unread = Vec::new();
    // more than the number of 64 KiB pieces in the budget of all answers
    for _ in 0..9_000 {
        unread.push(keys.range(of(1, one())).await.unwrap());
    }
    keys.range(of(2, one())).await.unwrap();
    drop(unread);
    let (_mirror, keys, _scans) = face(&vec![b'x'; 1 << 20]);
    // 200 MiB each
    let list = keys.range(of(1, PbRangeRequest { sort_target: 4, sort_order: 1, ..all() })).await.unwrap();
    let refused = keys.range(of(1, all())).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("etcdserver: too many requests: the answers of this client")),
        (Code::ResourceExhausted, true)
    );
    // quick answers have their own budget, and other clients have their shares
    keys.range(of(1, one())).await.unwrap();
    let small = PbRangeRequest { limit: 100, ..all() };
    keys.range(of(2, small)).await.unwrap();
    drop(list);
    keys.range(of(1, all())).await.unwrap();
}

#[tokio::test]
async fn quick_answers_that_one_client_does_not_read_leave_others_theirs() {
    let (_mirror, keys, _scans) = face(&vec![b'x'; 1 << 20]);
    let mut unread = Vec::new();
    let refused = loop {
        match keys.range(of(1, one())).await {
            Ok(answer) => unread.push(answer),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    keys.range(of(2, one())).await.unwrap();
}
