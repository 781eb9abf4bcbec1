//! Limits for one client of the etcd API. A client that reaches a limit must not affect other
//! clients.

use std::net::IpAddr;

use etcd_client::{Channel, Client, Error, EventType, Txn, TxnOp, TxnOpResponse, WatchOptions};
use tonic::Code;
use tonic::transport::Endpoint;

use super::watches::next_response;
use super::{MirroredCluster, etcd_api_url, list};
use crate::harness::PATIENCE;

/// Connects a client from the given address, because the server distinguishes clients by address.
pub(super) async fn client_with_address(url: &str, address: [u8; 4]) -> Client {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().local_address(Some(IpAddr::from(address)));
    Client::from_channel(Channel::Tonic(endpoint.connect().await.unwrap()), None).await.unwrap()
}

#[tokio::test]
async fn watches_of_one_client_use_at_most_16_mib_of_keys() {
    const KEY_BYTES: usize = 1 << 20;
    let MirroredCluster { mut remote, home, meshkeep: _meshkeep, api: _ } = MirroredCluster::start().await;
    let url = etcd_api_url(&home);
    let mut greedy = client_with_address(&url, [127, 0, 0, 2]).await;
    // `key` and `range_end` together are larger than a request to etcd may be
    let range = WatchOptions::new().with_range(vec![b'l'; 1 << 20]);
    let mut watch = greedy.watch(vec![b'k'; (1 << 19) + 1], Some(range)).await.unwrap();
    let refused = next_response(&mut watch).await;
    assert!(refused.created() && refused.canceled() && refused.cancel_reason().contains("request is too large"), "{refused:?}");
    let mut watches = Vec::new();
    let refused = loop {
        let mut watch = greedy.watch(vec![b'k'; KEY_BYTES], None).await.unwrap();
        let reported = next_response(&mut watch).await;
        if reported.canceled() {
            break reported;
        }
        watches.push(watch);
        assert!(watches.len() < 100, "there is no limit");
    };
    assert!(refused.cancel_reason().contains("this client's watches"), "{refused:?}");
    assert_eq!(watches.len(), 15, "16 MiB including what each watch needs in addition to its key");
    // other clients are not affected
    let mut other = client_with_address(&url, [127, 0, 0, 3]).await;
    let from = list(&mut other, "cilium/cache/ip/").await.header().unwrap().revision();
    let options = WatchOptions::new().with_prefix().with_start_revision(from + 1);
    let mut live = other.watch("cilium/cache/ip/", Some(options)).await.unwrap();
    assert!(!next_response(&mut live).await.canceled());
    let key = remote.clusters[0].keys_of("ip/v1").swap_remove(0);
    remote.change(|cluster| cluster.delete(&key)).await;
    assert_eq!(next_response(&mut live).await.events()[0].event_type(), EventType::Delete);
    // a cancelled or closed watch frees its slot
    watches[0].cancel(0).await.unwrap();
    assert!(next_response(&mut watches[0]).await.canceled());
    let mut replacement = greedy.watch(vec![b'k'; KEY_BYTES], None).await.unwrap();
    assert!(!next_response(&mut replacement).await.canceled());
    drop((watches, replacement));
    let freed = async {
        loop {
            let mut watch = greedy.watch(vec![b'k'; KEY_BYTES], None).await.unwrap();
            if !next_response(&mut watch).await.canceled() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("must be free again");
}

/// Builds a transaction with `inner` nested transactions of `ranges` ranges each.
fn tree(inner: usize, ranges: usize) -> Txn {
    let nested = || TxnOp::txn(Txn::new().and_then(vec![TxnOp::get("cilium/.heartbeat", None); ranges]));
    Txn::new().and_then((0..inner).map(|_| nested()).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_transaction_may_have_1024_operations_and_128_along_a_path() {
    let MirroredCluster { remote: _remote, home: _home, meshkeep: _meshkeep, mut api } = MirroredCluster::start().await;
    // 8 nested transactions with 120 ranges each
    let answer = api.txn(tree(8, 120)).await.unwrap();
    let inner = answer.op_responses().into_iter().map(|response| match response {
        TxnOpResponse::Txn(inner) => inner.op_responses().len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(inner.collect::<Vec<_>>(), [120; 8]);
    for (too_large, expected) in [(tree(9, 113), "a transaction may have 1024"), (tree(1, 128), "too many operations in txn request")] {
        let Err(Error::GRpcStatus(refused)) = api.txn(too_large).await else { panic!("must be refused: {expected}") };
        assert!(refused.code() == Code::InvalidArgument && refused.message().contains(expected), "{refused}");
    }
    // the keys together must be within etcd's maximum request size
    let long = vec![TxnOp::get(vec![b'k'; 1 << 20], None); 2];
    let Err(Error::GRpcStatus(refused)) = api.txn(Txn::new().and_then(long)).await else { panic!("must be refused") };
    assert_eq!(refused.message(), "etcdserver: request is too large");
}
