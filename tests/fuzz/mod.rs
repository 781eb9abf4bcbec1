//! Every decoder of foreign bytes against damaged ones: none panics, none takes long, none grows without bound.
//!
//! No coverage guides this, but what a decoder says does: bytes that lead to a reason not heard before (but for numbers and quoted
//! texts) are damaged further. `FUZZ_SECONDS` says how long each target runs (`just fuzz SECONDS`); in the usual tests it is a moment.

mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use meshkeep::handle::LabelSelector;
use meshkeep::kvstore::ClientFile;
use meshkeep::model::{ClusterId, ClusterName, EntryKey, Kind, MaxConnectedClusters, Position};
use meshkeep::wire::cluster_config::parse_cluster_config;
use meshkeep::wire::{self, Context, keys};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;

/// How long each target runs in the usual tests.
const SECONDS_DEFAULT: f64 = 0.5;

/// How long one value may take, in a debug build on a core that others use too: 16 MiB at 0.5 MB/s. What is not linear takes hours.
const DECODE_TIME_MAX: Duration = Duration::from_secs(32);

/// How much the process may have needed at its highest in a run of its own: some copies of the largest value (its text, its unescaped
/// strings, what the damage is made from) in each of two threads.
const MEMORY_MIB_MAX: u64 = 700;

/// A decoder: says what it made of the bytes, in a few words.
type Target = fn(&[u8]) -> String;

fn paris() -> ClusterName {
    ClusterName::parse("paris").unwrap()
}

/// Decodes a value under the name that the key of a good one has.
fn decode(kind: Kind, name: &str, value: &[u8]) -> String {
    let cluster = paris();
    let context = Context { cluster: &cluster, cluster_id: ClusterId(1), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    match wire::decode(&EntryKey::new(kind, paris(), name), value, &context) {
        Ok(object) => format!("a {}", object.kind()),
        Err(reason) => {
            assert!(!reason.is_empty() && reason.chars().count() <= 301 && !reason.chars().any(char::is_control), "{reason:?}");
            reason
        }
    }
}

/// The good values of one kind, as they would be in paris.
fn values(base: &str) -> Vec<Vec<u8>> {
    let lines = include_str!("../data/samples.jsonl").lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_kind = lines.filter(|line| line["key"].as_str().unwrap().contains(base));
    of_kind
        .map(|line| {
            let text = line["value"].as_str().unwrap();
            if line["encoding"] == "base64" { BASE64.decode(text).unwrap() } else { text.replace("tokyo", "paris").into_bytes() }
        })
        .collect()
}

/// What of a decoder's words tells one of its ways from another.
fn way(said: &str) -> String {
    let mut way = String::new();
    let mut quoted = false;
    for character in said.chars() {
        quoted ^= character == '"';
        if !quoted && !character.is_ascii_digit() {
            way.push(character);
        }
    }
    way
}

fn seconds() -> Option<f64> {
    std::env::var("FUZZ_SECONDS").ok()?.parse().ok()
}

/// Runs one target for its time.
fn fuzz(name: &str, mut corpus: Vec<Vec<u8>>, target: Target) {
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let mut random = StdRng::seed_from_u64(seed);
    let mut ways: BTreeSet<String> = corpus.iter().map(|value| way(&target(value))).collect();
    let timed = |bytes: &[u8]| {
        let started = Instant::now();
        let said = target(bytes);
        assert!(started.elapsed() < DECODE_TIME_MAX, "{name}, seed {seed}: {} bytes take {:?}", bytes.len(), started.elapsed());
        said
    };
    let huge = if seconds().is_some() { usize::MAX } else { 2 };
    for bytes in mutate::huge(&corpus).take(huge) {
        assert_eq!(bytes.len(), mutate::HUGE);
        timed(&bytes);
    }
    let deadline = Instant::now() + Duration::from_secs_f64(seconds().unwrap_or(SECONDS_DEFAULT));
    let mut count = 0_u64;
    while Instant::now() < deadline {
        let bytes = mutate::mutated(&mut random, &corpus);
        if ways.insert(way(&timed(&bytes))) {
            corpus.push(bytes);
        }
        count += 1;
    }
    println!("{name}: {count} values, {} ways, seed {seed}", ways.len());
    if seconds().is_some() {
        assert!(memory_mib() < MEMORY_MIB_MAX, "{name}: the process needed {} MiB", memory_mib());
    }
}

/// The most memory that the process ever had (`VmHWM`), in MiB.
fn memory_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() / 1024
}

