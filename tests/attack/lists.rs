//! Remote clusters that try to break lists for all clients: with keys of 20 KB, whose page tokens
//! would not fit into a request, and with services whose endpoint slices exceed the memory budget
//! of any answer. An honest cluster in the same mesh must be listed completely, page by page.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, publish, put_leased};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::slices::encode_large_slice;
use crate::harness::truth::Truth;

const STAMP: &str = "2026-01-12T09:31:07Z";

/// Length of the hostile keys. etcd accepts up to 1.5 MiB; Cilium's own keys have less than 700
/// bytes.
const KEY_BYTES: usize = 20_000;

/// Maximum length of a page token (docs/use/api/paging.md).
const TOKEN_MAX: usize = 512;

/// Lists that contain a remote's keys.
const LISTS: [&str; 8] = [
    "/v1/entries?prefix=cilium/cache/",
    "/v1/rejected",
    "/v1/nodes",
    "/v1/services",
    "/v1/identities",
    "/v1/ipcache",
    "/v1/global-services",
    "/v1/problems",
];

/// Size of a hostile endpoint slice after decompression. The server reserves five times as much to
/// decode it, so that four slices exceed `--decoded-max-bytes` (256 MiB).
const UNPACKED_BYTES: usize = 15 << 20;

/// Returns `few` in a test, and the number from `scripts/attack lists` otherwise.
fn count(few: usize) -> usize {
    std::env::var("MESHKEEP_ATTACK_LISTS").map_or(few, |many| many.parse().expect("MESHKEEP_ATTACK_LISTS must be a number"))
}

/// All items of a list, with measurements of its pages.
#[derive(Debug, Default)]
struct CompleteList {
    items: Vec<Value>,
    pages: usize,
    token_max: usize,
    page_max: Duration,
}

async fn read_list(meshkeep: &Meshkeep, list: &str, limit: usize) -> CompleteList {
    let (mut result, mut token) = (CompleteList::default(), None::<String>);
    loop {
        let separator = if list.contains('?') { '&' } else { '?' };
        let token_parameter = token.map(|token| format!("&pageToken={token}")).unwrap_or_default();
        let started = Instant::now();
        let (status, page) = meshkeep.send_get(&format!("{list}{separator}limit={limit}{token_parameter}")).await;
        assert_eq!(status, 200, "{list}, limit {limit}, page {}: {}", result.pages, page["detail"]);
        result.page_max = result.page_max.max(started.elapsed());
        result.pages += 1;
        result.items.extend(page["items"].as_array().unwrap().iter().cloned());
        token = page["nextPageToken"].as_str().map(str::to_owned);
        let Some(token) = &token else { return result };
        result.token_max = result.token_max.max(token.len());
        assert!(token.len() <= TOKEN_MAX, "{list}: a token of {} characters", token.len());
    }
}

/// Publishes the honest cluster `c02`, which follows the hostile `c01` in every list, and writes
/// the client files of both.
async fn start_meshes(hostile: &Etcd) -> (Etcd, MeshCluster, Home) {
    let etcd = Etcd::start().await;
    let honest = MeshCluster::generate(2, EVERY_KIND);
    publish(&etcd, Form::State, std::slice::from_ref(&honest), STAMP).await;
    publish(hostile, Form::State, &[MeshCluster::generate(1, EVERY_KIND)], STAMP).await;
    let home = Home::new();
    home.write_cluster("c01", &hostile.client_file_yaml());
    home.write_cluster("c02", &etcd.client_file_yaml());
    (etcd, honest, home)
}

