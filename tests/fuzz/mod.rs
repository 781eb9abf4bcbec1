//! Fuzz tests of every decoder of foreign bytes: no input may cause a panic, long runtime or
//! unbounded memory.
//!
//! There is no coverage guidance. Instead, inputs that lead to a new error message (apart from
//! numbers and quoted texts) are mutated further. `FUZZ_SECONDS` sets the time per target
//! (`just fuzz SECONDS`); the usual tests run for a moment.

mod mutate;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use meshkeep::internals::client_file::ClientFile;
use meshkeep::internals::handle::LabelSelector;
use meshkeep::internals::model::{ClusterId, ClusterName, EntryKey, Kind, MaxConnectedClusters, Position};
use meshkeep::internals::wire::cluster_config::parse_cluster_config;
use meshkeep::internals::wire::{self, Context, keys};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// Time per target in the usual tests, in seconds.
const SECONDS_DEFAULT: f64 = 0.5;

/// Maximum processor time per value in a debug build: 16 MiB at 0.5 MB/s. Anything that is not
/// linear would take hours.
const DECODE_TIME_MAX: Duration = Duration::from_secs(32);

/// Upper bound on a decoder's peak memory per byte of input. The worst case is a list of the
/// shortest items: an item of two bytes (`0,`) becomes a `String` of 24 bytes in a `Vec` that
/// doubles its capacity.
const PEAK_PER_BYTE_MAX: u64 = 48;

/// Memory that a decoder may use in addition: twice the maximum size of a decompressed zstd frame.
const PEAK_BASE_MAX: u64 = 64 << 20;

/// Maximum number of messages and inputs that are remembered, so that the harness's own memory does
/// not grow with the speed of the machine.
const CORPUS_MAX: usize = 4_096;

/// A decoder. It returns a short description of its result.
type Target = fn(&[u8]) -> String;

fn paris() -> ClusterName {
    ClusterName::parse("paris").unwrap()
}

