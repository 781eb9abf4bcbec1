//! Tests of paged lists.

use std::collections::{BTreeMap, BTreeSet};

use cilium_kvstore::Revision;
use cilium_kvstore::{ClientOptions, Disposition, Page, PagedList};
use etcd_client::PutOptions;

use super::{open, open_with};
use crate::harness::etcd::{Etcd, etcd_binaries};

const MIB: usize = 1 << 20;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn entries(count: usize, value: impl Fn(usize) -> Vec<u8>) -> Entries {
    (0..count).map(|i| (format!("cilium/state/nodes/v1/{i:05}").into_bytes(), value(i))).collect()
}

async fn remaining_pages(list: &mut PagedList) -> Vec<Page> {
    let mut pages = Vec::new();
    while let Some(page) = list.next_page().await.unwrap() {
        pages.push(page);
    }
    assert_eq!(list.next_page().await.unwrap(), None);
    pages
}

fn contents(pages: &[Page]) -> Entries {
    pages.iter().flat_map(|page| &page.key_values).map(|kv| (kv.key.clone(), kv.value.to_vec())).collect()
}

#[tokio::test]
async fn a_paged_list_has_one_revision_despite_changes() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let put = entries(1000, |i| format!("value {i}").into_bytes());
        let revision = etcd.put_many(put.clone()).await;
        etcd.put("cilium/state/nodes/v10", "next to the prefix").await;
        etcd.put("cilium/state/nodes/v1", "next to the prefix too").await;
        let connection = open_with(&etcd, &ClientOptions { range_stream: false, ..ClientOptions::default() }).await;
        let mut list = connection.list(b"cilium/state/nodes/v1/");
        let mut pages = vec![list.next_page().await.unwrap().unwrap()];
        etcd.delete("cilium/state/nodes/v1/00900").await;
        etcd.put("cilium/state/nodes/v1/00901", "changed").await;
        etcd.put("cilium/state/nodes/v1/00901a", "new").await;
        pages.extend(remaining_pages(&mut list).await);
        assert_eq!(pages.iter().map(|page| page.key_values.len()).collect::<Vec<_>>(), [256, 256, 256, 232]);
        for page in &pages {
            assert_eq!((page.revision, page.total_count), (Revision(revision + 2), 1000));
        }
        assert!(contents(&pages) == put);
    }
}

/// Only etcd 3.7 has `RangeStream`. Older servers refuse the first stream, and the remaining keys
/// are read in pages.
#[tokio::test]
async fn a_streamed_list_has_one_revision_despite_changes() {
    let mut lengths = BTreeSet::new();
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).start().await;
        etcd.enable_auth("meshkeep", "secret").await;
        let put = entries(1000, |i| format!("value {i}").into_bytes());
        let revision = etcd.put_many(put.clone()).await;
        let connection = open(&etcd).await;
        for round in 0..2 {
            let mut list = connection.list(b"cilium/state/nodes/v1/");
            let mut pages = vec![list.next_page().await.unwrap().unwrap()];
            etcd.put("cilium/state/nodes/v1/00901", "value 901").await;
            etcd.put("cilium/state/nodes/v1/00901a", "new").await;
            etcd.delete("cilium/state/nodes/v1/00901a").await;
            pages.extend(remaining_pages(&mut list).await);
            for page in &pages {
                assert_eq!((page.revision, page.total_count), (Revision(revision + 3 * round), 1000));
            }
            assert!(contents(&pages) == put);
            // a stream is not requested again from a server that does not implement it
            assert_eq!(connection.has_range_stream(), pages[1].key_values.len() == 10);
            lengths.insert(pages.iter().map(|page| page.key_values.len()).collect::<Vec<_>>());
        }
    }
    // a stream starts with ten keys and doubles (`initialStreamChunkLimit` in etcd's
    // `v3_server.go`)
    let (in_pages, as_stream) = (vec![256, 256, 256, 232], vec![256, 10, 20, 40, 80, 160, 320, 114]);
    let expected = if etcd_binaries().len() > 2 { BTreeSet::from([in_pages, as_stream]) } else { BTreeSet::from([in_pages]) };
    assert_eq!(lengths, expected);
}