#[tokio::test]
async fn lists_stay_complete_with_keys_of_20_kb() {
    let hostile = Etcd::start().await;
    let (_etcd, honest, mut home) = start_meshes(&hostile).await;
    let padding = "k".repeat(KEY_BYTES);
    let count = count(20);
    // 20 keys of 20 KB with values of 40 KB are below etcd's maximum request size
    for from in (0..count).step_by(20) {
        for kind in ["nodes/v1/c01/", "services/v1/c01/shop/", "ip/v1/default/", "identities/v1/id/", "serviceexports/v1/c01/shop/"] {
            let key = |number| (format!("cilium/state/{kind}{number:05}{padding}"), b"{}".to_vec());
            put_leased(&hostile, (from..count.min(from + 20)).map(key)).await;
        }
        // short keys with long names in their values, because findings quote these names
        let value = |number: usize| {
            json!({ "IP": format!("10.1.{}.{}", number / 250, number % 250 + 1), "Mask": null, "HostIP": "172.31.0.1", "ID": 65_800,
                "K8sNamespace": padding, "K8sPodName": padding })
        };
        let key = |number| {
            (format!("cilium/state/ip/v1/default/{}", value(number)["IP"].as_str().unwrap()), value(number).to_string().into_bytes())
        };
        put_leased(&hostile, (from..count.min(from + 20)).map(key)).await;
    }
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c01", "live").await;
    meshkeep.wait_for_phase("c02", "live").await;
    let honest_count = Truth::from_clusters([&honest]).expected().objects.len();
    let mut total = CompleteList::default();
    for list in LISTS {
        let whole = read_list(&meshkeep, list, 1_000).await;
        let paged = read_list(&meshkeep, list, 7).await;
        assert_eq!(paged.items.len(), whole.items.len(), "{list}");
        total.pages += paged.pages + whole.pages;
        total.token_max = total.token_max.max(paged.token_max).max(whole.token_max);
        total.page_max = total.page_max.max(paged.page_max).max(whole.page_max);
    }
    let mut served = 0;
    for list in ["nodes", "services", "identities", "ipcache", "service-exports", "endpoint-slices"] {
        served += read_list(&meshkeep, &format!("/v1/{list}?cluster=c02"), 1_000).await.items.len();
    }
    assert_eq!(served, honest_count);
    let rejected = read_list(&meshkeep, "/v1/rejected?cluster=c01", 1_000).await.items;
    assert!(!rejected.is_empty() && rejected.iter().all(|item| item["key"].as_str().unwrap().len() < 600), "{rejected:?}");
    println!(
        "{count} keys of {KEY_BYTES} bytes of each kind: {} pages of {} lists, the longest token has {} characters, the slowest page took {:?}",
        total.pages,
        LISTS.len(),
        total.token_max,
        total.page_max
    );
}

#[tokio::test]
async fn lists_stay_complete_with_services_too_large_to_decode() {
    let hostile = Etcd::start().await;
    let (_etcd, honest, mut home) = start_meshes(&hostile).await;
    let count = count(3);
    for number in 0..count {
        let slices = (0..4).map(|part| {
            let (service, name) = (format!("large-{number:05}"), format!("large-{number:05}-{part}"));
            (format!("cilium/state/endpointslices/v1/c01/a/{name}"), encode_large_slice(&service, "c01", 1, "a", &name, UNPACKED_BYTES))
        });
        put_leased(&hostile, slices).await;
    }
    let meshkeep = home.start().await;
    let is_live = || async { (meshkeep.phase("c01").await == "live").then_some(()) };
    crate::harness::eventually_within(Duration::from_secs(600), "the slices to be read", is_live).await;
    meshkeep.wait_for_phase("c02", "live").await;
    let is_large = |item: &Value| item["tooLarge"].is_object();
    let whole = read_list(&meshkeep, "/v1/global-services", 1_000).await;
    assert_eq!(whole.items.iter().filter(|item| is_large(item)).count(), count);
    let paged = read_list(&meshkeep, "/v1/global-services", 7).await;
    assert_eq!(paged.items.len(), whole.items.len());
    // the honest cluster is complete
    let honest_services = read_list(&meshkeep, "/v1/global-services?cluster=c02", 1_000).await.items;
    assert!(!honest_services.is_empty() && !honest_services.iter().any(is_large));
    let expected = Truth::from_clusters([&honest]).expected().objects.len();
    let mut served = 0;
    for list in ["nodes", "services", "identities", "ipcache", "service-exports", "endpoint-slices"] {
        served += read_list(&meshkeep, &format!("/v1/{list}?cluster=c02"), 1_000).await.items.len();
    }
    assert_eq!(served, expected);
    let findings = eventually("a finding for each service", || async {
        let findings = read_list(&meshkeep, "/v1/problems?kind=serviceTooLarge", 1_000).await.items;
        (findings.len() == count).then_some(findings)
    })
    .await;
    assert!(findings.iter().all(|finding| finding["clusters"] == json!(["c01"]) && finding["key"].is_string()));
    let page_max = whole.page_max.max(paged.page_max);
    println!(
        "{count} services too large to decode: {} pages, the slowest took {page_max:?}, {} MB resident at most",
        paged.pages,
        meshkeep.resident_peak() / 1_000_000
    );
}