#[test]
fn no_bytes_break_the_reader_of_nodes() {
    fuzz("nodes", values("/nodes/v1/"), |bytes| decode(Kind::Node, "paris-worker-2", bytes));
}

#[test]
fn no_bytes_break_the_reader_of_services() {
    fuzz("services", values("/services/v1/"), |bytes| decode(Kind::Service, "shop/cart", bytes));
}

#[test]
fn no_bytes_break_the_reader_of_identities() {
    fuzz("identities", values("/identities/v1/"), |bytes| decode(Kind::Identity, "68352", bytes));
}

#[test]
fn no_bytes_break_the_reader_of_ip_entries() {
    fuzz("ip entries", values("/ip/v1/"), |bytes| decode(Kind::Ip, "10.1.2.40", bytes));
}

#[test]
fn no_bytes_break_the_reader_of_service_exports() {
    fuzz("service exports", values("/serviceexports/v1/"), |bytes| decode(Kind::ServiceExport, "shop/cart", bytes));
}

#[test]
fn no_bytes_break_the_unpacking_of_endpoint_slices() {
    fuzz("packed endpoint slices", values("/endpointslices/v1/"), |bytes| decode(Kind::EndpointSlice, "shop/cart-kvlm2", bytes));
}

/// The same with the damage inside, so that it gets past zstd; what is huge outside is a bomb here.
#[test]
fn no_bytes_break_the_reader_of_endpoint_slices() {
    let messages = values("/endpointslices/v1/").iter().filter_map(|packed| zstd::decode_all(&packed[..]).ok()).collect();
    fuzz("endpoint slices", messages, |message| decode(Kind::EndpointSlice, "shop/cart-kvlm2", &zstd::encode_all(message, 1).unwrap()));
}

#[test]
fn no_bytes_break_the_reader_of_cluster_configs() {
    fuzz("cluster configs", values("cilium/cluster-config/"), |bytes| match parse_cluster_config(bytes) {
        Ok(config) => format!("a config, cached {}", config.cached),
        Err(reason) => reason,
    });
}

#[test]
fn no_bytes_break_the_reader_of_keys() {
    let lines = include_str!("../data/samples.jsonl").lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let keys = lines.map(|line| line["key"].as_str().unwrap().as_bytes().to_vec()).collect();
    fuzz("keys", keys, |key| {
        let mut said = String::new();
        for cached in [false, true] {
            for kind in Kind::ALL {
                said += &keys::entry_key(kind, &paris(), cached, key).map_or_else(|reason| way(&reason), |key| key.kind.to_string());
            }
            said += keys::canary_kind(key, &paris(), cached).map_or("", Kind::api_name);
        }
        let text = String::from_utf8_lossy(key);
        if let Some(entry) = EntryKey::from_cache_form(&text) {
            assert_eq!(entry.to_string(), text, "a key must read back");
        }
        said
    });
}

#[test]
fn no_bytes_break_the_readers_of_files_selectors_and_positions() {
    let file = b"endpoints:\n- https://tokyo.mesh.cilium.io:2379\ntrusted-ca-file: /ca.crt\nkey-file: /a.key\ncert-file: /a.crt\n".to_vec();
    let selector = b"app in (cart,till),!k8s:zone,tier!=web,a==b".to_vec();
    fuzz("files, selectors and positions", vec![file, selector, b"v1.0000000000000abc.42".to_vec()], |bytes| {
        // a YAML reader's time is not linear in nonsense, and files are small
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64 << 10)]).into_owned();
        let file = ClientFile::parse(text.as_bytes()).map_or_else(|error| error.to_string(), |_| "a file".into());
        let selector = LabelSelector::parse(&text).map_or_else(|error| error.to_string(), |_| "a selector".into());
        let position = text.parse::<Position>().map_or("", |_| "a position");
        format!("{file} {selector} {position}").chars().take(400).collect()
    });
}