/// A part of a stream may be twice as large as etcd's largest request. If a part does not fit into
/// a message, the remaining keys are read in pages.
#[tokio::test]
async fn a_list_continues_in_pages_if_parts_of_a_stream_are_too_large() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let size = 700 << 10;
        let put = entries(300, |i| if i < 256 { b"small".to_vec() } else { vec![u8::try_from(i % 256).unwrap(); size] });
        for (key, value) in &put {
            etcd.put(key.clone(), value.clone()).await;
        }
        let options = ClientOptions { message_bytes_max: 2 * MIB, ..ClientOptions::default() };
        let connection = open_with(&etcd, &options).await;
        assert!(contents(&remaining_pages(&mut connection.list(b"cilium/")).await) == put);
    }
}

#[tokio::test]
async fn an_empty_list_has_one_empty_page_and_no_limit_means_one_page() {
    let etcd = Etcd::start().await;
    let options = ClientOptions { page_limit: 0, ..ClientOptions::default() };
    let connection = open_with(&etcd, &options).await;
    let pages = remaining_pages(&mut connection.list(b"cilium/")).await;
    assert_eq!(pages, [Page { revision: Revision(1), key_values: vec![], total_count: 0 }]);
    etcd.put_many(entries(1000, |_| vec![])).await;
    let pages = remaining_pages(&mut connection.list(b"")).await;
    assert_eq!(pages.iter().map(|page| page.key_values.len()).collect::<Vec<_>>(), [1000]);
}

#[tokio::test]
async fn a_list_reports_compacted_history_and_the_connection_survives() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put_many(entries(300, |_| vec![])).await;
        let connection = open(&etcd).await;
        let mut list = connection.list(b"cilium/");
        list.next_page().await.unwrap();
        let newest = etcd.put("cilium/z", "1").await;
        etcd.compact(newest).await;
        let error = list.next_page().await.unwrap_err();
        assert_eq!(error.disposition(), Disposition::Resync, "{error}");
        assert!(error.to_string().contains("the revision is compacted"), "{error}");
        assert_eq!(contents(&remaining_pages(&mut connection.list(b"cilium/")).await).len(), 301);
    }
}

/// A page that does not fit into a message is requested again with half of the keys. etcd's own
/// limit of a request is 1.5 MiB, so a page of 256 such values would be 360 MiB.
#[tokio::test]
async fn pages_too_large_for_a_message_are_halved_and_grow_again() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let size = 1_400 << 10;
        let put = entries(340, |i| if i < 40 { vec![u8::try_from(i).unwrap(); size] } else { b"small".to_vec() });
        let mut client = etcd.client().await;
        for (key, value) in &put {
            client.put(key.clone(), value.clone(), None::<PutOptions>).await.unwrap();
        }
        for (options, lengths) in [
            (ClientOptions { message_bytes_max: 2 * MIB, page_limit: 64, range_stream: false, ..ClientOptions::default() }, {
                let mut lengths = vec![1; 40];
                lengths.extend([1, 2, 4, 8, 16, 32, 64, 64, 64, 45]);
                lengths
            }),
            (ClientOptions { range_stream: false, ..ClientOptions::default() }, vec![16, 16, 16, 16, 32, 64, 128, 52]),
        ] {
            let connection = open_with(&etcd, &options).await;
            let pages = remaining_pages(&mut connection.list(b"cilium/")).await;
            assert!(contents(&pages) == put);
            assert_eq!(pages.iter().map(|page| page.key_values.len()).collect::<Vec<_>>(), lengths);
        }
        let options = ClientOptions { message_bytes_max: MIB, page_limit: 0, ..ClientOptions::default() };
        let connection = open_with(&etcd, &options).await;
        let error = connection.list(b"cilium/").next_page().await.unwrap_err();
        let expected = "reading one key from \"cilium/\" to \"cilium0\": more than 1048576 bytes in one message";
        assert_eq!((error.to_string().as_str(), error.disposition()), (expected, Disposition::Retry));
        connection.get(b"cilium/none", None).await.unwrap();
    }
}