/// Decodes a value under the key of a valid one.
fn decode(kind: Kind, name: &str, value: &[u8]) -> String {
    let cluster = paris();
    let context = Context { cluster: &cluster, cluster_id: ClusterId(1), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    match wire::decode(&EntryKey::new(kind, paris(), name), value, &context) {
        Ok(object) => {
            // the mirror stores only the bytes, and decodes them later without the context in which
            // they arrived
            let default_context =
                Context { cluster: &cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
            let redecoded =
                (value.len() < mutate::HUGE).then(|| wire::decode(&EntryKey::new(kind, paris(), name), value, &default_context));
            assert!(redecoded.is_none_or(|redecoded| redecoded.as_ref() == Ok(&object)), "the object must not depend on the context");
            if let Some(slice) = object.as_endpoint_slice() {
                // an accepted slice is decoded on request, which must succeed
                assert_eq!(slice.decoded().name, name.split_once('/').expect("must have a namespace").1);
            }
            format!("a {}", kind)
        }
        Err(reason) => {
            assert!(!reason.is_empty() && reason.chars().count() <= 301 && !reason.chars().any(char::is_control), "{reason:?}");
            reason
        }
    }
}

/// Returns the valid sample values of one kind, as the cluster paris would write them.
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

/// Returns a message without its digits and quoted texts.
fn message_shape(message: &str) -> String {
    let mut shape = String::new();
    let mut is_quoted = false;
    for character in message.chars() {
        is_quoted ^= character == '"';
        if !is_quoted && !character.is_ascii_digit() {
            shape.push(character);
        }
    }
    shape
}

fn seconds() -> Option<f64> {
    std::env::var("FUZZ_SECONDS").ok()?.parse().ok()
}

/// Returns the processor time of this thread, which does not depend on the load of the machine.
fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Runs one target for the time in `FUZZ_SECONDS`.
fn fuzz(name: &str, mut corpus: Vec<Vec<u8>>, target: Target) {
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let mut random = StdRng::seed_from_u64(seed);
    let mut message_shapes: BTreeSet<String> = corpus.iter().map(|value| message_shape(&target(value))).collect();
    let mut peak_per_byte_max = 0;
    let mut run = |bytes: &[u8]| {
        let (mut message, started) = (String::new(), thread_time());
        let peak = allocation_counter::measure(|| message = target(bytes)).bytes_max;
        let elapsed = thread_time() - started;
        assert!(elapsed < DECODE_TIME_MAX, "{name}, seed {seed}: {} bytes take {elapsed:?}", bytes.len());
        assert!(peak <= PEAK_BASE_MAX + PEAK_PER_BYTE_MAX * bytes.len() as u64, "{name}, seed {seed}: {} bytes need {peak}", bytes.len());
        if bytes.len() >= mutate::HUGE {
            peak_per_byte_max = peak_per_byte_max.max(peak / bytes.len() as u64);
        }
        message_shape(&message)
    };
    let huge_count = if seconds().is_some() { usize::MAX } else { 2 };
    for bytes in mutate::huge(&corpus).take(huge_count) {
        assert_eq!(bytes.len(), mutate::HUGE);
        run(&bytes);
    }
    let deadline = Instant::now() + Duration::from_secs_f64(seconds().unwrap_or(SECONDS_DEFAULT));
    let mut count = 0_u64;
    while Instant::now() < deadline {
        let bytes = mutate::mutated(&mut random, &corpus);
        let shape = run(&bytes);
        if message_shapes.len() < CORPUS_MAX {
            if message_shapes.insert(shape) {
                corpus.push(bytes);
            }
        } else if !message_shapes.contains(&shape) {
            let index = random.random_range(0..corpus.len());
            corpus[index] = bytes;
        }
        count += 1;
    }
    println!(
        "{name}: {count} values, {} different messages, at most {peak_per_byte_max} bytes of memory per byte of a large value, seed {seed}",
        message_shapes.len()
    );
}

#[test]
fn any_bytes_are_safe_to_decode_as_nodes() {
    fuzz("nodes", values("/nodes/v1/"), |bytes| decode(Kind::Node, "paris-worker-2", bytes));
}

#[test]
fn any_bytes_are_safe_to_decode_as_services() {
    fuzz("services", values("/services/v1/"), |bytes| decode(Kind::Service, "shop/cart", bytes));
}

#[test]
fn any_bytes_are_safe_to_decode_as_identities() {
    fuzz("identities", values("/identities/v1/"), |bytes| decode(Kind::Identity, "68352", bytes));
}

#[test]
fn any_bytes_are_safe_to_decode_as_ip_entries() {
    fuzz("ip entries", values("/ip/v1/"), |bytes| decode(Kind::Ip, "10.1.2.40", bytes));
}

#[test]
fn any_bytes_are_safe_to_decode_as_service_exports() {
    fuzz("service exports", values("/serviceexports/v1/"), |bytes| decode(Kind::ServiceExport, "shop/cart", bytes));
}

#[test]
fn any_bytes_are_safe_to_decode_as_packed_endpoint_slices() {
    fuzz("packed endpoint slices", values("/endpointslices/v1/"), |bytes| decode(Kind::EndpointSlice, "shop/cart-kvlm2", bytes));
}

/// Endpoint slices are mutated before compression, so that the decoder gets past zstd. Huge
/// messages become decompression bombs.
#[test]
fn any_bytes_are_safe_to_decode_as_unpacked_endpoint_slices() {
    let messages = values("/endpointslices/v1/").iter().filter_map(|packed| zstd::decode_all(&packed[..]).ok()).collect();
    fuzz("endpoint slices", messages, |message| decode(Kind::EndpointSlice, "shop/cart-kvlm2", &zstd::encode_all(message, 1).unwrap()));
}

#[test]
fn any_bytes_are_safe_to_decode_as_cluster_configs() {
    fuzz("cluster configs", values("cilium/cluster-config/"), |bytes| match parse_cluster_config(bytes) {
        Ok(config) => format!("a config, cached {}", config.cached),
        Err(reason) => reason,
    });
}

#[test]
fn any_bytes_are_safe_to_decode_as_keys() {
    let lines = include_str!("../data/samples.jsonl").lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let keys = lines.map(|line| line["key"].as_str().unwrap().as_bytes().to_vec()).collect();
    fuzz("keys", keys, |key| {
        let mut messages = String::new();
        for cached in [false, true] {
            for kind in Kind::ALL {
                messages +=
                    &keys::entry_key(kind, &paris(), cached, key).map_or_else(|reason| message_shape(&reason), |key| key.kind.to_string());
            }
            messages += keys::canary_kind(key, &paris(), cached).map_or("", Kind::api_name);
        }
        let text = String::from_utf8_lossy(key);
        if let Some(entry) = EntryKey::from_cache_form(&text) {
            assert_eq!(entry.to_string(), text, "a key must round-trip");
        }
        messages
    });
}

#[test]
fn any_bytes_are_safe_to_parse_as_files_selectors_and_positions() {
    let file = b"endpoints:\n- https://tokyo.mesh.cilium.io:2379\ntrusted-ca-file: /ca.crt\nkey-file: /a.key\ncert-file: /a.crt\n".to_vec();
    let selector = b"app in (cart,till),!k8s:zone,tier!=web,a==b".to_vec();
    fuzz("files, selectors and positions", vec![file, selector, b"v1.0000000000000abc.42".to_vec()], |bytes| {
        // a YAML parser's time is not linear for random text, and files are small
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64 << 10)]).into_owned();
        let file = ClientFile::parse(text.as_bytes()).map_or_else(|error| error.to_string(), |_| "a file".into());
        let selector = LabelSelector::parse(&text).map_or_else(|error| error.to_string(), |_| "a selector".into());
        let position = text.parse::<Position>().map_or("", |_| "a position");
        format!("{file} {selector} {position}").chars().take(400).collect()
    });
}
